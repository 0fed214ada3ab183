"""Sizes that fit together, from the node's memory and the order of HPL's matrix, and the settings that are compared."""

from dataclasses import dataclass

MIB = 1 << 20
# Of a JVM beside its heap and of the agent beside its tier, as they were seen; together.
OTHER_BYTES = 300 * MIB
# Left free when the large tier is full, so that it stays full without HPL.
SLACK_BYTES = 64 * MIB
# In the tier's capacity beside the pages: the agent's buffers for a static tier, and with room for
# pages of files that end in between for one that has to hold all.
BUFFERS_BYTES = 40 * MIB
ALL_BYTES = 56 * MIB
ALL_SHARE = 1.02
FILES = 8
HEAP_MIN_BYTES = 512 * MIB


class SizesError(Exception):
    """The sizes do not fit; the message says what to change."""


@dataclass(frozen=True)
class Sizes:
    """In bytes. `safe`: the static tier that HPL at its height leaves room for; `large`: one that holds all of the input."""

    node: int
    target: float
    hpl_n: int
    safe: int
    large: int
    input: int
    heap: int

    @property
    def hpl(self):
        return 8 * self.hpl_n**2


def fitting(node, hpl_n, target=0.95):
    """Sizes with which HPL beside the large tier does not fit into the node, and the input is twice the safe tier."""
    hpl = 8 * hpl_n**2
    # The input and the slack are what the safe tier holds and HPL together.
    held = (hpl - SLACK_BYTES) // MIB * MIB
    safe = held + BUFFERS_BYTES
    large = int(ALL_SHARE * 2 * held) + ALL_BYTES
    # Pages of the tier are memory, what it reserves for buffers is not.
    heap = (int(node * target) - 2 * held - SLACK_BYTES - OTHER_BYTES) // MIB * MIB
    if held < 2 * FILES * MIB:
        raise SizesError(f"HPL of order {hpl_n} takes {hpl / MIB:.0f} MiB, too little beside {SLACK_BYTES // MIB} MiB of slack; increase --hpl")
    if heap < HEAP_MIN_BYTES:
        raise SizesError(f"HPL of order {hpl_n} leaves Spark {heap / MIB:.0f} MiB of a node of {node / MIB:.0f} MiB; increase --node or reduce --hpl")
    return Sizes(node, target, hpl_n, safe, large, 2 * held, heap)


# The paper's choice.
USUAL_GAIN = 0.5


@dataclass(frozen=True)
class Setting:
    """`policy` of the agent, None: no tier; `tier`: which of the sizes; `hpcc`: whether HPL runs beside; `limited`: whether the node has a limit."""

    name: str
    title: str
    policy: str | None
    tier: str | None
    hpcc: bool = True
    limited: bool = True
    # Spark ML and the reader, or HPL alone.
    analytics: bool = True
    # Of the law `dynims`; a setting with another gain than the paper's is measured only if named.
    gain: float = USUAL_GAIN


SETTINGS = (
    Setting("hpl", "HPL alone", None, None, analytics=False),
    Setting("upper", "upper bound: large tier, no HPL", "static", "large", hpcc=False),
    Setting("forebay", "forebay", "forebay", "large"),
    Setting("dynims", "dynims", "dynims", "large"),
    Setting("small", "static, small (safe)", "static", "safe"),
    Setting("large", "static, large (unsafe)", "static", "large"),
    Setting("control", "control: large tier, no limit", "static", "large", limited=False),
    Setting("none", "no tier", None, None),
    # The paper's sweep (Figures 3-6 and 3-7): too slow, and unstable.
    Setting("dynims-0.1", "dynims, gain 0.1", "dynims", "large", gain=0.1),
    Setting("dynims-2.5", "dynims, gain 2.5", "dynims", "large", gain=2.5),
)


def named(name):
    return next(setting for setting in SETTINGS if setting.name == name)
