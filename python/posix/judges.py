"""Programs that test a file system. Each result is `ok`, `skipped` or `failed`, by the name of the test."""

import os
import re
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

import supply

# What the lab sets.
LAB_DIRECTORY = "FOREBAY_LAB_PFS"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Judge(ABC):
    """A program that tests the file system below a directory."""

    name = ""
    # If fewer tests pass on the PFS, the comparison is invalid.
    least = 1
    # A command of a test that runs longer is killed, and has failed.
    longest_s = 1800
    # Whether it reads files that nobody has open for writing, so the tier serves some.
    reads = False
    # Tests that must differ, by the name of the way.
    inherent = {}
    # More of them through a mount in the lab. MooseFS's size of a directory counts the files below
    # it, and its client may show that of a second ago to a program that asked before. A mount asks
    # whenever a name is looked up.
    late_sizes = []

    def __init__(self, options):
        self.options = options
        if LAB_DIRECTORY in os.environ:
            self.inherent = self.inherent | {"mount": [*self.inherent.get("mount", []), *self.late_sizes]}
        # Outside the PFS: programs, sources, logs.
        self.target = options.target

    def place(self, way):
        """The judge's directory on the PFS."""
        return way.directory / self.name

    def fresh(self, way):
        """The same, empty."""
        place = self.place(way)
        remove(place)
        place.mkdir(parents=True)
        # Programs of other users work in it.
        place.chmod(0o777)
        return place

    @abstractmethod
    def fetch(self):
        """Downloads what is missing, which nodes of a lab cannot; returns why it cannot run."""

    def prepare(self, way):
        """Builds what is missing; returns why it cannot run."""
        del way

    @abstractmethod
    def run(self, way, only=()):
        """Runs all tests, or some; returns their results."""

    def log(self, way, said):
        """Appends the output of a program to the log of this judge and way."""
        with (self.target / f"{self.name}.{way.name}.log").open("a") as log:
            log.write(said)

    def commands(self, way, only, commands):
        """Runs a command for each test; the test passes if the command ends with 0."""
        results = {}
        for name, command in commands.items():
            if only and name not in only:
                continue
            code, said = way.call(command, cwd=self.place(way), longest_s=self.longest_s)
            self.log(way, f"=== {name}: {code}\n{said}")
            results[name] = self.judged(code)
        return results

    def judged(self, code):
        """The result that an exit code stands for."""
        return "failed" if code else "ok"


def remove(tree):
    """Removes a tree, also with files that a killed test has left immutable."""
    if not tree.exists():
        return
    try:
        shutil.rmtree(tree)
    except OSError:
        # Many file systems have no such flags; then the removal says why it fails.
        subprocess.run(["chattr", "-R", "-f", "-i", "-a", "--", tree], stderr=subprocess.DEVNULL, check=False)
        try:
            shutil.rmtree(tree)
        except OSError as error:
            raise SystemExit(f"posix: cannot remove {tree}, in which the next test begins: {error}") from error


class Pjdfstest(Judge):
    """POSIX calls on names, modes, owners and times. As root, it also tests as other users."""

    name = "pjdfstest"
    least = 150
    # The limit is from the C library, which knows ext4's and uses a default for FUSE.
    inherent = {"mount": ["link::link_count_max"]}

    def fetch(self):
        return supply.crate("pjdfstest", "0.2.2", self.options.tools)

    def prepare(self, way):
        config = self.target / "pjdfstest.toml"
        features = "".join(f"{name} = {{}}\n" for name in ("posix_fallocate", "rename_ctime", "utime_now", "utimensat", "stat_st_birthtime"))
        users = '[dummy_auth]\nentries = [["nobody", "nogroup"], ["games", "games"]]\n'
        config.write_text(f"[features]\n{features}[settings]\nnaptime = {self.options.stamp_s}\n{users}")

    def run(self, way, only=()):
        place = self.fresh(way)
        # The names of sockets may have 107 bytes, so the path must be short.
        with tempfile.TemporaryDirectory(prefix="p") as short:
            (Path(short) / "d").symlink_to(place)
            command = [self.options.tools / "bin/pjdfstest", "-c", self.target / "pjdfstest.toml", "-p", f"{short}/d"]
            if only:
                command += ["--exact", "--", *(f"pjdfstest::tests::{name}" for name in only)]
            Path(short).chmod(0o755)
            _, said = way.call(command, cwd=place)
        said = COLOURS.sub("", said)
        self.log(way, said)
        words = {"ok": "ok", "skipped": "skipped", "FAILED": "failed"}
        return {name: words[result] for name, result in re.findall(r"^(\S+::\S+) +(ok|skipped|FAILED)$", said, re.M)}


