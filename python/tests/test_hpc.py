"""HPC jobs and their I/O phases, alone and under mpirun."""

import os
import shutil
import subprocess
import sys
import time

import pytest

import forebay
from conftest import REPOSITORY, binary


def jobs(agent):
    """What `forebay jobs --hpc` shows."""
    line = [binary(), "--socket", agent.socket, "jobs", "--hpc"]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def wait_for(done):
    """Until the agent has heard what is not acknowledged."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def plan_log(agent):
    """What `forebay plan log` shows."""
    line = [binary(), "--socket", agent.socket, "plan", "log", "--last", "100"]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def test_a_phase_is_on_the_board_while_it_lasts(agent):
    client = forebay.Client(agent.socket, quiet=True)
    with forebay.HpcJob("python-job", qos=0.1, client=client) as job:
        assert "python-job" in jobs(agent)
        with job.phase(bytes=1 << 20, deadline=3600.0) as phase:
            phase.progress(1 << 19)
            wait_for(lambda: "512.0 KiB of 1.00 MiB moved" in jobs(agent))
            with pytest.raises(OSError, match="under way"), job.phase():
                pass
    wait_for(lambda: "python-job" not in jobs(agent))
    with pytest.raises(ValueError, match="closed"), job.phase():
        pass


def test_what_is_impossible_is_refused(agent):
    client = forebay.Client(agent.socket, quiet=True)
    with pytest.raises(ValueError, match="qos"):
        forebay.HpcJob("x", qos=-1, client=client)
    with pytest.raises(OSError, match="control characters"):
        forebay.HpcJob("a\nb", client=client)
    with pytest.raises(OSError, match="no agent"):
        forebay.HpcJob("x", client=forebay.Client(agent.socket + "-none", quiet=True))


def test_one_rank_of_mpi4py_speaks_for_its_job(agent):
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here (package openmpi-bin)")
    line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    line += [str(REPOSITORY / "examples/mpi/writer.py"), str(agent.root / "checkpoint"), "3"]
    environment = {**os.environ, "FOREBAY_SOCKET": agent.socket}
    run = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0 and "3 phases written" in run.stdout, run.stderr
    assert "no I/O phases" not in run.stderr
    assert (agent.root / "checkpoint").stat().st_size == 2 * 4 << 20
    wait_for(lambda: plan_log(agent).count("I/O phase of mpi-writer-py (8.00 MiB)") == 3)
