"""The run: the input is made once, each setting measured once, and the report written of what there is."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import compute
import lab
import sizes
import sparkhome
import stage
from group import NoMemoryController

MIB = 1 << 20


def run(args, program, target):
    """The exit code."""
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        fitting = sizes.fitting(int(args.node * (1 << 30)), args.hpl)
        need_memory(fitting.node)
        tools = stage.Tools(
            forebay=str(program), spark=sparkhome.find(target), jar=target / "forebay-spark.jar",
            workloads=target / "java/workloads/forebay-workloads.jar", data=args.output / "input", pfs_bytes_per_s=args.pfs * 1e6,
            iterations=args.iterations, iterations_without_tier=min(args.iterations, 2), burst_at_s=5 if args.quick else 60,
        )
        generate(tools, fitting)
        for name in args.setting:
            one(sizes.named(name), fitting, tools, args)
    except (sizes.SizesError, stage.StageError, compute.ComputeError, lab.LabError, NoMemoryController) as error:
        print(f"experiment: {error}", file=sys.stderr)
        return 1
    results = {path.stem.removeprefix("setting-"): json.loads(path.read_text()) for path in args.output.glob("setting-*.json")}
    import report

    return report.write(results, args, fitting, tools)


def need_memory(node):
    """Refuses a node for which this machine has no memory, with a quarter more for what stays outside of it."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    available = int(line.split()[1]) << 10
    if available < node * 5 // 4:
        raise sizes.SizesError(f"a node of {node >> 20} MiB does not fit into the {available >> 20} MiB that this machine has available; reduce --node")


def generate(tools, fitting):
    made = tools.data.parent / "input.json"
    if made.exists() and json.loads(made.read_text()) == fitting.input and tools.data.exists():
        return
    shutil.rmtree(tools.data, ignore_errors=True)
    print(f"generating {fitting.input // MIB} MiB of points ...", flush=True)
    command = [tools.spark / "bin/spark-submit", "--master", "local[1]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"]
    command += ["--class", "io.forebay.workloads.LearningMain", tools.workloads, "generate", f"file://{tools.data}", sizes.FILES, fitting.input]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env={**_environment(), "SPARK_HOME": str(tools.spark)})
    if done.returncode:
        raise stage.StageError(f"the input could not be generated: {' / '.join(done.stderr.strip().splitlines()[-3:])}")
    # Checksums of Hadoop's local file system, and its mark of success.
    for path in tools.data.iterdir():
        if path.name.startswith((".", "_")):
            path.unlink()
    made.write_text(json.dumps(fitting.input))


def _environment():
    import os

    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}


def one(setting, fitting, tools, args):
    """Measures a setting unless that has been done with the same sizes."""
    kept = args.output / f"setting-{setting.name}.json"
    conditions = {**asdict(fitting), "pfs": tools.pfs_bytes_per_s, "iterations": tools.iterations, "burst_at_s": tools.burst_at_s}
    if kept.exists() and not args.fresh and json.loads(kept.read_text())["conditions"] == conditions:
        print(f"{setting.title}: measured before", flush=True)
        return
    print(f"{setting.title} ...", flush=True)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-experiment-", ignore_cleanup_errors=True)))
        try:
            found = stage.measure(setting, fitting, tools, place, lambda text: print(f"    {text}", flush=True))
        finally:
            keep_logs(place, args.output / "logs" / setting.name)
    kept.write_text(json.dumps({"conditions": conditions, **found}))


def keep_logs(place, where):
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for log in [*place.glob("*.log"), *place.glob("hpl/hpccoutf.txt"), *place.glob("hpl/log")]:
        shutil.copy(log, where / log.name)
