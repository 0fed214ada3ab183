"""Ways to the files of one PFS: the PFS itself, and the same through Forebay; and the agent that serves it."""

import os
import random
import re
import signal
import socket
import subprocess
import threading
import time

# A judge that hangs is a failure.
LONGEST_S = 7200
# How long an agent runs before it is killed, and how long there is none, in seconds.
ALIVE_S = (0.2, 3)
DEAD_S = (0, 1)
# How often `forebay run` is started again because there was no agent.
STARTS = 100
# What it says if it runs the program without the library.
UNAIDED = re.compile(r"^forebay run: (the program reads the file system directly.*)", re.M)
REPORT = re.compile(r"^forebay run: (\d+) programs; (\d+) files opened through the tier, (\d+) left", re.M)
SERVED = re.compile(r"^forebay run: (\d+) reads served", re.M)


class Way:
    """The PFS itself."""

    name = "pfs"

    def __init__(self, directory):
        self.directory = directory

    def start(self):
        """Prepares the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def stop(self):
        """Ends what `start` has begun."""

    def prefix(self):
        """What stands before each command."""
        return []

    def call(self, command, user=None, longest_s=LONGEST_S, **more):
        """Runs a command; returns its exit code and all that it prints.

        user: runs it, if given. longest_s: then it is killed, which is a failure.
        """
        user_prefix = ["setpriv", "--reuid", user, "--regid", GROUPS[user], "--clear-groups"] if user else []
        command = [str(word) for word in [*user_prefix, *self.prefix(), *command]]
        environment = dict(os.environ, LC_ALL="C", **more.pop("env", {}))
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started = subprocess.Popen(command, env=environment, start_new_session=True, **streams, **more)
        try:
            said, _ = started.communicate(timeout=longest_s)
        except BaseException as error:
            # With its children. Nobody waits for them: a PFS may hang.
            os.killpg(started.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return 124, f"killed after {longest_s} s\n"
        return started.returncode, self.heard(said.decode(errors="replace"))

    def heard(self, said):
        """Adds up its report about the tier; returns only the output of the program."""
        return said

    def remark(self):
        """What is known about the tier's part, for the line of progress."""
        return ""

    def doubts(self, judge):
        """Why the results are invalid, if they are."""
        del judge
        return []


# The users as whom judges run programs, and their groups.
GROUPS = {"nobody": "nogroup"}


class Run(Way):
    """`forebay run`."""

    name = "run"

    def __init__(self, directory, forebay):
        super().__init__(directory)
        self.forebay = forebay
        # Programs, files served, files left to the PFS, reads served; and reports.
        self.counts = [0] * 5
        # Why programs ran without the library.
        self.unaided = []

    def prefix(self):
        return [self.forebay, "run", "--report", "--"]

    def call(self, command, user=None, longest_s=LONGEST_S, **more):
        # It needs an agent to begin with, and the agent may be dead.
        for _ in range(STARTS):
            before = self.counts[4] + len(self.unaided)
            code, said = super().call(command, user, longest_s, **more)
            if self.counts[4] + len(self.unaided) > before:
                break
            time.sleep(0.2)
        return code, said

    def heard(self, said):
        for programs, files, left in REPORT.findall(said):
            found = programs, files, left, 0, 1
            self.counts = [count + int(more) for count, more in zip(self.counts, found)]
        self.counts[3] += sum(map(int, SERVED.findall(said)))
        self.unaided += UNAIDED.findall(said)
        return "".join(line for line in said.splitlines(keepends=True) if not line.startswith("forebay run: "))

    def remark(self):
        programs, files, left, reads, _ = self.counts
        return f"; {programs} programs had the library, {files} files and {reads} reads were served, {left} files left to the PFS"

    def doubts(self, judge):
        programs, files, *_ = self.counts
        unaided, self.unaided = self.unaided, []
        self.counts = [0] * 5
        found = []
        if programs == 0:
            found.append("no program had the library" + (f": {unaided[0]}" if unaided else ""))
        if files == 0 and judge.reads:
            found.append("no file was read through the tier")
        return found


class Mount(Way):
    """`forebay mount`: the same PFS at a second mount point."""

    name = "mount"

    def __init__(self, directory, pfs, forebay, log):
        """directory: that of the judges, in the mount point."""
        super().__init__(directory)
        self.mountpoint, self.log = directory.parent, log
        options = ["-o", "suid,dev"] if os.geteuid() == 0 else []
        self.command = [forebay, "mount", "--foreground", *options, pfs, self.mountpoint]
        self.process = None

    def start(self):
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while not os.path.ismount(self.mountpoint):
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise SystemExit(f"posix: the mount did not come up; see {self.log}")
            time.sleep(0.02)
        super().start()

    def stop(self):
        if self.process:
            # Also if a judge has left a program there.
            subprocess.run(["umount", "-l", self.mountpoint], check=False)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def doubts(self, judge):
        return [] if self.process.poll() is None and os.path.ismount(self.mountpoint) else ["the mount has ended"]


def as_long(directory, other):
    """A directory whose path is at least as long as the other one.

    A socket's path has 107 bytes at most. What is too long through the mount must be too long on
    the PFS.
    """
    return directory.with_name(directory.name.ljust(len(str(other)) - len(str(directory.parent)) - 1, "_"))


def has_mount(forebay):
    """Whether the program knows `forebay mount`."""
    asked = subprocess.run([forebay, "mount", "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return asked.returncode == 0


class Agent:
    """An agent of this process."""

    def __init__(self, forebay, pfs, state, capacity):
        self.command = [forebay, "up", "--foreground", "--pfs", pfs, "--capacity", capacity, "--state-dir", state]
        self.down = [forebay, "down", "--drop", "--state-dir", state]
        self.socket, self.log = state / "agent.sock", state / "agent.log"
        self.process = None
        self.kills = 0

    def start(self):
        """Starts it, and waits until it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"posix: the agent did not start; see {self.log}")
            time.sleep(0.02)

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            try:
                end.connect(str(self.socket))
            except OSError:
                return False
        return True

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.kills += 1

    def stop(self):
        """Ends it, and the tier with it."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        subprocess.run(self.down, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


class Killer(threading.Thread):
    """Kills an agent at random moments and starts it again."""

    def __init__(self, agent, seed):
        super().__init__(daemon=True)
        self.agent, self.random = agent, random.Random(seed)
        self.ended = threading.Event()
        self.error = None

    def run(self):
        try:
            while not self.ended.wait(self.random.uniform(*ALIVE_S)):
                self.agent.kill()
                self.ended.wait(self.random.uniform(*DEAD_S))
                self.agent.start()
        except (OSError, SystemExit) as error:
            self.error = error

    def stop(self):
        self.ended.set()
        self.join()
