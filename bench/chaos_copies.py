"""Second copies under kills: programs on three nodes write with `--copies 2`, and nodes are lost.

    python3 bench/chaos_copies.py FOREBAY [--minutes 10] [--seed N] [--kills N]

Needs root. Four programs write files of known content to a slow file system (chaos_writes.py has
the programs). Every second or so a program, an agent or the coordinator is killed, or the file
system refuses writes for a while. In most rounds a node is lost while the file system is slow:
agent, programs, and all that was in memory; its agent starts anew at once, or after the others
have taken its files over. Then everything is written to the file system, and each file is compared
with what its program had been promised:

- on the node that was lost: all that an fsync or close has taken;
- on the others: all that a write has taken, on the file system or in what their nodes have parked.

Ends with 1 at the first violation, and leaves what there is; also if nodes were lost and no file
was taken over.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import chaos_writes
import common
from chaos_writes import SLOTS, STATE, WRITERS, objection

NODES = "abc"
# Which node runs each program.
HOMES = (0, 0, 1, 2)
# Longer than the others wait before they take over.
TAKEN_OVER_S = 8
SYNC_S = 120
FAST, SLOW = "100MB/s", "300KB/s"


class Cluster:
    """A slow file system, a coordinator, and agents with their programs."""

    def __init__(self, args, place, disk):
        self.forebay, self.seed, self.place, self.disk = os.path.abspath(args.forebay), args.seed, place, disk
        self.pfs = place / "pfs"
        self.pfs.mkdir()
        (disk / "backing").mkdir()
        self.log = open(disk / "agents.log", "ab")
        slow = [self.forebay, "lab", "slowfs", "--backing", disk / "backing", "--mount", self.pfs, "--rate", FAST, "--daemonize"]
        subprocess.run(slow, check=True, stdout=self.log, stderr=self.log)
        self.coordinator = self.start_coordinator("127.0.0.1:0")
        self.agents, self.programs, self.refusals = {}, {}, 0
        self.states = [place / f"state-{writer}" for writer in range(WRITERS)]
        for path in self.states:
            path.write_bytes(bytes(STATE.size * SLOTS))
        for node in NODES:
            common.write_agent(place / f"{node}.toml", place / node, self.pfs, "192MiB", self.tier(node), common.member(node, self.address))
            self.start_agent(node)

    def tier(self, node):
        return self.place / f"tier-{node}"

    def start_coordinator(self, address):
        process = subprocess.Popen([self.forebay, "coordinator", "--listen", address], stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True)
        self.address = process.stdout.readline().split()[-1]
        return process

    def kill_coordinator(self):
        self.coordinator.kill()
        self.coordinator.wait()
        time.sleep(0.3)
        self.coordinator = self.start_coordinator(self.address)

    def env(self, node):
        return {**os.environ, "FOREBAY_SOCKET": str(self.place / node / "agent.sock"), "FOREBAY_DEADLINE_MS": "20000"}

    def cli(self, node, *words):
        return subprocess.run([self.forebay, *words], env=self.env(node), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SYNC_S, check=False)

    def start_agent(self, node):
        agent = subprocess.Popen([self.forebay, "up", "--foreground", "--config", self.place / f"{node}.toml"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        self.agents[node] = agent
        common.wait_until(lambda: not self.cli(node, "status").returncode, f"chaos: no agent is ready on {node}; see agents.log", agent)

    def kill_agent(self, node):
        agent = self.agents.pop(node)
        if agent.poll() is not None:
            raise SystemExit(f"chaos: the agent of {node} has ended by itself; see agents.log")
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()

    def wait_for_members(self):
        members = lambda node: len(json.loads(self.cli(node, "status", "--json").stdout)["cluster"]["view"]["nodes"])
        common.wait_until(lambda: all(members(node) == len(NODES) for node in NODES), "chaos: the nodes do not find each other")

    def start_program(self, writer):
        node = NODES[HOMES[writer]]
        command = [self.forebay, "run", "--quiet", "--write-back", self.pfs, "--copies", "2", "--detach", "--"]
        command += [sys.executable, __file__, "--write", self.pfs, self.states[writer], str(self.seed), str(writer)]
        self.programs[writer] = subprocess.Popen(command, env=self.env(node), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)

    def kill_program(self, writer):
        process = self.programs.pop(writer)
        if process.poll() is not None:
            raise SystemExit(f"chaos: program {writer} has ended by itself; see agents.log")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def set_rate(self, rate):
        os.setxattr(self.pfs, "user.slowfs.rate", rate.encode())

    def set_fault(self, fault):
        os.setxattr(self.pfs, "user.slowfs.fault", fault.encode())

    def refused_writes(self):
        return json.loads(os.getxattr(self.pfs, "user.slowfs.stats"))["faults"]["write"]

    def strike(self, chance):
        what = chance.choices(("agent", "program", "coordinator", "faults"), (4, 4, 1, 1))[0]
        if what == "agent":
            node = chance.choice(NODES)
            self.kill_agent(node)
            time.sleep(chance.choice((0, 0, 0.5)))
            self.start_agent(node)
        elif what == "program":
            writer = chance.randrange(WRITERS)
            self.kill_program(writer)
            self.start_program(writer)
        elif what == "coordinator":
            self.kill_coordinator()
        else:
            self.refusals += 1
            self.set_fault("write=EIO")
            time.sleep(chance.uniform(0.1, 1.0))
            self.set_fault("none")

    def lose(self, node, chance):
        """The node, its programs, and all that it had in memory."""
        self.kill_agent(node)
        for writer, home in enumerate(HOMES):
            if NODES[home] == node:
                self.kill_program(writer)
        shutil.rmtree(self.tier(node))
        if chance.random() < 0.5:
            time.sleep(TAKEN_OVER_S)
        self.start_agent(node)

    def sync(self, saved):
        """All to the file system; what stays parked is saved below `saved`, and counted."""
        until, count = time.monotonic() + SYNC_S, 0
        while True:
            listed = {node: json.loads(self.cli(node, "dirty", "--json").stdout) for node in NODES}
            if not any(listed.values()):
                return count
            if time.monotonic() > until:
                raise SystemExit(f"chaos: what was written does not reach the file system:\n{json.dumps(listed, indent=1)}")
            states = {file["state"] for files in listed.values() for file in files}
            if states - {"parked", "copy"}:
                for node in NODES:
                    self.cli(node, "sync", "--quiet")
                continue
            for node, files in listed.items():
                parked = [file for file in files if file["state"] == "parked"]
                if parked:
                    count += len(parked)
                    print(f"parked on {node}:", *(f"{file['path']}: {file['error']}" for file in parked), sep="\n  ", flush=True)
                    done = self.cli(node, "rescue", "--drop", saved / f"{node}-{count}")
                    if done.returncode:
                        raise SystemExit(f"chaos: what is parked cannot be saved: {done.stderr}")
            # Second copies of what is parked, or of files that are to be taken over.
            time.sleep(0.5)

    def check(self, lost, saved):
        """Compares all files with what was promised; how many, and what is wrong."""
        count, wrong = 0, []
        for writer, path in enumerate(self.states):
            state, node = path.read_bytes(), NODES[HOMES[writer]]
            for slot in range(SLOTS):
                version, written, synced, done = STATE.unpack_from(state, slot * STATE.size)
                if version == 0:
                    continue
                count += 1
                name = f"{writer}-{slot}"
                places = [self.pfs / name, *sorted(saved.glob(f"{node}-*/**/*{name}*"))]
                contents = [place.read_bytes() if place.exists() else None for place in places]
                least = synced if node == lost else written
                whys = [objection(self.seed, writer, slot, (version, least, done), content) for content in contents]
                if all(whys):
                    found = ", ".join(f"{why} ({'no' if content is None else len(content)} bytes)" for why, content in zip(whys, contents))
                    wrong.append(f"{name} of node {node}: {found}; version {version}, {written} bytes written, {synced} synced, {done} done, {'lost' if node == lost else 'kept'}")
            if node == lost:
                chaos_writes.forget_unsynced(path, state)
        return count, wrong

    def taken_over(self):
        """Second copies that have taken the place of their files, by the agents' logs."""
        return (self.disk / "agents.log").read_text(errors="replace").count("took over a file")

    def guest_mount(self, node):
        """Where the programs of a node are guests of other nodes, if they are."""
        return self.place / node / "guests" / "0"

    def end(self):
        for writer in list(self.programs):
            self.kill_program(writer)
        for node in NODES:
            subprocess.run(["umount", "--lazy", self.guest_mount(node)], check=False, stderr=subprocess.DEVNULL)
        for node in list(self.agents):
            self.kill_agent(node)
        self.coordinator.kill()
        self.coordinator.wait()
        subprocess.run(["umount", "--lazy", self.pfs], check=True)


