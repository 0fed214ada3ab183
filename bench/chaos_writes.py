"""Write-back under kills: programs write, something is killed, and nothing that was promised is lost.

    python3 bench/chaos_writes.py FOREBAY [--minutes 10] [--seed N] [--kills N] [--pfs moosefs]

Four programs write files of known content: in place, and as a new file that replaces the old one.
Two run under `forebay run --write-back`, two on a mount with `--write-back` (as root). Every second
or so a program, the mount or the agent is killed, and in every second round, where programs use
`--copies disk`, the whole node: programs, agent, and all that was in memory. Then an agent starts, `forebay sync` brings all to the PFS, and each file there is
compared with what its program had been promised:

- without the loss of memory: all that a write has taken;
- with it: all that an fsync or close has taken;
- a file that was replaced: the old one or the new one, whole.

A file may be parked when nobody knows any more what became of it on the PFS: it was replaced
while no agent was there, or was written anew when the memory was lost. Parked files are counted. In
the second case what was promised may be what is parked; otherwise it has to be on the PFS.

With --pfs, the file system is that of a lab (as root; docs/lab.md), and its storage servers are
killed as well, for some seconds each; with --master, so is the master of MooseFS. A call of a
program may fail then, but once all servers are back, each program must go on within a minute.

Ends with 1 at the first violation, and leaves what there is.
"""

import argparse
import contextlib
import errno
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common

WRITERS = 4
SLOTS = 3
# Of a slot in a program's state: the version begun, its bytes that write has taken, those that
# fsync has taken, and the last version that was closed, or has replaced the one before.
STATE = struct.Struct("=QQQQ")
SIZE_MAX = 3 << 20
READY_S = 30
# Of clients of file systems that have lost a server.
REFUSALS = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENOSPC, errno.ENXIO)
GOES_ON_S = 60


def body(seed, writer, slot, version):
    """The content of a version; none is empty."""
    source = random.Random(f"{seed}/{writer}/{slot}/{version}")
    return source.randbytes(source.choice((1, 100, 4096, 70_000, source.randrange(1, SIZE_MAX))))


def replaces(slot):
    """Whether new versions of a slot come by a rename."""
    return slot == SLOTS - 1


def write_for_ever(directory, state_path, seed, writer):
    """The program that is killed."""
    chance = random.Random()
    with open(state_path, "r+b") as file:
        state = mmap.mmap(file.fileno(), 0)

    def note(slot, version, written, synced, done):
        STATE.pack_into(state, slot * STATE.size, version, written, synced, done)

    while True:
        slot = chance.randrange(SLOTS)
        version, _, _, done = STATE.unpack_from(state, slot * STATE.size)
        version += 1
        content = body(seed, writer, slot, version)
        path = os.path.join(directory, f"{writer}-{slot}")
        note(slot, version, 0, 0, done)
        target = path + ".new" if replaces(slot) else path
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        at = synced = 0
        while at < len(content):
            at += os.write(fd, content[at:at + chance.randrange(1, 1 << 20)])
            note(slot, version, at, synced, done)
            if chance.random() < 0.3:
                os.fsync(fd)
                synced = at
                note(slot, version, at, synced, done)
        os.close(fd)
        if replaces(slot):
            os.replace(target, path)
        note(slot, version, at, at, version)


def write_in_spite_of_refusals(directory, state_path, seed, writer):
    """As long as the file system refuses, a program goes on with the next version."""
    while True:
        try:
            write_for_ever(directory, state_path, seed, writer)
        except OSError as e:
            if e.errno not in REFUSALS:
                for fd in Path("/proc/self/fdinfo").iterdir():
                    # That of this loop is closed by now.
                    with contextlib.suppress(FileNotFoundError):
                        to = os.readlink(f"/proc/self/fd/{fd.name}")
                        print(f"descriptor {fd.name}: {to}, {fd.read_text().split()}", file=sys.stderr)
                raise
            time.sleep(0.05)


def objection(seed, writer, slot, promised, content):
    """What is wrong with what a file contains; `promised` is the version begun, its bytes that stay, and the version that was closed."""
    version, least, done = promised
    new = body(seed, writer, slot, version)
    if done == version:
        return None if content == new else "not what was closed"
    old = body(seed, writer, slot, done) if done else None
    if content == old and (replaces(slot) or least == 0):
        return None
    if replaces(slot):
        # A program that was killed or refused in its last calls may have replaced it.
        begun = any(content == body(seed, writer, slot, later) for later in range(done + 1, version + 1))
        return None if begun else "neither the old nor the new file"
    if content is None:
        return "it is gone" if least else None
    if len(content) < least:
        return f"shorter than {least}"
    if content != new[:len(content)] and not (least == 0 and is_older(seed, writer, slot, version, content)):
        return "other bytes"
    return None


