"""TeraGen, TeraSort, TeraValidate and TestDFSIO on a cluster, in one of three ways, and what must hold of each.

A job that ended well proves little: it may have sorted nothing, or never have gone through Forebay. So the sorted rows are held to the rows
that were made, the files of TestDFSIO to what it writes, and the counters of agents and PFS to the bytes that the job moved.
"""

import re
from dataclasses import dataclass

import lab

EXAMPLES = "org.apache.hadoop.examples.ExampleDriver"
DFSIO = "org.apache.hadoop.fs.TestDFSIO"
ROW_BYTES = 100
# Of the bytes that a job moves; the rest is for headers, and for what is read beside the agent
# because so little is missing.
MOST, LITTLE = 0.9, 0.1
# The job's own jar and configuration, which each node fetches.
JOB_FILES_BYTES = 4 << 20
TITLES = {
    "straight": "file://, without Forebay",
    "forebay": "forebay://",
    "mapped": "file://, mapped to Forebay",
}
# TeraSort's tasks look for its sampled partitions in the working directory of `file://`, which is
# the client's where that is the default file system, and no container's. TeraGen's rows are spread
# evenly, so the partitioner that knows as much does as well.
ON_LOCAL = {"mapreduce.terasort.simplepartitioner": "true"}
MAPPED = {
    "fs.file.impl": "io.forebay.hadoop.ForebayLocalFileSystem",
    "fs.AbstractFileSystem.file.impl": "io.forebay.hadoop.ForebayLocalFs",
}


class Invalid(Exception):
    """A result is not what it must be."""


@dataclass
class Row:
    """One job. `moved`: what agents and PFS counted meanwhile; None for the PFS where it does not count."""

    mode: str
    name: str
    job: object
    data_bytes: int
    moved: dict
    io_mb_per_s: float = None

    @property
    def mb_per_s(self):
        return self.data_bytes / 1e6 / self.job.seconds


