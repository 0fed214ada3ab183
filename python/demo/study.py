"""What waves gain and cost, by how fast the PFS is: the figures of docs/benchmarks.md for Spark.

Each setting is a speed of the PFS as a multiple of what the cores compute, measured first for each workload on the same machine. In each,
`no-action` is run against `naive-bb`, in turns and several times, and medians are compared: a machine that others use as well drifts.
"""

import statistics
import subprocess
from dataclasses import dataclass, field

import waves

MODES = ("naive-bb", "no-action")


@dataclass(frozen=True)
class Setting:
    name: str
    title: str
    # Of the PFS over that of the cores.
    speed: float
    # Whether each run begins with nothing in memory.
    cold: bool = True
    # Whether waves have anything to gain. If so, a share of what the bound leaves is the target.
    gains: bool = True


SETTINGS = (
    Setting("limit", "the PFS is the limit", 0.75),
    Setting("equal", "the PFS is as fast as the cores", 1.0),
    Setting("compute", "computing takes half as long again", 1.5),
    Setting("fast", "the PFS is no limit", 16.0, gains=False),
    Setting("cached", "all is in memory before, in the page cache for naive-bb", 1.0, cold=False, gains=False),
)
# A gain of less than this share of the map time is not told from the spread of the runs.
GAIN_MIN = 0.03
# Waves never make a job longer by more than this share.
CHANGE_MAX = 0.03
# Least share of tasks where their extent is, in every setting.
LOCAL_MIN = 0.95
# How far the simulator may be off: map time and PFS bytes, as shares.
PREDICTED_WITHIN = (0.15, 0.05)


@dataclass
class Outcome:
    """Of one workload in one setting; `rate` in MB/s, all servers together."""

    setting: Setting
    workload: str
    rate: float
    runs: dict
    # What the PFS's busiest server takes to send what it has of the input.
    pfs_s: float = 0.0
    # Waves should reach at least this share of the gain that the bound permits.
    share_min: float = 0.0
    # What the simulator predicts (a predict.Prediction), by mode; empty where nothing is fetched.
    predicted: dict = field(default_factory=dict)
    cores: waves.Cores | None = None

    def map_s(self, mode):
        return statistics.median(run.map_s for run in self.runs[mode])

    @property
    def change(self):
        return self.map_s("no-action") / self.map_s("naive-bb") - 1

    @property
    def bound_s(self):
        """The least that the links and the cores permit; None where nothing is fetched."""
        return max(self.pfs_s, self.cores.map_s if self.cores else 0.0) if self.setting.cold else None

    @property
    def gained_share(self):
        """Share reached of the gain that the bound permits; None where it permits none, or too little to measure."""
        alone_s = self.map_s("naive-bb")
        if not self.setting.gains or alone_s - self.bound_s < GAIN_MIN * alone_s:
            return None
        return (alone_s - self.map_s("no-action")) / (alone_s - self.bound_s)

    def share(self, name):
        """Median of a share of the runs with waves; None if they do not have it."""
        values = [value for value in (getattr(run, name) for run in self.runs["no-action"]) if value is not None]
        return statistics.median(values) if values else None

    def served_bytes(self, mode):
        return statistics.median(run.served_bytes for run in self.runs[mode])

    def off(self, mode):
        """How far the predicted map time and PFS bytes are from the measured ones, as shares."""
        predicted = self.predicted[mode]
        return predicted.map_s / self.map_s(mode) - 1, predicted.served_bytes / max(self.served_bytes(mode), 1) - 1

    def prediction(self, mode):
        """What the simulator says, and how far that is from what was measured."""
        predicted = self.predicted.get(mode)
        if predicted is None:
            return "-"
        map_off, bytes_off = self.off(mode)
        return f"{predicted.map_s:.1f} s ({100 * map_off:+.0f} %), {predicted.served_bytes / 1e6:.0f} MB ({100 * bytes_off:+.1f} %)"

    def misses(self):
        """What is not as it should be, in words."""
        found = []
        gained, local = self.gained_share, self.share("local_share")
        if self.change > CHANGE_MAX:
            found.append(f"map time {100 * self.change:+.1f} %, target {100 * CHANGE_MAX:+.0f} % at most")
        if gained is not None and gained < self.share_min:
            found.append(f"{waves.percent(gained)} of the possible gain, target {100 * self.share_min:.0f} % at least")
        if local < LOCAL_MIN:
            found.append(f"{waves.percent(local)} local, target {100 * LOCAL_MIN:.0f} % at least")
        for mode in self.predicted:
            for what, off, most in zip(("map time", "PFS bytes"), self.off(mode), PREDICTED_WITHIN):
                if abs(off) > most:
                    found.append(f"simulated {what} of {mode} {100 * off:+.1f} %, target within {100 * most:.0f} %")
        return found


