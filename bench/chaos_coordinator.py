"""Candidates, members of etcd and links under kills, while programs on two nodes hand files to each other.

    python3 bench/chaos_coordinator.py FOREBAY [--minutes 10] [--seed N] [--kills N]

Needs root, and etcd. Three candidates, three members of etcd and three agents run. On two nodes
programs write files of known content with write-back, to a file system that takes writes slowly,
and programs on the other nodes read each file once it is closed. Every second or so something
happens: the leader is killed or stopped, another candidate is killed, one member of etcd is killed,
or two, the candidates lose their connections to etcd, or an agent is killed. Then everything runs
again.

Each read must give the whole of what was closed before it began, or of a later version, or fail
with an error. Every fail-over must end with a leader of a later term that all agents know. At the
end everything is written to the file system and compared.

Ends with 1 at the first violation, and leaves what there is.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import chaos_writes
import common
from peers.daemons import free_ports

NODES = 3
FILES = 4
# From the end of a fault until all agents know a leader.
LEADER_S = 20
FAULTS = ("kill leader", "kill leader", "stop leader", "kill candidate", "kill etcd", "kill two of etcd", "cut etcd off", "kill agent")


class Link:
    """A port that passes connections on to another, until it is cut."""

    def __init__(self, target):
        self.target, self.is_cut, self.open = target, False, set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            one, _ = self.server.accept()
            try:
                if self.is_cut:
                    raise OSError("cut")
                other = socket.create_connection(("127.0.0.1", self.target), timeout=1)
                other.settimeout(None)
            except OSError:
                one.close()
                continue
            self.open |= {one, other}
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                # A cut drops bytes without closing the connection.
                if not self.is_cut:
                    sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            self.open.discard(end)
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()


class Etcd:
    """Three members; candidates reach them through links that can be cut."""

    def __init__(self, place):
        self.place, self.members = place, [None] * 3
        ports = free_ports(6)
        self.clients, self.peers = ports[:3], ports[3:]
        self.links = [Link(port) for port in self.clients]
        for number in range(3):
            self.start(number)

    def urls(self):
        return [f"http://127.0.0.1:{link.port}" for link in self.links]

    def start(self, number):
        client, peer = (f"http://127.0.0.1:{ports[number]}" for ports in (self.clients, self.peers))
        cluster = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self.peers))
        command = ["etcd", "--name", f"m{number}", "--data-dir", self.place / f"etcd{number}"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                    "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
                    "--heartbeat-interval", "100", "--election-timeout", "500"]
        log = open(self.place / f"etcd{number}.log", "ab")
        self.members[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, number):
        kill(self.members[number], f"member {number} of etcd")

    def cut(self, is_cut):
        for link in self.links:
            link.is_cut = is_cut


def kill(process, what):
    if process.poll() is not None:
        raise SystemExit(f"chaos: {what} has ended by itself")
    process.kill()
    process.wait()


class Cluster:
    """Candidates, or one coordinator, and agents on one slow file system."""

    rate = "2MB/s"

    def __init__(self, args, place, candidates=3):
        self.forebay, self.place = os.path.abspath(args.forebay), place
        self.etcd = Etcd(place) if candidates > 1 else None
        self.ports = free_ports(candidates)
        self.candidates, self.agents = [None] * candidates, [None] * NODES
        (place / "backing").mkdir()
        self.pfs = place / "pfs"
        self.pfs.mkdir()
        lab = Path(self.forebay).parent / "forebay-lab"
        log = open(place / "pfs.log", "ab")
        self.slow = subprocess.Popen([lab, "slowfs", "--backing", place / "backing", "--mount", self.pfs, "--rate", self.rate], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        common.wait_until(lambda: os.path.ismount(self.pfs), "chaos: no slow file system; see pfs.log", self.slow)
        for number in range(candidates):
            self.start_candidate(number)
        for number in range(NODES):
            self.start_agent(number)

    def start_candidate(self, number):
        config = self.place / f"candidate{number}.toml"
        etcd = f"node = 'c{number}'\netcd = {json.dumps(self.etcd.urls())}\n" if self.etcd else ""
        config.write_text(f"[cluster]\ncoordinator_listen = '127.0.0.1:{self.ports[number]}'\n{etcd}")
        log = open(self.place / f"candidate{number}.log", "ab")
        command = [self.forebay, "coordinator", "--config", config]
        self.candidates[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def socket_of(self, number):
        return self.place / f"state{number}/agent.sock"

    def env(self, number):
        return {**os.environ, "FOREBAY_SOCKET": str(self.socket_of(number)), "FOREBAY_DEADLINE_MS": "30000"}

    def start_agent(self, number):
        config, state = self.place / f"agent{number}.toml", self.place / f"state{number}"
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        member = common.member(f"n{number}", addresses if self.etcd else addresses[0])
        common.write_agent(config, state, self.pfs, "96MiB", f"{self.place}/tier{number}", member)
        log = open(self.place / f"agent{number}.log", "ab")
        command = [self.forebay, "agent", "--config", config]
        self.agents[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        why_not = f"chaos: agent {number} is not ready; see agent{number}.log"
        common.wait_until(lambda: self.status(number) is not None, why_not, self.agents[number])

    def status(self, number):
        asked = subprocess.run([self.forebay, "status", "--json"], env=self.env(number), capture_output=True, check=False)
        return json.loads(asked.stdout)["cluster"] if asked.returncode == 0 else None

    def wait_for_leader(self, after):
        """Until all agents are connected to one leader of a term from `after` on; its number, its term, and how long that took."""
        began = time.monotonic()
        while time.monotonic() < began + LEADER_S:
            known = [self.status(number) for number in range(NODES)]
            leaders = {tuple(c["leader"]) for c in known if c and c["connected"]}
            if all(c and c["connected"] for c in known) and len(leaders) == 1:
                address, term = leaders.pop()
                if term >= after:
                    return self.ports.index(int(address.rsplit(":", 1)[1])), term, time.monotonic() - began
            time.sleep(0.02)
        raise Violation(f"no leader of a term from {after} on: {known}")

    def end(self):
        for process in filter(None, (*self.agents, *self.candidates, *(self.etcd.members if self.etcd else ()))):
            process.kill()
            process.wait()
        subprocess.run(["umount", "--lazy", self.pfs], check=False)
        self.slow.kill()
        self.slow.wait()


class Violation(Exception):
    """Something that must not happen."""


WRITE = """
import os, sys
path, content = sys.argv[1:]
with open(content, 'rb') as source, open(path, 'wb') as file:
    file.write(source.read())
