"""YARN on one machine: a resource manager, two node managers and a job history server, each as a cluster starts it, in a JVM of its own.

The two nodes are those of python/demo/loopback.py: 127.0.0.2 and 127.0.0.3, each with an agent. Not Hadoop's MiniYARNCluster: that has all
node managers in one process and on one host, so all containers would speak to one agent, and no task would have a place where it
belongs. All that the daemons keep on disk is below the directory given; all that they share is on the PFS and goes through `forebay://`.
"""

import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import loopback

MASTER = "127.0.0.1"
USER = pwd.getpwuid(os.getuid()).pw_name
# A job that hangs is a failure, not a reason to wait for ever.
JOB_S = 900
# What a task gets, the JVM's heap and all that is not heap.
TASK_MB = 640
HEAP_MB = 320
NODE_MB = 4 * TASK_MB
FOREBAY = {
    "fs.forebay.impl": "io.forebay.hadoop.ForebayFileSystem",
    "fs.AbstractFileSystem.forebay.impl": "io.forebay.hadoop.ForebayFs",
}
# What a node manager takes from its own environment into that of its containers: the socket is
# another one on each node here.
WHITELIST = "JAVA_HOME,LANG,LC_ALL,TZ,FOREBAY_SOCKET"
LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


class JobError(Exception):
    """A job failed; the message says which, and the end of what it said."""


@dataclass
class Job:
    """A job that has ended well, as the history server tells it. Seconds are those from its start to its end, without the client's JVM."""

    id: str
    seconds: float
    maps: int
    map_s: float
    said: str
    counters: dict = field(default_factory=dict)


