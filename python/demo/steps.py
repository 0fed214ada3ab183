"""Steps that prepare a demonstration or an experiment. Uses the standard library alone: it runs before anything is installed."""

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def step(who, what, command):
    """Runs a command of the preparation. SystemExit: it failed, with a message that begins with `who`."""
    print(f"{what} ...", flush=True)
    try:
        subprocess.run(command, cwd=REPOSITORY, check=True)
    except FileNotFoundError:
        raise SystemExit(f"{who}: {command[0]} is not installed; it is needed for {what}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{who}: {what} failed with exit code {error.returncode}; its output is above") from None
