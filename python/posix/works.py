"""Real work on a file system: a project is cloned, built and tested, and a database is made."""

import os
import shutil
from pathlib import Path

import supply
from judges import Judge


class Build(Judge):
    """`git clone` of zlib's sources, `./configure`, `make`, and zlib's own tests."""

    name = "build"
    least = 6
    reads = True

    def fetch(self):
        needs = {"git": "git", "cc": "build-essential", "make": "build-essential"}
        return supply.packages(needs) or supply.source("zlib", self.options.sources)

    def prepare(self, way):
        self.repository = self.target / "zlib.git"
        if self.repository.exists():
            return None
        sources = self.target / "zlib"
        supply.unpack("zlib", self.options.sources, sources)
        commit = "git init -q -b main . && git add -A && git -c user.email=a@b -c user.name=a commit -qm zlib && git clone -q --bare . "
        return supply.run(["sh", "-c", f"{commit} '{self.repository}'"], cwd=sources)

    def run(self, way, only=()):
        self.fresh(way)
        # Each needs those before it.
        steps = {
            "git clone": f"git clone -q --no-hardlinks '{self.repository}' zlib",
            "git fsck": "cd zlib && git fsck --strict",
            "git status": 'cd zlib && git diff --quiet && test -z "$(git status --porcelain)"',
            "configure": "cd zlib && ./configure",
            "make": f"cd zlib && make -j{os.cpu_count()}",
            "make test": "cd zlib && make test",
            "git gc": "cd zlib && git gc -q && git fsck --strict && git log --stat | grep -q deflate.c",
            "git clone of the clone": "git clone -q --no-local zlib again && diff -r -x .git zlib/test again/test",
            "tar": "tar cf zlib.tar zlib/contrib && mkdir out && tar xf zlib.tar -C out && diff -r zlib/contrib out/zlib/contrib",
        }
        results = self.commands(way, (), {name: ["sh", "-c", step] for name, step in steps.items()})
        return {name: result for name, result in results.items() if not only or name in only}


class Postgres(Judge):
    """PostgreSQL's test of syncs, `initdb`, and statements of a server without a network."""

    name = "postgres"
    least = 5
    reads = True
    USER = "nobody"

    def fetch(self):
        if os.geteuid() != 0:
            return "root starts it as another user"
        # Its package makes a cluster, and does not start it.
        return None if self.programs() else supply.packages({"/usr/lib/postgresql": "postgresql"})

    def prepare(self, way):
        self.bin = self.programs()
        return None if self.bin else "Debian's postgresql has no initdb"

    @staticmethod
    def programs():
        """The newest version's directory of programs."""
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        return found[-1].parent if found else None

    def run(self, way, only=()):
        place = self.fresh(way)
        data = place / "data"
        postgres = f"'{self.bin}/postgres' --single -D '{data}' -j -c fsync=on -c full_page_writes=on"
        make = "create table t as select n, md5(n::text) from generate_series(1, 20000) n;\n\ncreate index i on t (n);\n\nvacuum t;\n\n"
        # The server ends at the first error, if it is started so.
        ask = "select sum(n), count(distinct md5) from t where n > 10;\n\n"
        single = f"{postgres} -c exit_on_error=on postgres"
        steps = {
            "pg_test_fsync": f"'{self.bin}/pg_test_fsync' -s 1 -f '{place}/sync'",
            "initdb": f"'{self.bin}/initdb' -D '{data}' --no-locale -E UTF8 --data-checksums",
            "create": f"printf '%s' \"{make}\" | {single}",
            "select": f"printf '%s' \"{ask}\" | {single} | tee '{place}/answer' && grep -q 'sum = \\\"200009945\\\"' '{place}/answer' && grep -q 'count = \\\"19990\\\"' '{place}/answer'",
            "pg_checksums": f"'{self.bin}/pg_checksums' --check -D '{data}'",
            "select again": f"printf '%s' \"{ask}\" | {single} | cmp - '{place}/answer'",
        }
        results = {}
        for name, step in steps.items():
            code, said = way.call(["sh", "-c", step], user=self.USER, cwd=place)
            self.log(way, f"=== {name}: {code}\n{said}")
            results[name] = self.judged(code)
        return {name: result for name, result in results.items() if not only or name in only}

    def fresh(self, way):
        place = super().fresh(way)
        shutil.chown(place, self.USER)
        # The server refuses a directory that others may read.
        place.chmod(0o755)
        return place
