"""Each example is killed in the middle of its run, restarted from its newest whole checkpoint, and ends as one that was not killed.

    make test-examples

An example whose packages are not installed is skipped with the reason. $FOREBAY_ORBAX is a Python that has Orbax and JAX
(`make test-examples` installs them in target/orbax).
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
# Debian's packages belong to Debian's Python.
PYTHON = "/usr/bin/python3"
PATIENCE_S = 120


def binary():
    """The program `forebay`: $FOREBAY_BIN, or what cargo has built last."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    built = [path for path in (target / "release/forebay", target / "debug/forebay") if path.exists()]
    given = os.environ.get("FOREBAY_BIN")
    if not given and not built:
        raise unittest.SkipTest(f"no forebay program in {target}: run `cargo build`, or set FOREBAY_BIN")
    return os.path.abspath(given) if given else str(max(built, key=lambda path: path.stat().st_mtime))


def require(*programs, modules=(), python=PYTHON):
    """Skips the test if something is not installed."""
    for program in programs:
        if not shutil.which(program):
            raise unittest.SkipTest(f"{program} is not installed")
    for module in modules:
        found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True)
        if found.returncode:
            raise unittest.SkipTest(f"{python} has no {module}: {found.stderr.strip().splitlines()[-1:]}")


def number_after(words, text):
    found = re.findall(rf"{words} (\d+)", text)
    return int(found[-1]) if found else None


