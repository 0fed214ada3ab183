"""What computes beside the tier: HPL of Debian's hpcc, and a hog that takes memory at a given rate.

hpcc runs its other benchmarks first, for most of a minute, and cannot be told to leave them out. They run outside of the node; the process
is stopped when its HPL begins, and continues as a member of the node's group when the burst is due. So a burst is HPL and nothing else.
"""

import contextlib
import ctypes
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MPIRUN = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1", "hpcc"]
# Debian's BLAS for HPL where it is installed: the reference BLAS is twenty times as slow.
OPENBLAS = Path("/usr/lib") / (os.uname().machine + "-linux-gnu") / "openblas-serial"
READY_S = 600
POLL_S = 0.01
END_S = 300
BLOCK = 192
STEP_BYTES = 4 << 20

# As Debian's example, with one process; names are for people, hpcc counts lines.
INPUT = """HPLinpack benchmark input file

HPL.out      output file name (if any)
8            device out
1            # of problems sizes (N)
{n}          Ns
1            # of NBs
{block}      NBs
0            PMAP process mapping
1            # of process grids (P x Q)
1            Ps
1            Qs
16.0         threshold
1            # of panel fact
2            PFACTs
1            # of recursive stopping criterium
4            NBMINs
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs
1            # of broadcast
1            BCASTs
1            # of lookahead depth
1            DEPTHs
2            SWAP
64           swapping threshold
0            L1 in transposed form
0            U  in transposed form
1            Equilibration
8            memory alignment in double
##### This line is ignored
0            Number of additional problem sizes for PTRANS
1200         values of N
0            number of additional blocking sizes for PTRANS
40           values of NB
"""


class ComputeError(Exception):
    """HPL or the hog did not run; the message says why."""


# Debian's, by the programs that the experiment needs. HPL computes with the library.
PACKAGES = {"hpcc": "hpcc libopenblas0-serial", "mpirun": "openmpi-bin", "taskset": "util-linux"}

# Where the host takes free memory of a virtual machine, touching it again is slow.
REPORTING = Path("/sys/module/page_reporting")
HOLD = Path(__file__).resolve().parents[2] / "bench/hold_memory.py"


@contextlib.contextmanager
def held(size):
    """Keeps so much free memory from being given back to the host of a virtual machine, where that happens."""
    if not REPORTING.exists():
        yield
        return
    command = [sys.executable, str(HOLD), "--size-mb", str(size >> 20)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        if "held" not in process.stdout.readline():
            raise ComputeError(f"{HOLD.name} could not hold memory; its message is above")
        yield
    finally:
        process.terminate()
        process.wait()


class Hpl:
    """An hpcc that stops before its HPL. `core`: the core that it gets."""

    def __init__(self, place, n, core):
        place.mkdir()
        (place / "hpccinf.txt").write_text(INPUT.format(n=n, block=BLOCK))
        self.output = place / "hpccoutf.txt"
        self.pid = None
        environment = {**os.environ, "LD_LIBRARY_PATH": str(OPENBLAS)} if OPENBLAS.exists() else None
        with open(place / "log", "wb") as log:
            command = ["taskset", "-c", str(core), *MPIRUN]
            self.mpirun = subprocess.Popen(command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def prepare(self):
        """Waits until HPL is about to begin, and stops it there."""
        deadline = time.monotonic() + READY_S
        while "Begin of HPL section" not in self.said():
            if self.mpirun.poll() is not None or time.monotonic() > deadline:
                raise ComputeError(f"hpcc did not come to its HPL: {self.said().strip()[-200:] or 'it said nothing'}")
            time.sleep(POLL_S)
        self.pid = child_named(self.mpirun.pid, "hpcc")
        os.kill(self.pid, signal.SIGSTOP)

    def run(self, group):
        """HPL in the group; a Burst."""
        group.add(self.pid)
        began = time.time()
        os.kill(self.pid, signal.SIGCONT)
        try:
            code = self.mpirun.wait(END_S)
        except subprocess.TimeoutExpired:
            raise ComputeError(f"HPL did not end within {END_S} s") from None
        found = re.search(r"^HPL_time=([0-9.]+)", self.said(), re.MULTILINE)
        return Burst("HPL", began, time.time(), float(found.group(1)) if found and code == 0 else None)

    def said(self):
        try:
            return self.output.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def end(self):
        if self.mpirun.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.mpirun.pid, signal.SIGKILL)
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.mpirun.wait()


@dataclass(frozen=True)
class Burst:
    """`solve_s`: the time that HPL says it took to solve, None if it did not end well; others in seconds since 1970."""

    name: str
    began: float
    ended: float
    solve_s: float | None = None
    bytes_per_s: float | None = None


def child_named(parent, name):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, command, rest = re.match(r"(\d+) \((.*)\) (.*)", stat.read_text()).groups()
        except OSError:
            continue
        if int(rest.split()[1]) == parent and command == name:
            return int(pid)
    raise ComputeError(f"mpirun has no process {name}")


def hog(group, core, size, bytes_per_s, hold_s):
    """A hog in the group; a Burst, whose rate is the one that it reached. None for the rate: the kernel ended it."""
    began = time.time()
    command = ["taskset", "-c", str(core), sys.executable, __file__, str(size), str(bytes_per_s), str(hold_s)]
    done = subprocess.run(group.command(command), capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise ComputeError(f"the memory hog failed: {done.stderr.strip()[-200:]}")
    said = json.loads(done.stdout) if done.returncode == 0 else {"began": began, "rate": None}
    return Burst(f"{bytes_per_s / 1e9:g} GB/s", said["began"], time.time(), bytes_per_s=said["rate"])


def take(size, bytes_per_s, hold_s):
    """Touches memory at this rate, keeps it for `hold_s`; when it began and the rate that it reached."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Small pages are touched at 2 GB/s at most.
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    wall, start = time.time(), time.monotonic()
    for offset in range(0, size, STEP_BYTES):
        ahead_s = offset / bytes_per_s - (time.monotonic() - start)
        if ahead_s > 0:
            time.sleep(ahead_s)
        ctypes.memset(at + offset, 1, min(STEP_BYTES, size - offset))
    rate = size / (time.monotonic() - start)
    time.sleep(hold_s)
    return {"began": wall, "rate": rate}


if __name__ == "__main__":
    print(json.dumps(take(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
