"""Compares the results of a judge on the PFS with those through Forebay.

A judge is a program that tests a file system. Its result is a word for each of its tests: `ok`,
`skipped` or `failed`. Rule: a test that passes on the PFS itself must pass through Forebay.
"""

import functools
import time
from dataclasses import dataclass, field

# How often a test that passed only on the PFS is run again, each way.
AGAIN = 3
# The way that the others are compared with.
PFS = "pfs"


@dataclass
class Verdict:
    """What is known of one judge."""

    judge: str
    # Why it could not run.
    left_out: str = ""
    # The results of each way by its name.
    results: dict = field(default_factory=dict)
    # Tests that pass on the PFS and never passed this way.
    different: dict = field(default_factory=dict)
    # Why the comparison is invalid, such as a library that no program loaded.
    void: list = field(default_factory=list)

    @property
    def is_good(self):
        return not (any(self.different.values()) or self.void)


def passed(results):
    """How many tests are `ok`."""
    return sum(result == "ok" for result in results.values())


def worse(plain, ours):
    """Tests that pass on the PFS and not, or not at all, through Forebay."""
    return sorted(name for name, result in plain.items() if result == "ok" and ours.get(name) != "ok")


def compare(judge, ways, say=print):
    """Runs a judge each way, and tests that differ again; returns the verdict."""
    verdict = Verdict(judge.name)
    for prepare in (judge.fetch, *(functools.partial(judge.prepare, way) for way in ways)):
        if why := prepare():
            verdict.left_out = why
            return verdict
    for way in ways:
        began = time.monotonic()
        results = verdict.results[way.name] = judge.run(way)
        seconds = time.monotonic() - began
        said = f"{passed(results)} of {len(results)} tests passed, {seconds:.0f} s"
        say(f"{judge.name}: {way.name}: {said}{way.remark()}")
        verdict.void += [f"{way.name}: {why}" for why in way.doubts(judge)]
    plain = verdict.results[PFS]
    if passed(plain) < judge.least:
        verdict.void.append(f"only {passed(plain)} tests passed on the PFS; at least {judge.least} should")
    for way in ways:
        if way.name != PFS:
            inherent = judge.inherent.get(way.name, [])
            differing = [name for name in worse(plain, verdict.results[way.name]) if name not in inherent]
            verdict.different[way.name] = run_again(judge, ways[0], way, differing, say)
    return verdict


def run_again(judge, plain, ours, differing, say):
    """Runs tests alone, both ways; returns those that differ every time."""
    for _ in range(AGAIN):
        if not differing:
            break
        say(f"{judge.name}: {ours.name}: again: {', '.join(differing)}")
        still = worse(judge.run(plain, differing), judge.run(ours, differing))
        differing = [name for name in differing if name in still]
    return differing


def table(verdicts, ways):
    """The lines of a Markdown table, a row for each judge."""
    names = [way.name for way in ways]
    lines = ["| judge | tests | " + " | ".join(f"pass: {name}" for name in names) + " | pass only on the PFS |"]
    lines.append("| --- " * (len(names) + 3) + "|")
    for verdict in verdicts:
        if verdict.left_out:
            lines.append(f"| {verdict.judge} | left out: {verdict.left_out} |" + " |" * (len(names) + 1))
            continue
        counts = [str(passed(verdict.results[name])) for name in names]
        different = [f"{name}: {test}" for name, tests in verdict.different.items() for test in tests]
        cells = [verdict.judge, str(len(verdict.results[PFS])), *counts, ", ".join(different) or "none"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
