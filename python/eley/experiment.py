"""Runs the experiment: makes input and profile once, measures each setting several times in interleaved order, and writes the report of the
results so far."""

import contextlib
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import checkpoints
import judge
import lab
import loopback
import pfsprofile
import report
import sizes
import stage
import text
import waves
from cluster import Cluster

# What each slot works on before time is taken.
WARM_EXTENTS = 2
SEED = 20181101
# MB/s of each server where nothing is read from it.
UNLIMITED = 1000.0


def run(args, tools, size):
    """The exit code."""
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        generate(args, tools, size)
        size = fitted(args, tools, size)
        profile_path = measured_profile(args, tools, size)
        pending = [one for one in order(args.setting, args.repeats) if args.fresh or not kept(args, *one, size)]
        if pending:
            measure(args, tools, size, profile_path, pending)
    except (lab.LabError, waves.WavesError) as error:
        print(f"experiment: {error}", file=sys.stderr)
        return 1
    return finish(args, tools, size)


def say(words):
    print(words, flush=True)


def order(names, repeats):
    """Settings and numbers of the repeats: in each repeat in a new random order, so that drift of the machine favours no setting. The first run
    is that of the writer alone, from which the deadlines follow."""
    shuffled = random.Random(SEED)
    found = []
    for repeat in range(repeats):
        mixed = list(names)
        shuffled.shuffle(mixed)
        found += [(name, repeat) for name in mixed]
    found.sort(key=lambda one: one != ("alone", 0))
    return found


def generate(args, tools, size):
    """Text for Spark: one file a split, so that the input is on all servers."""
    shown = set()

    def progress(done):
        tenth = 10 * done // size.input_bytes
        if tenth not in shown and size.input_bytes > 100 << 20:
            shown.add(tenth)
            say(f"    {10 * tenth} % of the text")

    if not (tools.data.parent / "made.json").exists():
        say(f"generating {size.input_bytes >> 20} MiB of text ...")
    text.write(tools.data.parent, size.input_bytes, size.extent_bytes, progress)
    text.write(tools.warm.parent, WARM_EXTENTS * size.wave_bytes, size.extent_bytes, lambda done: None)


def fitted(args, tools, size):
    """The sizes, with those that follow from the speed of the cores."""
    path, wanted = args.output / "cores.json", conditions(size)
    if size.rate and size.rank_bytes:
        return size
    if args.fresh or not path.exists() or json.loads(path.read_text())["conditions"] != wanted:
        say(f"measuring the cores: {size.workload} over the local disk ...")
        with tempfile.TemporaryDirectory(prefix="forebay-eley-") as place, Cluster(tools, Path(place), replace(size, rate=UNLIMITED)) as cluster:
            cluster.warm = tools.warm
            map_s = stage.spark(cluster, sizes.named("local"), None)["map"]
        path.write_text(json.dumps({"conditions": wanted, "map_s": map_s[1] - map_s[0]}))
    size = sizes.fitting(size, json.loads(path.read_text())["map_s"])
    say(f"    {size.servers} servers of {size.rate:g} MB/s, {size.phase_bytes >> 20} MiB a phase")
    return size


def measured_profile(args, tools, size):
    path, made = args.output / "profile.toml", args.output / "profile.json"
    wanted = conditions(size)
    if not args.fresh and path.exists() and made.exists() and json.loads(made.read_text())["conditions"] == wanted:
        return path
    say("measuring the profile of the file system (some minutes) ...")
    found = pfsprofile.measure(tools, size, path, say)
    made.write_text(json.dumps({"conditions": wanted, **found}, indent=1) + "\n")
    for one in found["settings"]:
        say(f"    {one['nodes']} nodes x {one['threads']} threads: a prefetch takes {one['prefetch_s']:.2f} s, I_hpc {one['i_hpc']:.2f}, I_bd {one['i_bd']:.2f}")
    return path


def measure(args, tools, size, profile_path, pending):
    """Starts the lab and measures the pending runs in it."""
    say(f"bringing up {size.servers} servers of {size.rate:g} MB/s, {size.nodes} nodes with Spark and a writer, on {size.pfs} ...")
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-eley-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        cluster = stack.enter_context(Cluster(tools, place, size, profile_path))
        cluster.warm = tools.warm
        try:
            placed = prepare(cluster, tools)
            say(f"    the writer's files are on servers {placed}" if placed else "    the file system does not say where the writer's files are")
            for number, (name, repeat) in enumerate(pending):
                one(args, cluster, sizes.named(name), repeat, tools, f"[{number + 1} of {len(pending)}]")
        finally:
            loopback.keep_logs(place, args.output / "logs")
            loopback.keep_logs(Path(cluster.status()["dir"]) / "log", args.output / "logs/lab")


