"""The test suites of Python (the interpreter's own), GNU tar and coreutils, the last two from Debian's sources."""

import os
import re
import sys
import xml.etree.ElementTree

import supply
from judges import LAB_DIRECTORY, Judge

PYTHON_MODULES = """
test_builtin test_bz2 test_cmd_line test_dbm test_fcntl test_file test_file_eintr test_fileinput test_fileio test_fork1
test_glob test_gzip test_import test_io test_largefile test_linecache test_mailbox test_mmap test_os test_pathlib
test_popen test_posix test_pty test_select test_shelve test_shutil test_signal test_socket test_sqlite3 test_subprocess
test_tarfile test_tempfile test_threadsignals test_tokenize test_wait3 test_wait4 test_zipfile
""".split()
# Waits for ever on a virtual machine whose host does not pass its own messages back to it.
PYTHON_LEFT_OUT = "*VSOCK*"
# Limit for one test module, in seconds. test_tarfile makes directories 126 deep, which takes
# minutes through a mount: each name of a path is a request to the PFS.
PYTHON_MODULE_S = 1800


class Python(Judge):
    """The interpreter's tests of files and processes."""

    name = "python"
    least = 1000
    reads = True

    def fetch(self):
        return None

    def prepare(self, way):
        _, said = way.call([sys.executable, "-c", "import test.libregrtest, test.test_os"])
        return f"{sys.executable} has no tests (Debian: libpython3-testsuite)" if said else None

    def run(self, way, only=()):
        place = self.fresh(way)
        report = self.target / f"python.{way.name}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "test", "--junit-xml", report, "--tempdir", place, "-j", self.options.jobs]
        command += ["--ignore", PYTHON_LEFT_OUT, "--timeout", PYTHON_MODULE_S]
        for test in only:
            command += ["-m", test]
        modules = sorted({test.split(".")[1] for test in only}) or PYTHON_MODULES
        # Workers of newer versions do not know of --tempdir.
        _, said = way.call([*command, *modules], cwd=place, env={"TMPDIR": str(place)})
        self.log(way, said)
        return self.results(report, modules) if report.exists() else {}

    @staticmethod
    def results(report, modules):
        """The results in a report; a module that is not in it did not end, and failed."""
        found = {}
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            bad = any(case.find(kind) is not None for kind in ("failure", "error"))
            name = case.get("name")
            result = "failed" if bad else "skipped" if case.find("skipped") is not None else "ok"
            found[name if name.startswith("test.") else f"test.{name}"] = result
        seen = {name.split(".")[1] for name in found}
        return found | {f"test.{module}": "failed" for module in modules if module not in seen}


class Source(Judge):
    """A suite that comes with the sources of a Debian package, built on the file system under test."""

    least = 100
    reads = True

    def fetch(self):
        needs = {"cc": "build-essential", "make": "build-essential"}
        return supply.packages(needs) or supply.source(self.name, self.options.sources)

    def prepare(self, way):
        place = self.place(way)
        if (place / "built").exists():
            return None
        supply.unpack(self.name, self.options.sources, place)
        environment = dict(os.environ, FORCE_UNSAFE_CONFIGURE="1")
        for command in (["./configure", "--quiet", "--disable-nls"], ["make", "-s", f"-j{self.options.jobs}"]):
            if why := supply.run(command, cwd=place, env=environment):
                return why
        (place / "built").touch()
        return None


class Tar(Source):
    """GNU tar's suite, by Autotest."""

    name = "tar"
    # It writes 10 GB, for which the lab's servers have no room; MooseFS then waits for ever.
    LEFT_OUT_IN_LAB = "-k !sparse05"
    # Tar finds a directory "changed as we read it".
    late_sizes = [
        "24: Directory",
        "59: exclude",
        "88: restoring mode on existing directory",
        "91: scarce file descriptors",
        "120: renamed files in incrementals",
        "121: proper icontents initialization",
        "135: cyclic renames",
    ]

    def run(self, way, only=()):
        chosen = " ".join(name.split(":")[0] for name in only)
        if not only and LAB_DIRECTORY in os.environ:
            chosen = self.LEFT_OUT_IN_LAB
        command = ["make", "check", f"TESTSUITEFLAGS=-j{self.options.jobs} {chosen}"]
        _, said = way.call(command, cwd=self.place(way))
        self.log(way, said)
        words = {"ok": "ok", "skipped": "skipped", "expected failure": "ok", "FAILED": "failed"}
        lines = re.findall(r"^ *(\d+: .*?) +(ok|skipped|expected failure|FAILED)\b.*$", said, re.M)
        return {name: words[result] for name, result in lines}


class Coreutils(Source):
    """The suite of coreutils, by Automake."""

    name = "coreutils"
    # Programs treat a FUSE file system differently: `tail` does not use inotify there. And the
    # source of a mount is a directory, in which `df` finds another file system.
    inherent = {
        "mount": [
            "tests/df/df-symlink.sh",
            *(f"tests/tail-2/inotify-{what}.sh" for what in ("dir-recreate", "race", "race2", "rotate-resources")),
        ]
    }
    late_sizes = ["tests/du/basic.sh"]

    def run(self, way, only=()):
        command = ["make", "-k", f"-j{self.options.jobs}", "check-TESTS", "SUBDIRS=."]
        if only:
            command.append("TESTS=" + " ".join(only))
        _, said = way.call(command, cwd=self.place(way), env={"VERBOSE": "no"})
        self.log(way, said)
        words = {"PASS": "ok", "XFAIL": "ok", "SKIP": "skipped"}
        lines = re.findall(r"^(PASS|FAIL|SKIP|XFAIL|XPASS|ERROR): (\S+)$", said, re.M)
        return {name: words.get(result, "failed") for result, name in lines}
