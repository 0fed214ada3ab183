"""Tables that change, that are read twice, of Hive's metastore, and of many small files: in Spark
with the plug-in and a real agent.

    python3 java/changes-smoke.py [twice] [replaced] [schemas] [metastore] [many]

- twice: two stages of a self join read the same columns, and the PFS serves them once.
- replaced: files are replaced after the plug-in has reported them and before their tasks read them.
  Tasks read the new content, also of files of which the tier has the old one.
- schemas: the files of a table have different columns, and one of them gets others.
- metastore: tables of Spark and of Hive in a Hive metastore (Derby), on both schemes, written and
  read through the plug-in by one program and read by another. What one partition needs is what the
  PFS serves.
- many: MANY (3000) small files of Parquet and of text, in a driver of 512 MB. The memory that the
  driver needs beside Spark's is bounded. With MANY=100000 there are more columnar files than the
  plug-in reports, which it says.

The PFS is the slow file system of the lab, which counts the bytes it serves. Verdicts are about
bytes and results, never about times. Needs `make java`, and root or fusermount3.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import programs
from programs import SMALL_BYTES, check, judge, part, run

ROWS = 250_000
FILES = 8
MANY = int(os.environ.get("MANY", "3000"))
# As in the plug-in: more columnar files of one stage are not reported, and live stages keep no more
# memory of the driver.
COLUMNAR_FILES_MAX = 20_000
DRIVER_KEEPS_BYTES = 64 << 20
# What two readings of a heap after its collection differ anyway.
HEAP_NOISE_BYTES = 24 << 20
FILES_OF_A_DIRECTORY = 1000
# Of each server of the PFS while files are replaced.
SLOW_RATE = "1MB/s"
# Of columnar files in the tier.
PAGE_BYTES = 16 << 10
PATIENCE_S = 120


# In the programs.


def table(spark, path, first, files=FILES):
    """A file for each of `files` numbers, whose values begin at `first` and do not compress."""
    rows = spark.range(first, first + files * ROWS, 1, files)
    rows.selectExpr("id as key", "cast(xxhash64(id) as double) as v", "id * 3 as w").write.option("compression", "none").parquet(path)


def make(spark, task):
    data = Path(task["data"])
    table(spark, f"{data}/twice", 0)
    table(spark, f"{data}/old", 0)
    table(spark, f"{data}/new", 10**9)
    evolve = f"{data}/evolves"
    spark.range(0, 1000, 1, 1).selectExpr("id as key", "double(id) as a").write.parquet(f"{evolve}/1")
    spark.range(1000, 2000, 1, 1).selectExpr("id as key", "double(id) as a", "2.0D * id as b").write.parquet(f"{evolve}/2")
    spark.range(2000, 3000, 1, 1).selectExpr("2.0D * id as b", "cast(id as string) as c", "id as key").write.parquet(f"{evolve}/3")
    spark.range(1000, 1500, 1, 1).selectExpr("cast(id as string) as c", "id as key", "double(id) as a").write.parquet(f"{data}/evolved")
    spark.range(1).selectExpr("id", "id as v").coalesce(1).write.parquet(f"{data}/one")


def twice(spark, task):
    """A self join whose sides are two stages, each with a scan of its own."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    spark.conf.set("spark.sql.exchange.reuse", "false")
    source = spark.read.parquet(task["url"] + "/twice").select("key", "v")
    query = source.alias("l").join(source.alias("r"), "key").selectExpr("count(*)", "sum(l.v - r.v)")
    scans = query._jdf.queryExecution().executedPlan().toString().count("FileScan parquet")
    found = part(task, "twice", lambda: [str(value) for value in query.first()])
    return {**found, "scans": scans}


