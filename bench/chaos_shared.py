"""Files that programs of three nodes write together, under kills.

    python3 bench/chaos_shared.py FOREBAY [--minutes 10] [--seed N] [--kills N]

Needs root and FUSE. One program on each node writes its records, strided, to files that all of them
write, with `--write-back`, to a slow file system. Every second or so an agent, a program, the
coordinator, or a mount of guests is killed, or a program without write-back opens a file, which
sends it to the file system. In some rounds a node is lost with its memory. Then everything is
written to the file system, and each record is compared with the last one that its program had been
told is written; in rounds with a lost node, with any that it has begun to write.

Ends with 1 at the first violation, and leaves what there is; also if no program was ever a guest.
"""

import hashlib
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import chaos_copies
import chaos_writes
from chaos_copies import FAST, NODES, SLOW

FILES = 3
RECORDS = 60
# No multiple of a block.
RECORD_BYTES = 30_011
# Version that is being written, and records of it that are.
STATE = struct.Struct("<QQ")


def record(seed, writer, file, version, number):
    text = f"{seed}/{writer}/{file}/{version}/{number}".encode()
    return (hashlib.sha256(text).digest() * (RECORD_BYTES // 32 + 1))[:RECORD_BYTES]


def offset(writer, number):
    return (number * len(NODES) + writer) * RECORD_BYTES


def write_for_ever(directory, state, seed, writer):
    with open(state, "r+b") as file:
        words = mmap.mmap(file.fileno(), 0)
    chance = random.Random(seed + writer + os.getpid())
    while True:
        slot = chance.randrange(FILES)
        version, done = STATE.unpack_from(words, slot * STATE.size)
        if done == RECORDS or version == 0:
            version, done = version + 1, 0
            STATE.pack_into(words, slot * STATE.size, version, done)
        try:
            fd = os.open(os.path.join(directory, f"shared-{slot}"), os.O_RDWR | os.O_CREAT)
            try:
                for number in range(done, RECORDS):
                    data = record(seed, writer, slot, version, number)
                    if os.pwrite(fd, data, offset(writer, number)) != RECORD_BYTES:
                        break
                    STATE.pack_into(words, slot * STATE.size, version, number + 1)
                    if chance.random() < 0.02:
                        os.fsync(fd)
                    time.sleep(chance.choice((0, 0, 0.01)))
            finally:
                os.close(fd)
        except OSError as e:
            # Its mount was killed, or the node that has the file is lost: what was taken counts.
            print(f"writer {writer}: shared-{slot}: {e}", file=sys.stderr, flush=True)
            time.sleep(0.1)


class Cluster(chaos_copies.Cluster):
    """The nodes of chaos_copies.py, with programs that share files."""

    def start_program(self, writer):
        command = [self.forebay, "run", "--quiet", "--write-back", self.pfs, "--detach", "--"]
        command += [sys.executable, __file__, "--write", self.pfs, self.states[writer], str(self.seed), str(writer)]
        env = {**self.env(NODES[writer]), "FOREBAY_DEADLINE_MS": "20000"}
        self.programs[writer] = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)

    def kill_mount(self, node):
        subprocess.run(["pkill", "-9", "-f", "--", f"--for-guests.* {self.guest_mount(node)}$"], check=False)

    def strike(self, chance):
        what = chance.choices(("agent", "program", "coordinator", "mount", "stranger"), (4, 3, 1, 1, 1))[0]
        node = chance.choice(NODES)
        if what == "agent":
            self.kill_agent(node)
            time.sleep(chance.choice((0, 0, 0.5)))
            self.start_agent(node)
        elif what == "program":
            self.kill_program(NODES.index(node))
            self.start_program(NODES.index(node))
        elif what == "coordinator":
            self.kill_coordinator()
        elif what == "mount":
            self.kill_mount(node)
        elif what == "stranger":
            opens = [self.forebay, "run", "--quiet", "--", "sh", "-c", f"exec 3<>{self.pfs}/shared-{chance.randrange(FILES)}"]
            subprocess.Popen(opens, env=self.env(node), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        return what

    def lose(self, node):
        self.kill_agent(node)
        self.kill_program(NODES.index(node))
        shutil.rmtree(self.tier(node))
        self.start_agent(node)

    def check(self, is_lost):
        count, wrong = 0, []
        for writer, path in enumerate(self.states[: len(NODES)]):
            state = path.read_bytes()
            for slot in range(FILES):
                version, done = STATE.unpack_from(state, slot * STATE.size)
                file = self.pfs / f"shared-{slot}"
                data = file.read_bytes() if file.exists() else b""
                for number in range(RECORDS if version else 0):
                    oldest = version if number < done else version - 1
                    if is_lost or self.had_loss[slot]:
                        oldest = 0
                    # The record that was being written when its program was killed may be there.
                    good = [record(self.seed, writer, slot, v, number) for v in range(max(1, oldest), version + 1)]
                    at = offset(writer, number)
                    found = data[at : at + RECORD_BYTES]
                    count += 1
                    blank = oldest < 1 and not any(found)
                    if not blank and found not in good and not ((oldest < 1 or number == done) and self.is_mixed(found, good)):
                        wrong.append(f"shared-{slot}, record {number} of node {NODES[writer]}: version {version}, {done} done; {len(found)} bytes")
        return count, wrong

    @staticmethod
    def is_mixed(found, good):
        """A record whose write a kill has cut off, over nothing or an earlier one."""
        parts = [bytes(RECORD_BYTES), *good]
        return all(any(found[i : i + 1] == part[i : i + 1] for part in parts) for i in range(0, len(found), 997))

    def guests(self):
        mounts = Path("/proc/mounts").read_text()
        return sum(f" {self.guest_mount(node)} " in mounts for node in NODES)


def main():
    if sys.argv[1:2] == ["--write"]:
        write_for_ever(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    args, place, disk = chaos_writes.begin(__doc__)
    cluster, chance = Cluster(args, place, disk), random.Random(args.seed)
    cluster.had_loss = [False] * FILES
    until, rounds, kills, losses, checked = time.monotonic() + 60 * args.minutes, 0, 0, 0, 0
    while time.monotonic() < until and (args.kills is None or kills < args.kills):
        rounds += 1
        cluster.wait_for_members()
        cluster.set_rate(chance.choice((SLOW, FAST)))
        for writer in range(len(NODES)):
            cluster.start_program(writer)
        strikes = []
        for _ in range(chance.randrange(2, 7)):
            time.sleep(chance.uniform(0.3, 1.2))
            strikes.append(cluster.strike(chance))
            kills += 1
        is_lost = chance.random() < 0.25
        if is_lost:
            cluster.lose(chance.choice(NODES))
            losses += 1
        for writer in list(cluster.programs):
            cluster.kill_program(writer)
        kills += len(NODES)
        cluster.set_rate(FAST)
        saved = disk / f"saved-{rounds}"
        saved.mkdir()
        parked = cluster.sync(saved)
        if is_lost or parked:
            # Older records may be there from now on, until all are written anew.
            cluster.had_loss = [True] * FILES
        count, wrong = cluster.check(is_lost)
        checked += count
        # While its agent is away a program writes straight, also to what is dirty on another node.
        if parked and not is_lost and "agent" not in strikes:
            wrong.append(f"{parked} files are parked, and no node was lost: {json.dumps([str(path) for path in saved.rglob('*')])}")
        print(f"round {rounds}: {kills} kills, {losses} nodes lost, {checked} records compared, {len(wrong)} violations", flush=True)
        if wrong:
            print("\n".join(wrong[:20]), f"\nleft: {place}, {disk}", sep="\n")
            return 1
        if is_lost or parked:
            # Each life of the files begins with nothing.
            for slot in range(FILES):
                Path(cluster.pfs / f"shared-{slot}").unlink(missing_ok=True)
            for path in cluster.states:
                path.write_bytes(bytes(path.stat().st_size))
            cluster.had_loss = [False] * FILES
    if not cluster.guests():
        raise SystemExit("chaos: no program was a guest: this shows nothing")
    cluster.end()
    shutil.rmtree(place)
    shutil.rmtree(disk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
