"""A Spark application that runs the queries it is asked for, in one session; `faults.py` starts it.

It runs under the Python that has Spark. The first line of standard input is a JSON object with its
task as of `worker.py`, each further one the number of a query. It answers each with a JSON object.
"""

import json
import sys

import queries
import worker


def main():
    task = json.loads(sys.stdin.readline())
    spark = worker.session(task)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        number = int(line)
        worker.register(spark, task)
        rows = spark.sql(queries.text(number, task["scale"])).collect()
        print(json.dumps({"query": number, "result": worker.digest(rows)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
