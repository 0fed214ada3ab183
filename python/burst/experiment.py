"""Runs the parts of the experiment, keeps each measured run, and simulates the same runs."""

import json
import statistics
import subprocess
from dataclasses import asdict

import report
import stage
import workloads
from workloads import ARRIVALS, CATALYST, PARTIAL, POOL

# What the paper measured on Catalyst, and its fifth case, with the largest first.
CATALYST_CASES = [("none", False), ("sa-sjf", False), ("sa-fcfs", True), ("coflow", False)]
ORDERS = ["none", "sa-fcfs", "sa-sjf", "coflow"]


class Results:
    """Runs by their name, in a file that is written after each."""

    def __init__(self, path, sizes, fresh):
        self.path, self.sizes, self.runs = path, asdict(sizes), {}
        if path.exists() and not fresh:
            kept = json.loads(path.read_text())
            self.runs = kept["runs"] if kept["sizes"] == self.sizes else {}

    def keep(self, name, run):
        self.runs[name] = run
        self.path.write_text(json.dumps({"sizes": self.sizes, "runs": self.runs}, indent=1) + "\n")


def run(args, program, writer, place, sizes):
    args.output.mkdir(parents=True, exist_ok=True)
    results = Results(args.output / "burst.json", sizes, args.fresh)
    measure = Measure(program, sizes, results, args.output)
    if "catalyst" in args.only:
        with_stage(measure, writer, place / "catalyst", dict.fromkeys(CATALYST, 1), stage.REQUEST_BYTES, lambda on: measure.catalyst(on, args.repeats))
    if "batch" in args.only or "arrivals" in args.only:
        pool = POOL if not args.workload else of_workloads(args.workload)
        with_stage(measure, writer, place / "pool", pool, 1 << 30, lambda on: measure.pool(on, args))
    report.write(results.runs, sizes, args.output)
    print((args.output / "burst.md").read_text())
    return 0


def of_workloads(names):
    kinds = {kind for name in names for kind in PARTIAL[name]}
    return {kind: max(PARTIAL[name].get(kind, 0) for name in names) for kind in POOL if kind in kinds}


def with_stage(measure, writer, place, pool, stripe_bytes, body):
    on = stage.Stage(measure.program, writer, place, measure.sizes, pool, stripe_bytes)
    try:
        body(on)
    finally:
        on.end()


class Measure:
    def __init__(self, program, sizes, results, output):
        self.program, self.sizes, self.results, self.output = program, sizes, results, output
        self.alone_s = {}

    def alone(self, on, kinds, part, repeats):
        """What a step of each kind takes with the servers to itself: the median."""
        for kind in kinds:
            name = f"{part}/alone/{kind.name}"
            if name not in self.results.runs:
                servers = tuple(range(kind.servers))
                usual = {kind: kind.units * self.sizes.unit_s}
                times = [on.run([workloads.Step(kind, 0, servers, 0.0)], usual)[0]["io_s"] for _ in range(repeats)]
                self.results.keep(name, {"kind": kind.name, "io_s": statistics.median(times), "all": times})
            self.alone_s[kind] = self.results.runs[name]["io_s"]
            print(f"{kind.name} alone: {self.alone_s[kind]:.2f} s", flush=True)

    def case(self, on, name, access, steps):
        if name in self.results.runs:
            return
        on.order_by(access)
        live = on.run(steps, self.alone_s)
        found = {step.job: (step, live_step) for step, live_step in zip(steps, live)}
        simulated = self.simulate(steps, access)
        rows = [{**row, "kind": step.kind.name, "alone_s": self.alone_s[step.kind], "sim_s": simulated[step.job]} for step, row in found.values()]
        self.results.keep(name, {"access": access, "steps": rows})
        live_s, sim_s = (sum(row[key] for row in rows) for key in ("io_s", "sim_s"))
        print(f"{name}: {live_s:.2f} s in all, simulated {sim_s:.2f} s", flush=True)

    def simulate(self, steps, access):
        """I/O times of the same steps by the simulator, by job."""
        kinds = {step.kind for step in steps}
        caps = {kind: workloads.bytes_of_rank(kind, self.sizes.unit_bytes) * kind.ranks / self.alone_s[kind] for kind in kinds}
        path = self.output / "scenario.toml"
        path.write_text(workloads.scenario(steps, access, self.sizes.rate, self.sizes.unit_bytes, caps))
        out = subprocess.run([self.program, "--json", "sim", "run", path], check=True, capture_output=True, text=True).stdout
        # A job's step is due when it asks.
        times = lambda job: (job["steps"][0]["end_ns"] - job["steps"][0]["due_ns"]) / 1e9  # noqa: E731
        return {job["name"]: times(job) for job in json.loads(out)["jobs"]}

    def catalyst(self, on, repeats):
        self.alone(on, CATALYST, "catalyst", repeats)
        for repeat in range(repeats):
            for access, largest_first in CATALYST_CASES:
                self.case(on, f"catalyst/{access}/{repeat}", access, workloads.catalyst(largest_first))

    def pool(self, on, args):
        kinds = list(dict.fromkeys(job.kind for job in on.jobs.values()))
        self.alone(on, kinds, "pool", args.repeats)
        names = args.workload or list(PARTIAL)
        for repeat in range(args.repeats):
            for name in names if "batch" in args.only else []:
                for access in ORDERS:
                    self.case(on, f"{name}/{access}/{repeat}", access, workloads.batch(PARTIAL[name], repeat))
            for name, load in ARRIVALS.items() if "arrivals" in args.only else []:
                for access in ORDERS:
                    self.case(on, f"{name}/{access}/{repeat}", access, workloads.arrivals(self.sizes.unit_s, load, repeat))
