"""Columnar tables in Spark with the plug-in: what is read from the PFS is what the query needs.

    python3 java/columns-smoke.py [columns] [giant]

The PFS is the slow file system of the lab, which counts the bytes it serves. The bytes that a query
needs follow from the footers of its files: the column chunks of the row groups that Spark reads,
and the footers themselves. With ROW_GROUP_MIB=128, each file has one row group. `giant` reads a
column chunk of GIANT_MIB (64) that is twice as large as the tier. Verdicts are about bytes, never
about times. Needs `make java`, and root or fusermount3.
"""

import os
import sys
import time

import programs
from programs import check, lab
from pyspark.sql import functions

COLUMNS = 30
PARTITIONS = 6
ROWS = 60_000
# Row groups of so many bytes, so that a range of a sorted key is some of them.
ROW_GROUP_BYTES = int(os.environ.get("ROW_GROUP_MIB", "8")) << 20
MOST_OF_NEEDED = 1.2
# Files younger than `mount.settle_ms` are not cached yet.
SETTLE_S = 3.5
GIANT_BYTES = int(os.environ.get("GIANT_MIB", "64")) << 20


def session(socket, **settings):
    files = {"spark.hadoop.parquet.block.size": str(ROW_GROUP_BYTES), "spark.sql.files.maxPartitionBytes": str(16 << 20)}
    return programs.spark_with("forebay-columns", {**programs.plugin(socket), **files, **settings})


def make_table(spark, directory):
    """A table of a sorted key and columns that do not compress, by partitions."""
    wide = spark.range(PARTITIONS * ROWS).withColumnRenamed("id", "key").withColumn("part", functions.floor(functions.col("key") / ROWS))
    for column in range(COLUMNS):
        wide = wide.withColumn(f"c{column}", functions.rand(column))
    wide.repartitionByRange(PARTITIONS, "key").sortWithinPartitions("key").write.partitionBy("part").parquet(str(directory))


def needed_bytes(spark, directory, columns, keeps=lambda low, high: True, below="", key="key"):
    """Bytes of these columns in the row groups whose keys `keeps`, and of footers."""
    jvm = spark._jvm
    total = 0
    for file in sorted(directory.glob(f"{below}**/*.parquet")):
        source = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(
            jvm.org.apache.hadoop.fs.Path(f"file://{file}"), jvm.org.apache.hadoop.conf.Configuration(False)
        )
        reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(source)
        for block in reader.getFooter().getBlocks():
            chunks = {chunk.getPath().toDotString(): chunk for chunk in block.getColumns()}
            statistics = chunks[key].getStatistics()
            if keeps(statistics.genericGetMin(), statistics.genericGetMax()):
                total += sum(chunks[name].getTotalSize() for name in columns)
        reader.close()
        size = file.stat().st_size
        with open(file, "rb") as data:
            data.seek(size - 8)
            total += 8 + int.from_bytes(data.read(4), "little")
    return total


def query(spark, pfs, url, what, needed, frame):
    """Runs a query cold and warm; compares its bytes and its result."""
    expected = frame(spark.read.parquet(str(pfs.parent / "data/table"))).collect()
    before = lab.served_bytes(pfs)
    found = frame(spark.read.parquet(url)).collect()
    # A prefetch that goes on behind the query counts as well.
    time.sleep(1)
    served = lab.served_bytes(pfs) - before
    check(f"{what}: the result", found == expected)
    ratio = served / needed
    check(f"{what}: {served / 1e6:.2f} MB from the PFS where {needed / 1e6:.2f} MB are needed, {ratio:.2f} times", ratio <= MOST_OF_NEEDED)
    before = lab.served_bytes(pfs)
    check(f"{what}: the result again", frame(spark.read.parquet(url)).collect() == expected)
    check(f"{what}: nothing from the PFS the second time", lab.served_bytes(pfs) == before)


def columns(place, socket, pfs):
    backing = place / "data"
    maker = session(place / "none", **{"spark.plugins": ""})
    make_table(maker, backing / "table")
    maker.stop()
    time.sleep(SETTLE_S)
    spark = session(socket)
    try:
        needed = lambda *arguments, **more: needed_bytes(spark, backing / "table", *arguments, **more)  # noqa: E731
        total = sum(file.stat().st_size for file in backing.glob("table/**/*.parquet"))
        check(f"a table of {total / 1e6:.0f} MB", total > 50e6)
        # Each query has columns of its own, as what one has fetched is there for the next.
        run = lambda *arguments: query(spark, pfs, f"file://{pfs}/table", *arguments)  # noqa: E731
        run("one column of 31", needed(["c7"]), lambda t: t.agg(functions.count("c7"), functions.max("c7")))
        run(
            "one partition and two columns",
            needed(["c1", "c2"], below="part=3/"),
            lambda t: t.where("part = 3").agg(functions.max("c1"), functions.min("c2")),
        )
        low, high = 2 * ROWS + ROWS // 4, 4 * ROWS
        run(
            "a range of a sorted key",
            needed(["key", "c3", "c4", "c5"], keeps=lambda first, last: last >= low and first <= high),
            lambda t: t.where(f"key between {low} and {high}").agg(functions.max("c3"), functions.min("c4"), functions.max("c5")),
        )
        before = lab.served_bytes(pfs)
        check("a count", spark.read.parquet(f"file://{pfs}/table").count() == PARTITIONS * ROWS)
        check("a count reads nothing but footers, which are there", lab.served_bytes(pfs) == before)
        run("all columns", needed(["key", *(f"c{i}" for i in range(8, COLUMNS))]), lambda t: t.drop(*(f"c{i}" for i in range(8))).groupBy().max())
    finally:
        spark.stop()


def giant(place, socket, pfs):
    """One column chunk that is larger than the tier: read once and rightly, and again."""
    maker = session(place / "none", **{"spark.plugins": ""})
    frame = maker.range(0, GIANT_BYTES // 8, 1, 1).selectExpr("rand(7) as v", "id")
    frame.write.option("parquet.block.size", str(4 * GIANT_BYTES)).parquet(str(place / "data/table"))
    (file,) = (place / "data/table").glob("*.parquet")
    expected = frame.agg(functions.max("v"), functions.sum("v")).collect()
    needed = needed_bytes(maker, place / "data/table", ["v"], key="v")
    maker.stop()
    time.sleep(SETTLE_S)
    check(f"a column chunk of {needed / 1e6:.0f} MB in a file of {file.stat().st_size / 1e6:.0f} MB", needed > 0.9 * GIANT_BYTES)
    spark = session(socket)
    try:
        for again in ("", " again"):
            before = lab.served_bytes(pfs)
            found = spark.read.parquet(f"file://{pfs}/table").agg(functions.max("v"), functions.sum("v")).collect()
            time.sleep(1)
            served = lab.served_bytes(pfs) - before
            check(f"a chunk twice as large as the tier{again}: the result", found == expected)
            ratio = served / needed
            check(f"a chunk twice as large as the tier{again}: {ratio:.2f} times its bytes from the PFS", ratio <= MOST_OF_NEEDED)
    finally:
        spark.stop()


def main():
    for name in sys.argv[1:] or PARTS:
        part, capacity_bytes = PARTS[name]
        with programs.place("columns", capacity_bytes) as (place, pfs, socket):
            part(place, socket, pfs)


PARTS = {"columns": (columns, programs.CAPACITY_BYTES), "giant": (giant, GIANT_BYTES // 2)}


if __name__ == "__main__":
    main()