"""

READ = """
import sys
with open(sys.argv[1], 'rb') as file:
    sys.stdout.buffer.write(file.read())
"""


class Writer(threading.Thread):
    """Writes its files again and again on one node, and has each read on another after it was closed."""

    def __init__(self, cluster, number, seed):
        super().__init__(daemon=True)
        self.cluster, self.number, self.seed = cluster, number, seed
        self.chance = random.Random(f"{seed}/{number}")
        self.stopping, self.wrong = threading.Event(), None
        self.closed = [0] * FILES
        self.reads = self.errors = self.remote = self.resigned = 0

    def path(self, slot):
        return self.cluster.pfs / f"{self.number}-{slot}"

    def body(self, slot, version):
        return b"%d/%d/%d\n" % (self.number, slot, version) + chaos_writes.body(self.seed, self.number, slot, version)

    def program(self, node, source, *arguments):
        pattern = str(self.cluster.pfs / "*")
        command = [self.cluster.forebay, "run", "--quiet", "--write-back", pattern, "--detach", "--", sys.executable, "-c", source, *map(str, arguments)]
        return subprocess.run(command, env=self.cluster.env(node), capture_output=True, timeout=180, check=False)

    def run(self):
        try:
            while not self.stopping.is_set():
                self.step()
        except Violation as e:
            self.wrong = str(e)
        except (OSError, subprocess.SubprocessError) as e:
            self.wrong = f"writer {self.number}: {e!r}"

    def step(self):
        slot = self.chance.randrange(FILES)
        version = self.closed[slot] + 1
        content = self.cluster.place / f"content-{self.number}"
        content.write_bytes(self.body(slot, version))
        # A name of its own for each version: what is read is all of it or none.
        path = Path(f"{self.path(slot)}.{version}")
        written = self.program(self.number, WRITE, path, content)
        if written.returncode:
            raise Violation(f"{path.name} cannot be written: {written.stderr.decode()}")
        before, self.closed[slot] = self.closed[slot], version
        self.read(path, slot, version)
        if before:
            Path(f"{self.path(slot)}.{before}").unlink()

    def read(self, path, slot, version):
        reader = self.chance.choice([node for node in range(NODES) if node != self.number])
        got = self.program(reader, READ, path)
        self.reads += 1
        if got.returncode:
            self.errors += 1
        elif got.stdout != self.body(slot, version):
            raise Violation(f"{path.name} has {len(got.stdout)} other bytes on node {reader} than node {self.number} has closed")

    def compare(self):
        """All that was closed, on the file system; how many files."""
        count = 0
        for slot, version in enumerate(self.closed):
            if version:
                count += 1
                if Path(f"{self.path(slot)}.{version}").read_bytes() != self.body(slot, version):
                    raise Violation(f"{self.path(slot).name}.{version} is not on the file system as it was closed")
        return count


def disturb(cluster, fault, leader, chance):
    """Does something bad, and mends it; how many were killed, stopped or cut off, and whether another must lead."""
    other = chance.choice([number for number in range(3) if number != leader])
    pause = chance.choice((0, 0.5, 2, 5))
    if fault == "kill agent":
        number = chance.randrange(NODES)
        kill(cluster.agents[number], f"agent {number}")
        cluster.start_agent(number)
        return 1, False
    if fault in ("kill leader", "kill candidate"):
        number = leader if fault == "kill leader" else other
        kill(cluster.candidates[number], f"candidate {number}")
        time.sleep(pause)
        cluster.start_candidate(number)
        return 1, fault == "kill leader"
    if fault == "stop leader":
        cluster.candidates[leader].send_signal(signal.SIGSTOP)
        time.sleep(5)
        cluster.candidates[leader].send_signal(signal.SIGCONT)
        return 1, True
    if fault == "cut etcd off":
        cluster.etcd.cut(True)
        time.sleep(max(pause, 3))
        cluster.etcd.cut(False)
        return 1, True
    members = chance.sample(range(3), 1 if fault == "kill etcd" else 2)
    for number in members:
        cluster.etcd.kill(number)
    time.sleep(pause)
    for number in members:
        cluster.etcd.start(number)
    return len(members), False


def chaos(args, cluster):
    chance = random.Random(args.seed)
    writers = [Writer(cluster, number, args.seed) for number in range(2)]
    leader, term, _ = cluster.wait_for_leader(1)
    for writer in writers:
        writer.start()
    until, kills, counts, slowest = time.monotonic() + 60 * args.minutes, 0, dict.fromkeys(FAULTS, 0), 0
    while time.monotonic() < until and (args.kills is None or kills < args.kills):
        time.sleep(chance.uniform(0.1, 1.0))
        fault = chance.choice(FAULTS)
        many, is_other = disturb(cluster, fault, leader, chance)
        kills, counts[fault] = kills + many, counts[fault] + 1
        leader, term, seconds = cluster.wait_for_leader(term + is_other)
        slowest = max(slowest, seconds)
        if wrong := next((writer.wrong for writer in writers if writer.wrong), None):
            raise Violation(wrong)
        if sum(counts.values()) % 10 == 0:
            print(f"{kills} kills, term {term}, {sum(w.reads for w in writers)} reads, {sum(w.errors for w in writers)} with an error; {counts}", flush=True)
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join(240)
        if writer.is_alive() or writer.wrong:
            raise Violation(writer.wrong or f"writer {writer.number} hangs")
    for number in range(NODES):
        subprocess.run([cluster.forebay, "sync", "--quiet"], env=cluster.env(number), timeout=120, check=True)
    compared = sum(writer.compare() for writer in writers)
    reads, errors = sum(w.reads for w in writers), sum(w.errors for w in writers)
    print(f"{kills} kills, {term} is the last term, {reads} reads on other nodes, {errors} with an error, {compared} files compared, longest wait for a leader after a fault {slowest:.1f} s, no violations")
    if reads < 10 or errors * 2 > reads:
        raise Violation("too few reads, or too many errors: this has shown nothing")


def main(about=__doc__, make=Cluster, run=chaos, more=lambda parser: None):
    args, place, disk = chaos_writes.begin(about, more)
    cluster = make(args, place)
    try:
        run(args, cluster)
    except Violation as e:
        print(f"{e}\nleft: {place}")
        return 1
    finally:
        cluster.end()
    shutil.rmtree(place)
    shutil.rmtree(disk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
