"""An OCI image of the agent, without a container engine: an archive of a layer, a configuration and
two lists.

The image has the program, the shared libraries that it is linked to, and nothing else, not even a
shell: about a tenth of the smallest Debian, and nothing to update but libc. The libraries are those
of this machine, and the image has their packages' copyright and status as scanners of images expect
them.
"""

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

PROGRAM = "usr/bin/forebay"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def linked(program):
    """The libraries that the loader maps, and the loader, by the paths at which it looks for them."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def content(tree, packages):
    """Path in the image and bytes of each file."""
    files = {PROGRAM: tree / PROGRAM}
    files |= {path[1:]: Path(path) for path in linked(tree / PROGRAM)}
    files |= {str(path.relative_to(tree)): path for path in (tree / "usr/share/doc/forebay").iterdir()}
    files |= {f"usr/share/doc/{name}/copyright": Path(f"/usr/share/doc/{name}/copyright") for name in packages}
    found = {name: path.read_bytes() for name, path in files.items() if path.exists()}
    if shutil.which("dpkg-query"):
        for name in packages:
            status = subprocess.run(["dpkg-query", "--status", name], check=False, capture_output=True).stdout
            found[f"var/lib/dpkg/status.d/{name}"] = status
    found["etc/passwd"] = b"root:x:0:0:root:/:/nonexistent\n"
    return found


def archive(files, epoch, directories=()):
    """A tar archive with the directories of the files; all belongs to root, at one time."""
    parents = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted({*parents, *files, *directories}):
            entry = tarfile.TarInfo(name)
            entry.mtime = epoch
            if name in files:
                entry.size = len(files[name])
                entry.mode = 0o755 if name == PROGRAM or ".so" in name else 0o644
                tar.addfile(entry, io.BytesIO(files[name]))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(entry)
    return out.getvalue()


class Layout:
    """An image layout: files named by the digests of their content."""

    def __init__(self):
        self.files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def add(self, kind, data):
        """Adds a blob; returns its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def add_json(self, kind, value):
        """Adds a blob of JSON."""
        return self.add(kind, json.dumps(value, sort_keys=True).encode())


def write(release, tree, packages):
    """Writes the archive, which skopeo, podman and containerd read as oci-archive."""
    layer = archive(content(tree, packages), release.epoch, ["tmp", "run"])
    created = datetime.fromtimestamp(release.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {"org.opencontainers.image.title": "forebay", "org.opencontainers.image.version": release.version, "org.opencontainers.image.licenses": "Apache-2.0"}
    configuration = {
        "architecture": ARCHITECTURE[release.machine],
        "os": "linux",
        "created": created,
        "config": {"Entrypoint": [f"/{PROGRAM}"], "Cmd": ["up", "--foreground"], "Env": ["PATH=/usr/bin"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "packaging/dist/build"}],
    }
    layout = Layout()
    config = layout.add_json("config.v1+json", configuration)
    blob = layout.add("layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [blob]}
    described = layout.add_json("manifest.v1+json", manifest)
    described["annotations"] = {"org.opencontainers.image.ref.name": release.version}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    layout.files["index.json"] = json.dumps(index, sort_keys=True).encode()
    release.file(f"-{release.machine}-oci.tar").write_bytes(archive(layout.files, release.epoch))
