"""What the programs are made of: a software bill of materials (CycloneDX 1.5, JSON), and the
licences of all crates.

Both come from `cargo metadata`, without a network: the crates that the shipped programs and
libraries are built from (dependencies of tests are none of them), with the checksums of Cargo.lock
and the texts beside the crates' sources.
"""

import json
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEXTS = re.compile(r"(licen[sc]e|copying|notice|unlicense)", re.IGNORECASE)


def metadata(machine):
    """cargo's description of the workspace and of all crates for this machine."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", f"{machine}-unknown-linux-gnu"]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"dist: cargo does not describe the dependencies; `cargo fetch --locked` downloads them:\n{done.stderr}")
    return json.loads(done.stdout)


def shipped(described, programs, libraries):
    """The packages from which these files are built, by identifier, each with its uses."""
    names = {*programs, *(name.removeprefix("lib").removesuffix(".so") for name in libraries)}
    packages = {package["id"]: package for package in described["packages"]}
    makes = {"bin", "cdylib"}
    wanted = [p["id"] for p in packages.values() if p["source"] is None and any(t["name"] in names and makes & set(t["kind"]) for t in p["targets"])]
    uses = {}
    nodes = {node["id"]: node for node in described["resolve"]["nodes"]}
    while wanted:
        identifier = wanted.pop()
        if identifier not in uses:
            # Crates that only a build script uses leave nothing in the program.
            uses[identifier] = sorted(dep["pkg"] for dep in nodes[identifier]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"]))
            wanted += uses[identifier]
    return {identifier: (packages[identifier], uses[identifier]) for identifier in sorted(uses)}


def licence(package):
    """As an SPDX expression; old crates write a slash for OR."""
    if not package["license"]:
        sys.exit(f"dist: the crate {package['name']} names no licence")
    return package["license"].replace("/", " OR ")


def compiler(release):
    """Version of rustc and its standard library, from the section .comment of the program."""
    found = re.search(rb"rustc version ([\w.-]+)", (release.built / "forebay").read_bytes())
    return found.group(1).decode() if found else None


def component(package, checksums):
    """One crate in CycloneDX's words."""
    name, version = package["name"], package["version"]
    made = {"type": "library", "bom-ref": reference(package), "name": name, "version": version, "licenses": [{"expression": licence(package)}]}
    if package["source"]:
        made["purl"] = reference(package)
        made["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    return made


def reference(package):
    """The package URL, which is unique as well."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def bill(release, crates):
    """The bill of materials."""
    lock = tomllib.loads((REPOSITORY / "Cargo.lock").read_text())
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    whole = {"type": "application", "bom-ref": "forebay", "name": "forebay", "version": release.version, "licenses": [{"expression": "Apache-2.0"}]}
    components = [component(package, checksums) for package, _ in crates.values()]
    rust = compiler(release)
    if rust:
        components.append({"type": "library", "bom-ref": "rust-std", "name": "rust-std", "version": rust, "licenses": [{"expression": "MIT OR Apache-2.0"}]})
    ours = [reference(package) for package, _ in crates.values() if package["source"] is None]
    edges = [{"ref": reference(package), "dependsOn": sorted(reference(crates[use][0]) for use in uses)} for package, uses in crates.values()]
    body = {
        "metadata": {"timestamp": datetime.fromtimestamp(release.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": whole},
        "components": sorted(components, key=lambda made: made["bom-ref"]),
        "dependencies": [{"ref": "forebay", "dependsOn": sorted(ours)}, *sorted(edges, key=lambda edge: edge["ref"])],
    }
    # Unique for the content, and the same for the same content.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1, **body}


def licences(crates, rust):
    """A table of the crates from others, then each text once, with the crates that have it."""
    others = sorted((package for package, _ in crates.values() if package["source"]), key=lambda package: (package["name"], package["version"]))
    rows = [(f"{package['name']} {package['version']}", licence(package), package) for package in others]
    texts = {}
    for name, _, package in rows:
        for path in sorted(Path(package["manifest_path"]).parent.iterdir()):
            if TEXTS.match(path.name) and path.is_file():
                text = "\n".join(line.rstrip() for line in path.read_text(errors="replace").splitlines()).strip()
                texts.setdefault(text, []).append(name)
    lines = ["Forebay is under the Apache License 2.0. Its programs contain these crates, each under its own licence.", ""]
    lines += [f"{name:40} {expression}" for name, expression, _ in rows]
    lines += [f"{f'Rust standard library {rust}':40} MIT OR Apache-2.0"] if rust else []
    for text, names in texts.items():
        lines += ["", "=" * 100, *sorted(set(names)), "-" * 100, "", text]
    return "\n".join(lines) + "\n"


def write(release, programs, libraries):
    """Writes both files."""
    crates = shipped(metadata(release.machine), programs, libraries)
    release.file(".cdx.json").write_text(json.dumps(bill(release, crates), indent=1) + "\n")
    release.file("-licences.txt").write_text(licences(crates, compiler(release)))
