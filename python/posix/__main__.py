"""File system tests of other projects, on the PFS itself and through Forebay: a test that passes there must pass here.

    python3 python/posix target/release/forebay [--pfs DIR | --lab moosefs] [--only fsx,fio] [--ways run] [--kill-agent]

It prints a table: for each judge (test program) the number of tests, how many passed each way, and
the names of those that passed only on the PFS. It ends with 1 if there are any. It downloads missing
programs and sources; a judge that cannot be installed is skipped and named.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(HERE))

import compare  # noqa: E402
import judges  # noqa: E402
import suites  # noqa: E402
import ways  # noqa: E402
import works  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
JUDGES = {
    kind.name: kind
    for kind in (
        judges.Pjdfstest,
        judges.Fsx,
        judges.StressNg,
        judges.Fio,
        judges.Sqlite,
        works.Build,
        works.Postgres,
        suites.Python,
        suites.Tar,
        suites.Coreutils,
    )
}


def some_of(known):
    """A parser of a list of names."""

    def parse(text):
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"there are {', '.join(known)}, not {', '.join(unknown)}")
        return chosen

    return parse


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/posix", description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path, help="the program; the preloaded library is beside it")
    parser.add_argument("--pfs", type=Path, metavar="DIR", help="a directory on the PFS, for an agent of this command [default: target/posix/pfs]")
    parser.add_argument("--lab", metavar="PFS", help="start a lab with this PFS and use that: moosefs, glusterfs or cephfs")
    parser.add_argument("--only", type=some_of(JUDGES), metavar="JUDGE,...", default=list(JUDGES), help=f"judges: {', '.join(JUDGES)} [default: all]")
    parser.add_argument("--ways", type=some_of(WAYS), metavar="WAY,...", default=list(WAYS), help=f"ways: {', '.join(WAYS)} [default: all]")
    parser.add_argument("--kill-agent", action="store_true", help="kill the agent at random moments and start it again")
    parser.add_argument("--ops", type=int, default=50_000, help="operations of fsx in all [default: %(default)s]")
    parser.add_argument("--seconds", type=int, default=1, help="of each stressor of stress-ng [default: %(default)s]")
    parser.add_argument("--fio-size", default="8m", metavar="SIZE", help="of each of fio's files [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of fsx, and of the moments of --kill-agent [default: %(default)s]")
    parser.add_argument("--stamp-s", type=float, default=0.05, metavar="SECONDS", help="what pjdfstest waits for a new time stamp; in the lab 1.1 [default: %(default)s]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests of a suite at the same time [default: %(default)s]")
    options = parser.parse_args()
    options.forebay = options.forebay.resolve()
    options.target, options.tools, options.sources = TARGET / "posix", TARGET / "judges", TARGET / "judges/sources"
    return options


def main():
    """Runs the judges; fails if a test passes only on the PFS."""
    options = arguments()
    # Ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.lab:
        sys.exit(in_the_lab(options))
    options.target.mkdir(parents=True, exist_ok=True)
    options.sources.mkdir(parents=True, exist_ok=True)
    lock = (options.target / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"posix: another run uses {options.target}")
    for log in options.target.glob("*.log"):
        log.unlink()
    if "mount" in options.ways and not ways.has_mount(options.forebay):
        print("mount: left out: this program has no `forebay mount`", flush=True)
        options.ways.remove("mount")
    pfs, state = (options.pfs or options.target / "pfs").resolve(), options.target / "agent"
    pfs.mkdir(parents=True, exist_ok=True)
    state.mkdir(exist_ok=True)
    agent = ways.Agent(options.forebay, pfs, state, "1GiB")
    os.environ["FOREBAY_SOCKET"] = str(agent.socket)
    # Other directories than on the PFS, because some hold absolute paths.
    mounted = options.target / "mnt/mounted"
    work = ways.as_long(pfs / "work", mounted)
    chosen = [ways.Way(work), *(WAYS[name](options, pfs, work, mounted) for name in options.ways)]
    agent.start()
    try:
        verdicts = run_all(options, chosen, agent)
    finally:
        agent.stop()
    print("", *compare.table(verdicts, chosen), sep="\n")
    for verdict in verdicts:
        for why in verdict.void:
            print(f"{verdict.judge}: this shows nothing: {why}")
    sys.exit(not all(verdict.is_good for verdict in verdicts))


WAYS = {
    "run": lambda options, pfs, work, mounted: ways.Run(work, options.forebay),
    "mount": lambda options, pfs, work, mounted: ways.Mount(mounted, pfs, options.forebay, options.target / "mount.log"),
}


def run_all(options, chosen, agent):
    """The verdicts of all judges."""
    verdicts = []
    try:
        for way in chosen:
            way.start()
        for name in options.only:
            killer = ways.Killer(agent, options.seed) if options.kill_agent else None
            verdicts.append(judge_one(JUDGES[name](options), chosen, killer))
    finally:
        for way in reversed(chosen):
            way.stop()
    return verdicts


def judge_one(judge, chosen, killer):
    """The verdict of one judge, meanwhile the agent is killed if there is a killer."""
    before = killer.agent.kills if killer else 0
    if killer:
        killer.start()
    try:
        verdict = compare.compare(judge, chosen, lambda line: print(line, flush=True))
    finally:
        if killer:
            killer.stop()
    if verdict.left_out:
        print(f"{judge.name}: left out: {verdict.left_out}", flush=True)
    elif killer:
        kills = killer.agent.kills - before
        print(f"{judge.name}: the agent was killed {kills} times", flush=True)
        if kills == 0 or killer.error:
            verdict.void.append(f"the agent was killed {kills} times: {killer.error}")
    return verdict


def in_the_lab(options):
    """Runs this command again in a node of a lab that it starts; returns its exit code."""
    options.sources.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        # A node has no other network. If this fails, the node says so.
        JUDGES[name](options).fetch()
    lab = [options.forebay, "lab"]
    up = ["up", "--install", "--pfs", options.lab, "--no-agents", "--nodes", "1", "--servers", "2", "--rate", "unlimited", "--store", "4GiB"]
    subprocess.run([*lab, *up, "--name", "posix"], check=True)
    try:
        again = [word for at, word in enumerate(sys.argv[1:], 1) if word != "--lab" and sys.argv[at - 1] != "--lab"]
        inner = [sys.executable, str(HERE), *again, "--stamp-s", "1.1"]
        inner = ["sh", "-c", f'exec "$0" "$@" --pfs "${judges.LAB_DIRECTORY}/posix"', *inner]
        return subprocess.run([*lab, "run", "--name", "posix", "--", *inner], check=False).returncode
    finally:
        subprocess.run([*lab, "down", "--name", "posix"], check=False)


if __name__ == "__main__":
    main()
