"""The jar in a Spark program, configured as docs/hadoop.md says: right results through forebay:// and file://, also if the agent is killed.

Run by java/test-spark, for each version of Spark twice: with the jar in `spark.jars`, for forebay:// alone, and with it in the class path, as
file:// needs it. Starts an agent of its own and ends it.
"""

import collections
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

from programs import JAR, PROGRAM, check, spark_with
from pyspark.sql import functions

MIB = 1 << 20
FILES = 6
LINES = 20_000


class Agent:
    """An agent over a plain directory that stands for the PFS."""

    def __init__(self, directory):
        self.pfs = directory / "pfs"
        self.pfs.mkdir()
        self.state = directory / "state"
        self.socket = self.state / "agent.sock"
        self.log = directory / "agent.log"
        command = [PROGRAM, "up", "--foreground", "--pfs", f"test={self.pfs}", "--capacity", "512MiB", "--state-dir", str(self.state)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while subprocess.run([PROGRAM, "status", "--socket", self.socket], capture_output=True, check=False).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the agent did not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.kill()
        down = [PROGRAM, "down", "--drop", "--state-dir", self.state, "--socket", self.socket]
        subprocess.run(down, capture_output=True, timeout=30, check=False)


BY_JARS = {"spark.jars": str(JAR), "spark.hadoop.fs.forebay.impl": "io.forebay.hadoop.ForebayFileSystem"}

# Spark looks for file:// before it looks into spark.jars, to copy these.
BY_CLASS_PATH = {
    "spark.driver.extraClassPath": str(JAR),
    "spark.executor.extraClassPath": str(JAR),
    "spark.hadoop.fs.file.impl": "io.forebay.hadoop.ForebayLocalFileSystem",
}


def session(agent, installation):
    # Small splits: several tasks for each file of the table.
    own = {"spark.hadoop.fs.forebay.socket": str(agent.socket), "spark.sql.files.maxPartitionBytes": str(MIB // 4)}
    return spark_with("forebay-smoke", {**installation, **own})


def make_text(directory):
    """Files of lines, and how often each word is in them."""
    directory.mkdir()
    counts = collections.Counter()
    for number in range(FILES):
        lines = [f"word{(number * LINES + i) % 977} line{i % 13} of file{number}" for i in range(LINES)]
        (directory / f"part-{number}.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            counts.update(line.split())
    # Files younger than the PFS's stamps can tell are not cached yet.
    time.sleep(0.1)
    return counts


def word_count(spark, url):
    words = spark.sparkContext.textFile(url).flatMap(str.split).map(lambda word: (word, 1))
    return dict(words.reduceByKey(lambda a, b: a + b).collect())


def resident_bytes(agent):
    status = subprocess.run([PROGRAM, "status", "--json", "--socket", agent.socket], capture_output=True, check=True)
    return json.loads(status.stdout)["resident_bytes"]


def classes_link(spark):
    """Every class of the jar resolves against the Hadoop that this Spark has; those for newer ones are left out on old ones."""
    loader = spark._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    check(f"{JAR.stat().st_size / MIB:.1f} MiB of jar, at most 15", JAR.stat().st_size <= 15 * MIB)
    with zipfile.ZipFile(JAR) as jar:
        foreign = [name for name in jar.namelist() if not name.startswith(("io/", "META-INF/"))]
        check(f"nothing but our own classes: {foreign}", not foreign)
        names = [name[:-6].replace("/", ".") for name in jar.namelist() if name.endswith(".class") and "package-info" not in name]
    hadoop = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    old = tuple(map(int, hadoop.split(".")[:3])) < (3, 3, 5)
    for name in names:
        newer = name.startswith("io.forebay.hadoop.VectoredRead")
        spark._jvm.java.lang.Class.forName(name, not (newer and old), loader).getDeclaredMethods()
    check(f"{len(names)} classes link with Hadoop {hadoop}", len(names) > 20)


def by_jars(spark, agent, counts):
    classes_link(spark)
    check("words of text through forebay://, the jar in spark.jars", word_count(spark, f"forebay://{agent.pfs}/text") == counts)
    size = sum(file.stat().st_size for file in (agent.pfs / "text").iterdir())
    # A reader that gave up waiting on a slow machine has read the PFS itself.
    for _ in range(10):
        resident = resident_bytes(agent)
        if resident >= size:
            break
        word_count(spark, f"forebay://{agent.pfs}/text")
    check(f"of its {size} bytes {resident} are in the tier", resident >= size)


def by_class_path(spark, agent, counts, directory):
    check("words of text through file://", word_count(spark, f"file://{agent.pfs}/text") == counts)
    parquet(spark, agent)
    other_paths_are_local(spark, directory)
    agent_killed(spark, agent, counts)


def parquet(spark, agent):
    rows = spark.range(200_000).select("id", (functions.col("id") * 7 % 1000).alias("value"), functions.concat(functions.lit("n"), "id").alias("name"))
    expected = rows.agg(functions.sum("value"), functions.count("name")).first()
    rows.repartition(3).write.mode("overwrite").parquet(f"forebay://{agent.pfs}/table")
    for scheme in ("forebay", "file"):
        got = spark.read.parquet(f"{scheme}://{agent.pfs}/table").agg(functions.sum("value"), functions.count("name")).first()
        check(f"Parquet written through forebay:// and read through {scheme}://", got == expected)
    rows.write.mode("overwrite").parquet(f"file://{agent.pfs}/table")
    got = spark.read.parquet(f"forebay://{agent.pfs}/table").agg(functions.sum("value"), functions.count("name")).first()
    check("Parquet overwritten through file:// and read through forebay://", got == expected)
    check("no checksum files on the PFS", not list((agent.pfs / "table").glob(".*.crc")))


def other_paths_are_local(spark, directory):
    target = directory / "local"
    spark.range(10).selectExpr("cast(id as string)").write.mode("overwrite").text(f"file://{target}")
    check("a path elsewhere is the local file system's, with its checksum files", bool(list(target.glob(".part-*.crc"))))


def agent_killed(spark, agent, counts):
    """kill -9 when a third of the tasks have ended."""
    done = spark.sparkContext.accumulator(0)

    def slowly(lines):
        time.sleep(0.1)
        for line in lines:
            yield from line.split()
        done.add(1)

    words = spark.sparkContext.textFile(f"forebay://{agent.pfs}/text", 12).mapPartitions(slowly).map(lambda word: (word, 1))
    tasks = words.getNumPartitions()

    def kill():
        while done.value < tasks // 3:
            time.sleep(0.01)
        agent.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    got = dict(words.reduceByKey(lambda a, b: a + b).collect())
    killer.join()
    check(f"the agent killed in the middle of {tasks} tasks", tasks >= 12 and got == counts)
    check("and one more job without an agent", word_count(spark, f"file://{agent.pfs}/text") == counts)


def main():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="forebay-spark-")).resolve()
    agent = None
    try:
        agent = Agent(directory)
        counts = make_text(agent.pfs / "text")
        if sys.argv[1:] == ["jars"]:
            spark = session(agent, BY_JARS)
            by_jars(spark, agent, counts)
        else:
            spark = session(agent, BY_CLASS_PATH)
            by_class_path(spark, agent, counts, directory)
        spark.stop()
    finally:
        if agent is not None:
            agent.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
