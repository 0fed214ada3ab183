"""The place of the experiment: a file system whose servers have a limit each, an agent, a coordinator for each order, and MPI jobs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

import workloads

ANSWER_S = 60
STEP_S = 300
REQUEST_BYTES = 128 << 10
# Ranks yield the core while they wait for each other, and the launcher needs no network.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "vader,self"]


def wait_until(what, holds, seconds=ANSWER_S):
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"experiment: waited {seconds} s until {what}")
        time.sleep(0.05)


class FileSystem:
    """A slow file system. `stripe_bytes`: files of more than that are on all servers."""

    def __init__(self, program, place, rate, stripe_bytes):
        self.backing, self.mount = place / "backing", place / "mount"
        for path in (self.backing, self.mount):
            path.mkdir(parents=True)
        options = ["--servers", str(workloads.SERVERS), "--rate", f"{rate}B/s", "--stripe", str(stripe_bytes), "--latency", "0ms"]
        self.process = subprocess.Popen([program, "lab", "slowfs", "--backing", self.backing, "--mount", self.mount, *options])
        wait_until("the slow file system is mounted", lambda: os.path.ismount(self.mount))

    def make_files(self, slots):
        """A file for each slot on each server, in a directory for each server; and files that are on all, in `all`."""
        wanted = {server: list(range(slots)) for server in range(workloads.SERVERS)}
        for server in wanted:
            (self.mount / str(server)).mkdir()
        (self.mount / "all").mkdir()
        for slot in range(slots):
            (self.mount / "all" / str(slot)).touch()
        number = 0
        while any(wanted.values()):
            path = self.mount / f"new-{number}"
            number += 1
            path.touch()
            server = json.loads(os.getxattr(path, "user.forebay.layout"))["first_server"]
            if wanted[server]:
                path.rename(self.mount / str(server) / str(wanted[server].pop()))
            else:
                path.unlink()

    def end(self):
        subprocess.run(["umount", "-l", self.mount], check=False)
        self.process.terminate()
        self.process.wait()


class Daemons:
    """The agent of the node, and the coordinator, which is another process for each order."""

    def __init__(self, program, place, mount):
        self.program, self.place, self.coordinator = program, place, None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        config = place / "agent.toml"
        config.write_text(
            f'[agent]\nstate_dir = "{place}/state"\n[tier]\ncapacity = "64MiB"\nbacking = "directory"\ndirectory = "{place}/tier"\n'
            f'[cluster]\ncoordinator = "{self.address}"\nnode = "n0"\naccess_wait_s = 3600\n[[mount]]\nlabel = "pfs"\nroot = "{mount}"\n'
        )
        self.environment = {**os.environ, "FOREBAY_SOCKET": f"{place}/state/agent.sock"}
        self.log = open(place / "daemons.log", "a")
        self.agent = subprocess.Popen([program, "agent", "--config", config], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        wait_until("the agent answers", lambda: self.ask("status").returncode == 0)

    def ask(self, *words):
        return subprocess.run([self.program, "--json", *words], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def steps(self):
        return self.overview()["steps"]

    def overview(self):
        """What the coordinator knows; before it answers, nothing."""
        answer = self.ask("top", "--once")
        return json.loads(answer.stdout)["overview"] if answer.returncode == 0 else {"epoch": {"number": 0}, "steps": []}

    def order_by(self, access):
        """A new coordinator, which the agent has joined."""
        self.end_coordinator()
        config = self.place / "coordinator.toml"
        log = self.place / f"decisions-{access}"
        config.write_text(f'[cluster]\naccess = "{access}"\naccess_wait_s = 3600\ndecision_log = "{log}"\n')
        command = [self.program, "coordinator", "--listen", self.address, "--config", config]
        self.coordinator = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        # Before it knows all members it lets nobody in. The end of what the observer has seen of
        # the last steps is noticed two seconds later; a new coordinator takes that for steps.
        wait_until("the coordinator knows the agent", lambda: self.overview()["epoch"]["number"] > 0)
        wait_until("the last steps are over", lambda: not self.steps())

    def end_coordinator(self):
        if self.coordinator:
            self.coordinator.terminate()
            self.coordinator.wait()

    def end(self):
        self.end_coordinator()
        self.agent.terminate()
        self.agent.wait()


class Job:
    """An MPI job that writes a step whenever it is asked to."""

    def __init__(self, daemons, writer, mount, kind, number, first):
        self.kind, self.name = kind, f"{kind.name}-{number}"
        job = ["--job", self.name, "--share", "--processes", str(kind.ranks)]
        line = [daemons.program, "run", *job, "--", *MPIRUN, "-n", str(kind.ranks), writer, self.name, mount, str(first)]
        self.process = subprocess.Popen(
            list(map(str, line)), env=daemons.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=daemons.log, text=True, start_new_session=True
        )
        self.said, self.reader = [], threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def listen(self):
        for line in self.process.stdout:
            self.said.append(line)

    def await_ready(self):
        wait_until(f"{self.name} is ready", lambda: self.said or self.process.poll() is not None, 120)
        if self.process.poll() is not None:
            raise SystemExit(f"experiment: {self.name} has ended with {self.process.returncode}")
        self.said.clear()

    def begin(self, step_bytes, deadline_ms, start_s, servers):
        self.said.clear()
        self.process.stdin.write(f"{step_bytes} {deadline_ms} {start_s:.6f} {' '.join(servers)}\n")
        self.process.stdin.flush()

    def result(self):
        wait_until(f"{self.name} has written its step", lambda: self.said or self.process.poll() is not None, STEP_S)
        if not self.said:
            raise SystemExit(f"experiment: {self.name} has ended in its step")
        return json.loads(self.said[-1])

    def stop(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end(self):
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Stage:
    """A file system, the daemons, and the jobs of a set of kinds."""

    LEAD_S = 0.6

    def __init__(self, program, writer, place, sizes, pool, stripe_bytes):
        self.sizes, self.is_striped = sizes, stripe_bytes == REQUEST_BYTES
        place.mkdir(parents=True)
        self.jobs, self.daemons, self.files = {}, None, FileSystem(program, place, sizes.rate, stripe_bytes)
        try:
            slots = sum(kind.ranks * count for kind, count in pool.items())
            self.files.make_files(slots)
            self.daemons, first = Daemons(program, place, self.files.mount), 0
            self.daemons.order_by("none")
            for kind, count in pool.items():
                for number in range(count):
                    self.jobs[f"{kind.name}-{number}"] = Job(self.daemons, writer, self.files.mount, kind, number, first)
                    first += kind.ranks
            for job in self.jobs.values():
                job.await_ready()
        except BaseException:
            self.end()
            raise

    def order_by(self, access):
        self.daemons.order_by(access)

    def run(self, steps, alone_s):
        """I/O times of the steps, from asking to the last byte, in seconds. `alone_s`: what a step of a kind takes alone."""
        start = time.time() + self.LEAD_S
        for step in steps:
            servers = ["all"] if self.is_striped else [str(server) for server in step.servers]
            deadline_ms = round(1050 * alone_s[step.kind])
            self.jobs[step.job].begin(workloads.bytes_of_rank(step.kind, self.sizes.unit_bytes), deadline_ms, start + step.start_s, servers)
        results = [self.jobs[step.job].result() for step in steps]
        wait_until("the coordinator has heard of all ends", lambda: not self.daemons.steps())
        return [{"job": step.job, "wait_s": found["begun"] - found["asked"], "io_s": found["ended"] - found["asked"], "late_s": found["asked"] - start - step.start_s} for step, found in zip(steps, results)]

    def end(self):
        for job in self.jobs.values():
            job.stop()
        for job in self.jobs.values():
            job.end()
        if self.daemons:
            self.daemons.end()
        self.files.end()
