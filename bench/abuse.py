"""Attacks a mount, its agent and its console as an ordinary user, and times the calls of others.

Needs root. The attacker (user 12001) runs one attack after the other, each for some seconds, two at
a time. Another user (12002) and root go on with what programs do, and every call is timed: on the
mount `stat`, open and read (the bytes are compared), create, write, rename and remove; on the agent
`forebay cat`; on the console its page. Prints the calls, and the longest and the 99.9th percentile
of each. Exit status 1: a call failed, returned wrong bytes or took longer than --deadline; or an
attack ended by itself, so that it attacked nothing.
"""

import argparse
import collections
import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ATTACKER, OTHER = 12001, 12002
# Root's own Python may be in a directory that others cannot enter.
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
FILE_BYTES = 1 << 20

# Each runs in a directory of the mount that the attacker may write to, with the same directory on
# the PFS as its first argument, the agent's socket and the console's port as its second and third.
BEGIN = """
import ctypes, fcntl, os, random, signal, socket, sys, threading, time
pfs, agent, console = sys.argv[1], sys.argv[2], int(sys.argv[3])
own = str(os.getpid())
os.mkdir(own); os.chdir(own); pfs += '/' + own
threading.stack_size(65536)
def many(count, work):
    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
def forever(work):
    def loop(number):
        while True:
            try:
                work(number)
            except OSError:
                time.sleep(0.001)
    return loop
def write(path, data):
    with open(path, 'wb') as file:
        file.write(data)
"""
ATTACKS = {
    "leases": """
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = [os.open(f'{pfs}/{n}', os.O_RDWR | os.O_CREAT) for n in range(520)]
for file in held:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
many(520, lambda n: os.open(str(n), os.O_RDONLY))
""",
    "descriptors": """
write('f', b'x')
held = []
def take(_):
    held.append(os.open('f', os.O_RDONLY))
many(4, forever(take))
""",
    "locks": """
write('f', b'x')
holder = os.open('f', os.O_RDWR)
fcntl.flock(holder, fcntl.LOCK_EX)
many(600, lambda n: fcntl.flock(os.open('f', os.O_RDWR), fcntl.LOCK_EX))
""",
    "pipes": """
os.mkfifo('p')
many(600, lambda n: os.open('p', os.O_RDONLY))
""",
    "renames": """
write('a', b'x')
def swap(n):
    os.rename('a', 'b'); os.rename('b', 'a')
many(4, forever(swap))
""",
    "truncations": """
write('f', bytes(8 << 20))
def cut(n):
    os.truncate('f', random.randrange(8 << 20)); os.truncate('f', 8 << 20)
    with open('f', 'rb') as file:
        file.read()
many(4, forever(cut))
""",
    "reads": """
for n in range(16):
    write(str(n), os.urandom(4 << 20))
def read(n):
    with open(str(n), 'rb', buffering=0) as file:
        while file.read(1 << 20):
            pass
many(16, forever(read))
""",
    "names": """
ctypes.CDLL(None).prctl(15, b'\\xff\\xfe) R 0', 0, 0, 0)
def make(n):
    write(f'{n}\\n\\xff', b'x'); os.stat(f'{n}\\n\\xff'); os.unlink(f'{n}\\n\\xff')
many(8, forever(make))
""",
    "connections": """
held = []
def connect(n):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(1)
    one.connect(agent); held.append(one); one.send(os.urandom(random.randrange(1, 4000)))
many(16, forever(connect))
""",
    "console": """
held = []
def connect(n):
    one = socket.create_connection(('127.0.0.1', console), 1)
    one.send(random.choice([b'GET / HTTP/1.1\\r\\n', b'GET /' + b'x' * 60000, os.urandom(2000), b'']))
    held.append(one)
    if len(held) > 500:
        held.pop(0).close()
many(8, forever(connect))
""",
}