def main():
    if sys.argv[1:2] == ["--write"]:
        chaos_writes.write_in_spite_of_refusals(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    args, place, disk = chaos_writes.begin(__doc__)
    cluster, chance = Cluster(args, place, disk), random.Random(args.seed)
    until, rounds, kills, losses, checked, parked = time.monotonic() + 60 * args.minutes, 0, 0, 0, 0, 0
    while time.monotonic() < until and (args.kills is None or kills < args.kills):
        rounds += 1
        cluster.wait_for_members()
        for writer in range(WRITERS):
            cluster.start_program(writer)
        for _ in range(chance.randrange(1, 6)):
            time.sleep(chance.uniform(0.1, 1.0))
            cluster.strike(chance)
            kills += 1
        lost = None
        if chance.random() < 0.7:
            lost = chance.choice(NODES)
            cluster.set_rate(SLOW)
            time.sleep(chance.uniform(0.5, 3.0))
            cluster.lose(lost, chance)
            losses += 1
            kills += 1
        for writer in list(cluster.programs):
            cluster.kill_program(writer)
        kills += WRITERS
        cluster.set_rate(FAST)
        saved = disk / f"saved-{rounds}"
        saved.mkdir()
        parked += cluster.sync(saved)
        count, wrong = cluster.check(lost, saved)
        checked += count
        print(f"round {rounds}: {kills} kills, {losses} nodes lost, {cluster.taken_over()} files taken over, {checked} compared, {parked} parked, {len(wrong)} violations", flush=True)
        if wrong:
            print("\n".join(wrong), f"\nleft: {place}, {disk}", sep="\n")
            return 1
    if losses and not cluster.taken_over():
        raise SystemExit("chaos: nodes were lost, and no file was taken over: this shows nothing")
    if cluster.refusals and not cluster.refused_writes():
        raise SystemExit("chaos: the file system has refused no write: this shows nothing")
    cluster.end()
    shutil.rmtree(place)
    shutil.rmtree(disk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
