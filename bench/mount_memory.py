"""Measures the memory of a mount's process while programs have many files open.

    python3 bench/mount_memory.py target/release/forebay [--files 12500] [--without-agent]

Each file is opened through the mount and read once, and stays open. The PFS is a tmpfs. Needs root.
The files belong to several processes, because each may open only as many as `ulimit -Hn` says. The
last column is what each open file adds.

Where the process of the mount may not open 100,000 files either, the memory that they would take is
computed from a half, a quarter or an eighth of them, and from half of that number. Tables double
when they are full, so only these numbers fill them alike.
"""

import argparse
import os
import pathlib
import resource
import subprocess
import tempfile

STEPS = 4
# The number of open files that the target is about.
TARGET_FILES = 100_000
# Open files that a mount keeps registered.
REGISTERED_MAX = 4096
FILE_BYTES = 5000
DIRECTORY_FILES = 1000


def main():
    """Prints a row for each number of open files."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("forebay", type=pathlib.Path, help="the program")
    arguments.add_argument("--files", type=int, default=TARGET_FILES)
    arguments.add_argument("--without-agent", action="store_true", help="reads come from the PFS")
    options = arguments.parse_args()
    if options.files < STEPS:
        arguments.error(f"--files: at least {STEPS}")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="forebay-mount-") as name:
        measure(options, pathlib.Path(name))


def measure(options, directory):
    """Mounts everything, and opens files in steps."""
    forebay = options.forebay.resolve()
    socket = directory / "agent" / "agent.sock"
    environment = dict(os.environ, FOREBAY_SOCKET="none" if options.without_agent else str(socket))
    pfs, mounted = directory / "pfs", directory / "mounted"
    pfs.mkdir()
    mounted.mkdir()

    def run(*command):
        subprocess.run([forebay, *command], env=environment, check=True, stdout=subprocess.DEVNULL)

    openers = []
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=0", "pfs", pfs], check=True)
    try:
        for number in range(options.files):
            path = pfs / name_of(number)
            if number % DIRECTORY_FILES == 0:
                path.parent.mkdir()
            path.write_bytes(number.to_bytes(8, "little") * (FILE_BYTES // 8))
        if not options.without_agent:
            # A copy takes whole pages, and those of its header.
            run("up", "--pfs", str(pfs), "--state-dir", str(socket.parent), "--capacity", "8GiB")
        run("mount", str(pfs), str(mounted))
        table(process_of(mounted), options.files, mounted, openers)
    finally:
        for opener in openers:
            opener.kill()
            opener.wait()
        for place in (mounted, pfs):
            subprocess.run(["umount", "--lazy", place], check=False)
        if not options.without_agent:
            subprocess.run([forebay, "down", "--drop", "--state-dir", socket.parent], env=environment, check=False,
                           stdout=subprocess.DEVNULL)


def table(pid, files, mounted, openers):
    """Opens the files in steps, and prints the memory after each."""
    print("| open files | resident, MiB | of it anonymous, MiB | shared, MiB | peak, MiB | bytes a file |")
    print("| --- | --- | --- | --- | --- | --- |")
    before = memory(pid)
    resident = []
    for step in range(STEPS + 1):
        count = files * step // STEPS
        if step > 0:
            open_files(mounted, files * (step - 1) // STEPS, count, openers)
        now = memory(pid)
        resident.append(now["VmRSS"])
        columns = (now["VmRSS"], now["RssAnon"], now["RssShmem"], now["VmHWM"])
        each = (now["VmRSS"] - before["VmRSS"]) / count if count else 0
        print(f"| {count:,} | {' | '.join(f'{b / (1 << 20):.1f}' for b in columns)} | {each:.0f} |", flush=True)
    times = TARGET_FILES // files
    # Below it, all files are registered, which takes more memory for each (registered.rs).
    is_linear = files // STEPS * (STEPS // 2) > REGISTERED_MAX
    if is_linear and times in (2, 4, 8) and times * files == TARGET_FILES:
        print(f"\n{TARGET_FILES:,} open files: {extrapolated(resident[STEPS // 2], resident[STEPS], times) / (1 << 20):.1f} MiB by extrapolation from {files // 2:,} and {files:,}")


def extrapolated(half, whole, times):
    """Memory with `times` as many files, from that with half of the files and with all."""
    return whole + (times - 1) * 2 * (whole - half)


def name_of(number):
    """A path as programs have them: a file in one of many directories."""
    return f"samples-{number // DIRECTORY_FILES:05}/image-{number:08}.jpeg"


def process_of(mounted):
    """The process that serves a mount."""
    for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--foreground" in words and bytes(mounted) in words:
            return int(line.parent.name)
    raise SystemExit(f"no process serves {mounted}")


def memory(pid):
    """What the kernel says of the memory of a process, in bytes."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.startswith(("Vm", "Rss")))
    return {name: int(value.split()[0]) << 10 for name, value in pairs}


def open_files(mounted, begin, end, openers):
    """Opens and reads the files from `begin` to `end`, in as many processes as that takes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = max(most - 100, 100) if most != resource.RLIM_INFINITY else end
    for first in range(begin, end, each):
        opener = subprocess.Popen(
            ["python3", "-c", OPEN, str(mounted), str(first), str(min(first + each, end)), str(DIRECTORY_FILES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        openers.append(opener)
        if opener.stdout.readline() != b"open\n":
            raise SystemExit(
                "a process could not open its files, for the reason above; if these are too many, use --files with a\n"
                "smaller number: the process of the mount may open no more than `ulimit -Hn` either"
            )


OPEN = """
import os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
mounted, first, end, each = sys.argv[1], *map(int, sys.argv[2:])
for number in range(first, end):
    fd = os.open(f"{mounted}/samples-{number // each:05}/image-{number:08}.jpeg", os.O_RDONLY)
    assert os.pread(fd, 8, 0) == number.to_bytes(8, "little")
print("open", flush=True)
sys.stdin.read()
"""


if __name__ == "__main__":
    main()
