"""Throughput over time: what the program read, and what the PFS served, sampled by a thread."""

import threading
import time


class Meter:
    """Counts the bytes a program reads and notes, every `step_s`, (seconds, bytes read, bytes the PFS served)."""

    def __init__(self, served_bytes, step_s=0.1):
        self.read_bytes = 0
        self.samples = []
        self._served = served_bytes
        self._step_s = step_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self):
        self._start = time.monotonic()
        self._served_at_start = self._served() or 0
        self._note()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._note()

    def advance(self, length):
        self.read_bytes += length

    def now(self):
        """Seconds, bytes read and bytes the PFS served since the start."""
        served = self._served()
        served = self.samples[-1][2] if served is None else served - self._served_at_start
        return time.monotonic() - self._start, self.read_bytes, served

    def _note(self):
        self.samples.append(self.now() if self.samples else (0.0, 0, 0))

    def _sample(self):
        while not self._stop.wait(self._step_s):
            self._note()


def rates(samples, column, window_s):
    """Rates in bytes/s of a column of the samples, over windows: (start, end, rate) each."""
    windows, first = [], samples[0]
    for sample in samples[1:]:
        if sample[0] - first[0] >= window_s or sample is samples[-1]:
            seconds = sample[0] - first[0]
            if seconds > window_s / 4:
                windows.append((first[0], sample[0], (sample[column] - first[column]) / seconds))
            first = sample
    return windows