def replaced(spark, task):
    """Sums by file; the tasks wait, with their files open, until the others are replaced."""
    gate = Path(task["gate"])
    rows = spark.read.parquet(task["url"] + "/old").selectExpr("input_file_name() as name", "v")

    def total(part_rows):
        count, sum_v, name = 0, 0.0, None
        for row in part_rows:
            if name is None:
                name = Path(row.name).name
                (gate / name).touch()
                while not (gate / "open").exists():
                    time.sleep(0.02)
            count, sum_v = count + 1, sum_v + row.v
        yield name, count, sum_v

    found = {}
    reading = threading.Thread(target=lambda: found.update(rows=rows.rdd.mapPartitions(total).collect()))
    planned = programs.fetched_pages(task)["planned"]
    reading.start()
    (names, before), deadline = ([], 0), time.monotonic() + PATIENCE_S
    # More than the input of the two tasks: of another file the tier has a part.
    while len(names) < 2 or before < 2.5 * task["pages_of_file"]:
        if time.monotonic() > deadline:
            sys.exit(f"after {PATIENCE_S} s, tasks have opened {names}, and waves have fetched {before} pages")
        time.sleep(0.02)
        names = [one.name for one in gate.iterdir()]
        before = programs.fetched_pages(task)["planned"] - planned
    pfs = Path(task["pfs"])
    old = sorted(file.name for file in (pfs / "old").glob("*.parquet"))
    new = dict(zip(old, sorted((pfs / "new").glob("*.parquet"))))
    changed = [name for name in old if name not in names]
    for name in changed:
        new[name].rename(pfs / "old" / name)
    (gate / "open").touch()
    reading.join()
    jobs = subprocess.run([programs.PROGRAM, "jobs", "--json", "--socket", task["tier"]], capture_output=True, text=True, timeout=60, check=True)
    return {"rows": found["rows"], "changed": changed, "planned_before": before, "jobs": json.loads(jobs.stdout)}


SCHEMA = "key bigint, a double, b double, c string"


def schemas(spark, task):
    query = lambda: [str(v) for v in spark.read.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(task["url"] + "/evolves").selectExpr("count(*)", "sum(key)", "sum(a)", "sum(b)", "count(c)").first()]  # noqa: E501,E731
    first = part(task, "schemas", query)
    pfs = Path(task["pfs"])
    (target,) = (pfs / "evolves/2").glob("*.parquet")
    (source,) = (pfs / "evolved").glob("*.parquet")
    source.rename(target)
    return {"first": first, "second": part(task, "schemas, of which one file is another", query)}


# Of each scheme, by the last word of its name: how it is created.
METASTORE = {
    "spark": "create table {name} (key bigint, v double, w bigint, part int) using parquet partitioned by (part) location '{place}'",
    "parquet": "create table {name} (key bigint, v double, w bigint) partitioned by (part int) stored as parquet location '{place}'",
    "orc": "create table {name} (key bigint, v double, w bigint) partitioned by (part int) stored as orc location '{place}'",
}
METASTORE_QUERY = "select count(v), sum(w), min(part), max(part) from {name} where part = 2"


def metastore_names():
    return {f"{scheme}_{kind}": (scheme, kind) for scheme in ("file", "forebay") for kind in METASTORE}


def fill_metastore(spark, task):
    """The tables, each written in two steps, the second of which replaces one partition."""
    for name, (scheme, kind) in metastore_names().items():
        spark.sql(METASTORE[kind].format(name=name, place=f"{scheme}://{task['pfs']}/metastore/{name}"))
        columns = "id, cast(xxhash64(id) as double), id * 3, cast(id div 100000 as int)"
        spark.sql(f"insert into {name} select {columns} from range(0, 400000, 1, 2)")
        spark.sql(f"insert overwrite {name} partition (part = 2) select id, cast(xxhash64(id) as double), id * 3 from range(200000, 290000, 1, 1)")
    return read_metastore(spark, task)


def read_metastore(spark, task):
    query = lambda name: lambda: [str(value) for value in spark.sql(METASTORE_QUERY.format(name=name)).first()]  # noqa: E731
    return {name: part(task, name, query(name)) for name in metastore_names()}


