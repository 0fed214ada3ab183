"""Files overwritten in place on MooseFS, read at once on another node. In the lab, as root; FOREBAY_REQUIRE_LAB=moosefs forbids leaving it out."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY, binary

SIZE = 300_000
FILES = 4

# Holds a file open and overwrites it when a line arrives.
WRITER = f"""
import sys, forebay
path, mode = sys.argv[1:]
if mode == "r+b":
    forebay.open(path, "wb").close()
with forebay.open(path, mode) as file:
    file.write(b"1" * {SIZE})
    file.flush()
    print("written", flush=True)
    sys.stdin.readline()
    file.seek(0)
    file.write(b"2" * {SIZE})
print("closed", flush=True)
"""

# Prints what is in each file that a line names, and how much of it is in the tier.
READER = """
import sys, forebay
for line in sys.stdin:
    path = line.strip()
    with forebay.open(path, "rb") as file:
        print(sorted(set(file.read().decode())), forebay.residency(path)["resident_bytes"], flush=True)
"""


def obstacle():
    if os.geteuid() != 0:
        return "a lab needs root"
    if not os.path.exists("/dev/fuse"):
        return "a lab needs /dev/fuse"
    missing = [program for program in ("ip", "tc", "mfsmaster", "mfschunkserver", "mfsmount") if not shutil.which(program)]
    return f"{missing} are not installed" if missing else None


class Lab:
    def __init__(self, name, directory):
        self.name = name
        self.directory = directory

    def command(self, verb, *args):
        return [binary(), "lab", verb, "--name", self.name, *args]

    def up(self):
        options = ("--pfs=moosefs", "--servers=2", "--nodes=2", "--store=1GiB", "--rate=40MB/s", f"--dir={self.directory}")
        subprocess.run(self.command("up", *options), check=True, capture_output=True)

    def down(self):
        subprocess.run(self.command("down"), check=True, capture_output=True)

    def path(self, name):
        return os.path.join(self.directory, "pfs", name)

    def python(self, node, code, *args):
        command = self.command("run", "--node", node, "--", sys.executable, "-c", code, *args)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if why := obstacle():
        assert "moosefs" not in os.environ.get("FOREBAY_REQUIRE_LAB", "").split(","), why
        pytest.skip(why)
    lab = Lab(f"p{os.getpid()}", tmp_path_factory.mktemp("lab"))
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.mark.parametrize("mode", ["r+b", "wb"])
def test_an_overwrite_in_place_on_moosefs_is_seen_at_once_on_another_node(lab, mode):
    paths = [lab.path(f"{mode}-{i}") for i in range(FILES)]
    writers = [lab.python("c1", WRITER, path, mode) for path in paths]
    reader = lab.python("c2", READER)
    assert [writer.stdout.readline() for writer in writers] == ["written\n"] * FILES
    deadline = time.monotonic() + 60
    # Or this is no test of the tier.
    while (seen := [ask(reader, path) for path in paths]) != [f"['1'] {SIZE}"] * FILES:
        assert time.monotonic() < deadline, seen
        time.sleep(0.5)
    for writer, path in zip(writers, paths):
        assert ask(writer, "go on") == "closed"
        assert ask(reader, path).startswith("['2'] "), "the old bytes of the tier, after the close"
    for process in [*writers, reader]:
        process.stdin.close()
        assert process.wait(timeout=30) == 0
