"""packaging/dist/build, with small programs in place of ours: what is in the packages, and that
they are reproducible.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unittest
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parents[1]
REPOSITORY = HERE.parents[1]
TOOLS = ["make", "strip", "dpkg-deb", "dpkg-shlibdeps", "rpmbuild", "ldd", "cargo"]


def said(*command):
    """What a command prints."""
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def build(built, out, **environment):
    """Makes the packages."""
    wheel, jar = built / "forebay-0.0-py3-none-any.whl", built / "forebay-spark.jar"
    command = [sys.executable, HERE / "build", "--built", built, "--out", out, "--wheel", wheel, "--jar", jar]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing:
            raise unittest.SkipTest(f"no packages are built: {', '.join(missing)} not found")
        fetched = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", f"{platform.machine()}-unknown-linux-gnu"]
        if subprocess.run(fetched, check=False, capture_output=True, cwd=REPOSITORY).returncode != 0:
            raise unittest.SkipTest("no packages are built: `cargo fetch --locked` has not downloaded the dependencies")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        work = Path(directory.name)
        built = work / "built"
        built.mkdir()
        # `true` also plays `forebay man` and `forebay completions`, and as a PIE it is a library.
        for name in ["forebay", "forebay-sim", "forebay-lab", "libforebay.so", "libforebay_preload.so"]:
            shutil.copy("/bin/true", built / name)
        (built / "libforebay.a").write_bytes(b"!<arch>\n")
        for name in ["forebay-0.0-py3-none-any.whl", "forebay-spark.jar"]:
            (built / name).write_bytes(name.encode())
        cls.out, cls.again = work / "one", work / "elsewhere/two"
        build(built, cls.out, SOURCE_DATE_EPOCH="1700000000")
        # What differs from machine to machine must not be in the packages.
        build(built, cls.again, SOURCE_DATE_EPOCH="1700000000", TZ="Asia/Tokyo", LC_ALL="C.UTF-8")
        cls.version = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["version"]

    def only(self, pattern):
        """The only file of the release with that name."""
        (found,) = self.out.glob(pattern)
        return found

    def test_two_builds_are_the_same_byte_for_byte(self):
        names = sorted(path.name for path in self.out.iterdir())
        self.assertEqual(names, sorted(path.name for path in self.again.iterdir()))
        self.assertEqual(len(names), 13, names)
        for name in names:
            self.assertEqual((self.out / name).read_bytes(), (self.again / name).read_bytes(), name)

    def test_all_parts_have_the_version_of_the_workspace(self):
        parts = {
            "python/pyproject.toml": r'^version = "(.*)"$',
            "python/src/forebay/__init__.py": r'^__version__ = "(.*)"$',
            "packaging/kubernetes/forebay/Chart.yaml": r'^(?:appV|v)ersion: "?([^"\n]*)"?$',
            **{str(pom.relative_to(REPOSITORY)): r"<artifactId>forebay-java</artifactId>\s*<version>(.*)</version>" for pom in REPOSITORY.glob("java/**/pom.xml")},
        }
        self.assertGreater(len(parts), 8)
        for part, pattern in parts.items():
            found = re.findall(pattern, (REPOSITORY / part).read_text(), re.MULTILINE)
            self.assertEqual(set(found), {self.version}, part)

    def test_the_chart_and_the_pom_have_this_version(self):
        with tarfile.open(self.only("forebay-chart-*.tgz")) as tar:
            names = {entry.name for entry in tar if entry.isfile()}
            described = tar.extractfile("forebay/Chart.yaml").read().decode()
        self.assertLessEqual({"forebay/values.yaml", "forebay/values.schema.json", "forebay/templates/daemonset.yaml"}, names)
        self.assertEqual(described.count(f'ersion: "{self.version}"'), 2)
        pom = ElementTree.fromstring(self.only("*.pom").read_text())
        self.assertEqual(pom.findtext("{*}version"), self.version)
        self.assertEqual(self.only("*.jar").name, f"forebay-spark-{self.version}.jar")

    def test_every_file_is_in_the_sums(self):
        lines = (self.out / "SHA256SUMS").read_text().splitlines()
        sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.out.iterdir() if path.name != "SHA256SUMS"}
        self.assertEqual(sums, files)

    def test_the_deb_has_what_runs_and_depends_on_libc_only(self):
        deb = self.only("forebay_*.deb")
        files = {line.split()[5]: line for line in said("dpkg-deb", "--contents", deb).splitlines()}
        for name in ["usr/bin/forebay", "usr/bin/forebay-sim", "usr/bin/forebay-lab", "usr/sbin/mount.fuse.forebay", "usr/lib/forebay/libforebay_preload.so",
                     "usr/lib/systemd/system/forebay.service", "usr/share/bash-completion/completions/forebay", "usr/share/man/man1/forebay-sim.1.gz", "usr/share/forebay/slurm/forebay-job",
                     "usr/lib/systemd/system/forebay-coordinator.service", "usr/share/forebay/kubernetes/forebay/Chart.yaml", "etc/forebay/conf.d/",
                     "etc/forebay/forebay.toml"]:
            self.assertIn(f"./{name}", files)
        self.assertFalse([line for line in files.values() if not line.split()[1] == "root/root"])
        self.assertFalse([name for name in files if name.endswith((".h", ".a", ".pc"))])
        fields = dict(line.split(": ", 1) for line in said("dpkg-deb", "--field", deb).splitlines() if line[0] != " ")
        self.assertEqual(fields["Version"], self.version)
        self.assertRegex(fields["Depends"], r"^libc6 \(>= [0-9.]+\)(, libgcc-s1 \(>= [0-9.]+\))?$")
        self.assertEqual(said("dpkg-deb", "--info", deb, "conffiles"), "/etc/forebay/forebay.toml\n")
        development = said("dpkg-deb", "--contents", self.only("forebay-dev_*.deb"))
        for name in ["usr/include/forebay.h", "libforebay.so -> libforebay.so.0", "libforebay.a", "pkgconfig/forebay.pc"]:
            self.assertIn(name, development)

    def test_the_rpm_has_the_same_programs(self):
        rpm = self.only(f"forebay-{self.version}-*.rpm")
        files = said("rpm", "-qpl", rpm).splitlines()
        for name in ["/usr/bin/forebay", "/usr/sbin/mount.fuse.forebay", "/usr/lib64/libforebay.so.0", "/usr/lib/systemd/system/forebay.service",
                     "/usr/share/forebay/slurm/burst_buffer.lua"]:
            self.assertIn(name, files)
        self.assertEqual(said("rpm", "-qpc", rpm), "/etc/forebay/forebay.toml\n")

    def test_the_unit_has_no_mount_namespace(self):
        # systemd.exec(5): each of these makes one, and the cache would end with the service.
        makes_one = ("Private", "ProtectSystem", "ProtectHome", "ProtectKernel", "ProtectControlGroups", "ProtectProc", "ProcSubset", "ReadOnlyPaths",
                     "ReadWritePaths", "InaccessiblePaths", "NoExecPaths", "ExecPaths", "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "MountAPIVFS",
                     "MountImages", "ExtensionImages", "ExtensionDirectories", "RootDirectory", "RootImage", "DynamicUser", "LogNamespace", "MountFlags")
        keys = dict(line.split("=", 1) for line in (REPOSITORY / "packaging/forebay.service.in").read_text().splitlines() if "=" in line and line[0] != "#")
        self.assertFalse([key for key in keys if key.startswith((*makes_one, "RuntimeDirectory", "MemoryMax"))])
        self.assertEqual(keys["KillMode"], "process")

    def test_the_bill_names_every_crate_with_its_checksum_and_licence(self):
        bill = json.loads(self.only("*.cdx.json").read_text())
        references = {made["bom-ref"] for made in bill["components"]}
        self.assertGreater(len(references), 100)
        self.assertTrue(all(made["licenses"][0]["expression"] for made in bill["components"]))
        others = [made for made in bill["components"] if "purl" in made]
        self.assertTrue(all(len(made["hashes"][0]["content"]) == 64 for made in others))
        for edge in bill["dependencies"]:
            self.assertLessEqual({edge["ref"], *edge["dependsOn"]} - {"forebay"}, references)
        # Only tests use it.
        self.assertFalse([made for made in bill["components"] if made["name"] == "proptest"])
        listed = self.only("*-licences.txt").read_text()
        self.assertFalse([made["name"] for made in others if f"{made['name']} {made['version']}" not in listed])

    def test_the_image_names_its_blobs_by_their_digests(self):
        with tarfile.open(self.only("*-oci.tar")) as tar:
            files = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}
        blobs = {name.rsplit("/", 1)[1]: data for name, data in files.items() if name.startswith("blobs/")}
        self.assertEqual([hashlib.sha256(data).hexdigest() for data in blobs.values()], list(blobs))
        (described,) = json.loads(files["index.json"])["manifests"]
        manifest = json.loads(blobs[described["digest"][7:]])
        self.assertEqual({part["digest"][7:] for part in [manifest["config"], *manifest["layers"]]} | {described["digest"][7:]}, set(blobs))

    def test_a_directory_of_somebody_else_is_not_removed(self):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "mine").touch()
            done = subprocess.run([HERE / "build", "--built", "/bin", "--out", directory], check=False, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertTrue((Path(directory) / "mine").exists())
