"""The data set: the text of the Linux kernel, as Debian packages it.

The package is downloaded, not installed, and its archive streamed: files of text go, one behind the other, into files of 16 MB named
after the directory they come from, such as `drivers-07.txt`. (Seventy thousand files of 15 KB would measure how fast a PFS opens files.)
Made once, kept in `target/demo`.
"""

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

FILE_BYTES = 16_000_000

# The package and what is in it, while it is unpacked.
PACKAGE_BYTES = 400_000_000


class DataError(Exception):
    """The data set cannot be had; the message says why and what to do."""


def linux_text(directory, size, progress):
    """Directory with about `size` bytes of text; `progress(bytes_done)` hears how far it is."""
    made = directory / "made.json"
    if made.exists() and json.loads(made.read_text()).get("size") == size:
        return directory / "text"
    shutil.rmtree(directory, ignore_errors=True)
    text = directory / "text"
    text.mkdir(parents=True)
    free = shutil.disk_usage(directory).free
    if free < size + PACKAGE_BYTES:
        raise DataError(f"{directory} has room for {free / 1e6:.0f} MB, but the demo needs {size / 1e6:.0f} MB; reduce --size, or set --output")
    try:
        with archive(directory) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            Packer(text).pack(tar, size, progress)
    except BaseException:
        # Half a data set is of no use and takes room.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    made.write_text(json.dumps({"size": size}))
    return text


def archive(directory):
    """The archive of Debian's linux-source, open for reading: the one installed, else downloaded."""
    installed = sorted(Path("/usr/src").glob("linux-source-*.tar.*"))
    if installed:
        return open(installed[-1], "rb")
    if not shutil.which("apt-get"):
        raise DataError("the Linux source comes from Debian's archive, but apt-get is not installed; use your own files: --data DIR")
    package = package_name()
    if package is None:
        call(["apt-get", "update", "-qq"], directory)
        package = package_name()
    if package is None:
        raise DataError("apt knows no package linux-source; run `apt-get update`, or use your own files: --data DIR")
    try:
        call(["apt-get", "download", "-qq", package], directory)
    except DataError:
        # Lists that are too old name versions that are gone.
        call(["apt-get", "update", "-qq"], directory)
        call(["apt-get", "download", "-qq", package], directory)
    (deb,) = directory.glob("*.deb")
    call(["dpkg-deb", "--extract", deb.name, "package"], directory)
    deb.unlink()
    (source,) = directory.glob("package/usr/src/linux-source-*.tar.*")
    stream = open(source, "rb")
    # The open file stays readable; the disk has it back when it is closed.
    shutil.rmtree(directory / "package")
    return stream


def package_name():
    """The package that `linux-source` stands for, such as linux-source-6.1."""
    known = subprocess.run(["apt-cache", "depends", "linux-source"], capture_output=True, text=True, check=False)
    names = [line.split()[-1] for line in known.stdout.splitlines() if "Depends: linux-source-" in line]
    return names[0] if names else None


def call(command, directory):
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(f"`{' '.join(command)}` failed: {said[-1] if said else done.returncode}; you can use your own files: --data DIR")


class Packer:
    """Gathers many small texts into few large files."""

    def __init__(self, directory):
        self.directory = directory
        self.counts = {}
        self.open = {}

    def pack(self, tar, size, progress):
        done = 0
        try:
            for member in tar:
                if done >= size:
                    break
                if not member.isfile():
                    continue
                content = tar.extractfile(member).read()
                # As grep tells text from the rest.
                if b"\0" not in content[:4096]:
                    self.add(member.name, content)
                    done += len(content)
                    progress(done)
        finally:
            for file in self.open.values():
                file.close()
        if done < size:
            raise DataError(f"the Linux source has only {done / 1e6:.0f} MB of text; use --size {done / 1e6:.0f}")

    def add(self, name, content):
        parts = name.split("/")
        group = parts[1] if len(parts) > 2 else "top"
        file = self.open.get(group)
        if file is not None and file.tell() + len(content) > FILE_BYTES:
            file.close()
            file = None
        if file is None:
            self.counts[group] = self.counts.get(group, 0) + 1
            file = self.open[group] = open(self.directory / f"{group}-{self.counts[group]:02}.txt", "wb")
        file.write(content)
