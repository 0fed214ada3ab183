"""Measures how the I/O steps of MPI jobs share a file system under each order of `cluster.access`, beside the simulator.

    python3 python/burst [--quick] [--repeats N] [--only PART ...]

The jobs are those of the paper on shared burst buffers (ICPP 2016), scaled to eight servers of a slow file system with a limit each. It needs
root and Debian's packages openmpi-bin and libopenmpi-dev. It leaves `burst.json`, `burst.csv`, `burst.md` and a plot in
`target/experiment-burst`. Each measured run stays there, and is not measured again with the same sizes; --fresh measures all runs again.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

from steps import step  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
VENV = TARGET / "venv"
REQUIREMENTS = REPOSITORY / "python/requirements-demo.txt"
READY = "FOREBAY_EXPERIMENT_READY"
PROGRAMS = {"mpicc": "libopenmpi-dev", "mpirun": "openmpi-bin"}
PARTS = ["catalyst", "batch", "arrivals"]


@dataclass(frozen=True)
class Sizes:
    """`rate`: bytes a second of each server; `unit_bytes`: what it writes in the unit of time of the steps."""

    rate: int = 4_000_000
    unit_bytes: int = 4_000_000

    @property
    def unit_s(self):
        return self.unit_bytes / self.rate


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/burst", description="MPI jobs that share a file system under each order of cluster.access.")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each order and workload, each in another order of arrival [default: 3]")
    parser.add_argument("--only", action="append", choices=PARTS, default=[], help="measure this part; several times for several [default: all]")
    parser.add_argument("--workload", action="append", default=[], metavar="W", help="of the batches, this one; several times for several [default: W7 to W12]")
    parser.add_argument("--quick", action="store_true", help="one workload with little data, once")
    parser.add_argument("--fresh", action="store_true", help="measure all runs again")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the results [default: target/experiment-burst]")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 3)
    args.only = args.only or (["catalyst", "batch"] if args.quick else PARTS)
    args.workload = args.workload or (["W8"] if args.quick else [])
    args.output = (args.output or TARGET / ("experiment-burst-quick" if args.quick else "experiment-burst")).resolve()
    return args


def prepare():
    """Builds missing parts. Returns the program `forebay` and the Python interpreter to continue with."""
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise SystemExit(f"experiment: Open MPI is not installed: apt-get install --no-install-recommends {' '.join(sorted(missing))}")
    if os.geteuid() != 0:
        raise SystemExit("experiment: the slow file system needs root")
    program = os.environ.get("FOREBAY_BIN")
    if not program:
        step("experiment", "building the program", ["cargo", "build", "--release", "--locked"])
        program = TARGET / "release/forebay"
    python = VENV / "bin/python"
    if not python.exists():
        venv.create(VENV, with_pip=True)
    step("experiment", "installing numpy and matplotlib", [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)])
    return program, python


def library_of(program, name):
    """The newest of that name: tests leave theirs in `deps`."""
    found = [path for path in (program.parent / name, program.parent / "deps" / name) if path.exists()]
    if not found:
        raise SystemExit(f"experiment: no {name} beside {program}: run `cargo build`")
    return max(found, key=lambda path: path.stat().st_mtime)


def build_writer(program):
    """The MPI program, linked with the C library beside `program`."""
    place = TARGET.resolve() / "burst"
    place.mkdir(parents=True, exist_ok=True)
    # The name that the loader looks for; `make install` creates the same one.
    link = place / "libforebay.so.0"
    link.unlink(missing_ok=True)
    link.symlink_to(library_of(program, "libforebay.so"))
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", f"-I{REPOSITORY / 'crates/forebay-capi/include'}"]
    step("experiment", "compiling the writer", ["mpicc", *flags, "-o", str(place / "writer"), str(HERE / "writer.c"), str(link), f"-Wl,-rpath,{place}"])
    return place / "writer"


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    args = arguments()
    if os.environ.get(READY) != "1":
        program, python = prepare()
        os.execve(python, [str(python), *sys.argv], {**os.environ, READY: "1", "FOREBAY_BIN": str(program)})
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    import experiment

    program = Path(os.environ["FOREBAY_BIN"]).resolve()
    os.environ["FOREBAY_PRELOAD"] = str(library_of(program, "libforebay_preload.so"))
    size = Sizes(unit_bytes=1_000_000) if args.quick else Sizes()
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-burst-", dir="/dev/shm") as place:
            return experiment.run(args, program, build_writer(program), Path(place), size)
    except KeyboardInterrupt:
        print("experiment: stopped; what has been measured stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
