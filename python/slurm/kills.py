"""Kills daemons at random moments, and starts them again."""

import contextlib
import os
import random
import signal
import threading
import time

# How often each kind is killed. After the death of slurmctld, Slurm defers jobs that are staged in
# by a minute. Agents of jobs start again by themselves.
WEIGHTS = {"slurmctld": 1, "slurmd": 5, "agent": 7, "coordinator": 4, "member of etcd": 2, "agent of a job": 4}
PAUSE_S = (0.2, 1.2)
AWAY_S = (0.1, 1.0)


class Killer(threading.Thread):
    """Kills until it is stopped. A kill counts if jobs were under way."""

    def __init__(self, cluster, seed, is_busy):
        super().__init__(daemon=True)
        self.cluster, self.random, self.is_busy = cluster, random.Random(seed), is_busy
        kinds = {"agent of a job", *(daemon.kind for daemon in cluster.daemons)}
        self.weights = {kind: weight for kind, weight in WEIGHTS.items() if kind in kinds}
        self.struck = dict.fromkeys(self.weights, 0)
        self.stopping = threading.Event()

    def run(self):
        # Each kind once, soon.
        first = list(self.weights)
        self.random.shuffle(first)
        while not self.stopping.wait(self.random.uniform(*PAUSE_S)):
            kind = first.pop() if first else self.random.choices(list(self.weights), self.weights.values())[0]
            self.struck[kind] += self.kill(kind) and self.is_busy()

    def kill(self, kind):
        """Kills one of a kind, and starts it again; returns whether it was alive."""
        if kind == "agent of a job":
            agents = self.cluster.agents_of_jobs()
            with contextlib.suppress(ProcessLookupError):
                if agents:
                    os.kill(self.random.choice(agents), signal.SIGKILL)
            return bool(agents)
        daemon = self.random.choice([daemon for daemon in self.cluster.daemons if daemon.kind == kind])
        if kind == "slurmctld" and not self.cluster.wait_for_quiet_save():
            return False
        was_alive = daemon.kill()
        time.sleep(self.random.uniform(*AWAY_S))
        daemon.start()
        return was_alive

    def stop(self):
        self.stopping.set()
        self.join()
