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
    writers: int = 1

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
# With a second writer, nodes still have less than the machine's cores together.
TWO_WRITERS = {"writers": 2, "writer_cpus": 0.3}
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
    as an unprotected job; `local`: Spark reads the local disk; `saves`: a second MPI program, `saver`, writes checkpoints to new files, straight to
the file system or with write-back."""

    name: str
    title: str
    planner: str | None = None
    qos: float | None = None
    writer: bool = True
    spark: bool = True
    local: bool = False
    saves: str | None = None


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
    Setting("saves", "checkpoints alone, straight", writer=False, spark=False, saves="straight"),
    Setting("saves-back", "checkpoints alone, write-back", writer=False, spark=False, saves="back"),
    Setting("pair", "checkpoints straight, beside a writer with deadlines", qos=0.05, spark=False, saves="straight"),
    Setting("pair-back", "checkpoints write-back, beside a writer with deadlines", qos=0.05, spark=False, saves="back"),
    Setting("spark-saves", "checkpoints straight, beside Spark (NaiveBB)", "naive-bb", writer=False, saves="straight"),
    Setting("spark-saves-back", "checkpoints write-back, beside Spark (Forebay)", "forebay", writer=False, saves="back"),
)
# The experiment with checkpoints.
CHECKPOINTS = ("alone", "saves", "saves-back", "pair", "pair-back", "spark", "spark-saves", "spark-saves-back")
# Not measured unless named.
OPTIONAL = ("forebay-15", *(setting.name for setting in SETTINGS if setting.saves))


def named(name):
    return next(setting for setting in SETTINGS if setting.name == name)


def usual():
    return [setting.name for setting in SETTINGS if setting.name not in OPTIONAL]