def prepare(cluster, tools):
    """Input and checkpoints, without waiting for the slow links."""
    cluster.lab("links", "unlimited", check=True)
    cluster.bring(tools.data)
    placed = cluster.place_files()
    cluster.set_rate(cluster.sizes.rate)
    return placed


def one(args, cluster, setting, repeat, tools, where):
    say(f"{where} {setting.title}, repeat {repeat + 1} ...")
    result = stage.measure(cluster, setting, repeat, cluster.mount / tools.data.name, alone_s(args, setting))
    path_of(args, setting.name, repeat).write_text(json.dumps({"conditions": conditions(cluster.sizes), **result}))
    phases = [judge.length(phase) for phase in (judge.beside(result) if setting.spark and setting.writer else result["phases"][1:])]
    words = [f"map {result['map'][1] - result['map'][0]:.1f} s"] if setting.spark else []
    words += [f"checkpoints {', '.join(f'{judge.length(phase):.2f}' for phase in result['saves'][1:])} s"] if setting.saves else []
    words += [f"phases {', '.join(f'{phase:.2f}' for phase in phases)} s"] if phases else []
    say(f"    {'; '.join(words)}")


def alone_s(args, setting):
    """What a phase takes alone, by the first run; None before it, and where nobody needs it."""
    if setting.name == "alone" or not setting.writer:
        return None
    path = path_of(args, "alone", 0)
    if not path.exists():
        raise lab.LabError("the deadlines follow from the writer alone, which has not been measured; measure the setting `alone`, too")
    return judge.alone([json.loads(path.read_text())]).median_s


def path_of(args, name, repeat):
    return args.output / f"run-{name}-{repeat}.json"


def kept(args, name, repeat, size):
    """Whether the run has been measured under the same conditions."""
    path = path_of(args, name, repeat)
    return path.exists() and json.loads(path.read_text())["conditions"] == conditions(size)


def conditions(size):
    """The conditions that must be equal for results to be comparable."""
    return json.loads(json.dumps(asdict(size)))


def finish(args, tools, size):
    """Writes the report of what has been measured with these sizes; the exit code. Missed targets are results, but a quick check needs a sound
    run."""
    found = [json.loads(path.read_text()) for path in sorted(args.output.glob("run-*.json"))]
    results = [result for result in found if result["conditions"] == conditions(size)]
    if args.checkpoints:
        checkpoints.write(results, size, args.output)
    else:
        report.write(results, size, tools.forebay, args.output)
    broken = unsound(results, args.setting) if args.quick else []
    for what in broken:
        print(f"experiment: {what}", file=sys.stderr)
    return 1 if broken else 0


def unsound(results, names):
    """What did not happen in a run that has to be complete."""
    found = []
    for name in names:
        setting, measured = sizes.named(name), judge.runs(results, name)
        found += [] if measured else [f"{name} was not measured"]
        for result in measured:
            found += [f"{name}: {what}" for what in missing(setting, result)]
    digests = {json.dumps(result["result"]) for result in results if "result" in result}
    found += [f"Spark found {len(digests)} different results"] if len(digests) > 1 else []
    return found + ([] if judge.alone(results) else ["no phase of the writer alone was judged"])


def missing(setting, result):
    if setting.saves and len(result["saves"]) < 2:
        yield f"{len(result['saves'])} checkpoints"
    if setting.saves == "back" and not result["drain"]["drained_bytes"]:
        yield "nothing was written back"
    if setting.writer and len(result["phases"]) < 2:
        yield f"{len(result['phases'])} phases"
    if setting.spark and setting.writer and not judge.beside(result):
        yield "no phase was beside the map stage"
    if setting.planner not in (None, "naive-bb"):
        fetched = sum(wave["fetched_bytes"] for wave in result["waves"])
        if not fetched:
            yield "nothing was prefetched"
    if setting.qos is not None and setting.spark:
        if not result["plan"]["phases"]:
            yield "no phase was declared"
        elif not any(phase["observed_ms"] for phase in result["plan"]["phases"]):
            yield "no declared phase has ended"
        if not result["plan"]["plans"]:
            yield "nothing was planned"