def main():
    """Runs the attacks, and prints a table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("forebay", type=pathlib.Path, help="the program")
    arguments.add_argument("--minutes", type=float, default=60)
    arguments.add_argument("--deadline", type=float, default=1.0, help="longest time of a call on the mount, in seconds")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-abuse-") as name:
        sys.exit(abuse(options, pathlib.Path(name)))


def abuse(options, directory):
    """Sets everything up, and takes it down again; returns the exit status."""
    directory.chmod(0o755)
    forebay = options.forebay.resolve()
    pfs, mounted, state = (directory / name for name in ("pfs", "mounted", "agent"))
    pfs.mkdir(), mounted.mkdir()
    for name, user in (("attacker", ATTACKER), ("other", OTHER)):
        (pfs / name).mkdir()
        os.chown(pfs / name, user, user)
    content = random.Random(options.seed).randbytes(FILE_BYTES)
    (pfs / "other/data").write_bytes(content)
    socket = state / "agent.sock"
    environment = dict(os.environ, FOREBAY_SOCKET=str(socket))

    def run(*command):
        return subprocess.run([forebay, *command], env=environment, check=True, capture_output=True, text=True).stdout

    run("up", "--pfs", str(pfs), "--state-dir", str(state), "--capacity", "256MiB", "--console", "127.0.0.1:0")
    try:
        run("mount", str(pfs), str(mounted))
        port = re.search(r"console.*127\.0\.0\.1:(\d+)", (state / "agent.log").read_text())[1]
        victims = Victims(options, forebay, environment, mounted / "other", hashlib.sha256(content).digest(), port)
        try:
            attack(options, (mounted / "attacker", pfs / "attacker", socket, port), victims)
        finally:
            victims.stop()
        return victims.report()
    finally:
        subprocess.run([forebay, "umount", "--lazy", mounted], check=False, capture_output=True)
        subprocess.run([forebay, "down", "--drop", "--state-dir", state], check=False, capture_output=True)


def attack(options, places, victims):
    """Two attacks at a time, in random order, until the time is over."""
    mounted, *words = places
    chooser, end = random.Random(options.seed), time.monotonic() + options.minutes * 60
    counts = collections.Counter()
    shown = 0
    while time.monotonic() < end:
        names = chooser.sample(sorted(ATTACKS), 2)
        running = [
            subprocess.Popen([PYTHON, "-c", BEGIN + ATTACKS[name] + "\ntime.sleep(3600)", *map(str, words)], cwd=mounted,
                             user=ATTACKER, group=ATTACKER, extra_groups=[], stderr=subprocess.PIPE)
            for name in names
        ]
        time.sleep(chooser.uniform(2, 8))
        for name, program in zip(names, running):
            ended = program.poll()
            program.kill()
            said = program.communicate()[1].decode(errors="replace")
            counts[name] += 1
            if ended is not None:
                victims.failed(f"attack {name} ended by itself ({ended}): {said[-300:]}")
        subprocess.run(["find", words[0], "-mindepth", "1", "-delete"], check=False, capture_output=True)
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"{(end - shown) / 60:.0f} minutes left, {sum(counts.values())} attacks, {victims.line()}", flush=True)
    print("attacks: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))


class Victims:
    """The calls of other users, and how long each took."""

    def __init__(self, options, forebay, environment, directory, digest, port):
        self.deadline = options.deadline
        self.times = collections.defaultdict(list)
        self.failures = []
        self.programs = {}
        self.heard = {}
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.follow, args=(user, directory, digest)) for user in (OTHER, 0)]
        cat = lambda: hashlib.sha256(subprocess.run([forebay, "cat", directory.parent.parent / "pfs/other/data"], env=environment,
                                                    check=True, capture_output=True, timeout=60).stdout).digest() == digest
        page = lambda: len(urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()) > 1000
        for name, work in (("agent: cat", cat), ("console: page", page)):
            self.threads.append(threading.Thread(target=self.repeat, args=(name, work)))
        for thread in self.threads:
            thread.start()

    def failed(self, what):
        """Notes a failure."""
        print(what, flush=True)
        self.failures.append(what)

    def repeat(self, name, work):
        """Times a call, again and again."""
        while not self.stopped.wait(0.2):
            begun = time.monotonic()
            try:
                if not work():
                    self.failed(f"{name}: wrong bytes")
            except (OSError, subprocess.SubprocessError) as error:
                self.failed(f"{name}: {error}")
            self.times[name].append(time.monotonic() - begun)

    def follow(self, user, directory, digest):
        """Reads the times of a process of this user, which makes the calls on the mount."""
        program = subprocess.Popen([PYTHON, "-c", CALLS, directory, str(user), digest.hex()], user=user, group=user,
                                   extra_groups=[], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.programs[user] = program
        while not self.stopped.is_set():
            line = program.stdout.readline()
            if self.stopped.is_set():
                return
            self.heard[user] = time.monotonic()
            if match := re.fullmatch(r"(\w+) (\d+\.\d+)\n", line):
                self.times[f"mount, {'root' if user == 0 else 'other user'}: {match[1]}"].append(float(match[2]))
            else:
                self.failed(f"user {user}: {line or 'the program has ended'}")
                if not line:
                    return

    def line(self):
        """The longest call so far."""
        name, took = max(((name, max(times)) for name, times in list(self.times.items())), key=lambda pair: pair[1])
        return f"longest call {took:.3f} s ({name})"

    def stop(self):
        """Ends the calls; one that hangs is a failure."""
        self.stopped.set()
        for user, program in self.programs.items():
            waited = time.monotonic() - self.heard.get(user, 0)
            if waited > max(10, self.deadline):
                self.failed(f"user {user}: a call has not returned for {waited:.0f} s")
            program.kill()
        for thread in self.threads:
            thread.join()

    def report(self):
        """Prints a table; returns the exit status."""
        print("| call | calls | p99.9 (s) | longest (s) |\n| --- | --- | --- | --- |")
        for name, times in sorted(self.times.items()):
            times.sort()
            print(f"| {name} | {len(times)} | {times[int(len(times) * 0.999)]:.3f} | {times[-1]:.3f} |")
            if name.startswith("mount") and times[-1] > self.deadline:
                self.failed(f"{name}: {times[-1]:.3f} s")
        print(f"{len(self.failures)} failures")
        return 1 if self.failures else 0


CALLS = """
import hashlib, os, sys, time
directory, own, digest = sys.argv[1:]
os.chdir(directory)
def data():
    with open('data', 'rb') as file:
        assert hashlib.sha256(file.read()).hexdigest() == digest, 'wrong bytes'
def create():
    with open(own, 'wb') as file:
        file.write(b'mine')
def check():
    with open(own, 'rb') as file:
        assert file.read() == b'mine', 'wrong bytes of its own'
steps = {'stat': lambda: os.stat('data'), 'read': data, 'list': lambda: os.listdir('.'), 'create': create, 'check': check,
         'rename': lambda: os.rename(own, own + '.new'), 'remove': lambda: os.unlink(own + '.new')}
while True:
    for name, step in steps.items():
        begun = time.monotonic()
        step()
        print(name, f'{time.monotonic() - begun:.6f}', flush=True)
        time.sleep(0.01)
"""

if __name__ == "__main__":
    main()
