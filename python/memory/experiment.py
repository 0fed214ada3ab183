"""The run: the input is made once, each setting measured once, and the report written of what there is."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import compute
import judge
import lab
import sizes
import sparkhome
import stage
from group import NoMemoryController

MIB = 1 << 20
# Of the input: K-means over so many of its files, with so many iterations. Half of the files fit
# into the safe tier.
KMEANS_FILES = (4, 6, 8)
KMEANS_ITERATIONS = 4


def run(args, program, target):
    """The exit code."""
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        fitting = sizes.fitting(int(args.node * (1 << 30)), args.hpl)
        tools = stage.Tools(
            forebay=str(program), spark=sparkhome.find(target), jar=target / "forebay-spark.jar",
            workloads=target / "java/workloads/forebay-workloads.jar", data=args.output / "input", pfs_bytes_per_s=args.pfs * 1e6,
            iterations=args.iterations, iterations_without_tier=min(args.iterations, 2), burst_at_s=5 if args.quick else 60,
        )
        generate(tools, fitting)
        pending = [setting for setting in map(sizes.named, args.setting) if args.fresh or not measured(setting, fitting, tools, args)]
        if pending:
            need_memory(2 * fitting.node)
            with compute.held(2 * fitting.node):
                for setting in pending:
                    one(setting, fitting, tools, args)
        if args.kmeans_sizes:
            need_memory(2 * fitting.node)
            with compute.held(2 * fitting.node):
                kmeans_sizes(list(map(sizes.named, args.setting)), fitting, tools, args)
    except (sizes.SizesError, stage.StageError, compute.ComputeError, lab.LabError, NoMemoryController) as error:
        print(f"experiment: {error}", file=sys.stderr)
        return 1
    return finish(args, fitting, tools)


def finish(args, fitting, tools):
    """Writes the report of what has been measured with these sizes; the exit code. Missed targets are results, but a quick check needs a sound run."""
    found = {path.stem.removeprefix("setting-"): json.loads(path.read_text()) for path in args.output.glob("setting-*.json")}
    results = {name: result for name, result in found.items() if result["conditions"] == conditions(fitting, tools)}
    import report

    path = args.output / "kmeans-sizes.json"
    sized = json.loads(path.read_text()) if path.exists() else {}
    sized = sized["settings"] if sized.get("conditions") == conditions(fitting, tools) else {}
    report.write(results, sized, args, fitting, tools)
    broken = unsound(results["forebay"]) if args.quick else []
    for what in broken:
        print(f"experiment: {what}", file=sys.stderr)
    return 1 if broken else 0


def unsound(result):
    """What did not happen in a run that has to be complete."""
    found = [] if len(result["programs"]) == len(stage.PROGRAMS) else [f"{len(result['programs'])} of {len(stage.PROGRAMS)} programs ended"]
    found += [] if judge.hpl_s(result) else ["HPL did not end"]
    found += [] if len(result["reads"]) > 1 else ["the reader has read nothing"]
    return found + ([f"the kernel ended {result['kills']} processes"] if result["kills"] else [])


def need_memory(size):
    """Refuses sizes for which this machine has no memory: the node, and as much for what stays outside of it."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    available = int(line.split()[1]) << 10
    if available < size:
        raise sizes.SizesError(f"the experiment needs {size // MIB} MiB, and this machine has {available // MIB} MiB available; reduce --node")


def generate(tools, fitting):
    made = tools.data.parent / "input.json"
    if made.exists() and json.loads(made.read_text()) == fitting.input and tools.data.exists():
        return
    shutil.rmtree(tools.data, ignore_errors=True)
    print(f"generating {fitting.input // MIB} MiB of points ...", flush=True)
    command = [tools.spark / "bin/spark-submit", "--master", "local[1]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"]
    command += ["--class", "io.forebay.workloads.LearningMain", tools.workloads, "generate", f"file://{tools.data}", sizes.FILES, fitting.input]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(tools.spark)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise stage.StageError(f"the input could not be generated: {' / '.join(done.stderr.strip().splitlines()[-3:])}")
    # Checksums of Hadoop's local file system, and its mark of success.
    for path in tools.data.iterdir():
        if path.name.startswith((".", "_")):
            path.unlink()
    made.write_text(json.dumps(fitting.input))


def kmeans_sizes(settings, fitting, tools, args):
    """K-means in each setting over parts of the input, the whole last.

    The figures are written after each part, so that a run can be resumed.
    """
    path = args.output / "kmeans-sizes.json"
    wanted = conditions(fitting, tools)
    found = json.loads(path.read_text()) if path.exists() and not args.fresh else {}
    found = found if found.get("conditions") == wanted else {"conditions": wanted, "settings": {}}
    for setting in (setting for setting in settings if setting.analytics and setting.limited):
        times = found["settings"].setdefault(setting.name, {})
        for files in (count for count in KMEANS_FILES if str(count) not in times):
            data = part_of(tools.data, files, args.output / f"input-{files}")
            size = sum(file.stat().st_size for file in data.iterdir())
            print(f"{setting.title}: K-means over {size // MIB} MiB ...", flush=True)
            with tempfile.TemporaryDirectory(prefix="forebay-experiment-", ignore_cleanup_errors=True) as place:
                one = stage.measure_kmeans(setting, fitting, replace(tools, data=data, iterations=KMEANS_ITERATIONS, iterations_without_tier=1), Path(place))
            times[str(files)] = {"input": size, **one}
            path.write_text(json.dumps(found, indent=1) + "\n")


def part_of(data, files, where):
    """A directory with the first of the files."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for file in sorted(file for file in data.iterdir() if file.name.startswith("part-"))[:files]:
        os.link(file, where / file.name)
    return where


def kept(setting, args):
    return args.output / f"setting-{setting.name}.json"


def measured(setting, fitting, tools, args):
    """Whether the setting has been measured under the same conditions."""
    path = kept(setting, args)
    return path.exists() and json.loads(path.read_text())["conditions"] == conditions(fitting, tools)


def one(setting, fitting, tools, args):
    """Measures a setting and keeps its figures and logs."""
    print(f"{setting.title} ...", flush=True)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-experiment-", ignore_cleanup_errors=True)))
        try:
            found = stage.measure(setting, fitting, tools, place, lambda text: print(f"    {text}", flush=True))
        finally:
            keep_logs(place, args.output / "logs" / setting.name)
    kept(setting, args).write_text(json.dumps({"conditions": conditions(fitting, tools), **found}))


def conditions(fitting, tools):
    """What has to be equal for results to be compared."""
    return {**asdict(fitting), "pfs": tools.pfs_bytes_per_s, "iterations": tools.iterations, "burst_at_s": tools.burst_at_s}


def keep_logs(place, where):
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for log in [*place.glob("*.log"), *place.glob("hpl/hpccoutf.txt"), *place.glob("hpl/log")]:
        shutil.copy(log, where / log.name)