def many(spark, task):
    """Sums over many files, and the most memory that the driver needed meanwhile."""
    system, heap = spark._jvm.java.lang.System, spark._jvm.java.lang.management.MemoryType.HEAP
    pools = [pool for pool in spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans() if pool.getType().equals(heap) and pool.getCollectionUsage() is not None]
    peak, done = [0], threading.Event()

    def watch():
        # A collection takes longer where there are more files.
        while not done.wait(max(0.5, MANY / 20_000)):
            system.gc()
            # At the end of the collection: without what has been allocated since.
            peak[0] = max(peak[0], sum(pool.getCollectionUsage().getUsed() for pool in pools))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        text = lambda: str(spark.read.text(task["url"] + "/text/*").selectExpr("sum(cast(value as bigint))").first()[0])  # noqa: E731
        parquet = lambda: str(spark.read.schema("id bigint, v bigint").parquet(task["url"] + "/parquet/*").selectExpr("count(v)").first()[0])  # noqa: E731
        found = {"text": part(task, "text", text), "parquet": part(task, "parquet", parquet)}
    finally:
        done.set()
        watching.join()
    return {**found, "peak_bytes": peak[0]}


# The test.


def sums(spark, task):
    """By file of both tables of `replaced`, what is in it."""
    found = {}
    for name in ("old", "new"):
        rows = spark.read.parquet(f"{task['data']}/{name}").selectExpr("input_file_name() as name", "v").groupBy("name").agg({"v": "sum", "*": "count"})
        found[name] = {Path(row["name"]).name: [row["count(1)"], row["sum(v)"]] for row in rows.collect()}
    return found


def one_file_a_task(data):
    bytes_of_file = max(file.stat().st_size for file in data.glob("old/*.parquet"))
    return {"spark.sql.files.maxPartitionBytes": str(bytes_of_file + 1), "spark.sql.files.openCostInBytes": str(bytes_of_file)}


def test_twice(directory, task):
    found, reports = run(directory, "twice", {**task, "functions": ["twice"]})
    one, report = found["twice"], reports["twice"]
    check(f"twice: the result {one['result']}", one["result"] == [str(FILES * ROWS), "0.0"])
    check(f"twice: the plan has {one['scans']} scans", one["scans"] == 2)
    # Two stages are reported, and what they read is fetched once.
    judge("twice", one, report, needed=report["reported"] / 2)


