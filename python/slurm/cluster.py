"""A Slurm cluster on this machine, with Forebay as packages install it: a controller, nodes, agents and a coordinator, all below one directory."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from datetime import datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Root cannot have burst buffers, by Slurm's rule.
USER = "nobody"
AS_USER = ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups"]
CPUS = 4
# The start of a job takes less.
QUIET_S = 0.5
ETCD_MEMBERS = 3
# In ms.
ETCD_TIMES = ["--heartbeat-interval", "100", "--election-timeout", "500"]

SLURM_CONF = """
ClusterName=forebay
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=slurm
SlurmdUser=root
StateSaveLocation={top}/slurm/state
SlurmdSpoolDir={top}/slurm/%n
SlurmctldPidFile={top}/slurm/slurmctld.pid
SlurmdPidFile={top}/slurm/%n.pid
SlurmctldLogFile={top}/log/slurmctld
SlurmdLogFile={top}/log/slurmd.%n
SlurmctldDebug=verbose
DebugFlags=BurstBuffer
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=1,sched_min_interval=200000,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=60
MessageTimeout=20
MinJobAge=36000
KillWait=5
BurstBufferType=burst_buffer/lua
Prolog={share}/prolog
PrologFlags=Alloc
TaskProlog={share}/task-prolog
Epilog={top}/epilog.d/*
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=NO
"""

# As DeepOps does it, and more: nothing of Forebay may depend on what is there.
EMPTIES_SHM = """#!/bin/sh
rm -rf /dev/shm/*
echo "$SLURM_JOB_ID" >> {top}/log/emptied
"""


class Daemon:
    """A process that can be killed and started again, as systemd would."""

    def __init__(self, kind, name, command, env, log):
        self.kind, self.name, self.command, self.env, self.log = kind, name, [str(word) for word in command], env, log
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=self.env, cwd=self.log.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kill(self):
        """Kills it; returns whether it was alive."""
        is_alive = self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return is_alive


class Cluster:
    """The cluster. Its agent `ctl` is the controller's; the others are those of the nodes."""

    def __init__(self, forebay, top, nodes, drain_s, candidates=1):
        self.top, self.pfs, self.share = top, top / "pfs", top / "usr/share/forebay/slurm"
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        for name in ["slurm/state", "log", "pfs/in", "pfs/out", "epilog.d", "etc/forebay", "state"]:
            (top / name).mkdir(parents=True)
        (top / "pfs/out").chmod(0o777)
        for name in ["slurm", "slurm/state", "log"]:
            shutil.chown(top / name, "slurm", "slurm")
        # Of these namespaces alone.
        Path("/etc/sudoers.d/forebay").write_text(f"slurm ALL=(root) NOPASSWD: {self.share}/forebay-job stage-in *\n")
        # Relative to the clock of nobody's shell: no user's start-up files take part.
        self.env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "SLURM_CONF": str(top / "slurm.conf")}
        install = ["make", "--no-print-directory", "install", f"PREFIX={top}/usr", f"SYSCONFDIR={top}/etc", f"BUILT={forebay.parent}"]
        subprocess.run(install, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        self.program = top / "usr/bin/forebay"
        self.ports = iter(free_ports(2 + nodes + candidates + 2 * ETCD_MEMBERS))
        self.coordinators = [f"127.0.0.1:{next(self.ports)}" for _ in range(candidates)]
        self.configure(drain_s)
        self.daemons = [*self.candidates()] if candidates > 1 else [self.forebay_daemon("coordinator", "coordinator", "coordinator", "--listen", self.coordinators[0])]
        for number, name in enumerate(["ctl", *self.nodes]):
            self.daemons.append(self.agent(name, f"127.0.0.{10 + number}"))
        self.daemons.append(Daemon("slurmctld", "slurmctld", ["slurmctld", "-D"], self.env, top / "log/slurmctld.out"))
        for name in self.nodes:
            self.daemons.append(Daemon("slurmd", f"slurmd of {name}", ["slurmd", "-D", "-N", name], self.env, top / f"log/slurmd.{name}.out"))

    def configure(self, drain_s):
        """Writes what an operator writes."""
        ports = [next(self.ports) for _ in ["slurmctld", *self.nodes]]
        nodes = "\n".join(f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN" for name, port in zip(self.nodes, ports[1:]))
        (self.top / "slurm.conf").write_text(SLURM_CONF.format(top=self.top, share=self.share, port=ports[0], nodes=nodes))
        for name in ["burst_buffer.lua", "burst_buffer.conf"]:
            (self.top / name).symlink_to(self.share / name)
        # In this order: Slurm runs the last one first.
        (self.top / "epilog.d/1-forebay").symlink_to(self.share / "epilog")
        (self.top / "epilog.d/2-shm").write_text(EMPTIES_SHM.format(top=self.top))
        (self.top / "epilog.d/2-shm").chmod(0o755)
        # On one host, nodes differ by what slurmd says.
        trace = f"exec {{BASH_XTRACEFD}}>>{self.top}/log/hooks.$NODE; PS4='${{JOB:-}} $EPOCHREALTIME '; set -x\n"
        trace += f"export SLURM_CONF={self.top}/slurm.conf\n"
        settings = trace + f'TIER_MAX=128MiB AWAY_S=30 STAGE_IN_S=120 DRAIN_S={drain_s} STAGE_OUT_S=120 STATE={self.top}/state/$NODE\nFOREBAY_SOCKET={self.top}/agent.${{SLURMD_NODENAME:-ctl}}/agent.sock\nFOREBAY_CONFIG={self.top}/ctl.toml\n'
        (self.top / "etc/forebay/slurm.sh").write_text(settings)

    def candidates(self):
        """Members of etcd, and the candidates that it elects the leader of."""
        urls = [[f"http://127.0.0.1:{next(self.ports)}" for _ in ("clients", "peers")] for _ in range(ETCD_MEMBERS)]
        members = ",".join(f"m{number}={peers}" for number, (_, peers) in enumerate(urls))
        for number, (clients, peers) in enumerate(urls):
            command = ["etcd", "--name", f"m{number}", "--data-dir", self.top / f"etcd.{number}", "--initial-cluster", members, *ETCD_TIMES]
            command += ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
            yield Daemon("member of etcd", f"member {number} of etcd", command, self.env, self.top / f"log/etcd.{number}")
        for number, address in enumerate(self.coordinators):
            config = self.top / f"candidate{number}.toml"
            config.write_text(f'[cluster]\ncoordinator_listen = "{address}"\nnode = "c{number}"\netcd = {json.dumps([clients for clients, _ in urls])}\n')
            yield self.forebay_daemon("coordinator", f"candidate {number}", "coordinator", "--config", config)

    def agent(self, name, address):
        """The system's agent of a node."""
        config = self.top / f"{name}.toml"
        text = f'[agent]\nstate_dir = "{self.top}/agent.{name}"\n[tier]\ncapacity = "256MiB"\nlimit = "256MiB"\n[memory]\npolicy = "static"\n'
        text += f'[cluster]\ncoordinator = {json.dumps(self.coordinators)}\nlisten = "{address}:0"\nnode = "{name}"\n'
        text += f'[[mount]]\nlabel = "pfs"\nroot = "{self.pfs}"\nfetch_threads = 2\n'
        config.write_text(text)
        return self.forebay_daemon("agent", f"agent of {name}", "agent", "--config", config)

    def forebay_daemon(self, kind, name, *command):
        return Daemon(kind, name, [self.program, *command], self.env, self.top / f"log/{name.replace(' ', '.')}")

    def start(self):
        """Returns when all nodes are idle and all agents are members."""
        for daemon in self.daemons:
            daemon.start()
        wait_until(lambda: all(len(self.members(name)) > len(self.nodes) for name in ["ctl", *self.nodes]), 60, "agents did not become members")
        self.wait_until_idle(60)

    def stop(self):
        """Ends everything; the mounts and processes that are left go with their namespaces."""
        for daemon in reversed(self.daemons):
            if daemon.process:
                daemon.kill()

    def wait_for_quiet_save(self):
        """Returns when slurmctld has just saved its state and started no job about then; whether it has.

        It saves every five seconds. What it has started since then, it starts twice if it is killed, and
        then it drains the node itself.
        """
        saved = self.top / "slurm/state/job_state"
        before, until = time.time(), time.monotonic() + 30
        while time.monotonic() < until:
            at = saved.stat().st_mtime if saved.exists() else 0
            if at > before:
                # The state of the nodes follows.
                time.sleep(0.05)
                if self.last_start() < at - QUIET_S:
                    return True
                before = at
            time.sleep(0.01)
        return False

    def last_start(self):
        """When slurmctld has last started a job, by its log."""
        with (self.top / "log/slurmctld").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - (256 << 10)))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if "Allocate JobId" in line or "Configuration for JobId" in line]
        return datetime.fromisoformat(lines[-1][1:24]).timestamp() if lines else 0

    def agents_of_jobs(self):
        """Process numbers of the agents of jobs' own tiers, other than those that a job has stopped."""
        mark = f"--state-dir\0{self.top}/state/".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes()
                is_one = mark in line and line.startswith(bytes(self.program))
                found += [int(path.parent.name)] if is_one and ") T " not in path.with_name("stat").read_text() else []
        return found

    def wait_until_idle(self, seconds):
        wait_until(lambda: self.node_states() == ["idle"] * len(self.nodes), seconds, lambda: f"nodes are not idle: {self.call('sinfo', '-N', '-o', '%N %T %E')}")

    def node_states(self):
        return self.call("sinfo", "-h", "-N", "-o", "%T").split()

    def call(self, *command, check=False, seconds=60):
        """What a command of root's prints; nothing if slurmctld is away."""
        done = subprocess.run([str(word) for word in command], env=self.env, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        return done.stdout if done.returncode == 0 else ""

    def ask(self, name, *command):
        """What the program prints about the agent of a node, as JSON."""
        text = self.call(self.program, "--json", "--socket", self.top / f"agent.{name}/agent.sock", *command)
        return json.loads(text) if text else {}

    def status(self, name):
        return self.ask(name, "status")

    def members(self, name):
        """The nodes of the cluster, as an agent knows them."""
        return self.status(name).get("cluster", {}).get("view", {}).get("nodes", [])

    def submit(self, script, *options):
        """Submits as an ordinary user. Returns the number of the job, or None, and what was printed."""
        command = [*AS_USER, "sbatch", "--parsable", *options]
        while True:
            done = subprocess.run(command, env=self.env, cwd=self.pfs / "out", input=script, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            # Users try again as well.
            if done.returncode == 0 or not any(word in done.stderr for word in ["Unable to contact", "timed out", "Connection refused", "reset by peer", "Zero Bytes", "socket error"]):
                return (int(done.stdout) if done.returncode == 0 else None), done.stderr
            time.sleep(1)

    def launched(self):
        """Numbers of the jobs whose script a node has got."""
        logs = (path.read_text(errors="replace") for path in (self.top / "log").glob("slurmd.*"))
        return {int(number) for log in logs for number in re.findall(r"Launching batch job (\d+) ", log)}

    def job(self, number):
        """The fields of `scontrol show job`."""
        fields = {}
        for line in self.call("scontrol", "show", "job", str(number)).splitlines():
            key, _, value = line.strip().partition("=")
            if key in ("AdminComment", "SystemComment", "BurstBufferState"):
                fields[key] = value
            else:
                fields.update(dict(word.split("=", 1) for word in line.split() if "=" in word and not word.startswith("Reason=")))
            if "Reason=" in line and " Dependency" in line:
                fields["Reason"] = line.split("Reason=", 1)[1].rsplit(" Dependency", 1)[0]
        return fields


def free_ports(count):
    """Ports that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(condition, seconds, why):
    """Fails with `why` if the condition is not met in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"slurm: {why() if callable(why) else why}, after {seconds} s")
        time.sleep(0.2)