class Restart(unittest.TestCase):
    """An agent over a plain directory that stands for the PFS."""

    # Longer than the program pauses within a checkpoint, shorter than between two.
    GAP_MS = 100
    READS_PINNED_ONLY = True

    def setUp(self):
        self.forebay = binary()
        self.scratch = Path(tempfile.mkdtemp(prefix="forebay-example-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.pfs = self.scratch / "pfs"
        self.directory = self.pfs / "run"
        self.directory.mkdir(parents=True)
        self.state = self.scratch / "state"
        self.environment = {**os.environ, "FOREBAY_SOCKET": str(self.state / "agent.sock")}
        self.environment |= {"FOREBAY_TIER_CHECKPOINT_GAP_MS": str(self.GAP_MS), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
        self.environment |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        # One core for each process: other tests run beside this one.
        self.environment |= {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        for name in ("FOREBAY_JOB", "FOREBAY_JOB_NAME", "FOREBAY_QUIET"):
            self.environment.pop(name, None)
        config = ("--state-dir", str(self.state), "--capacity", "512MiB", "--log", str(self.scratch / "log"))
        self.tell("up", "--pfs", str(self.pfs), *config)
        self.addCleanup(subprocess.run, [self.forebay, "down", "--drop", "--state-dir", str(self.state)], capture_output=True)

    def tell(self, *words):
        done = subprocess.run([self.forebay, *words], env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        return done.stdout

    def sets(self):
        rules = json.loads(self.tell("checkpoint", "list", "--json"))
        return rules[0]["sets"] if rules else []

    def whole(self):
        """Sets that are whole, in the tier, and on the PFS."""
        stays = lambda s: s["state"] == "whole" and s["held"] and s["in_memory"] == s["on_pfs"] == s["files"]
        return [s for s in self.sets() if stays(s)]

    def counter(self, name):
        return json.loads(self.tell("status", "--json"))["counters"][name]

    def wait(self, what, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, f"waited in vain for {what}: {self.sets()}")
            time.sleep(0.05)

    def write_back(self):
        return [self.forebay, "run", "--write-back", str(self.directory), "--keep", "2", "--marker", "COMPLETE", "--"]

    def start(self, command):
        out = open(self.scratch / "out", "w+")
        self.addCleanup(out.close)
        options = {"env": self.environment, "stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, start_new_session=True, **options)

    def said(self):
        return (self.scratch / "out").read_text(errors="replace")

    def run_to_end(self, command):
        process = self.start(command)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(code, 0, self.said()[-4000:])
        return self.said()

    def kill_in_the_middle(self, command):
        """Kills all processes of the run once two checkpoints are whole; returns the files of the newest whole one."""
        process = self.start(command)
        try:
            self.wait("two checkpoints", lambda: len(self.whole()) >= 2 or process.poll() is not None)
            self.assertIsNone(process.poll(), f"it has ended before it was killed: {self.said()[-4000:]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.wait("the end of what was killed", lambda: all(s["state"] != "writing" for s in self.sets()))
        self.tell("sync", "--quiet")
        self.wait("the newest checkpoint in the tier", lambda: self.sets()[-1]["state"] != "whole" or self.sets()[-1] in self.whole())
        paths = self.tell("checkpoint", "newest", str(self.directory)).splitlines()
        self.assertTrue(paths)
        if self.READS_PINNED_ONLY:
            self.tell("evict", "--all")
        return paths

    def assert_from_tier(self, fetched_before, paths):
        self.assertEqual(self.counter("fetched_bytes"), fetched_before, "the restart read the file system")
        # Byte for byte: this reads the PFS, past the tier.
        verified = self.tell("verify", *paths)
        self.assertNotIn("differ", verified.replace("0 differ", ""))

    def restart_ends_as(self, undisturbed, first, restart):
        """`restart` makes the command of the paths of the newest checkpoint."""
        paths = self.kill_in_the_middle(first)
        before, opens = self.counter("fetched_bytes"), self.counter("opens_cached_total")
        said = self.run_to_end(restart(paths))
        begun = number_after("begins at step", said)
        self.assertGreater(begun, 0, said)
        self.assertGreater(self.counter("opens_cached_total"), opens, "nothing was opened through the tier")
        self.assertEqual(re.findall("ends at .*", said), re.findall("ends at .*", undisturbed))
        self.assert_from_tier(before, [path for path in paths if os.path.exists(path)])
        self.assertTrue(list(self.directory.rglob("COMPLETE")), "no marker")
        return begun, paths


class TestTorch(Restart):
    def test_torch_save(self):
        require(modules=("torch",))
        program = [PYTHON, str(HERE / "train.py")]
        alone = self.scratch / "alone"
        alone.mkdir()
        steps = "300"
        undisturbed = self.run_to_end([*program, str(alone), steps])
        shutil.rmtree(alone)
        run = [*self.write_back(), *program, str(self.directory), steps]
        begun, paths = self.restart_ends_as(undisturbed, run, lambda paths: [*run, "--from", paths[0]])
        self.assertIn(f"{begun}.pt", {os.path.basename(path) for path in paths})


class TestHdf5(Restart):
    def test_ranks_that_share_a_file(self):
        require("mpirun", modules=("mpi4py", "h5py._debian_h5py_mpi"))
        program = [PYTHON, str(HERE / "hdf5.py")]
        mpirun = ["mpirun", "-n", "2"]
        alone = self.scratch / "alone"
        alone.mkdir()
        steps = "500"
        undisturbed = self.run_to_end([*mpirun, *program, str(alone), steps])
        run = [*mpirun, *self.write_back(), *program, str(self.directory), steps]
        begun, paths = self.restart_ends_as(undisturbed, run, lambda paths: [*run, "--from", paths[0]])
        self.assertIn(f"{begun}.h5", {os.path.basename(path) for path in paths})


class TestLammps(Restart):
    def test_lammps(self):
        require("lmp")
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            self.skipTest("LAMMPS reads through C's stdio, which the tier serves by a mount: root and /dev/fuse")
        steps = 20_000

        def lmp(start, until):
            variables = {"dir": self.directory, "again": int(start is not None), "from": start, "steps": until}
            return ["lmp", "-log", "none", "-in", str(HERE / "melt.in"), *sum((["-var", k, str(v)] for k, v in variables.items()), [])]

        paths = self.kill_in_the_middle([*self.write_back(), *lmp(None, steps)])
        killed = dict(re.findall(r"^ +(\d+) +(\S+)", self.said(), re.MULTILINE))
        before = self.counter("fetched_bytes")
        step = int(re.search(r"(\d+)\.restart", paths[-1]).group(1))
        said = self.run_to_end([self.forebay, "run", "--mount", "--", *lmp(paths[-1], step + 100)])
        self.assert_from_tier(before, paths)
        again = dict(re.findall(r"^ +(\d+) +(\S+)", said, re.MULTILINE))
        # The potential energy of the checkpoint's step, from its positions.
        self.assertAlmostEqual(float(again[str(step)]), float(killed[str(step)]), places=7)
        self.assertIn(str(step + 100), again)


class TestOrbax(Restart):
    GAP_MS = 1000
    # At its start it also looks into the metadata of older steps, which are not pinned.
    READS_PINNED_ONLY = False

    def test_orbax(self):
        python = os.environ.get("FOREBAY_ORBAX", str(REPOSITORY / "target/orbax/bin/python"))
        require(python, modules=("orbax.checkpoint",), python=python)
        program = [python, str(HERE / "orbax_train.py")]
        steps = "400"
        undisturbed = self.run_to_end([*program, str(self.scratch / "alone"), steps])
        run = [*self.write_back(), *program, str(self.directory), steps]
        # However fast the machine is, checkpoints are further apart than the gap of their sets.
        self.restart_ends_as(undisturbed, [*run, "--pause", "0.03"], lambda _: [*run, "--resume"])


if __name__ == "__main__":
    unittest.main()