def test_replaced(directory, task, data, expected):
    gate = directory / "gate"
    gate.mkdir()
    programs.lab.set_rate(programs.PROGRAM, Path(task["pfs"]), SLOW_RATE)
    settings = {**task["settings"], **one_file_a_task(data)}
    order = {kind: sorted(expected[kind]) for kind in expected}
    found = run(directory, "replaced", {**task, "settings": settings, "gate": str(gate), "pages_of_file": ROWS * 8 // PAGE_BYTES, "functions": ["replaced"]})[0]["replaced"]
    programs.lab.set_rate(programs.PROGRAM, Path(task["pfs"]), programs.RATE)
    check(f"replaced: {len(found['changed'])} files, after waves had fetched {found['planned_before']} pages", len(found["changed"]) == FILES - 2)
    check("replaced: each file is read once", sorted(row[0] for row in found["rows"]) == order["old"])
    for name, count, total in found["rows"]:
        content = expected["new"][order["new"][order["old"].index(name)]] if name in found["changed"] else expected["old"][name]
        check(f"replaced: {name} is {'the new' if name in found['changed'] else 'the old'} one", count == content[0] and abs(total - content[1]) <= 1e-9 * abs(content[1]))
    waves = [wave for job in found["jobs"] for stage in job["stages"] for wave in stage["waves"]]
    fetched, failed = (sum(wave[f"{what}_bytes"] for wave in waves) for what in ("fetched", "failed"))
    check(f"replaced: {fetched / 1e6:.2f} MB were fetched by waves, and {failed / 1e6:.2f} MB given up", fetched > 0 and failed > 0)


def test_schemas(directory, task):
    found, reports = run(directory, "schemas", {**task, "functions": ["schemas"]})
    found = found["schemas"]
    a = sum(range(2000))
    first = ["3000", str(sum(range(3000))), str(float(a)), str(2.0 * sum(range(1000, 3000))), "1000"]
    check(f"schemas: the result {found['first']['result']}", [float(v) for v in found["first"]["result"]] == [float(v) for v in first])
    judge("schemas", found["first"], reports["schemas"])
    rows = [*range(1500), *range(2000, 3000)]
    second = [len(rows), sum(rows), sum(range(1500)), 2 * sum(range(2000, 3000)), 1500]
    check(f"schemas, with another file: the result {found['second']['result']}", [float(v) for v in found["second"]["result"]] == second)
    judge("schemas, with another file", found["second"], reports["schemas, of which one file is another"])


def test_metastore(directory, task):
    settings = {
        **task["settings"],
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/metastore;create=true",
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
    }
    expected = ["90000", str(3 * sum(range(200_000, 290_000))), "2", "2"]
    for function in ("fill_metastore", "read_metastore"):
        found, reports = run(directory, function, {**task, "settings": settings, "functions": [function]})
        for name, one in found[function].items():
            check(f"metastore, {name}: the result {one['result']}", one["result"] == expected)
            judge(f"metastore, {name}", one, reports[name])


def make_many(data):
    (one,) = (data / "one").glob("*.parquet")
    content = one.read_bytes()
    for number in range(MANY):
        place = f"{number // FILES_OF_A_DIRECTORY:04}"
        for kind, body in (("text", f"{number}\n".encode()), ("parquet", content)):
            (data / kind / place).mkdir(parents=True, exist_ok=True)
            (data / kind / place / f"{number:06}.{'txt' if kind == 'text' else 'parquet'}").write_bytes(body)


def test_many(directory, task, data):
    make_many(data)
    # Each file takes some milliseconds: it is opened several times.
    programs.PATIENCE_S = max(programs.PATIENCE_S, MANY / 25)
    small = {"spark.driver.memory": "512m", "spark.sql.files.openCostInBytes": str(64 << 10)}
    alone = run(directory, "many-alone", {"pfs": task["pfs"], "url": f"file://{task['pfs']}", "settings": small, "functions": ["many"]})[0]["many"]
    found, reports = run(directory, "many", {**task, "settings": {**task["settings"], **small}, "functions": ["many"]})
    found = found["many"]
    for kind, result in (("text", sum(range(MANY))), ("parquet", MANY)):
        check(f"{MANY} files of {kind}: the result", found[kind]["result"] == alone[kind]["result"] == str(result))
    check("the driver's memory is known", found["peak_bytes"] > 0 and alone["peak_bytes"] > 0)
    more = found["peak_bytes"] - alone["peak_bytes"]
    check(f"the driver needs {more / 2**20:.1f} MiB more than Spark alone ({alone['peak_bytes'] / 2**20:.0f} MiB)", more <= DRIVER_KEEPS_BYTES + HEAP_NOISE_BYTES)
    check("the text is reported", not reports["text"]["fallbacks"])
    print(f"    parquet: {programs.in_words(found['parquet'], reports['parquet'])}; {reports['parquet']['fallbacks']}", flush=True)
    if MANY > COLUMNAR_FILES_MAX:
        check("too many columnar files are read without a plan", any(f"more columnar files than {COLUMNAR_FILES_MAX}" in said for said in reports["parquet"]["fallbacks"]))
    else:
        check("the columnar files are reported", not reports["parquet"]["fallbacks"] and reports["parquet"]["reported"] > 0)
        check("and read once", found["parquet"]["served_bytes"] <= 1.2 * reports["parquet"]["reported"] + SMALL_BYTES)


def main():
    if programs.main({"make": make, "sums": sums, "twice": twice, "replaced": replaced, "schemas": schemas, "fill_metastore": fill_metastore, "read_metastore": read_metastore, "many": many}):
        return
    which = sys.argv[1:] or ["twice", "replaced", "schemas", "metastore", "many"]
    with programs.place("changes") as (directory, pfs, socket):
        data = directory / "data"
        plain = {"data": str(data), "settings": {}}
        run(directory, "make", {**plain, "functions": ["make"]})
        expected = run(directory, "sums", {**plain, "functions": ["sums"]})[0]["sums"]
        task = {"pfs": str(pfs), "tier": str(socket), "url": f"file://{pfs}", "settings": programs.plugin(socket)}
        if "twice" in which:
            test_twice(directory, task)
        if "replaced" in which:
            test_replaced(directory, task, data, expected)
        if "schemas" in which:
            test_schemas(directory, task)
        if "metastore" in which:
            test_metastore(directory, task)
        if "many" in which:
            test_many(directory, task, data)


if __name__ == "__main__":
    main()
