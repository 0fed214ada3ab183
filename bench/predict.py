"""Compares the predictor of I/O phases with FTIO on the same traces, side by side.

FTIO (PyPI ftio-hpc) finds the period of a job's I/O by a discrete Fourier transform of its
bandwidth. Both get the same prefix of each trace after every phase, from the fourth on, as an
online predictor would: FTIO the bandwidth over time, we the calls. The error is the distance of the
period from the trace's true one, as a share of that, and 1 if nothing is predicted; true is the
period that the trace was made with, or the mean distance of the phases of a recorded log.

Traces: synthetic ones (periods of 2 to 300 s, duty cycles, jitter of 0 to 20 % of each interval,
phases that vary, phases left out, small writes between), and the logs that come with PyPI's
darshan and, with --ftio, the traces in FTIO's repository, if they have at least five phases whose
distances vary by less than a half.
"""

import argparse
import contextlib
import io
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST = 4  # phases: three periods
GB = 1 << 30


def synthetic(name, period, duty, jitter, *, count=24, volume=0.0, missed=0.0, noise=False, seed=1):
    """A trace: its name, its true period, its phases and its calls (start, end, bytes)."""
    rng = random.Random(f"{name} {seed}")
    calls, phases, at = [], [], period * 0.3
    while len(phases) < count:
        length = period * duty * (1 + rng.uniform(-volume, volume))
        if rng.random() >= missed:
            parts = 8
            for part in range(parts):
                start = at + length * part / parts
                calls.append((start, start + length / parts, GB / parts * (1 + rng.uniform(-volume, volume))))
            phases.append((at, at + length))
        if noise:
            line = at + length + period * rng.uniform(0.1, 0.3)
            calls.append((line, line + 0.001, 200))
        at += period * (1 + rng.uniform(-jitter, jitter))
    return name, period, phases, sorted(calls)


def synthetic_traces(seeds):
    """The families of synthetic traces, `seeds` of each."""
    for seed in range(1, seeds + 1):
        for period in (2, 20, 300):
            for jitter in (0.0, 0.1, 0.2):
                yield synthetic(f"{period} s, jitter {jitter:.0%}", period, 0.2, jitter, seed=seed)
        yield synthetic("20 s, duty 50 %, jitter 20 %", 20, 0.5, 0.2, seed=seed)
        yield synthetic("20 s, volumes vary by 50 %", 20, 0.2, 0.2, volume=0.5, seed=seed)
        yield synthetic("20 s, one phase in ten left out", 20, 0.2, 0.1, missed=0.1, seed=seed)
        yield synthetic("20 s, small writes between", 20, 0.2, 0.2, noise=True, seed=seed)


def recorded_traces(clone):
    """FTIO's own traces if there is a clone, and Darshan's sample logs, where they are periodic."""
    for name, _, _, calls in [*(ftio_traces(clone) if clone else []), *darshan_traces()]:
        phases = split(calls)
        distances = [b[0] - a[0] for a, b in zip(phases, phases[1:])]
        if len(phases) > FIRST and statistics.pstdev(distances) < 0.5 * statistics.fmean(distances):
            yield name, statistics.fmean(distances), phases, calls
        else:
            print(f"left out: {name}: {len(phases)} phases, not periodic", file=sys.stderr)


