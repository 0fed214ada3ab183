"""Writes the tables once more in another format, by Spark: a file for each file, in its order.

    convert.py TABLES OUTPUT FORMAT MEMORY

It runs under the Python that has Spark. The settings of the format are Spark's own.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main():
    tables, output, kind, memory = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": memory, "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
    builder = SparkSession.builder.master("local[2]").appName("tpch-convert")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for file in sorted(tables.glob("*/*.parquet")):
        place = output / file.parent.name
        place.mkdir(parents=True, exist_ok=True)
        written = place / f".{file.stem}"
        spark.read.parquet(f"file://{file}").coalesce(1).write.format(kind).save(f"file://{written}")
        (made,) = written.glob(f"part-*.{kind}")
        made.rename(place / f"{file.stem}.{kind}")
        for left in written.iterdir():
            left.unlink()
        written.rmdir()
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
