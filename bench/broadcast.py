"""Many nodes of a lab that read one cold file at the same time, each behind a link of its own.

python3 bench/broadcast.py FOREBAY [--nodes 8] [--rate-mbit 160] [--mib 96], as root.
"""

import argparse
import json
import os
import subprocess
import time

LAB = "broadcast"
DIR = "/dev/shm/forebay-broadcast"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("forebay")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate-mbit", type=int, default=160)
    parser.add_argument("--mib", type=int, default=96)
    args = parser.parse_args()
    program = os.path.abspath(args.forebay)
    os.environ["PATH"] = os.path.dirname(program) + ":" + os.environ["PATH"]

    def lab(*words):
        command = [program, "lab", *words]
        environment = dict(os.environ, FOREBAY_LAB=LAB)
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def timed(name, *words):
        lab("mark")
        start = time.monotonic()
        lab("run", *words)
        took = time.monotonic() - start
        copies = json.loads(lab("status", "--json"))["servers_sent_bytes"] / (args.mib << 20)
        print(f"{name}: {took:.2f} s, {copies:.2f} copies from the PFS", flush=True)

    bound = (args.mib << 20) * 8 / (args.rate_mbit * 1e6)
    print(f"{args.nodes} nodes, {args.mib} MiB, links of {args.rate_mbit} Mbit/s: bound {bound:.2f} s")
    lab("up", "--name", LAB, "--dir", DIR, "--nodes", str(args.nodes), "--servers", "2", "--rate", "unlimited")
    try:
        shape(args.nodes, args.rate_mbit)
        for name in ("alone", "together"):
            make = f"dd if=/dev/urandom of=$FOREBAY_LAB_PFS/{name} bs=1M count={args.mib} conv=fsync 2> /dev/null"
            lab("run", "--node", "c1", "--", "sh", "-c", make)
        # MooseFS reports the time of a write up to a second late.
        time.sleep(3)
        read = "forebay cat $FOREBAY_LAB_PFS/{} > /dev/null"
        timed("one node", "--node", "c1", "--", "sh", "-c", read.format("alone"))
        timed("all nodes, the last of them", "--all", "--", "sh", "-c", read.format("together"))
        lab("run", "--all", "--", "forebay", "evict", "--all")
        load = "forebay load --nodes all --quiet $FOREBAY_LAB_PFS/together"
        timed("load --nodes all", "--node", "c1", "--", "sh", "-c", load)
    finally:
        lab("down")


def shape(nodes, rate_mbit):
    """Limits what each compute node sends, and what the switch sends to it."""
    names = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    spaces = [line.split()[0] for line in names.splitlines() if LAB in line]
    switch = next(space for space in spaces if space.endswith("switch"))
    for number in range(1, nodes + 1):
        node = f"c{number}"
        for space, device in ((switch.removesuffix("switch") + node, "eth0"), (switch, node)):
            command = f"tc -n {space} qdisc replace dev {device} root tbf rate {rate_mbit}mbit burst 256kb latency 50ms"
            subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    main()
