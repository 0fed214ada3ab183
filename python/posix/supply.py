"""Provides the judges: Debian's packages and sources, and crates. Downloads only what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")


def packages(programs):
    """Installs the Debian packages of missing programs; returns why it cannot.

    programs: the package of each program.
    """
    missing = sorted({package for program, package in programs.items() if not shutil.which(program) and not Path(program).exists()})
    if not missing:
        return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"{', '.join(missing)} can only be installed by root on Debian"
    # Daemons must not start.
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
        return run(["apt-get", "update", "-q"]) or run(install, env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))
    finally:
        if ours:
            POLICY.unlink()


def crate(name, version, root):
    """Compiles and installs a crate below `root`; returns why it cannot."""
    if (root / "bin" / name).exists():
        return None
    if not shutil.which("cargo"):
        return "there is no cargo, which builds it"
    return run(["cargo", "install", "--quiet", "--locked", "--root", root, name, "--version", version])


def source(package, sources):
    """Has apt download the sources of a Debian package, by lists of its own; returns why it cannot."""
    if archive(package, sources):
        return None
    if not shutil.which("apt-get"):
        return "apt-get is not here, which downloads it"
    lists, cache = sources / "lists", sources / "cache"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (cache / "archives/partial").mkdir(parents=True, exist_ok=True)
    if not (sites := sites_of_packages()):
        return "apt has no source of packages of this release"
    (sources / "sources.list").write_text("".join(f"deb-src {site} {release} main\n" for site, release in sites))
    options = {
        "Dir::Etc::SourceList": sources / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": lists,
        "Dir::Cache": cache,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    return run([*apt, "update"], cwd=sources) or run([*apt, "source", "--download-only", package], cwd=sources)


def sites_of_packages():
    """From where this machine has its packages, and the name of its release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line).get("VERSION_CODENAME", "stable").strip('"')
    asked = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"]
    targets = subprocess.run(asked, check=False, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return sorted({(site, name) for site, _, name in (target.partition(" ") for target in targets) if name == release})


def archive(package, sources):
    """The archive of the upstream's sources, if it has been downloaded."""
    found = [path for path in sources.glob(f"{package}_*.orig.tar.*") if path.suffix != ".asc"]
    return found[0] if found else None


def unpack(package, sources, directory):
    """Unpacks the sources of a package into a new directory."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    subprocess.run(["tar", "xf", archive(package, sources), "--strip-components=1", "-C", directory], check=True)


def run(command, **more):
    """Runs a command; returns what it said if it failed."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, check=False, **streams, **more)
    if done.returncode == 0:
        return None
    return f"{' '.join(map(str, command))} failed: {done.stdout.decode(errors='replace')[-500:]}"