class Cluster(loopback.Cluster):
    """`jar`: Forebay's; `lib`: directory of Hadoop's jars; `splits`: bytes of a block of the PFS, and so of a split."""

    # As it is by default, and said because pages are counted.
    page_bytes = 2 << 20
    mount_options = f'page_size = "{page_bytes}"\n'
    # Where the resource manager and the history server listen.
    master_host = MASTER
    # Offers of other nodes that a task leaves out in the hope for its own.
    locality_delay = 2

    def __init__(self, program, jar, lib, place, pfs, splits, capacity_bytes):
        super().__init__(program, None, None, place, pfs, splits, capacity_bytes)
        self.jar, self.lib = jar, lib
        self.history = None

    def start_engine(self):
        self.shared = self.pfs / "yarn"
        # Nothing below it is made here: Hadoop makes its own directories, with the permissions it
        # wants, through Forebay.
        self.make_shared()
        self.write_hosts()
        names = ("resourcemanager", "scheduler", "tracker", "admin", "web", "history", "history-web", "history-admin")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.write_conf(self.place / "conf", {})
        log = self.place / "resourcemanager.log"
        master = self.java_daemon("yarn.server.resourcemanager.ResourceManager", self.place / "conf", log, self.client_node())
        for node in self.nodes:
            self.start_node_manager(node)
        log_of_history = self.place / "historyserver.log"
        history = self.java_daemon("mapreduce.v2.hs.JobHistoryServer", self.place / "conf", log_of_history, self.client_node())
        self.said(master, log, r"(Transitioned to active) state", "the resource manager")
        for node in self.nodes:
            self.said(node.worker, node.directory / "nodemanager.log", r"Registered with ResourceManager as (\S+)", f"the node manager of {node.host}")
        self.history = f"http://{self.master_host}:{self.ports['history-web']}/ws/v1/history/mapreduce/jobs/"
        self.said(history, log_of_history, r"(Web app jobhistory started)", "the history server")

    def start_node_manager(self, node):
        conf = node.directory / "conf"
        local = {f"yarn.nodemanager.{name}": f"{node.host}:0" for name in ("address", "localizer.address", "webapp.address", "collector-service.address")}
        local |= {f"yarn.nodemanager.{name}-dirs": str(node.directory / name) for name in ("local", "log")}
        self.write_conf(conf, local | {"yarn.nodemanager.hostname": node.host})
        node.worker = self.java_daemon("yarn.server.nodemanager.NodeManager", conf, node.directory / "nodemanager.log", node)

    def make_shared(self):
        self.shared.mkdir()

    # Configuration

    def write_hosts(self):
        """What names the JVMs know, so that a node is called by its address whatever the machine's resolver makes of it."""
        self.hosts = self.place / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")

    def write_conf(self, directory, more):
        directory.mkdir(exist_ok=True)
        core = {"fs.defaultFS": "forebay:///", "hadoop.tmp.dir": str(self.place / "tmp"), **FOREBAY}
        write_xml(directory / "core-site.xml", core)
        write_xml(directory / "yarn-site.xml", self.yarn_site() | more)
        write_xml(directory / "mapred-site.xml", self.mapred_site())
        queue = "yarn.scheduler.capacity."
        # The master of a job beside that of the one before, which takes some seconds to leave.
        capacity = {"root.queues": "default", "root.default.capacity": "100", "maximum-am-resource-percent": "1"}
        capacity["node-locality-delay"] = str(self.locality_delay)
        write_xml(directory / "capacity-scheduler.xml", {queue + key: value for key, value in capacity.items()})
        (directory / "log4j.properties").write_text(LOG4J)

    def yarn_site(self):
        master = {"address": "resourcemanager", "scheduler.address": "scheduler", "resource-tracker.address": "tracker", "admin.address": "admin"}
        master["webapp.address"] = "web"
        return {
            **{f"yarn.resourcemanager.{key}": f"{self.master_host}:{self.ports[port]}" for key, port in master.items()},
            "yarn.resourcemanager.hostname": self.master_host,
            "yarn.scheduler.minimum-allocation-mb": "64",
            "yarn.application.classpath": f"{self.lib}/*",
            "yarn.nodemanager.resource.memory-mb": str(NODE_MB),
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.nodemanager.env-whitelist": WHITELIST,
            "yarn.nodemanager.aux-services": "mapreduce_shuffle",
            "yarn.nodemanager.aux-services.mapreduce_shuffle.class": "org.apache.hadoop.mapred.ShuffleHandler",
            # A JVM reserves far more address space than it uses.
            "yarn.nodemanager.vmem-check-enabled": "false",
            # The fullness of this machine's disk is no concern of this.
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.log-aggregation-enable": "true",
            "yarn.nodemanager.remote-app-log-dir": str(self.shared / "logs"),
        }

    def mapred_site(self):
        history = str(self.shared / "history")
        return {
            "mapreduce.framework.name": "yarn",
            "mapreduce.application.classpath": f"{self.lib}/*,{self.jar}",
            "yarn.app.mapreduce.am.staging-dir": str(self.shared / "staging"),
            "yarn.app.mapreduce.am.resource.mb": str(TASK_MB),
            "yarn.app.mapreduce.am.command-opts": self.java_options(),
            "mapreduce.map.memory.mb": str(TASK_MB),
            "mapreduce.reduce.memory.mb": str(TASK_MB),
            "mapreduce.map.java.opts": self.java_options(),
            "mapreduce.reduce.java.opts": self.java_options(),
            "mapreduce.task.io.sort.mb": "64",
            "mapreduce.map.speculative": "false",
            "mapreduce.reduce.speculative": "false",
            "mapreduce.shuffle.port": "0",
            "mapreduce.jobhistory.address": f"{self.master_host}:{self.ports['history']}",
            "mapreduce.jobhistory.webapp.address": f"{self.master_host}:{self.ports['history-web']}",
            "mapreduce.jobhistory.admin.address": f"{self.master_host}:{self.ports['history-admin']}",
            "mapreduce.jobhistory.intermediate-done-dir": f"{history}/intermediate",
            "mapreduce.jobhistory.done-dir": f"{history}/done",
            "mapreduce.client.completion.pollinterval": "200",
            "mapreduce.client.progressmonitor.pollinterval": "200",
        }

    def java_options(self):
        # Quick to start: most of these live for seconds.
        return f"-Xmx{HEAP_MB}m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true -Djdk.net.hosts.file={self.hosts}"

    # Processes

    def java(self, conf, *arguments, jar=True):
        opens = ["--add-opens=java.base/java.lang=ALL-UNNAMED"]
        path = [str(conf), f"{self.lib}/*"] + ([str(self.jar)] if jar else [])
        return ["java", *self.java_options().split(), *opens, "-cp", ":".join(path), *arguments]

    def java_environment(self, node):
        # The scripts of containers call Java by it.
        home = os.environ.get("JAVA_HOME") or str(Path(os.path.realpath(shutil.which("java"))).parents[1])
        return {"JAVA_HOME": home, "FOREBAY_SOCKET": str(node.socket), "LC_ALL": "C.UTF-8", "HADOOP_USER_NAME": USER}

    def java_daemon(self, name, conf, log, node):
        return self.spawn_on(node, self.java(conf, f"org.apache.hadoop.{name}"), log)

    def spawn_on(self, node, command, log):
        return self.spawn(command, log, self.java_environment(node))

    def client_node(self):
        """Of the programs that submit jobs, and of the daemons that are one for all."""
        return self.nodes[0]

    # Jobs

    def run(self, name, command, options, jar=True):
        """Runs a MapReduce program as `hadoop jar` would, on the first node; `jar`: whether Forebay's is in the class paths. Gives a Job."""
        return self.ended(name, self.begin(name, command, options, jar))

    def begin(self, name, command, options, jar=True):
        """As `run`; gives the process of the client."""
        if not jar:
            options = {"mapreduce.application.classpath": f"{self.lib}/*"} | options
        program, *arguments = command
        generic = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]
        log = self.place / f"{name}.log"
        return self.spawn_on(self.client_node(), self.java(self.place / "conf", *program.split(), *generic, *arguments, jar=jar), log)

    def ended(self, name, process):
        """Waits for the end of a program; gives a Job."""
        log = self.place / f"{name}.log"
        try:
            code = process.wait(JOB_S)
        except subprocess.TimeoutExpired:
            raise JobError(f"{name} did not end within {JOB_S} s; {tail(log)}") from None
        said = log.read_text(errors="replace")
        if code:
            raise JobError(f"{name} failed with exit code {code}; {tail(log)}")
        ids = re.findall(r"Running job: (job_\S+)", said)
        return self.told(name, ids[-1], said) if ids else Job("", 0.0, 0, 0.0, said)

    def told(self, name, job, said):
        """What the history server tells of a job: it learns of one some moments after its end."""
        deadline = time.monotonic() + loopback.START_S
        while True:
            try:
                about = self.ask(job)["job"]
                break
            except (urllib.error.URLError, KeyError) as error:
                if time.monotonic() > deadline:
                    raise JobError(f"the history server does not know {name}, {job}: {error}") from None
            time.sleep(0.2)
        if about["state"] != "SUCCEEDED":
            raise JobError(f"{name} ended as {about['state']}: {about.get('diagnostics', '')}")
        counters = {}
        for group in self.ask(f"{job}/counters")["jobCounters"]["counterGroup"]:
            for counter in group["counter"]:
                counters[counter["name"]] = counter["totalCounterValue"]
        seconds = (about["finishTime"] - about["startTime"]) / 1e3
        return Job(job, seconds, about["mapsTotal"], about["avgMapTime"] / 1e3, said, counters)

    def check_shared(self, jobs):
        """The logs of all containers have been brought together on the PFS, by the node managers and through FileContext, and who may what is as Hadoop set it."""
        modes = {"logs": 0o1777, "history/intermediate": 0o1777, f"staging/{USER}/.staging": 0o700}
        for name, wanted in modes.items():
            mode = stat.S_IMODE((self.shared / name).stat().st_mode)
            if mode != wanted:
                raise JobError(f"{self.shared / name} has mode {mode:o} instead of {wanted:o}")
        for job in jobs:
            application = job.replace("job_", "application_")
            deadline = time.monotonic() + loopback.START_S
            while not [log for log in self.shared.glob(f"logs/**/{application}/*") if log.stat().st_size and not log.name.endswith(".tmp")]:
                if time.monotonic() > deadline:
                    raise JobError(f"the logs of {job} are not in {self.shared / 'logs'}")
                time.sleep(0.2)

    def ask(self, what):
        request = urllib.request.Request(self.history + what, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def tail(log):
    return f"the end of {log.name}:\n" + "\n".join(log.read_text(errors="replace").strip().splitlines()[-15:])


def write_xml(path, options):
    """Options in the form of Hadoop's configuration files."""
    lines = [f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>" for key, value in options.items()]
    path.write_text("\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>", ""]))


def free_ports(count):
    """Ports that nobody listens at now: Hadoop's daemons must be told of each other before they have one."""
    sockets = [socket.create_server((MASTER, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