class Run:
    """The jobs of one mode. `data_bytes`: of the rows, and of TestDFSIO's files together; `files`: how many maps write them."""

    def __init__(self, cluster, mode, backing, data_bytes, files, say):
        self.cluster, self.mode, self.backing, self.files, self.say = cluster, mode, backing, files, say
        self.rows = data_bytes // ROW_BYTES
        self.file_mb = max(1, data_bytes // files // (1 << 20))
        self.scheme = "forebay" if mode == "forebay" else "file"
        self.place = cluster.pfs / f"jobs-{mode}"
        self.results = []

    def tera(self, again):
        """Generates, sorts, validates; `again`: validates once more, which is a second reading of the same files."""
        made = self.run("teragen", EXAMPLES, "teragen", self.rows, self.path("rows"))
        self.run("terasort", EXAMPLES, "terasort", self.path("rows"), self.path("sorted"))
        passes = ["teravalidate", "teravalidate again"] if again else ["teravalidate"]
        for number, name in enumerate(passes):
            report = self.run(name, EXAMPLES, "teravalidate", self.path("sorted"), self.path(f"report{number}"))
            if report.job.counters.get("MAP_INPUT_RECORDS") != self.rows:
                raise Invalid(f"{name}: {report.job.counters.get('MAP_INPUT_RECORDS')} rows were sorted, and {self.rows} generated")
            check_report(name, self.lines(f"report{number}"), made.job.counters["CHECKSUM"])

    def dfsio(self):
        size = [f"-nrFiles {self.files}", f"-size {self.file_mb}MB", f"-resFile {self.cluster.place}/dfsio.log"]
        arguments = " ".join(size).split()
        self.run("TestDFSIO -write", DFSIO, "-write", *arguments)
        check_files(sorted((self.backing / self.place.name / "dfsio/io_data").iterdir()), self.files, self.file_mb << 20)
        self.run("TestDFSIO -read", DFSIO, "-read", *arguments)
        self.run("TestDFSIO -read again", DFSIO, "-read", *arguments)
        self.submit("TestDFSIO -clean", DFSIO, "-clean")
        if (self.backing / self.place.name / "dfsio").exists():
            raise Invalid("TestDFSIO -clean has left its files")

    def path(self, name):
        return f"{self.scheme}://{self.place}/{name}"

    def lines(self, directory):
        """Lines of a job's output, read where the PFS has its files."""
        parts = sorted((self.backing / self.place.name / directory).glob("part-*"))
        return [line for part in parts for line in part.read_text().splitlines()]

    def submit(self, name, program, *arguments):
        options = {
            "fs.defaultFS": f"{self.scheme}:///",
            "mapreduce.job.maps": str(self.files),
            "mapreduce.job.reduces": "2",
            "test.build.data": str(self.place / "dfsio"),
            **(ON_LOCAL if self.scheme == "file" else {}),
            **(MAPPED if self.mode == "mapped" else {}),
            # The same splits in all modes.
            **({"fs.local.block.size": str(self.cluster.extent)} if self.mode == "straight" else {}),
        }
        if program == EXAMPLES:
            program, arguments = f"{program} {arguments[0]}", arguments[1:]
        log = f"{self.mode}-{name}".replace(" ", "-")
        return self.cluster.run(log, [program, *map(str, arguments)], options, jar=self.mode != "straight")

    def run(self, name, program, *arguments):
        """Runs a job with nothing of the PFS in the page cache, and looks where its bytes have gone."""
        lab.forget_page_cache([path for path in self.cluster.pfs.rglob("*") if path.is_file()])
        before = self.counters()
        job = self.submit(name, program, *arguments)
        moved = {key: value - before[key] for key, value in self.counters().items() if value is not None}
        data_bytes = self.rows * ROW_BYTES if program == EXAMPLES else self.files * self.file_mb << 20
        row = Row(self.mode, name, job, data_bytes, moved)
        if program == DFSIO:
            row.io_mb_per_s = float(re.search(r"Throughput mb/sec:\s+(\S+)", job.said)[1])
            check_dfsio(name, job.said, data_bytes)
        check_moved(row)
        check_once(self.results, row)
        self.results.append(row)
        self.say(f"    {name}: {job.seconds:.1f} s")
        return row

    def counters(self):
        """Sums over the agents, and what the PFS has moved."""
        links = self.cluster.links().values()
        counted = {name: sum(link["counters"][name] for link in links) for name in ("opens_total", "fetched_bytes", "from_peers_bytes")}
        counted["stored_bytes"] = sum(link["counters"]["pages_written_total"] * self.cluster.page_bytes for link in links)
        served = lab.stats(self.cluster.pfs)
        return counted | {f"pfs_{name}": served and served[name] for name in ("read_bytes", "written_bytes")}


def warm_up(cluster):
    """A job of no rows worth mentioning, which counts for nothing."""
    cluster.run("warm-up", [f"{EXAMPLES} teragen", "1000", f"file://{cluster.place}/warm-up"], {"fs.defaultFS": "file:///"}, jar=False)


def check_report(name, lines, made):
    """Holds TeraValidate's report, one line with the checksum if all is in order, to the checksum of what TeraGen made."""
    errors = [line for line in lines if not line.startswith("checksum\t")]
    if errors or len(lines) != 1:
        raise Invalid(f"{name}: {len(errors)} errors, first: {(errors or ['no checksum'])[0]}")
    found = int(lines[0].split("\t")[1], 16)
    # The counter holds the lower 64 bits, with a sign.
    if found % (1 << 64) != made % (1 << 64):
        raise Invalid(f"{name}: the checksum of the sorted rows is {found:x}, that of those generated {made % (1 << 64):x}")


def check_files(files, count, size):
    """Holds TestDFSIO's files to what it writes: zeros, since it means to fill its buffer and does so before it has one."""
    files = [file for file in files if not file.name.startswith(".")]
    if len(files) != count:
        raise Invalid(f"TestDFSIO has written {len(files)} files instead of {count}")
    for file in files:
        content = file.read_bytes()
        if content != bytes(size):
            raise Invalid(f"{file.name} of TestDFSIO, {len(content)} bytes, is not {size} bytes of zeros")


def check_dfsio(name, said, data_bytes):
    total = re.search(r"Total MBytes processed:\s+(\S+)", said)
    if not total or float(total[1]) != data_bytes >> 20:
        raise Invalid(f"{name} has processed {total and total[1]} MB instead of {data_bytes >> 20}")


def check_moved(row):
    """Holds what agents and PFS counted to the bytes the job moved. A job that passed Forebay by fails, and so does one that did not when it should."""
    moved, most, little = row.moved, MOST * row.data_bytes, LITTLE * row.data_bytes + JOB_FILES_BYTES
    writes = row.name in ("teragen", "terasort", "TestDFSIO -write")
    reads = row.name not in ("teragen", "TestDFSIO -write")
    if row.mode == "straight":
        # The logs of its containers do go through Forebay, as the node managers', and each counts
        # as a page.
        require(row, moved["stored_bytes"] + moved["fetched_bytes"] < row.data_bytes / 2, "has gone through Forebay, which it should not")
        return
    if writes:
        require(row, moved["stored_bytes"] >= most, "has written past Forebay")
    if reads:
        require(row, moved["opens_total"] >= row.job.maps, "has read past Forebay")
        require(row, moved["fetched_bytes"] >= MOST * moved.get("pfs_read_bytes", 0) - little, "was served by the PFS past the agents")


def check_once(earlier, row):
    """Holds a second reading, and the first of the same files, to one copy of the data from the PFS together.

    The first need not have brought all of it: what a task wrote stays on its node, where another task may read it, and an owner fetches it only for
    a reader elsewhere."""
    firsts = [one for one in earlier if row.mode != "straight" and row.name == f"{one.name} again"]
    fetched = sum(one.moved["fetched_bytes"] for one in [*firsts, row])
    if firsts:
        require(row, fetched < (1 + LITTLE) * row.data_bytes + 2 * JOB_FILES_BYTES, f"has had {fetched} bytes of the PFS in two readings")


def require(row, holds, what):
    if not holds:
        raise Invalid(f"{row.name}, {TITLES[row.mode]}, {what}: of {row.data_bytes} bytes, {row.moved}")
