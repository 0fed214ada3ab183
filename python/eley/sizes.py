"""Sizes of the experiment, and the settings that are compared."""

from dataclasses import dataclass, replace

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """Of the lab, of the writer and of Spark's input. Rates in MB/s of each server, both directions together; bytes are those of one rank, and
    of one split."""

    pfs: str = "moosefs"
    servers: int = 2
    # 0: by the speed of the job on the local disk.
    rate: float = 0.0
    nodes: int = 2
    # Cores of each node: together less than the machine has, so that nodes do not wait for each
    # other.
    node_cpus: float = 0.3
    writer_cpus: float = 0.4
    server_cpus: float = 0.3
    ranks: int = 4
    # 0: so that a phase alone takes about PHASE_S.
    rank_bytes: int = 0
    # Between two phases.
    compute_s: float = 4.0
    # A rank syncs after so many transfers of 1 MiB.
    sync_transfers: int = 4
    api: str = "posix"
    workload: str = "wordcount"
    extent_bytes: int = 16 * MIB
    waves: int = 18
    # Of the writer alone.
    alone_phases: int = 6
    # Phases before Spark is started. There are some more until it begins to read.
    phases_before: int = 2
    # Threads of a node up to which the profile is measured.
    profile_threads: int = 4
    # A run of its readers or writers alone takes about so long.
    profile_run_s: float = 2.0
    # Whether the writer reports its phases itself; else `forebay run --job` observes them.
    observed: bool = False

    @property
    def phase_bytes(self):
        return self.ranks * self.rank_bytes

    @property
    def wave_bytes(self):
        return self.nodes * self.extent_bytes

    @property
    def input_bytes(self):
        return self.waves * self.wave_bytes

    @property
    def pfs_bytes_per_s(self):
        return self.servers * self.rate * 1e6


# Speed of the PFS relative to the job's compute: fast enough that a job with prefetches need not
# read during the writer's phases, if these take half of the time.
SPEED = 2.0
PHASE_S = 4.0
# A smoke test: it runs every part, and its figures mean nothing.
QUICK = {"rate": 10.0, "node_cpus": 0.5, "rank_bytes": 4 * MIB, "compute_s": 2.0, "extent_bytes": 4 * MIB, "waves": 5, "alone_phases": 3, "phases_before": 1, "profile_threads": 1, "profile_run_s": 0.5, "sync_transfers": 1}


def fitting(size, map_s):
    """The sizes with what was left open, for a job whose map stage takes `map_s` on the local disk."""
    rate = size.rate or round(SPEED * size.input_bytes / map_s / size.servers / 1e6, 1)
    step = max(size.sync_transfers, 1) * MIB
    share = PHASE_S * size.servers * rate * 1e6 / size.ranks
    return replace(size, rate=rate, rank_bytes=size.rank_bytes or max(round(share / step), 1) * step)


@dataclass(frozen=True)
class Setting:
    """`planner`: None for Spark without Forebay; `qos`: what a phase may take beyond its time alone, None if the writer does not declare phases,
    as an unprotected job; `local`: Spark reads the local disk."""

    name: str
    title: str
    planner: str | None = None
    qos: float | None = None
    writer: bool = True
    spark: bool = True
    local: bool = False


SETTINGS = (
    Setting("alone", "writer alone", spark=False),
    Setting("spark", "Spark alone", "naive-bb", writer=False),
    Setting("local", "control: Spark reads the local disk", local=True),
    Setting("naive-bb", "NaiveBB", "naive-bb"),
    Setting("no-action", "NoAction", "no-action"),
    Setting("full-delay", "FullDelay, 5 %", "full-delay", 0.05),
    Setting("eley", "Eley, 5 %", "eley", 0.05),
    Setting("forebay", "Forebay, 5 %", "forebay", 0.05),
    Setting("forebay-15", "Forebay, 15 %", "forebay", 0.15),
    Setting("forebay-30", "Forebay, 30 %", "forebay", 0.30),
)
# Not measured unless named.
OPTIONAL = ("forebay-15",)


def named(name):
    return next(setting for setting in SETTINGS if setting.name == name)


def usual():
    return [setting.name for setting in SETTINGS if setting.name not in OPTIONAL]
