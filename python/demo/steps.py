"""What prepares a demonstration or an experiment. Uses the standard library alone: it runs before
anything is installed."""

import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import sparkhome

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
VENV = TARGET / "venv"
READY = "FOREBAY_EXPERIMENT_READY"
# Debian's packages, by the programs that are needed.
MPI = {"mpicc": "libopenmpi-dev", "mpirun": "openmpi-bin"}
MAVEN = ["mvn", "--quiet", "--batch-mode", "--file", "java/pom.xml", "-Dstyle.color=never"]


def go_on(prepare, run):
    """Calls `run` with the program, under the Python that `prepare` returns beside it: this command
    starts itself again with that one. Returns the exit code."""
    # A shell starts what it puts into the background with SIGINT ignored, and Python then leaves it
    # so. SIGTERM takes the same way out as Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if os.environ.get(READY) == "1":
            return run(Path(os.environ["FOREBAY_BIN"]))
        program, python = prepare()
        os.execve(python, [str(python), *sys.argv], {**os.environ, READY: "1", "FOREBAY_BIN": str(program)})
    except sparkhome.SparkMissing as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        print("stopped; what has been measured stays", file=sys.stderr)
        return 130


def environment(packages=(), root_for=None):
    """Builds the program, unless $FOREBAY_BIN names one, and the Python with numpy and matplotlib. Returns both.

    `packages`: Debian's, by the programs that are needed. `root_for`: what needs root, if anything does.
    """
    missing = sorted({package for program, package in dict(packages).items() if not shutil.which(program)})
    if missing:
        raise SystemExit(f"programs are not installed: apt-get install --no-install-recommends {' '.join(missing)}")
    if root_for and os.geteuid() != 0:
        raise SystemExit(f"{root_for} needs root")
    program = os.environ.get("FOREBAY_BIN")
    if not program:
        step("building the program", ["cargo", "build", "--release", "--locked"])
    if not (VENV / "bin/python").exists():
        print(f"creating {VENV}", flush=True)
        venv.create(VENV, with_pip=True)
    install(VENV / "bin/python", "numpy and matplotlib", "-r", str(REPOSITORY / "python/requirements-demo.txt"))
    return Path(program or TARGET / "release/forebay").absolute(), VENV / "bin/python"


def install(python, what, *arguments):
    """Installs packages of PyPI."""
    step(f"installing {what}", [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def step(what, command):
    """Runs a command of the preparation. SystemExit: it failed."""
    print(f"{what} ...", flush=True)
    try:
        subprocess.run(command, cwd=REPOSITORY, check=True)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not installed; it is needed for {what}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{what} failed with exit code {error.returncode}; its output is above") from None


def library_beside(program, name):
    """The newest of that name: tests leave theirs in `deps`."""
    found = [path for path in (program.parent / name, program.parent / "deps" / name) if path.exists()]
    if not found:
        raise SystemExit(f"no {name} beside {program}: run `cargo build`")
    return max(found, key=lambda path: path.stat().st_mtime)


def jar_beside(program):
    """Builds the jar with the native library beside `program`, which may be that of the tests; `make
    java` uses a release build."""
    step("packing the native library", ["java/pack-native", str(library_beside(program, "libforebay_jni.so"))])
    step("building the jar", [*MAVEN, "--projects", "spark,workloads", "-DskipTests", "package"])
    shutil.copy(TARGET / "java/spark/forebay-spark.jar", TARGET / "forebay-spark.jar")


def mpi_program(source, place, program):
    """The MPI program of `source`, linked with the C library beside `program`, in the directory `place`."""
    place.mkdir(parents=True, exist_ok=True)
    # The name that the loader looks for; `make install` creates the same one.
    link = place / "libforebay.so.0"
    link.unlink(missing_ok=True)
    link.symlink_to(library_beside(program, "libforebay.so"))
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", f"-I{REPOSITORY / 'crates/forebay-capi/include'}"]
    compiled = place / source.stem
    step(f"compiling {source.name}", ["mpicc", *flags, "-o", str(compiled), str(source), str(link), f"-Wl,-rpath,{place}"])
    return compiled
