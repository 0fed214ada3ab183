"""What the storage daemons of a lab wait for, with and without programs that compute beside them.

    sudo python3 bench/daemon_waits.py FOREBAY [--pfs moosefs|glusterfs] [--seconds 12]

Four storage servers, and fio on a node of its own. Prints of the busiest and of another daemon sums
over its threads, as medians over periods of 250 ms: the part of the time for which they ran, the
part of the time in which they could run for which they waited, and the wait before a run. Then in
how many of the periods both are above the bounds by which `forebay ship` lowers its limits.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/shipping"))

import client  # noqa: E402

LAB, CLIENT, FILE_BYTES, PERIOD_S = "waits", "w1", 64 << 20, 0.25
DAEMONS = {"moosefs": "mfschunkserver", "glusterfs": "glusterfsd"}
LAB_S = 600
# The bounds, and what a daemon does at least in a period that counts, as in forebay-policy's
# isolation.rs; tests/test_daemon_waits.py compares them.
WAITS, WAIT_NS, RUNS_MIN, BUSY = 0.2, 100_000, 10, 0.01
TWO_LOOPS = "while :; do :; done & while :; do :; done"


def lab(program, *arguments):
    done = subprocess.run([program, "--json", "lab", *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LAB_S, check=False)
    if done.returncode:
        raise SystemExit(f"daemon_waits: `forebay lab {arguments[0]}` failed: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def on(program, node, *command):
    """A program on a node of the lab, which ends with the block."""
    line = [program, "lab", "run", "--node", node, "--", *command]
    process = subprocess.Popen(line, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def counts(name, lab_dir):
    """Nanoseconds run and waited, and runs, of each thread of the lab's daemons so far."""
    found = {}
    for pid in subprocess.run(["pgrep", "-x", name], capture_output=True, text=True, check=True).stdout.split():
        if lab_dir not in Path(f"/proc/{pid}/cmdline").read_text():
            continue
        found[pid] = {}
        for task in Path(f"/proc/{pid}/task").iterdir():
            # It may end meanwhile.
            with contextlib.suppress(OSError):
                found[pid][task.name] = [int(number) for number in (task / "schedstat").read_text().split()[:3]]
    return found


def watch(name, lab_dir, seconds):
    """Of each daemon, the growth of its counts in each period, the busiest daemon first."""
    rows, last, until = {}, counts(name, lab_dir), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(PERIOD_S)
        now = counts(name, lab_dir)
        for pid in now.keys() & last.keys():
            grown = [[new - old for new, old in zip(now[pid][task], last[pid][task], strict=True)] for task in now[pid].keys() & last[pid].keys()]
            rows.setdefault(pid, []).append([sum(column) for column in zip(*grown, strict=True)])
        last = now
    return sorted(rows.values(), key=lambda own: -sum(ran for ran, _, _ in own))


def is_loaded(ran, waited, runs):
    could_run = ran + waited
    is_busy = could_run > BUSY * PERIOD_S * 1e9 * (10 if runs < RUNS_MIN else 1)
    return is_busy and waited > WAIT_NS * runs and waited > WAITS * could_run


def described(rows):
    ran = statistics.median(ran / PERIOD_S / 1e9 for ran, _, _ in rows)
    share = statistics.median(waited / max(1, ran + waited) for ran, waited, _ in rows)
    wait = statistics.median(waited / max(1, runs) / 1e3 for _, waited, runs in rows)
    loaded = sum(is_loaded(*row) for row in rows) / len(rows)
    return f"ran {ran:4.0%}, waited {share:4.0%}, {wait:6.0f} us a run; above both bounds {loaded:4.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--pfs", choices=DAEMONS, default="moosefs")
    parser.add_argument("--seconds", type=int, default=12)
    options = parser.parse_args()
    if options.seconds < 5:
        parser.error("--seconds: at least 5")
    program = os.path.abspath(options.program)
    try:
        lab(program, "up", "--pfs", options.pfs, "--servers", "4", "--nodes", "1", "--writers", "1", "--cpus", "0.4", "--writer-cpus", "0.4", "--install")
        status = json.loads(lab(program, "status"))
        servers = [node["name"] for node in status["nodes"] if node["role"] == "server"]
        file = f"{status['mount']}/client"
        lab(program, "run", "--free", "--node", CLIENT, "--", "sh", "-c", f"head -c {FILE_BYTES} /dev/urandom > {file}")
        for pattern in client.CLIENTS["fio"].patterns:
            for busy in ([], servers):
                with contextlib.ExitStack() as stack:
                    loops = [stack.enter_context(on(program, server, "sh", "-c", TWO_LOOPS)) for server in busy]
                    fio = stack.enter_context(on(program, CLIENT, *client.command("fio", pattern, file, FILE_BYTES, options.seconds)))
                    # It starts, and ends in time.
                    time.sleep(1)
                    daemons = watch(DAEMONS[options.pfs], status["dir"], options.seconds - 3)
                    said = fio.communicate(timeout=LAB_S)[0]
                    if fio.returncode or any(loop.poll() is not None for loop in loops):
                        raise SystemExit(f"daemon_waits: fio failed, or a loop ended too early: {said[-500:]}")
                    got = client.of_fio(said)
                rate, p99 = got["bytes"] / got["seconds"] / 1e6, client.quantile(got["times"], 0.99)
                print(f"{options.pfs}, {pattern}, {'two loops on each server' if busy else 'nothing beside'}: {rate:.1f} MB/s, p99 {p99:.2f} ms")
                for which, rows in zip(("busiest daemon", "another"), daemons, strict=False):
                    print(f"    {which:14} {described(rows)}", flush=True)
    finally:
        lab(program, "down")


ENVIRONMENT = {**os.environ, "FOREBAY_LAB": LAB}

if __name__ == "__main__":
    main()
