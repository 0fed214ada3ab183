package io.forebay.workloads;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;

/**
 * {@code spark-submit --class io.forebay.workloads.Main forebay-workloads.jar WORKLOAD INPUT REDUCERS REPORT}
 *
 * <p>Runs one workload over a directory of text, and writes what it found and when each of its tasks ran to the file REPORT, as JSON.
 */
public final class Main {
  private Main() {}

  public static void main(String[] arguments) throws IOException {
    if (arguments.length != 4) {
      throw new IllegalArgumentException("wanted: WORKLOAD INPUT REDUCERS REPORT, with one of the workloads " + Workload.names());
    }
    Workload workload = Workload.named(arguments[0]);
    SparkSession session = SparkSession.builder().appName(arguments[0]).getOrCreate();
    TaskLog log = new TaskLog();
    session.sparkContext().addSparkListener(log);
    long began = System.currentTimeMillis();
    Digest found = workload.run(session, new JavaSparkContext(session.sparkContext()), arguments[1], Integer.parseInt(arguments[2]));
    long ended = System.currentTimeMillis();
    // The listener hears of the last tasks a little later; it has heard all of them when Spark has stopped.
    session.stop();
    String report = String.format("{\"began_ms\": %d, \"ended_ms\": %d, \"result\": %s, \"stages\": %s, \"tasks\": %s}%n", began, ended,
        found.json(), log.stagesJson(), log.tasksJson());
    Files.write(Path.of(arguments[3]), report.getBytes(StandardCharsets.UTF_8));
  }
}
