#!/usr/bin/env python3
"""In which order nodes should ask a PFS for the waves to come: a model of what each rule can reach.

    python3 bench/models/wave_order.py

Nodes of one core each run tasks of `PAGES` pages, wave after wave, and bring them from servers whose links divide their bandwidth evenly among
the pages under way. Nothing else costs time: no requests, no opening, no page that comes to two nodes. So it tells what an order of requests is
worth, by how files lie on servers, and not how long a job takes. Times are in those that all links together need for all of it: 1.00 would be
links that are busy from the beginning to the end, and a last page that costs nothing to compute.
"""

import argparse
import random
import statistics
from dataclasses import dataclass, field

NODES = SERVERS = 4
PAGES = 4
# What an agent has under way at most, of a planned wave, and of each that it brings ahead
# (docs/decisions/0016).
MOST, PLANNED, AHEAD, AHEAD_WAVES = 8, 4, 1, 3
# Of a job's waves so many allow for one ahead.
WAVES_FOR_ONE_AHEAD = 5
# Where it is known on which server what lies: pieces that a server has at a time, and a node, and
# waves within reach.
DEPTH, HANDS, REACH = 2, 4, 8
EPSILON = 1e-9


def placed(layout, waves, rng):
    """The servers of each page, by (file, page). A file is what one task reads."""
    files = waves * NODES
    if layout == "files":
        of = [file % SERVERS for file in range(files)]
        rng.shuffle(of)
        return {(file, page): (of[file],) for file in range(files) for page in range(PAGES)}
    if layout == "hashed":
        pairs = {(file, page): (rng.randrange(SERVERS),) for file in range(files) for page in range(0, PAGES, 2)}
        return {(file, page): pairs[file, page // 2 * 2] for file in range(files) for page in range(PAGES)}
    return {(file, page): tuple(range(SERVERS)) for file in range(files) for page in range(PAGES)}


@dataclass
class Node:
    """Task `wave` runs and is at `page`; files are wave * NODES + number."""

    number: int
    waves: int
    wave: int = 0
    page: int = 0
    computes_until: float | None = None
    under_way: set = field(default_factory=set)

    def file(self, wave):
        return wave * NODES + self.number


class World:
    """All of it. `compute` is the time of a wave's computing over that of bringing it."""

    def __init__(self, layout, rule, waves, compute, seed):
        self.servers = placed(layout, waves, random.Random(seed))
        self.rule, self.waves = rule, waves
        # A page takes 1 on a link that it has for itself.
        self.compute = compute * PAGES * NODES / SERVERS / PAGES
        self.nodes = [Node(number, waves) for number in range(NODES)]
        self.here, self.left, self.now = set(), {}, 0.0
        # Pieces under way, of `by_lane`: server, node, pages.
        self.pieces, self.begun = [], set()

    def wanted(self, page):
        return page not in self.here and page not in self.left

    def send(self, node, page):
        self.left[page] = 1.0
        node.under_way.add(page)

    def rates(self):
        load = [0.0] * SERVERS
        for page in self.left:
            for server in self.servers[page]:
                load[server] += 1 / len(self.servers[page])
        return {page: sum(1 / load[server] for server in on) / len(on) for page in self.left for on in [self.servers[page]]}

    def run(self):
        """When the last task has ended, in units of what all links together need."""
        while any(node.wave < self.waves for node in self.nodes):
            for node in self.nodes:
                if node.wave < self.waves and node.computes_until is None and (node.file(node.wave), node.page) in self.here:
                    node.computes_until = self.now + self.compute
            self.rule(self)
            self.advance()
        return self.now / (self.waves * NODES * PAGES / SERVERS)

    def advance(self):
        rates = self.rates()
        step = min([self.left[page] / rates[page] for page in rates] + [node.computes_until - self.now for node in self.nodes if node.computes_until is not None])
        self.now += step
        for page, rate in rates.items():
            self.left[page] -= rate * step
            if self.left[page] < EPSILON:
                del self.left[page]
                self.here.add(page)
        for node in self.nodes:
            node.under_way &= self.left.keys()
            if node.computes_until is not None and node.computes_until <= self.now + EPSILON:
                node.computes_until = None
                node.page += 1
                if node.page == PAGES:
                    node.wave, node.page = node.wave + 1, 0


def on_demand(world):
    """Tasks read by themselves, with the next page asked for while one is computed."""
    for node in world.nodes:
        if node.wave < world.waves and not node.under_way:
            pages = [(node.file(node.wave), page) for page in range(node.page, min(node.page + 2, PAGES))]
            for page in [page for page in pages if world.wanted(page)][:1]:
                world.send(node, page)


def unknown(world):
    """As nodes do it where the PFS does not tell: what tasks wait for and the planned wave, then up to three waves more, a page of each at a time; nothing beside the first."""
    for node in world.nodes:
        ahead = max(1, min(AHEAD_WAVES, world.waves // WAVES_FOR_ONE_AHEAD))
        waves = range(node.wave, min(world.waves, node.wave + 2 + ahead))
        behind = False
        for wave in waves:
            pages = [(node.file(wave), page) for page in range(PAGES)]
            missing = [page for page in pages if page not in world.here]
            most = PLANNED if not behind and wave <= node.wave + 1 else AHEAD
            sent = sum(page in node.under_way for page in pages)
            for page in filter(world.wanted, missing):
                if sent < most and len(node.under_way) < MOST:
                    world.send(node, page)
                    sent += 1
            behind |= bool(missing)
            if missing and wave == 0:
                break


def by_lane(world):
    """As the coordinator does it where the PFS tells: pieces by server, that which is needed first of all, a page of each at a time."""
    on_demand(world)
    first = min(node.wave for node in world.nodes)
    waits = sorted(
        (wave, page, node.number, tuple(world.servers[node.file(wave), page]))
        for node in world.nodes
        for wave in range(node.wave, min(world.waves, first + REACH))
        for page in range(PAGES)
        if page == 0 or world.servers[node.file(wave), page] != world.servers[node.file(wave), page - 1]
        if (node.file(wave), page) not in world.begun
    )
    world.pieces = [piece for piece in world.pieces if not world.here.issuperset(piece[2])]
    for wave, page, number, lane in waits:
        file = world.nodes[number].file(wave)
        pages = [(file, page)]
        while pages[-1][1] + 1 < PAGES and world.servers[file, pages[-1][1] + 1] == lane:
            pages.append((file, pages[-1][1] + 1))
        free = sum(piece[0] == lane for piece in world.pieces) < DEPTH
        if free and sum(piece[1] == number for piece in world.pieces) < HANDS:
            world.begun.add(pages[0])
            # What is there already takes no time.
            if not world.here.issuperset(pages):
                world.pieces.append((lane, number, pages))
    for _, number, pages in world.pieces:
        if not any(page in world.left for page in pages):
            world.send(world.nodes[number], next(page for page in pages if page not in world.here))


def by_server(world):
    """A node knows which server has what, and asks each for one page at a time, those of the earliest wave first."""
    for node in world.nodes:
        busy = {server for page in node.under_way for server in world.servers[page]}
        for wave in range(node.wave, min(world.waves, node.wave + 2 + AHEAD_WAVES)):
            for page in ((node.file(wave), page) for page in range(PAGES)):
                if world.wanted(page) and busy.isdisjoint(world.servers[page]):
                    world.send(node, page)
                    busy.update(world.servers[page])


def one_queue(world):
    """All nodes know, and of each other: a server has one page under way, that which is needed first of all."""
    busy = {server for page in world.left for server in world.servers[page]}
    waits = sorted(
        (wave, page, node.number)
        for node in world.nodes
        for wave in range(node.wave, min(world.waves, node.wave + 2 * (2 + AHEAD_WAVES)))
        for page in range(PAGES)
        if world.wanted((node.file(wave), page))
    )
    for wave, page, number in waits:
        key = (world.nodes[number].file(wave), page)
        if busy.isdisjoint(world.servers[key]):
            world.send(world.nodes[number], key)
            busy.update(world.servers[key])


RULES = {"on demand": on_demand, "unknown": unknown, "by lane": by_lane, "by server": by_server, "one queue": one_queue}
LAYOUTS = {"files": "each file on one server", "hashed": "pieces of two pages, by hash", "striped": "each page on all servers"}


def reached(layout, rule, waves, compute, seeds):
    """Median of [`World.run`] over so many placements."""
    return statistics.median(World(layout, RULES[rule], waves, compute, seed).run() for seed in range(seeds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waves", type=int, default=15)
    parser.add_argument("--compute", type=float, default=1.0, help="time to compute a wave over that to bring it [default: 1]")
    parser.add_argument("--ahead", type=int, default=AHEAD_WAVES, help="waves that nodes begin beyond the planned one at most, in `unknown` [default: 3]")
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    globals()["AHEAD_WAVES"] = args.ahead
    print(f"{args.waves} waves on {NODES} nodes, {SERVERS} servers; time over that of all links together, and against `on demand`")
    for layout, title in LAYOUTS.items():
        times = {rule: reached(layout, rule, args.waves, args.compute, args.seeds) for rule in RULES}
        cells = (f"{rule} {time:.2f} ({100 * (time / times['on demand'] - 1):+.0f} %)" for rule, time in times.items())
        print(f"{title + ':':32}{', '.join(cells)}")


if __name__ == "__main__":
    main()
