"""Real Slurm with Forebay's hooks: jobs with #FB directives, while daemons are killed.

    python3 python/slurm target/debug/forebay [--smoke] [--jobs 100] [--seed 1] [--candidates 3]

A cluster of one controller and three nodes starts on this machine, below target/slurm. Jobs of an
ordinary user stage in, write to the tier and stage out, some with tiers of their own; some cannot
start. Meanwhile slurmctld, slurmd, agents and the coordinator are killed and start again. Another
epilog empties /dev/shm after each job. It fails if a job ends neither with the right data nor with
an error that names its cause, if a node is drained, if something of a job is left in a tier, or if
no kill of some kind struck. With --candidates, etcd elects the coordinator, and its members are
killed too.

With --smoke, one job of each kind runs, and nothing is killed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "posix")]

import supply  # noqa: E402
from cluster import AS_USER, Cluster, wait_until  # noqa: E402
from jobs import NAMED_TIER, Maker, has_ended  # noqa: E402
from kills import Killer  # noqa: E402
from loads import Loads  # noqa: E402


def library(*patterns):
    """A library of any architecture; the first pattern if there is none."""
    found = [path for pattern in patterns for path in Path("/usr").glob(pattern)]
    return str(found[0] if found else Path("/usr") / patterns[0])


PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "sudo": "sudo",
    "pgrep": "procps",
    library("lib*/*/slurm-wlm/burst_buffer_lua.so", "lib*/slurm*/burst_buffer_lua.so"): "slurm-wlm-basic-plugins",
    library("lib*/*/liblua5.1.so.0", "lib*/liblua5.1.so*"): "liblua5.1-0",
}
# Everything that starts ends with these namespaces; /dev/shm and the rules of sudo are the test's
# own.
ALONE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs -o mode=755 tmpfs /etc/sudoers.d && "$0" "$@"; exit $?']


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/slurm", description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path, help="the program; what else is installed is beside it")
    parser.add_argument("--smoke", action="store_true", help="one job of each kind, without kills")
    parser.add_argument("--jobs", type=int, default=100, help="[default: %(default)s]")
    parser.add_argument("--nodes", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of jobs and kills [default: %(default)s]")
    parser.add_argument("--candidates", type=int, default=1, help="for the coordinator, elected in etcd if there are several [default: %(default)s]")
    parser.add_argument("--limit-s", type=int, default=1500, help="for all jobs [default: %(default)s]")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = arguments()
    top = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve() / "slurm"
    if not options.inside:
        if os.geteuid() != 0:
            sys.exit("slurm: run it as root: it makes namespaces, and Slurm's daemons become other users")
        if why := supply.packages(PACKAGES | ({"etcd": "etcd-server"} if options.candidates > 1 else {})):
            sys.exit(f"slurm: {why}")
        shutil.rmtree(top, ignore_errors=True)
        done = subprocess.run([*ALONE, sys.executable, str(HERE), *sys.argv[1:], "--inside"], check=False)
        # What it has logged stays if something is wrong.
        if done.returncode == 0:
            shutil.rmtree(top)
        sys.exit(done.returncode)
    cluster = Cluster(options.forebay.resolve(), top, options.nodes, 6 if options.smoke else 60, options.candidates)
    try:
        cluster.start()
        problems = run(options, cluster)
    finally:
        cluster.stop()
    for problem in problems:
        print(f"slurm: {problem}")
    print("slurm: all is well" if not problems else f"slurm: logs are in {top}/log; seed {options.seed}", flush=True)
    sys.exit(bool(problems))


def run(options, cluster):
    """Runs the jobs; returns what was wrong."""
    maker, loads = Maker(cluster, options.seed), Loads(cluster)
    problems = refused_at_submission(cluster) + interactive(cluster)
    kinds = ["plain", "pinned", "wide", "tier", "named", "made", "died", "cancelled", "missing"] if options.smoke else ["stopped"] + [None] * (options.jobs - 1)
    jobs = [maker.make(kind) for kind in kinds]
    started, killer = time.monotonic(), None
    if not options.smoke:
        killer = Killer(cluster, options.seed, lambda: bool(waiting))
        waiting = list(jobs)
        killer.start()
    for job in jobs:
        job.number, why = cluster.submit(job.script)
        if job.number is None:
            problems.append(f"a {job.kind} job was not taken: {why}")
    resubmit_lost(cluster, jobs)
    ends, waiting = {}, [job for job in jobs if job.number]
    while waiting and time.monotonic() - started < options.limit_s:
        for job in list(waiting):
            fields = cluster.job(job.number)
            if has_ended(job, fields):
                ends[job.number] = fields
                waiting.remove(job)
        time.sleep(0.5)
    if killer:
        killer.stop()
        print(f"slurm: kills that struck: {', '.join(f'{kind} {count}' for kind, count in killer.struck.items())}", flush=True)
        problems += [f"no kill of {kind} struck: this shows nothing" for kind, count in killer.struck.items() if not count]
    problems += [f"job {job.number} ({job.kind}) has not ended after {options.limit_s} s: {cluster.job(job.number)}" for job in waiting]
    launched = cluster.launched()
    for job in jobs:
        if job.number in ends and (why := maker.verdict(job, ends[job.number], options.smoke, job.number in launched)):
            problems.append(f"job {job.number} ({job.kind}): {why}")
    with_cause = [job for job in jobs if job.cause]
    print(f"slurm: {len(ends)} jobs ended in {time.monotonic() - started:.0f} s, {len(with_cause)} of them with an error that names its cause", flush=True)
    for job in with_cause:
        print(f"slurm:   job {job.number} ({job.kind}): {job.cause}")
        if options.smoke:
            problems.append(f"job {job.number} ({job.kind}) has lost data although nothing was killed")
    problems += loads.problems()
    problems += was_served(cluster, jobs, options.smoke)
    parked = park(cluster, maker, problems) if options.smoke else {}
    problems += left_over(cluster, jobs)
    return problems + [f"{path.name} was not written after all" for path, source in parked.items() if path.read_bytes() != maker.contents[source]]


def resubmit_lost(cluster, jobs):
    """slurmctld forgets jobs if it is killed before it has saved them, and gives their numbers to the next ones."""
    for at, job in enumerate(jobs):
        while job.number and any(job.number == other.number for other in jobs[at + 1 :]):
            print(f"slurm: job {job.number} was lost by slurmctld; it is submitted again", flush=True)
            job.number, _ = cluster.submit(job.script)


def refused_at_submission(cluster):
    """Directives that are wrong."""
    problems = []
    for directive, words in {
        "stage-in": "path= is missing",
        "stage-inn path=/x": "write stage-in, write-back",
        "write-back path=/x copies=3": "copies=3 is not known",
        "tier size=1TiB": "the largest tier of a job here",
        "tier size=999999TiB": "the largest tier of a job here",
        # More than a number of bash.
        "tier size=8388608TiB": "give a size",
    }.items():
        number, said = cluster.submit(f"#!/bin/sh\n#FB {directive}\ntrue\n")
        if number is not None or words not in said:
            problems.append(f"`#FB {directive}` was taken, or not explained: {said!r}")
    return problems


def interactive(cluster):
    """A job of srun, whose directives come by an option: it waits, and squeue says why."""
    missing = f"{cluster.pfs}/in/missing"
    command = [*AS_USER, "srun", "--job-name=interactive", f"--bb=#FB stage-in path={missing}", "true"]
    with subprocess.Popen(command, env=cluster.env, cwd=cluster.pfs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as srun:
        try:
            wait_until(lambda: missing in cluster.call("squeue", "-h", "-n", "interactive", "-o", "%r"), 60, "the reason of a job of srun does not name its file")
        finally:
            cluster.call("scancel", "-n", "interactive")
        srun.wait(60)
    return []


def was_served(cluster, jobs, was_calm):
    """A run that Forebay took no part in shows nothing: agents must have known the jobs, and served them."""
    unknown = [job for job in jobs if job.outputs and not job.is_known]
    if not was_calm:
        return [f"{len(unknown)} jobs were not known to an agent: this shows nothing"] if len(unknown) > len(jobs) / 2 else []
    counters = [cluster.status(name)["counters"] for name in ["ctl", *cluster.nodes]]
    unused = [name for name in ["pages_loaded_total", "absorbed_files_total"] if not sum(each[name] for each in counters)]
    return [f"job {job.number} ({job.kind}) was not known to its agent" for job in unknown] + [f"{name} is 0 on all nodes" for name in unused]


def park(cluster, maker, problems):
    """A file that the file system refuses: the epilog names it and releases the node. Returns the file and its input."""
    job = maker.make("parked")
    path = job.place / "part0"
    job.number, _ = cluster.submit(job.script)
    wait_until((job.place / "ready").exists, 60, lambda: f"the job does not start: {cluster.job(job.number)}")
    subprocess.run(["chattr", "+i", path], check=False)
    try:
        (job.place / "go").touch()
        wait_until(lambda: cluster.job(job.number).get("JobState") == "COMPLETED", 60, lambda: f"the node is not released: {cluster.job(job.number)}")
        # Hooks of other jobs on this node try again, and say nothing more there.
        node = cluster.job(job.number)["NodeList"]
        subprocess.run([*AS_USER, "srun", f"--nodelist={node}", "true"], env=cluster.env, cwd=cluster.pfs, check=True, stdin=subprocess.DEVNULL, timeout=60)
        printed = "".join(file.read_text() for file in job.place.glob("printed.*"))
        count = printed.count("does not have all that the job wrote")
        if count > 1:
            problems.append(f"the same is said {count} times of {path}: {printed!r}")
        is_named = "does not have all that the job wrote after 6 s" in printed and str(path) in printed
        if path.read_bytes() == maker.contents[job.outputs[path]]:
            print("slurm: parked files are left out: this file system does not refuse a file after chattr +i", flush=True)
        elif not is_named:
            problems.append(f"nothing names {path}: {printed!r}")
    finally:
        subprocess.run(["chattr", "-i", path], check=False)
    return {path: job.outputs[path]}


def left_over(cluster, jobs):
    """Nodes that are drained, and what jobs have left."""
    cluster.wait_until_idle(90)
    # A last job on each node frees the tiers that have names, and finishes what killed epilogs
    # left.
    script = f"#!/bin/sh\n#SBATCH --nodes={len(cluster.nodes)} --exclusive\n#FB tier size=64MiB name={NAMED_TIER} drop\ntrue\n"
    number, _ = cluster.submit(script)
    wait_until(lambda: cluster.job(number).get("JobState") == "COMPLETED", 90, lambda: f"the last job does not end: {cluster.job(number)}")
    cluster.wait_until_idle(90)
    for job in jobs:
        if job.keeps:
            # What `keep=` holds is there for the next job, until the user gives it up.
            for name in cluster.nodes:
                socket = cluster.top / f"agent.{name}/agent.sock"
                cluster.call(*AS_USER, cluster.program, "--socket", socket, "checkpoint", "keep", "0", job.place / job.keeps)
    # Sweeps may outlast the hooks that start them.
    wait_until(lambda: not records(cluster), 60, lambda: f"{records(cluster)} are left")
    problems = []
    mounts = Path("/proc/mounts").read_text()
    problems += [f"{line} is mounted" for line in mounts.splitlines() if f" {cluster.top}/state/" in line]
    for name in cluster.nodes:
        status, dirty = cluster.status(name), cluster.ask(name, "dirty")
        problems += [f"{name} has dirty files: {dirty}"] if dirty else []
        problems += [f"{name} has {key}: {status[key]}" for key in ["pinned_bytes", "scratch_files"] if status.get(key)]
    if not (cluster.top / "log/emptied").exists():
        problems.append("the epilog that empties /dev/shm has not run: this shows nothing")
    return problems


def records(cluster):
    """What hooks have noted of jobs, and logs of their tiers."""
    return [str(path.relative_to(cluster.top)) for path in (cluster.top / "state").glob("*/*") if path.name != ".sweep"]


if __name__ == "__main__":
    main()
