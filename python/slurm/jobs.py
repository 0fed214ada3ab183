"""Jobs with directives of all kinds, and what must come of each."""

import random
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

INPUTS, INPUT_BYTES = 6, 3 << 20
NAMED_TIER = "shared"
# How often each kind is among the jobs.
KINDS = {"plain": 5, "pinned": 3, "wide": 3, "tier": 4, "named": 2, "made": 2, "died": 1, "cancelled": 2, "missing": 1, "secret": 1}
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"}
FORGOTTEN_S = 60
# What a message must say to name a cause: a part of Forebay or Slurm.
CAUSE = re.compile(r"forebay|stage-in|slurm|srun|node fail", re.IGNORECASE)
# The end of any job that does not end by itself is no cause, nor is a name below the test's
# directory.
NO_CAUSE = re.compile(r"^slurmstepd: .*$|/\S*/slurm/\S*", re.MULTILINE)
# Directives that Slurm does not take, because they are not at the head of the script.
NOT_AT_THE_HEAD = ["cat >/dev/null <<END", "#FB stage-in path=/none", "#FB no-directive", "END"]


@dataclass
class Job:
    """A job, and what must come of it."""

    kind: str
    script: str
    place: Path
    number: int | None = None
    # Whether the agent has listed it as an HPC job, with its phases.
    is_known: bool = False
    # The input that each file must equal.
    outputs: dict = field(default_factory=dict)
    # What the reason must say of a job that cannot start.
    refusal: str = ""
    # Where its place has files that stay in the tier for the next job.
    keeps: str = ""
    # The message that names why it has no data.
    cause: str = ""


class Maker:
    """Makes jobs, from a seed."""

    def __init__(self, cluster, seed):
        pfs = cluster.pfs
        self.pfs, self.program, self.random, self.made = pfs, cluster.program, random.Random(seed), 0
        self.contents = {}
        for number in range(INPUTS):
            path = pfs / f"in/{number}/data"
            path.parent.mkdir()
            self.contents[path] = self.random.randbytes(INPUT_BYTES)
            path.write_bytes(self.contents[path])
        secret = pfs / "in/secret"
        secret.write_bytes(b"of root")
        secret.chmod(0o600)

    def make(self, kind=None):
        """A job of a kind, or of a random one."""
        kind = kind or self.random.choices(list(KINDS), KINDS.values())[0]
        self.made += 1
        source = self.random.choice(list(self.contents))
        place = self.pfs / f"out/{self.made}"
        place.mkdir()
        place.chmod(0o777)
        nodes = 2 if kind == "wide" else 1
        names = {"wide": ["part0", "part1"], "made": ["made/deep/part0"], "died": []}.get(kind, ["part0", "part1"])
        # A directory that the job makes itself, or would.
        pattern = "made" if kind in ("made", "died") else "part*"
        keeps = pattern if kind in ("pinned", "made") else ""
        path = {"missing": self.pfs / "in/missing", "secret": self.pfs / "in/secret"}.get(kind, source.parent)
        lines = [
            f"#SBATCH --job-name={kind} --nodes={nodes} --ntasks-per-node=1 --time=3 --output={place}/printed.%j",
            f"#FB stage-in \\\n#FB path={path}{' pin' if kind == 'pinned' else ''}",
            f"#FB write-back path={place.name}/{pattern}{' copies=2' if kind == 'wide' else ''}{' keep=2' if keeps else ''}",
        ]
        # Others are drained by the epilog as well, for a shorter time.
        lines += ["#FB stage-out"] if kind in ("plain", "wide", "died") else []
        lines += [f"#FB tier size=64MiB{f' name={NAMED_TIER}' if kind == 'named' else ''}"] if kind in ("tier", "named", "stopped") else []
        lines += NOT_AT_THE_HEAD
        if kind == "parked":
            # Nothing is in the file until the test has made the file system refuse it.
            lines += [f"exec 9>{place}/part0", f"touch {place}/ready", f"while [ ! -e {place}/go ]; do sleep 0.1; done", f"cat {source} >&9"]
        elif kind == "cancelled":
            # It ends itself with a file open.
            lines += [f"cp {source} {place}/part0", f"exec 9>{place}/part1", f"cat {source} >&9"]
        elif kind == "made":
            # The agent must have the file before it is closed.
            lines += [f"mkdir -p {place}/made/deep", f"exec 9>{place}/{names[0]}", f"cat {source} >&9", f'"{self.program}" dirty', "exec 9>&-"]
        elif kind == "wide":
            lines.append(f"srun sh -c 'cp {source} {place}/part$SLURM_PROCID'")
        else:
            lines += [f"cp {source} {place}/{name}" for name in names]
        lines.append(f'"{self.program}" jobs --hpc')
        lines.append(f"sleep {self.random.choice([0, 1, 4])}")
        if kind == "stopped":
            # An agent that does not answer must not hold up the node.
            lines.append('kill -STOP $(pgrep -u "$(id -u)" -f "state-dir .*/$SLURM_JOB_ID/tier/agent")')
        if kind == "cancelled":
            lines += ["until scancel $SLURM_JOB_ID; do sleep 1; done", "sleep 60"]
        script = "\n".join(["#!/bin/bash", *lines, ""])
        refusal = str(path) if kind in ("missing", "secret") else ""
        return Job(kind, script, place, outputs={} if refusal else {place / name: source for name in names}, refusal=refusal, keeps=keeps)

    def verdict(self, job, fields, was_calm, was_launched):
        """Why the job has come neither to the right data nor to an error that names its cause; empty if it has. `was_launched`: a node has got its script."""
        state, reason = fields.get("JobState", "unknown"), fields.get("Reason", "")
        said = fields.get("AdminComment", "")
        if job.refusal and not was_calm and CAUSE.search(said):
            job.cause = said.strip()
            return ""
        if job.refusal:
            return "" if job.refusal in reason and "burst_buffer/lua" in reason else f"its reason does not name {job.refusal}: {reason!r}"
        wrong = [path.name for path, source in job.outputs.items() if not path.exists() or path.read_bytes() != self.contents[source]]
        printed = "".join(path.read_text() for path in sorted(job.place.glob("printed.*")))
        job.is_known = f"{job.kind}-{job.number}" in printed
        # An agent that was killed meanwhile may have left it to the file system.
        if job.kind == "made" and was_calm and not any(str(path) in printed for path in job.outputs):
            return f"what it wrote into its own directory did not go to the tier: {printed!r}"
        if job.kind == "died" and "does not have all" in printed:
            return f"its epilog waits for files that are not there: {printed!r}"
        if not wrong:
            return ""
        causes = [text for text in (said, reason, printed) if CAUSE.search(NO_CAUSE.sub("", text))]
        if state == "TIMEOUT" and not was_launched and not was_calm:
            causes.append("TIMEOUT by Slurm: slurmctld was killed while it launched the job, and no node has got it")
        if causes:
            job.cause = causes[0].strip()
            return ""
        return f"it is {state}, {wrong} are wrong, and nothing names a cause: reason {reason!r}, printed {printed!r}"


def has_ended(job, fields):
    """Whether Slurm has nothing more to do for the job: one that cannot start is held."""
    state = fields.get("JobState")
    if state == "STAGE_OUT":
        # If slurmctld is killed within the moment of a stage-out, Slurm 22.05 forgets to end it.
        return time.time() - datetime.fromisoformat(fields["EndTime"]).timestamp() > FORGOTTEN_S
    return state in ENDED or state == "PENDING" and fields.get("Priority") == "0"