def ftio_traces(clone):
    """The traces in FTIO's repository with calls, by names: TMIO's and GekkoFS's."""
    from ftio.parse.msgpack_reader import convert_to_class

    def of_ranks(groups):
        calls = {"read": [], "write": []}
        for group in groups:
            for kind in calls:
                bandwidth = group.get(f"{kind}_sync", {}).get("bandwidth", {})
                columns = (bandwidth.get(key, []) for key in ("t_rank_s", "t_rank_e", "b_rank_avr"))
                calls[kind] += [(start, end, rate * (end - start)) for start, end, rate in zip(*columns)]
        return {kind: sorted(of_kind) for kind, of_kind in calls.items() if of_kind}

    examples = clone / "examples"
    lines = (examples / "tmio/JSONL/8.jsonl").read_text().splitlines()
    for kind, calls in of_ranks(map(json.loads, lines)).items():
        yield f"ftio-tmio-8-{kind}s", "examples/tmio/JSONL/8.jsonl", 8, calls
    import msgpack

    with (examples / "tmio/ior/parallel/384.msgpack").open("rb") as file:
        objects = [object_ for object_ in msgpack.Unpacker(file) if object_ and "time" not in object_[0]]
        groups = [group for object_ in objects for group in convert_to_class(object_, object_[0])]
    for kind, calls in of_ranks(groups).items():
        yield f"ftio-ior-384-{kind}s", "examples/tmio/ior/parallel/384.msgpack", 384, calls
    calls, logs = [], sorted((examples / "API/gekkoFs/JSON").glob("*.json"))
    for log in logs:
        log = json.loads(log.read_text())
        columns = (log[key] for key in ("start_t_micro", "end_t_micro", "avg_thruput_mib"))
        calls += [(start / 1e6, end / 1e6, rate * (1 << 20) * (end - start) / 1e6) for start, end, rate in zip(*columns)]
    yield "ftio-gekkofs-writes", "examples/API/gekkoFs/JSON", len(logs), sorted(calls)


def darshan_traces():
    """Darshan's sample logs with segments, reads and writes apart: name, source, processes and calls."""
    import darshan

    logs = pathlib.Path(darshan.__file__).parent / "examples"
    for path in sorted(logs.rglob("*.darshan")):
        report = darshan.DarshanReport(str(path), read_all=True)
        if "DXT_POSIX" not in report.modules:
            continue
        report.mod_read_all_dxt_records("DXT_POSIX")
        for kind in ("read", "write"):
            calls = []
            for record in report.records["DXT_POSIX"]:
                segments = record[f"{kind}_segments"]
                segments = segments.to_dict("records") if hasattr(segments, "to_dict") else segments
                calls += [(s["start_time"], s["end_time"], s["length"]) for s in segments]
            yield f"darshan-{path.stem}-{kind}s", path.name, report.metadata["job"]["nprocs"], sorted(calls)


def write_logs(directory, traces):
    """Writes the phases of each trace as darshan-dxt-parser would list them, one segment for each."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, source, processes, calls in traces:
        phases = split(calls)
        if len(phases) <= FIRST:
            print(f"left out: {name}: {len(phases)} phases with pauses of a second", file=sys.stderr)
            continue
        kind = "read" if name.endswith("reads") else "write"
        lines = [f"# Phases of {source} by bench/predict.py", "# darshan log version: 3.41", f"# nprocs: {processes}"]
        lines.append("# Module Rank Wt/Rd Segment Offset Length Start(s) End(s)")
        for number, (begin, end) in enumerate(phases):
            moved = sum(bytes_ for start, _, bytes_ in calls if begin <= start <= end)
            lines.append(f" X_POSIX 0 {kind} {number} 0 {moved:.0f} {begin:.4f} {end:.4f}")
        (directory / f"{name}.txt").write_text("\n".join(lines) + "\n")


def split(calls, gap=1.0):
    """Phases of a log: calls with pauses of less than a second between them."""
    phases = []
    for start, end, _ in calls:
        if phases and start - phases[-1][1] <= gap:
            phases[-1][1] = max(phases[-1][1], end)
        else:
            phases.append([start, end])
    return [tuple(phase) for phase in phases]


def prefixes(trace):
    """For each phase from the fourth on: the calls until it has ended."""
    _, _, phases, calls = trace
    for last in range(FIRST - 1, len(phases)):
        end = phases[last][1]
        yield [call for call in calls if call[1] <= end + 1e-9]


def forebay(program, calls):
    """The last prediction of the period after `calls`, and the time of an update in ns."""
    lines = "".join(f"{start:.9f} {end:.9f} {bytes_:.0f}\n" for start, end, bytes_ in calls)
    out = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout
    *bursts, cost = (line.split() for line in out.splitlines())
    period = bursts[-1][2] if bursts else "-"
    return (None if period == "-" else float(period)), float(cost[1])


def ftio(calls):
    """FTIO's period after `calls`, and the time that it took in ns."""
    import numpy
    from ftio.cli.ftio_core import core
    from ftio.parse.args import parse_args
    from ftio.prediction.helper import get_dominant

    edges = sorted({time for call in calls for time in call[:2]})
    change = dict.fromkeys(edges, 0.0)
    for start, end, bytes_ in calls:
        rate = bytes_ / max(end - start, 1e-9)
        change[start] += rate
        change[end] -= rate
    rates, rate = [], 0.0
    for edge in edges:
        rate = max(rate + change[edge], 0.0)
        rates.append(rate)
    # Sampled so that a tenth of the shortest call is visible, within what it can compute.
    span = edges[-1] - edges[0]
    frequency = min(max(10.0, 200 / span), 20_000 / span)
    begin = time.perf_counter_ns()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = {
            "time": numpy.array(edges),
            "bandwidth": numpy.array(rates),
            "total_bytes": int(sum(call[2] for call in calls)),
            "ranks": 1,
        }
        prediction, _ = core(data, parse_args(["-e", "no", "-f", str(frequency)], "ftio"))
        dominant = get_dominant(prediction)
    spent = time.perf_counter_ns() - begin
    return (1 / dominant if dominant and dominant > 0 else None), spent


