"""Memory of the node over time, and what the PFS served, sampled by a thread."""

import threading
import time

STEP_S = 0.01
# The PFS is asked less often: an answer is a request to it.
SERVED_EVERY = 25


class Sampler:
    """`samples`: (seconds since 1970, used, tmpfs) each, in bytes; `served`: (seconds since 1970, bytes so far)."""

    def __init__(self, group, served_bytes):
        self.group, self.served_bytes = group, served_bytes
        self.samples, self.served = [], []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()

    def sample(self):
        count = 0
        while not self.stopping.wait(STEP_S):
            use = self.group.use()
            self.samples.append((time.time(), use.used, use.tmpfs))
            if count % SERVED_EVERY == 0:
                served = self.served_bytes()
                if served is not None:
                    self.served.append((time.time(), served))
            count += 1


def between(samples, began, ended):
    return [sample for sample in samples if began <= sample[0] <= ended]


def mean(samples, column):
    """Over time, of a column that stays until the next sample."""
    spans = list(zip(samples, samples[1:]))
    total = samples[-1][0] - samples[0][0] if spans else 0
    if total <= 0:
        return None
    return sum(one[column] * (two[0] - one[0]) for one, two in spans) / total


def above_s(samples, bound):
    """Seconds with use above the bound: all together, and the longest at a time."""
    total = longest = run = 0.0
    for one, two in zip(samples, samples[1:]):
        run = run + two[0] - one[0] if one[1] > bound else 0.0
        total += two[0] - one[0] if one[1] > bound else 0.0
        longest = max(longest, run)
    return total, longest


def thinned(samples, step_s, column):
    """At most one sample a step, that with the largest value of the column, so that peaks stay."""
    kept = []
    for sample in samples:
        if kept and int(sample[0] / step_s) == int(kept[-1][0] / step_s):
            if sample[column] > kept[-1][column]:
                kept[-1] = sample
        else:
            kept.append(sample)
    return kept
