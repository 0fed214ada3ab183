"""A control group that stands for a node: its memory limit, what is in use, and whom the kernel killed. Version 1 of the memory controller,
or version 2."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

REMOVE_S = 10


class NoMemoryController(Exception):
    """No control group can be made here; the message says why."""


@dataclass(frozen=True)
class Use:
    """Bytes: all that is charged; clean pages of files, which the kernel can take at once; tmpfs, which is the tier's but for a little."""

    charged: int
    clean: int
    tmpfs: int

    @property
    def used(self):
        """What counts as used, as docs/decisions/0028 defines it."""
        return self.charged - self.clean


def mounted(mountinfo):
    """The directory of the memory controller and whether it is of version 1, from the text of /proc/self/mountinfo."""
    v2 = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        where, kind, options = Path(before.split(" ")[4]), after.split(" ")[0], after.split(" ")[-1].split(",")
        if kind == "cgroup" and "memory" in options:
            return where, True
        if kind == "cgroup2":
            v2 = where
    if v2 is None:
        raise NoMemoryController("no control groups are mounted; see `man 7 cgroups`")
    return v2, False


def use(charged, stat, is_v1):
    """The Use, from the texts of the files of the kernel."""
    values = {name: int(value) for name, value in (line.split() for line in stat.splitlines())}
    prefix, dirty = ("total_", ("total_dirty", "total_writeback")) if is_v1 else ("", ("file_dirty", "file_writeback"))
    files = values[f"{prefix}active_file"] + values[f"{prefix}inactive_file"]
    return Use(charged, max(files - sum(values.get(name, 0) for name in dirty), 0), values.get(f"{prefix}shmem", 0))


class Group:
    """Made on entry, removed at the end; `limit` in bytes, None: no limit."""

    def __init__(self, name, limit):
        self.name, self.limit = name, limit

    def __enter__(self):
        parent, self.is_v1 = mounted(Path("/proc/self/mountinfo").read_text())
        self.directory = parent / self.name
        try:
            self.directory.mkdir()
            if self.limit is not None:
                self.file("memory.limit_in_bytes", "memory.max").write_text(str(self.limit))
        except OSError as error:
            with contextlib.suppress(OSError):
                self.directory.rmdir()
            raise NoMemoryController(f"{self.directory} cannot be a group with a memory limit ({error}); the experiment needs root") from None
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + REMOVE_S
        while self.directory.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.directory.rmdir()
            time.sleep(0.05)

    def file(self, v1, v2):
        return self.directory / (v1 if self.is_v1 else v2)

    def command(self, command):
        """The same command as a member of the group."""
        return ["sh", "-c", f'echo $$ > {self.directory}/cgroup.procs && exec "$0" "$@"', *map(str, command)]

    def add(self, pid):
        (self.directory / "cgroup.procs").write_text(str(pid))

    def use(self):
        charged = int(self.file("memory.usage_in_bytes", "memory.current").read_text())
        return use(charged, (self.directory / "memory.stat").read_text(), self.is_v1)

    def kills(self):
        return self.count(self.file("memory.oom_control", "memory.events"), "oom_kill")

    def limit_hits(self):
        """How often the limit stood in the way of an allocation, and the kernel reclaimed first."""
        if self.is_v1:
            return int((self.directory / "memory.failcnt").read_text())
        return self.count(self.directory / "memory.events", "max")

    @staticmethod
    def count(path, name):
        return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