def error(period, true):
    """Distance from the true period as a share of it; 1 if there is none."""
    return 1.0 if period is None else min(abs(period / true - 1), 1.0)


def measure(program, traces):
    """Rows of the table, one for each name of a trace."""
    rows = {}
    for trace in traces:
        name, true = trace[:2]
        row = rows.setdefault(name, {"forebay": [], "ftio": [], "forebay_ns": [], "ftio_ns": []})
        for calls in prefixes(trace):
            for tool, run in (("forebay", lambda: forebay(program, calls)), ("ftio", lambda: ftio(calls))):
                period, ns = run()
                row[tool].append(error(period, true))
                row[f"{tool}_ns"].append(ns)
    return {name: {key: statistics.fmean(values) for key, values in row.items()} for name, row in rows.items()}


def show(rows):
    """Prints the table, and returns the rows in which FTIO is better."""
    print(f"{'trace':44} {'error: forebay':>14} {'FTIO':>8}   {'update: forebay':>15} {'FTIO':>9}")
    for name, row in rows.items():
        ours, theirs = f"{row['forebay']:.1%}", f"{row['ftio']:.1%}"
        costs = f"{row['forebay_ns'] / 1e3:.2f} us", f"{row['ftio_ns'] / 1e6:.1f} ms"
        print(f"{name[:44]:44} {ours:>14} {theirs:>8}   {costs[0]:>15} {costs[1]:>9}")
    return [name for name, row in rows.items() if row["forebay"] > row["ftio"] + 5e-4]


def main():
    """Prints the table. Ends with 1 if FTIO is better on a trace, or a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", help="the example `predict` of forebay-policy")
    parser.add_argument("--seeds", type=int, default=3, help="traces of each synthetic family")
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows here")
    parser.add_argument("--logs", type=pathlib.Path, help="only write the phases of recorded traces there, as logs")
    parser.add_argument("--ftio", type=pathlib.Path, help="a clone of github.com/tuda-parallel/FTIO, for its traces")
    options = parser.parse_args()
    if options.logs:
        write_logs(options.logs, [*(ftio_traces(options.ftio) if options.ftio else []), *darshan_traces()])
        return 0
    if not options.program:
        parser.error("the program is needed")
    rows = measure(options.program, [*synthetic_traces(options.seeds), *recorded_traces(options.ftio)])
    worse = show(rows)
    jittered = [row["forebay"] for name, row in rows.items() if "jitter 20%" in name]
    cost_us = max(row["forebay_ns"] for row in rows.values()) / 1e3
    print(f"mean error with jitter of 20 %: {statistics.fmean(jittered):.1%} (target: below 8 %)")
    print(f"update of one burst: {cost_us:.2f} us at most (target: 10 us)")
    print(f"FTIO is better on: {', '.join(worse) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(bool(worse) or statistics.fmean(jittered) >= 0.08 or cost_us > 10)


if __name__ == "__main__":
    sys.exit(main())