class Fsx(Judge):
    """Random operations on one file, each read compared with what was written."""

    name = "fsx"
    ALL = "close_open = 1\ninvalidate = 1\nfsync = 0.1\nfdatasync = 0.1\nposix_fallocate = 5\npunch_hole = 5\nsendfile = 5\nposix_fadvise = 2\ncopy_file_range = 5\n"
    # By the name of the test, the weights of the operations.
    KINDS = {
        "read and write": "mapread = 0\nmapwrite = 0\n",
        "read, write and close": "mapread = 0\nmapwrite = 0\nclose_open = 5\n",
        "mappings": "close_open = 1\n",
        "all operations": ALL,
        "all operations without mappings": f"mapread = 0\nmapwrite = 0\n{ALL}",
    }

    def fetch(self):
        return supply.crate("fsx", "0.3.2", self.options.tools)

    def prepare(self, way):
        for name, weights in self.KINDS.items():
            # It takes the error of an operation on no bytes for a missing call, and stops.
            (self.target / f"fsx {name}.toml").write_text(f"[opsize]\nmin = 1\n[weights]\n{weights}")

    def run(self, way, only=()):
        place = self.fresh(way)
        steps = self.options.ops // len(self.KINDS)
        program = [self.options.tools / "bin/fsx", "-N", steps, "-S", self.options.seed, "-P", self.target]
        commands = {name: [*program, "-f", self.target / f"fsx {name}.toml", place / "file"] for name in self.KINDS}
        return self.commands(way, only, commands)


class StressNg(Judge):
    """Debian's stress-ng: those of its file system stressors that use files."""

    name = "stress-ng"
    least = 20
    reads = True
    # Some never end on some file systems.
    longest_s = 60
    # Mounts, and files of the kernel.
    LEFT_OUT = ("bind-mount", "binderfs", "eventfd", "ioprio", "procfs")
    # Makes a file larger than the lab's servers; MooseFS's client then answers nobody any more.
    LEFT_OUT_IN_LAB = ("fsize",)
    SIZES = {"copy-file": "128M", "fallocate": "32M", "fiemap": "32M", "hdd": "32M", "iomix": "32M", "sync-file": "32M"}

    def fetch(self):
        return supply.packages({"stress-ng": "stress-ng"})

    def run(self, way, only=()):
        place = self.fresh(way)
        _, said = way.call(["stress-ng", "--class", "filesystem?"])
        found = said.partition("stressors:")[2].split()
        sizes = [word for name, size in self.SIZES.items() for word in (f"--{name}-bytes", size)]
        shared = ["--timeout", f"{self.options.seconds}s", "--verify", "--temp-path", place, *sizes]
        left_out = self.LEFT_OUT + (self.LEFT_OUT_IN_LAB if LAB_DIRECTORY in os.environ else ())
        names = [name for name in found if name not in left_out]
        return self.commands(way, only, {name: ["stress-ng", f"--{name}", "1", *shared] for name in names})

    def judged(self, code):
        # 3 and 4: it lacks resources, or the kernel or the file system does not have the call.
        return "skipped" if code in (3, 4) else super().judged(code)


class Fio(Judge):
    """fio: random writes, verified by the writer, then by a reader that only reads."""

    name = "fio"
    least = 10
    reads = True
    ENGINES = ("psync", "sync", "pvsync2", "mmap", "libaio", "io_uring", "posixaio")

    def fetch(self):
        return supply.packages({"fio": "fio"})

    def run(self, way, only=()):
        place = self.fresh(way)
        commands = {}
        for engine in self.ENGINES:
            for direct in (0, 1):
                name = f"{engine}{' direct' * direct}"
                file = place / name.replace(" ", "-")
                shared = ["fio", "--name=test", f"--filename={file}", f"--size={self.options.fio_size}", "--bsrange=4k-64k"]
                shared += [f"--ioengine={engine}", f"--direct={direct}", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--randrepeat=1"]
                commands[f"{name}: write"] = [*shared, "--rw=randwrite"]
                commands[f"{name}: read"] = [*shared, "--rw=randread"]
        # A file is written before it is read.
        only = {*only, *(name.replace("read", "write") for name in only)}
        return self.commands(way, only, commands)


class Sqlite(Judge):
    """SQLite's own test of several processes on one database, and its speed test's checksum."""

    name = "sqlite"
    least = 8
    reads = True
    JOURNALS = ("DELETE", "TRUNCATE", "PERSIST", "WAL")

    def fetch(self):
        needs = {"cc": "build-essential", "sqlite3": "sqlite3", "/usr/include/sqlite3.h": "libsqlite3-dev"}
        return supply.packages(needs) or supply.source("sqlite3", self.options.sources)

    def prepare(self, way):
        sources = self.target / "sqlite3"
        if not (sources / "mptest/mptest.c").exists():
            supply.unpack("sqlite3", self.options.sources, sources)
        for program, source in (("mptest", "mptest/mptest.c"), ("speedtest1", "test/speedtest1.c")):
            if why := supply.run(["cc", "-O1", "-w", "-o", self.target / program, sources / source, "-lsqlite3", "-lpthread"]):
                return why
        return None

    def run(self, way, only=()):
        place = self.fresh(way)
        commands = {}
        for journal in self.JOURNALS:
            for script in ("crash01", "multiwrite01"):
                name = f"{script} {journal}"
                command = [self.target / "mptest", place / f"{name}.db", self.target / f"sqlite3/mptest/{script}.test"]
                commands[name] = [*command, "--journalmode", journal, "--timeout", "300000"]
        speed = f"{self.target}/speedtest1 --verify --size 10"
        same = f"test \"$({speed} :memory: | grep Hash)\" = \"$({speed} speed.db | grep Hash)\""
        commands["speedtest1"] = ["sh", "-c", same]
        whole = "sqlite3 -readonly speed.db 'pragma integrity_check' | grep -x ok"
        commands["integrity_check"] = ["sh", "-c", whole]
        only = {*only, "speedtest1"} if "integrity_check" in only else only
        return self.commands(way, only, commands)
