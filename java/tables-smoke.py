"""Iceberg, Delta Lake and Hudi in Spark with the plug-in: commits are correct, and scans are
prefetched in waves.

    python3 java/tables-smoke.py [iceberg-2] [delta] [hudi-cow] [hudi-mor]

Of each table format that is published for this Spark (from Maven, the first time), three programs run:

- The story: create, append, delete, merge, an earlier version, overwrite; by Spark alone and through
  both schemes of Forebay. The results are equal, and Hadoop's FileContext is Forebay's.
- The scans: what the plug-in reports of a table with deleted rows is what tasks read, most of it
  was prefetched, and the PFS serves little more than the columns and the deletes. The PFS is the
  slow file system of the lab, which counts the bytes it serves. Verdicts are about bytes, never
  about times.
- The writers: two programs, one through each scheme, append to one table and count up in one row of
  it at the same time. No row and no count is lost.

Needs `make java`, and root or fusermount3.
"""

import sys
import time
from pathlib import Path

import programs
from programs import OFF_SHARE, SPARK, check, judge, part, run

PARTS = 4
ROWS = 60_000
COLUMNS = 12
APPENDS = 4
COUNTS_UP = 4
SCHEMES = ("file", "forebay")
# Of each server of the PFS during the scans: so slow that waves are ahead of tasks.
SCAN_RATE = "4MB/s"
# Several tasks for each of the two slots.
SPLIT_BYTES = 2 << 20
ROW_GROUP_BYTES = 1 << 20
# Of the pages that all scans fetch, waves bring at least this share.
LEAST_PREFETCHED = 0.25