def is_older(seed, writer, slot, version, content):
    """Whether it is the beginning of a version before: the program has emptied the file since, and nothing was promised then."""
    return any(content == body(seed, writer, slot, older)[:len(content)] for older in range(version - 1, 0, -1))


def forget_unsynced(path, state):
    """The memory was lost: no later round may ask for more than was synced by then."""
    slots = [STATE.unpack_from(state, slot * STATE.size) for slot in range(SLOTS)]
    path.write_bytes(b"".join(STATE.pack(version, synced, synced, done) for version, _, synced, done in slots))


class Servers:
    """The servers of a lab's file system."""

    def __init__(self, forebay, with_master, log):
        self.forebay, self.log, self.killed, self.all = forebay, log, 0, []
        wanted = ("mfschunkserver", "glusterfsd", *(("mfsmaster",) if with_master else ()))
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_text().split("\0")[:-1]
                env = dict(line.split("=", 1) for line in (process / "environ").read_text().split("\0") if "=" in line)
                if command and os.path.basename(command[0]) in wanted and env.get("FOREBAY_LAB") == os.environ["FOREBAY_LAB"]:
                    self.all.append((env["FOREBAY_LAB_NODE"], int(process.name), command))
        if not self.all:
            raise SystemExit("chaos: the lab has no servers")

    def strike(self, chance, meanwhile):
        """Kills one; it starts again after a while, whatever hangs by then."""
        number = chance.randrange(len(self.all))
        node, pid, command = self.all[number]
        os.kill(pid, signal.SIGKILL)
        self.killed += 1
        again = threading.Timer(chance.uniform(0.2, 4.0), self.start, (number, node, command))
        again.start()
        meanwhile()
        again.join()

    def start(self, number, node, command):
        # A master that was killed works through its log.
        options = ["-a"] if os.path.basename(command[0]) == "mfsmaster" else []
        again = [self.forebay, "lab", "run", "--node", node, "--free", "--", command[0], *options, *command[1:]]
        started = subprocess.Popen(again, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        self.all[number] = (node, started.pid, command)


class Node:
    """An agent, its programs, and what they may rely on."""

    def __init__(self, args, place, disk):
        self.forebay, self.seed, self.saved = os.path.abspath(args.forebay), args.seed, disk / "saved"
        self.tier, self.state, self.pfs = place / "tier", place / "state", Path(os.environ["FOREBAY_LAB_PFS"] if args.pfs else disk / "pfs")
        # Below the mount there is none: what is written after it has died goes nowhere.
        self.files = self.pfs / "files"
        self.files.mkdir(parents=True)
        self.mode = "--write-in-spite-of-refusals" if args.pfs else "--write"
        self.config = place / "config.toml"
        common.write_agent(self.config, self.state, self.pfs, "96MiB", self.tier, f"log = '{disk / 'log'}'\n")
        self.log = open(disk / "agent.log", "ab")
        self.servers = Servers(self.forebay, args.master, self.log) if args.pfs else None
        self.env = {**os.environ, "FOREBAY_SOCKET": str(self.state / "agent.sock"), "FOREBAY_DEADLINE_MS": "20000"}
        self.agent, self.programs, self.mount = None, {}, None
        self.at = place / "mount" if os.geteuid() == 0 and os.path.exists("/dev/fuse") else None
        if self.at:
            self.at.mkdir()
        self.states = [place / f"state-{writer}" for writer in range(WRITERS)]
        for path in self.states:
            path.write_bytes(bytes(STATE.size * SLOTS))

    def start_agent(self):
        up = [self.forebay, "up", "--foreground", "--config", self.config]
        self.agent, until = None, time.monotonic() + READY_S
        while self.agent is None or subprocess.run([self.forebay, "status", "--json"], env=self.env, capture_output=True, check=False).returncode:
            # One that was killed in a call of a file system without its server is there for longer.
            has_ended = self.agent is not None and self.agent.poll() is not None
            if has_ended and not self.servers or time.monotonic() > until:
                raise SystemExit("chaos: no agent is ready; see agent.log")
            if self.agent is None or has_ended:
                self.agent = subprocess.Popen(up, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
            time.sleep(0.05)

    def on_mount(self, writer):
        return self.at is not None and writer % 2 == 1

    def start_mount(self, more):
        command = [self.forebay, "mount", "--foreground", "--write-back", self.pfs, *more, self.pfs, self.at]
        self.mount = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        common.wait_until(lambda: os.path.ismount(self.at), "chaos: there is no mount; see agent.log", self.mount)

    def kill_mount(self):
        if self.mount.poll() is not None:
            raise SystemExit("chaos: the mount has ended by itself; see agent.log")
        os.killpg(self.mount.pid, signal.SIGKILL)
        self.mount.wait()
        subprocess.run(["umount", "--lazy", self.at], check=True)

    def start_program(self, writer, more):
        run = [self.forebay, "run", "--quiet", "--write-back", self.pfs, "--detach", *more, "--"]
        run, directory = ([], self.at / "files") if self.on_mount(writer) else (run, self.files)
        command = [*run, sys.executable, __file__, self.mode, directory, self.states[writer], str(self.seed), str(writer)]
        self.programs[writer] = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)

    def kill_programs(self, writers):
        for writer in writers:
            process = self.programs.pop(writer)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def strike(self, chance, more):
        """Kills the agent or a program, and starts it again."""
        if chance.random() < 0.5:
            self.kill_agent()
            time.sleep(chance.choice((0, 0, 0.5)))
            self.start_agent()
        else:
            writer = chance.choice(sorted(self.programs))
            self.kill_programs([writer])
            self.start_program(writer, more)

    def wait_for_progress(self):
        """No call of a program hangs for ever."""
        before = {writer: self.states[writer].read_bytes() for writer in self.programs}
        until = time.monotonic() + GOES_ON_S
        while hanging := [writer for writer, state in before.items() if self.states[writer].read_bytes() == state]:
            if time.monotonic() > until:
                logs = (self.pfs.parent / "log").glob("mount-*.log") if self.servers else []
                if any("Chunk lost" in log.read_text(errors="replace") for log in logs):
                    raise SystemExit(f"chaos: MooseFS has lost a chunk by the kills of its servers, and programs {hanging} wait for it; without Forebay they would as well")
                raise SystemExit(f"chaos: programs {hanging} do not go on, although all servers are there")
            time.sleep(0.05)

    def kill_agent(self):
        if self.agent.poll() is not None:
            raise SystemExit("chaos: the agent has ended by itself; see agent.log")
        os.killpg(self.agent.pid, signal.SIGKILL)
        self.agent.wait()

    def lose_memory(self):
        shutil.rmtree(self.tier)

    def sync(self):
        """All to the PFS; returns how many files are parked beside what is there."""
        self.parked = None
        for _ in range(5):
            done = subprocess.run([self.forebay, "sync", "--quiet"], env=self.env, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 0:
                return 0
            time.sleep(1)
        listed = json.loads(subprocess.run([self.forebay, "dirty", "--json"], env=self.env, capture_output=True, text=True, check=True).stdout)
        if all(file["state"] == "parked" for file in listed):
            self.saved.mkdir(exist_ok=True)
            self.parked = self.saved / str(len(list(self.saved.iterdir())))
            subprocess.run([self.forebay, "rescue", "--drop", self.parked], env=self.env, check=True, stdout=subprocess.DEVNULL)
            return len(listed)
        listed = subprocess.run([self.forebay, "dirty"], env=self.env, capture_output=True, text=True, check=False).stdout
        raise SystemExit(f"chaos: what was written does not reach the PFS: {done.stderr}\n{listed}")

    def check(self, is_lost):
        """Compares all files with what was promised; how many, and what is wrong."""
        count, wrong = 0, []
        for writer, path in enumerate(self.states):
            state = path.read_bytes()
            for slot in range(SLOTS):
                version, written, synced, done = STATE.unpack_from(state, slot * STATE.size)
                if version == 0:
                    continue
                count += 1
                file = self.files / f"{writer}-{slot}"
                content = file.read_bytes() if file.exists() else None
                promised = (version, synced if is_lost else written, done)
                why = objection(self.seed, writer, slot, promised, content)
                # Written anew when the memory was lost: both contents are kept.
                kept = self.parked.glob(f"*-{file.name}") if is_lost and self.parked else ()
                if why and all(objection(self.seed, writer, slot, promised, other.read_bytes()) for other in kept):
                    wrong.append(f"{file.name}: {why}; version {version}, {written} bytes written, {synced} synced, {done} done, memory {'lost' if is_lost else 'kept'}; {len(content) if content is not None else 'no'} bytes there")
            if is_lost:
                forget_unsynced(path, state)
        return count, wrong


def begin(about, more=lambda parser: None):
    """The options, `more` among them, and two directories: in memory, and on a disk."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("forebay")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--kills", type=int, help="end after so many, whatever the time")
    parser.add_argument("--pfs", help="kill the servers of a lab with this file system as well: moosefs, glusterfs")
    parser.add_argument("--master", action="store_true", help="kill the master of MooseFS as well")
    more(parser)
    args = parser.parse_args()
    print(f"chaos: seed {args.seed}", flush=True)
    return args, *(Path(tempfile.mkdtemp(dir=parent, prefix="forebay-chaos-")) for parent in ("/dev/shm", "/var/tmp"))


def run_in_lab(forebay, pfs, name, program):
    """Runs a program on the first node of a lab of its own, which is left there after a violation."""
    subprocess.run([forebay, "lab", "up", "--name", name, "--pfs", pfs, "--nodes", "1", "--store", "3GiB"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([forebay, "lab", "run", "--name", name, "--free", "--", *program], check=False).returncode
    if done == 1:
        print(f"left: the lab {name}; end it with `forebay lab down --name {name}`")
    else:
        subprocess.run([forebay, "lab", "down", "--name", name], check=True, stdout=subprocess.DEVNULL)
    return done


def main():
    writers = {"--write": write_for_ever, "--write-in-spite-of-refusals": write_in_spite_of_refusals}
    if write := writers.get(sys.argv[1]):
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    args, place, disk = begin(__doc__)
    if args.pfs and "FOREBAY_LAB_PFS" not in os.environ:
        place.rmdir()
        disk.rmdir()
        return run_in_lab(args.forebay, args.pfs, f"chaos{os.getpid()}", [sys.executable, *sys.argv, "--seed", str(args.seed)])
    node, chance = Node(args, place, disk), random.Random(args.seed)
    until, rounds, kills, losses, checked, parked = time.monotonic() + 60 * args.minutes, 0, 0, 0, 0, 0
    node.start_agent()
    while time.monotonic() < until and (args.kills is None or kills < args.kills):
        rounds += 1
        on_disk = rounds % 2 == 0
        more = ["--copies", "disk"] if on_disk else []
        if node.at:
            node.start_mount(more)
        for writer in range(WRITERS):
            node.start_program(writer, more)
        for _ in range(chance.randrange(1, 6)):
            time.sleep(chance.uniform(0.1, 1.0))
            if node.at and chance.random() < 0.2:
                node.kill_mount()
                on_it = [writer for writer in node.programs if node.on_mount(writer)]
                node.kill_programs(on_it)
                node.start_mount(more)
                for writer in on_it:
                    node.start_program(writer, more)
            elif node.servers and chance.random() < 0.5:
                node.servers.strike(chance, lambda: node.strike(chance, more))
                node.wait_for_progress()
                kills += 1
            else:
                node.strike(chance, more)
            kills += 1
        is_lost = on_disk and chance.random() < 0.7
        if is_lost:
            # The agent first: nobody is promised anything by a node that is gone.
            node.kill_agent()
        node.kill_programs(list(node.programs))
        kills += WRITERS
        if node.at:
            node.kill_mount()
            kills += 1
        if is_lost:
            node.lose_memory()
            losses += 1
            kills += 1
            node.start_agent()
        parked += node.sync()
        count, wrong = node.check(is_lost)
        checked += count
        print(f"round {rounds}: {kills} kills, {losses} losses of memory, {node.servers.killed if node.servers else 0} of servers, {checked} files compared, {parked} parked, {len(wrong)} violations", flush=True)
        if wrong:
            print("\n".join(wrong), f"\nleft: {place}, {disk}", sep="\n")
            node.kill_agent()
            return 1
    node.kill_agent()
    if node.servers and not node.servers.killed:
        raise SystemExit("chaos: no server was killed: this shows nothing")
    shutil.rmtree(place)
    shutil.rmtree(disk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
