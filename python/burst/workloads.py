"""What the jobs write: the papers' jobs, scaled to a file system of eight servers whose ranks two cores can run, and the same as scenarios of the simulator."""

import random
from dataclasses import dataclass

SERVERS = 8
MIB = 1 << 20


@dataclass(frozen=True)
class Kind:
    """A job of the paper on shared burst buffers (ICPP 2016). `units`: bytes on each of its servers, in units of what a server writes in `unit_s`."""

    name: str
    ranks: int
    servers: int
    units: float


# Table II by 16: 128 nodes become 8 servers. Processes keep their proportions on each node (256,
# 256, 512, 1024), and so do bytes (256, 512, 256, 512 GB).
J4, J5, J6, J7 = Kind("J4", 1, 1, 1.0), Kind("J5", 1, 1, 2.0), Kind("J6", 4, 2, 1.0), Kind("J7", 16, 4, 2.0)
# Catalyst by 12: 24, 96 and 384 processes, each of which writes as much. A rank has one request
# under way, which is what bounds the small jobs alone.
J24P, J96P, J384P = Kind("J24p", 2, 8, 0.25), Kind("J96p", 8, 8, 1.0), Kind("J384p", 32, 8, 4.0)
CATALYST = (J24P, J96P, J384P)
PARTIAL = {
    "W7": {J4: 1, J5: 1, J6: 1, J7: 2},
    "W8": {J4: 10, J5: 1, J6: 1, J7: 1},
    "W9": {J4: 1, J5: 10, J6: 1, J7: 1},
    "W10": {J4: 1, J5: 1, J6: 5, J7: 1},
    "W11": {J5: 10, J7: 2},
    "W12": {J4: 10, J5: 10, J6: 2, J7: 1},
}
# Jobs of each kind that any workload has.
POOL = {kind: max(counts.get(kind, 0) for counts in PARTIAL.values()) for kind in (J4, J5, J6, J7)}
# A step asks so much later than the one before it in a drawn order, so that this is the order.
STAGGER_S = 0.01
# With arrivals over time: the part of the servers' time that the steps take while they arrive. In
# a rush it is more than all.
ARRIVALS = {"arrivals": 0.7, "rush": 1.2}


@dataclass(frozen=True)
class Step:
    """A job's step: which job of its kind, the servers, and when it asks, from the start."""

    kind: Kind
    number: int
    servers: tuple
    start_s: float

    @property
    def job(self):
        return f"{self.kind.name}-{self.number}"


def placed(jobs, starts, draw):
    """Steps on servers in turn, as burst buffers allocate."""
    at, steps = draw.randrange(SERVERS), []
    for (kind, number), start_s in zip(jobs, starts):
        servers = tuple(sorted((at + i) % SERVERS for i in range(kind.servers)))
        at = (at + kind.servers) % SERVERS
        steps.append(Step(kind, number, servers, start_s))
    return steps


def batch(counts, seed):
    """All at once, in an order drawn at random."""
    draw = random.Random(seed)
    jobs = [(kind, number) for kind, count in counts.items() for number in range(count)]
    draw.shuffle(jobs)
    return placed(jobs, [i * STAGGER_S for i in range(len(jobs))], draw)


def arrivals(unit_s, load, seed):
    """One step of each job of the pool, at random times."""
    draw = random.Random(seed)
    jobs = [(kind, number) for kind, count in POOL.items() for number in range(count)]
    work_s = sum(kind.units * kind.servers * unit_s for kind, _ in jobs)
    span_s = work_s / SERVERS / load
    draw.shuffle(jobs)
    return placed(jobs, sorted(draw.uniform(0, span_s) for _ in jobs), draw)


def catalyst(largest_first):
    kinds = reversed(CATALYST) if largest_first else CATALYST
    return [Step(kind, 0, tuple(range(SERVERS)), i * STAGGER_S) for i, kind in enumerate(kinds)]


def bytes_of_rank(kind, unit_bytes):
    return round(kind.units * unit_bytes * kind.servers / kind.ranks)


def scenario(steps, access, rate, unit_bytes, caps):
    """The same steps for the simulator. `rate`: bytes a second of a server; `caps`: the most that a kind of job was seen to write alone."""
    lines = ['kind = "burst-buffer"', "seed = 0", "[cluster]", f"nodes = {SERVERS}", "node_gb = 1000", f"node_gb_per_s = {rate / 1e9!r}", "[access]", f'policy = "{access}"']
    for step in steps:
        lines += ["[[job]]", f'name = "{step.job}"', f"processes = {step.kind.ranks}", f"step_gb = {bytes_of_rank(step.kind, unit_bytes) * step.kind.ranks / 1e9!r}"]
        lines += [f"on = {list(step.servers)}", f"client_gb_per_s = {caps[step.kind] / 1e9!r}", f"starts_s = {step.start_s!r}", "io_first = true"]
    return "\n".join(lines) + "\n"
