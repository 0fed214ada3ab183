"""Spark as PyPI has it, in an environment of its own below target/: its jars and scripts are used, and a JVM that is there."""

import shutil
import subprocess
import sys
import venv

VERSION = "3.5.9"


class SparkMissing(Exception):
    """There is no Spark to run; the message says what to do."""


def find(target, version=VERSION):
    """Spark's home, or None."""
    homes = sorted((target / f"spark-{version}").glob("lib/python3*/site-packages/pyspark"))
    return homes[0] if homes and (homes[0] / "bin/spark-class").exists() else None


def missing_programs():
    """Programs that Spark's part needs beside Spark, as (name, Debian's package)."""
    programs = (("java", "default-jdk-headless"), ("mvn", "maven"))
    return [(program, package) for program, package in programs if not shutil.which(program)]


def ready(target):
    """Whether it can be run without installing anything."""
    return find(target) is not None and not missing_programs()


def need(target, version=VERSION):
    """Spark's home; installs it if need be."""
    for program, package in missing_programs():
        raise SparkMissing(f"{program} is not installed, and Spark's part needs it (Debian: apt install {package}); --only analysis runs without Spark")
    home = find(target, version)
    if home:
        return home
    place = target / f"spark-{version}"
    print(f"installing Spark {version} into {place} (400 MB, once) ...", flush=True)
    venv.create(place, with_pip=True)
    pip = [place / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", f"pyspark=={version}"]
    # pip draws its progress on a terminal, and says little elsewhere.
    if subprocess.run([*map(str, pip), *([] if sys.stdout.isatty() else ["--quiet"])], check=False).returncode:
        raise SparkMissing(f"pyspark {version} could not be installed; the output of pip is above. --only analysis runs without Spark")
    home = find(target, version)
    if home is None:
        raise SparkMissing(f"pyspark {version} is installed in {place}, but has no bin/spark-class")
    return home
