"""Files that nodes hand over to each other through mounts. In the lab, as root.

FOREBAY_REQUIRE_LAB=moosefs,glusterfs forbids leaving it out.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import REPOSITORY, binary

PROGRAMS = {
    "moosefs": ("mfsmaster", "mfschunkserver", "mfsmount"),
    "glusterfs": ("glusterfsd", "glusterfs"),
}


def obstacle(pfs):
    if os.geteuid() != 0:
        return "a lab needs root"
    if not os.path.exists("/dev/fuse"):
        return "a lab needs /dev/fuse"
    missing = [program for program in ("ip", "tc", *PROGRAMS[pfs]) if not shutil.which(program)]
    return f"{missing} are not installed" if missing else None


@pytest.mark.parametrize("pfs", PROGRAMS)
def test_what_one_node_has_closed_is_right_when_the_other_opens_it(pfs):
    if why := obstacle(pfs):
        assert pfs not in os.environ.get("FOREBAY_REQUIRE_LAB", "").split(","), why
        pytest.skip(why)
    tool = REPOSITORY / "python/posix/hand_over.py"
    command = [sys.executable, tool, binary(), "--lab", pfs, "--count", "1500", "--files", "300"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        # It takes its lab down.
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        pytest.fail(f"no end in five minutes: {said}")
    assert process.returncode == 0, said