class Iceberg:
    """Rows of a table of format 2 are deleted by files of positions."""

    schemes = SCHEMES
    # For each Spark; what is published for another one does not run.
    packages = {"3.5": "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0", "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"}
    refusals = ("CommitFailedException", "ValidationException")

    def __init__(self, version):
        self.name = f"iceberg-{version}"
        deletes = [f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge")]
        splits = [f"'read.split.target-size'='{SPLIT_BYTES}'", "'read.split.open-file-cost'='4096'", f"'write.parquet.row-group-size-bytes'='{ROW_GROUP_BYTES}'"]
        self.properties = ", ".join([f"'format-version'='{version}'", *deletes, *splits])

    def settings(self, bases):
        found = {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}
        for scheme, base in bases.items():
            catalog = f"spark.sql.catalog.ice_{scheme}"
            found |= {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop", f"{catalog}.warehouse": base}
        return found

    def table(self, scheme, base, name):
        return f"ice_{scheme}.db.{name}"

    def create(self, table, scheme, base, name, columns):
        return f"create table {table} ({columns}) using iceberg partitioned by (part) tblproperties ({self.properties})"

    def attach(self, spark, table, scheme, base, name):
        """Makes the table known to a session that has not created it."""

    def earlier(self, spark, table, base, name):
        return f"version as of {spark.sql(f'select snapshot_id from {table}.snapshots order by committed_at limit 1').first()[0]}"


class Delta:
    """Rows are deleted by deletion vectors."""

    name = "delta"
    schemes = SCHEMES
    packages = {"3.5": "io.delta:delta-spark_2.12:3.3.2", "4.0": "io.delta:delta-spark_2.13:4.0.0"}
    refusals = ("ConcurrentAppendException", "ConcurrentDelete", "ConcurrentModificationException", "DELTA_CONCURRENT")

    def settings(self, bases):
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Of the state of a table, for each change: 50 otherwise.
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def table(self, scheme, base, name):
        return f"delta.`{base}/{name}`"

    def create(self, table, scheme, base, name, columns):
        return f"create table {table} ({columns}) using delta partitioned by (part) tblproperties ('delta.enableDeletionVectors'='true')"

    def attach(self, spark, table, scheme, base, name):
        """Its name is its place."""

    def earlier(self, spark, table, base, name):
        return "version as of 1"


class Hudi:
    """Where rows change, files are written anew (copy on write), or changes are written to files of
    their own (merge on read). Hudi knows the schemes that it works on, and `forebay` is none of
    them."""

    schemes = ("file",)
    packages = {"3.5": "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.0.2"}

    def __init__(self, kind):
        self.name, self.kind = f"hudi-{kind}", kind
        # Log files, the record key and the ordering column are read without a plan.
        self.reads_more = kind == "mor"

    def settings(self, bases):
        return {
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }

    def table(self, scheme, base, name):
        return f"hudi_{name}"

    def create(self, table, scheme, base, name, columns):
        properties = f"type = '{self.kind}', primaryKey = 'id', preCombineField = 'v'"
        return f"create table if not exists {table} ({columns}) using hudi partitioned by (part) tblproperties ({properties}) location '{base}/{name}'"

    def attach(self, spark, table, scheme, base, name):
        spark.sql(self.create(table, scheme, base, name, SCHEMA))

    def earlier(self, spark, table, base, name):
        return f"timestamp as of '{spark.sql(f'select min(_hoodie_commit_time) from {table}').first()[0]}'"


FORMATS = {each.name: each for each in (Iceberg(2), Delta(), Hudi("cow"), Hudi("mor"))}


# In the programs.


COLUMN_NAMES = [f"c{i}" for i in range(COLUMNS)]
SCHEMA = "id bigint, v bigint, " + ", ".join(f"{name} double" for name in COLUMN_NAMES) + ", part int"


def rows(first, count):
    """Rows whose values follow from their ids, and do not compress."""
    values = ", ".join(f"cast(xxhash64(id, {i}) as double) as {name}" for i, name in enumerate(COLUMN_NAMES))
    return f"select id, id % 100 as v, {values}, cast(id * {PARTS} div {PARTS * ROWS} as int) as part from range({first}, {first + count}, 1, 2)"


def sums(spark, source):
    return list(map(str, spark.sql(f"select count(*), sum(id), sum(v), max(c1), min(c{COLUMNS - 1}), count(distinct part) from {source}").first()))


def story(spark, task):
    """All that is done with a table, and what is in it after each step."""
    of = FORMATS[task["format"]]
    found = {}
    for scheme, base in task["bases"].items():
        table = of.table(scheme, base, "story")
        steps = found[scheme] = {}
        spark.sql(of.create(table, scheme, base, "story", SCHEMA))
        spark.sql(f"insert into {table} {rows(0, 2 * ROWS)}")
        steps["created"] = sums(spark, table)
        earlier = of.earlier(spark, table, base, "story")
        spark.sql(f"insert into {table} {rows(2 * ROWS, 2 * ROWS)}")
        steps["appended"] = sums(spark, table)
        spark.sql(f"delete from {table} where id % 7 = 3")
        steps["deleted"] = sums(spark, table)
        changes = f"({rows(ROWS, 100)}) union all ({rows(4 * ROWS - 50, 100)})"
        spark.sql(
            f"merge into {table} t using ({changes}) s on t.id = s.id when matched then update set t.v = s.v + 1000"
            f" when not matched then insert (id, v, {', '.join(COLUMN_NAMES)}, part) values (s.id, s.v, {', '.join('s.' + c for c in COLUMN_NAMES)}, s.part)"
        )
        steps["merged"] = sums(spark, table)
        steps["an earlier version"] = sums(spark, f"{table} {earlier}")
        # The table of the scans stays as it is; this one ends small.
        spark.sql(f"insert overwrite {table} {rows(5, 10)}")
        steps["overwritten"] = sums(spark, table)
        scanned = of.table(scheme, base, "scanned")
        spark.sql(of.create(scanned, scheme, base, "scanned", SCHEMA))
        spark.sql(f"insert into {scanned} {rows(0, PARTS * ROWS)}")
        spark.sql(f"delete from {scanned} where id % 7 = 3")
    return found


def contexts(spark, task):
    """The class of Hadoop's FileContext for each scheme; Delta Lake commits through it."""
    found = {}
    for scheme, base in task["bases"].items():
        uri = spark._jvm.org.apache.hadoop.fs.Path(base).toUri()
        context = spark._jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, spark._jsc.hadoopConfiguration())
        found[scheme] = context.getDefaultFileSystem().getClass().getName()
    return found


QUERIES = {
    "one column": "select count(c7), max(c7) from {table}",
    "one partition and two columns": "select max(c1), min(c2) from {table} where part = 3",
    "all columns": "select " + ", ".join(f"max({name})" for name in COLUMN_NAMES) + ", sum(v), sum(id) from {table}",
    "a count": "select count(*) from {table} where part > 0",
}


def scans(spark, task):
    """Each query with an empty tier."""
    found = {}
    of = FORMATS[task["format"]]
    for scheme, base in task["bases"].items():
        table = of.table(scheme, base, "scanned")
        of.attach(spark, table, scheme, base, "scanned")
        for what, query in QUERIES.items():
            rows = lambda query=query: [str(value) for value in spark.sql(query.format(table=table)).first()]  # noqa: E731
            found[f"{scheme}://, {what}"] = part(task, f"{scheme}://, {what}", rows)
    return found


def write(spark, task):
    """Appends, and counts up in one row, as often as it takes; when the other writer is there."""
    of = FORMATS[task["format"]]
    scheme, base, number = task["scheme"], task["bases"][task["scheme"]], task["number"]
    table = of.table(scheme, base, "shared")
    meet(task, "appends")
    spans, refused = [], 0
    for i in range(APPENDS):
        began = time.time()
        refused += persist(of, lambda i=i: spark.sql(f"insert into {table} {rows(1000 * (1 + 10 * number + i), 10)}"))
        spans.append((began, time.time()))
    meet(task, "counts")
    for _ in range(COUNTS_UP):
        refused += persist(of, lambda: spark.sql(f"update {table} set v = v + 1 where id = 1"))
    return {"spans": spans, "refused": refused}


def persist(of, change):
    """How often it was refused as the other writer was first."""
    refused = 0
    while True:
        try:
            change()
            return refused
        except Exception as e:  # noqa: BLE001
            if not any(refusal in str(e) for refusal in of.refusals):
                raise
            refused += 1


def meet(task, what):
    gate = Path(task["gate"])
    (gate / f"{what}-{task['number']}").touch()
    while not (gate / f"{what}-{1 - task['number']}").exists():
        time.sleep(0.02)


def begin(spark, task):
    """The table of the writers."""
    of = FORMATS[task["format"]]
    scheme = "file"
    table = of.table(scheme, task["bases"][scheme], "shared")
    spark.sql(of.create(table, scheme, task["bases"][scheme], "shared", SCHEMA))
    spark.sql(f"insert into {table} select 1, 0, {', '.join('0.0' for _ in COLUMN_NAMES)}, 0")


def end(spark, task):
    of = FORMATS[task["format"]]
    table = of.table("file", task["bases"]["file"], "shared")
    ids = [row[0] for row in spark.sql(f"select id from {table} order by id").collect()]
    return {"ids": ids, "count": spark.sql(f"select v from {table} where id = 1").first()[0]}


# The test.


def settings(of, bases):
    return {
        "spark.sql.files.maxPartitionBytes": str(SPLIT_BYTES),
        "spark.sql.files.openCostInBytes": "0",
        "spark.hadoop.parquet.block.size": str(ROW_GROUP_BYTES),
        "spark.jars.packages": of.packages[SPARK],
        **of.settings(bases),
    }


def test(of):
    with programs.place("tables") as (directory, pfs, socket):
        def task(bases, **more):
            return {"format": of.name, "bases": bases, "pfs": str(pfs), "settings": {**settings(of, bases), **more}}

        alone = task({"file": f"file://{directory}/plain"})
        stories(of, directory, alone, task({s: f"{s}://{pfs}/by-{s}" for s in of.schemes}, **programs.plugin(socket)), str(socket))
        if of.schemes == SCHEMES:
            programs.lab.set_rate(programs.PROGRAM, pfs, programs.RATE)
            writers(of, directory, task({s: f"{s}://{pfs}/both" for s in SCHEMES}, **programs.plugin(socket)))


def stories(of, directory, alone, through, socket):
    expected = run(directory, "alone", {**alone, "functions": ["story", "scans"]})[0]
    found = run(directory, "story", {**through, "functions": ["story", "contexts"]})[0]
    for scheme, name in found["contexts"].items():
        check(f"{of.name} on {scheme}://, FileContext is {name}", name.startswith("io.forebay.hadoop."))
    for scheme, steps in found["story"].items():
        for step, result in steps.items():
            check(f"{of.name} on {scheme}://, {step}", result == expected["story"]["file"][step])
    programs.lab.set_rate(programs.PROGRAM, Path(through["pfs"]), SCAN_RATE)
    scanned, reports = run(directory, "scans", {**through, "tier": socket, "functions": ["scans"]})
    for what, one in scanned["scans"].items():
        report = reports[what]
        check(f"{of.name} on {what}: the result", one["result"] == expected["scans"][f"file://, {what.partition(', ')[2]}"]["result"])
        if getattr(of, "reads_more", False):
            check(f"{of.name} on {what}: something is reported", report["reported"] > 0)
            check(f"{of.name} on {what}: of {report['reported']} bytes that are reported {report['unread']} are not read", report["unread"] <= OFF_SHARE * report["reported"])
        else:
            judge(f"{of.name} on {what}", one, report)
    planned = sum(one["pages"]["planned"] for one in scanned["scans"].values())
    pages = sum(sum(one["pages"].values()) for one in scanned["scans"].values())
    check(f"{of.name}: waves fetched {planned} of {pages} pages", planned > LEAST_PREFETCHED * pages)


def writers(of, directory, task):
    run(directory, "begin", {**task, "functions": ["begin"]})
    gate = directory / "gate"
    gate.mkdir()
    at_once = [
        programs.Program(directory, f"writer-{number}", {**task, "functions": ["write"], "scheme": SCHEMES[number], "number": number, "gate": str(gate)})
        for number in (0, 1)
    ]
    wrote = [writer.result()["write"] for writer in at_once]
    overlaps = sum(a < d and c < b for a, b in wrote[0]["spans"] for c, d in wrote[1]["spans"])
    refused = sum(one["refused"] for one in wrote)
    check(f"{of.name}, two writers: {overlaps} appends overlapped, {refused} changes were refused and made again", overlaps > 0)
    found = run(directory, "end", {**task, "functions": ["end"]})[0]["end"]
    expected = [1, *(1000 * (1 + 10 * number + i) + j for number in (0, 1) for i in range(APPENDS) for j in range(10))]
    check(f"{of.name}, two writers: each of {len(expected)} rows is there once", found["ids"] == expected)
    check(f"{of.name}, two writers: counted up to {found['count']}", found["count"] == 2 * COUNTS_UP)


def main():
    if programs.main({"story": story, "contexts": contexts, "scans": scans, "begin": begin, "write": write, "end": end}):
        return
    for name in sys.argv[1:] or FORMATS:
        of = FORMATS[name]
        if of.packages.get(SPARK):
            test(of)
        else:
            print(f"Spark {SPARK}: no {name} is published for it; it is not tested", flush=True)


if __name__ == "__main__":
    main()
