"""Stage-ins with a program that takes its time and an agent that restarts, without Slurm."""

import os
import re
import subprocess

# Its loads take LOAD_S. The first one fails if RESTARTS is set, and the agent is away then.
PROGRAM = """#!/bin/bash
cd "${0%/*}" || exit
case $1 in
load) sleep LOAD_S; echo >>loads; [ -z "RESTARTS" ] || [ "$(wc -l <loads)" != 1 ] ;;
status) [ -z "RESTARTS" ] || [ "$(wc -l <loads)" != 1 ] ;;
esac
"""
SCRIPT = "#!/bin/sh\n#FB stage-in path=/1\n#FB stage-in path=/2\n#FB stage-in path=/3\n"


class Loads:
    """Two stage-ins, which run beside the test."""

    def __init__(self, cluster):
        # One deadline holds for all paths; an agent may restart at the end of a long load.
        self.late = self.start(cluster, "late", "STAGE_IN_S=3 AWAY_S=2", load_s=2, restarts="")
        self.away = self.start(cluster, "away", "STAGE_IN_S=60 AWAY_S=2", load_s=3, restarts="1")

    def start(self, cluster, name, settings, load_s, restarts):
        """Starts one, in a directory of its own."""
        place = cluster.top / name
        place.mkdir()
        place.chmod(0o777)
        hook = (cluster.share / "forebay-job").read_text().replace(f"{cluster.top}/usr/bin", str(place)).replace(f"{cluster.top}/etc/forebay", str(place))
        programs = {
            "forebay": PROGRAM.replace("LOAD_S", str(load_s)).replace("RESTARTS", restarts),
            "squeue": '#!/bin/sh\necho "$(id -u nobody) $(id -g nobody) /"\n',
            "forebay-job": hook,
        }
        for program, text in programs.items():
            (place / program).write_text(text)
            (place / program).chmod(0o755)
        (place / "slurm.sh").write_text(f"{settings} STATE={place}/state\n")
        (place / "script").write_text(SCRIPT)
        env = dict(cluster.env, PATH=f"{place}:{os.environ['PATH']}")
        command = [place / "forebay-job", "stage-in", "1", place / "script"]
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def problems(self):
        """What was wrong with them."""
        (late, _), (away, _) = self.late.communicate(timeout=60), self.away.communicate(timeout=60)
        problems = []
        # Which of them it is depends on how busy the machine is.
        if self.late.returncode == 0 or not re.search("stage-in of /[123] was not complete after 3 s", late):
            problems.append(f"three loads of 2 s are not ended after 3 s: {late!r}")
        if self.away.returncode != 0:
            problems.append(f"a load of 3 s does not survive the restart of an agent: {away!r}")
        return problems