def run_all(cluster, backing, data, size, servers, busiest_bytes, repeats, only, share_min, say, predict=None, keep=None, workloads=tuple(waves.WORKLOADS)):
    """Every setting of `only` (names; empty: all) with each of the workloads, of `size` bytes on so many servers, most of them on one. Waves should
    reach `share_min` of the gain that the bound permits. `predict` (a predict.Predictor) says before each what the simulator expects. Gives
    outcomes, and `keep` gets those that there are after each."""
    cores = {}
    for workload in workloads:
        say(f"{waves.WORKLOADS[workload]} from the local disk ...")
        cores[workload] = waves.cores(cluster, backing, workload)
        say(f"    map {cores[workload].map_s:.1f} s, the first task of each node {cores[workload].first_task_s:.1f} s")
    outcomes = []
    for setting in SETTINGS:
        if only and setting.name not in only:
            continue
        for workload in workloads:
            title = waves.WORKLOADS[workload]
            rate = setting.speed * size / cores[workload].map_s / 1e6
            cluster.set_rate(rate / servers)
            say(f"{title}, {setting.title}: {rate:.1f} MB/s")
            predicted = {}
            if predict and setting.cold:
                try:
                    predicted = {mode: predict(setting.name, workload, mode, rate / servers, cores[workload]) for mode in MODES}
                except (waves.WavesError, OSError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
                    # The column is beside the measurement and does not end it.
                    say(f"    no prediction: {error}")
            inputs = {"naive-bb": data if setting.cold else backing, "no-action": data}
            runs = measure(cluster, inputs, size, setting, workload, repeats, say)
            pfs_s = busiest_bytes / (rate / servers) / 1e6
            outcomes.append(Outcome(setting, workload, rate, runs, pfs_s, share_min, predicted, cores[workload]))
            if keep:
                keep(outcomes)
    return outcomes


def measure(cluster, inputs, size, setting, workload, repeats, say):
    """Runs by mode, of `inputs` by mode; those with waves are checked to be what they claim.

    Where all is in memory before, it is in the tier for the one and in the kernel's page cache for the other, of a local disk: few PFSes
    keep their pages from one opening of a file to the next.
    """
    runs = {mode: [] for mode in MODES}
    if not setting.cold:
        cluster.forget()
        for mode in MODES:
            waves.measure(cluster, inputs[mode], workload, mode, cold=False)
    for _ in range(repeats):
        for mode in MODES:
            runs[mode].append(waves.measure(cluster, inputs[mode], workload, mode, cold=setting.cold))
            say(f"    {mode}: map {runs[mode][-1].map_s:.1f} s, the PFS served {runs[mode][-1].served_bytes / 1e6:.0f} MB")
    everything = [run for mode in MODES for run in runs[mode]]
    if setting.cold:
        waves.check(everything, size)
    elif any(run.served_bytes > size / 20 for run in everything):
        raise waves.WavesError(f"{workload}, {setting.name}: the PFS served {[run.served_bytes for run in everything]} bytes; it was not cached")
    return runs


def table(outcomes):
    """Lines of Markdown."""
    lines = [
        "| | PFS | map time, naive-bb | simulated | no-action | simulated | bound | change | of the possible gain | local | waves | prefetch hidden | target met |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in outcomes:
        cells = [
            waves.WORKLOADS[one.workload],
            f"{one.setting.title}, {one.rate:.0f} MB/s",
            *(cell for mode in MODES for cell in (f"{one.map_s(mode):.1f} s", one.prediction(mode))),
            f"{one.bound_s:.1f} s" if one.setting.cold else "-",
            f"{100 * one.change:+.1f} %",
            waves.percent(one.gained_share),
            waves.percent(one.share("local_share")),
            str(max(len(run.waves) for run in one.runs["no-action"])),
            waves.percent(one.share("hidden_share")),
            "; ".join(one.misses()) or "yes",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def figures(outcomes):
    """What goes into the JSON file."""
    return [
        {
            "setting": one.setting.name,
            "workload": one.workload,
            "rate_bytes_per_s": one.rate * 1e6,
            "pfs_s": one.pfs_s,
            "cores": one.cores and vars(one.cores),
            "predicted": {mode: vars(predicted) for mode, predicted in one.predicted.items()},
            "map_s": {mode: [run.map_s for run in runs] for mode, runs in one.runs.items()},
            "bound_s": one.bound_s,
            "change": one.change,
            "gained_share": one.gained_share,
            "local_share": one.share("local_share"),
            "hidden_share": one.share("hidden_share"),
            "misses": one.misses(),
            "runs": [vars(run) for runs in one.runs.values() for run in runs],
        }
        for one in outcomes
    ]
