package io.forebay.workloads;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;

/**
 * {@code spark-submit --class io.forebay.workloads.Main forebay-workloads.jar WORKLOAD INPUT
 * REDUCERS REPORT [WARM]}
 *
 * <p>Runs one workload over a directory of text, and writes what it found and when each of its
 * tasks ran to the file REPORT, as JSON. If there is a directory WARM, the workload is run over
 * that first, so that the virtual machines have compiled what they run by then.
 */
public final class Main {
  private Main() {}

  public static void main(String[] arguments) throws IOException {
    if (arguments.length < 4 || arguments.length > 5) {
      throw new IllegalArgumentException("wanted: WORKLOAD INPUT REDUCERS REPORT [WARM], with one of the workloads " + Workload.names());
    }
    Workload workload = Workload.named(arguments[0]);
    SparkSession session = SparkSession.builder().appName(arguments[0]).getOrCreate();
    JavaSparkContext context = new JavaSparkContext(session.sparkContext());
    int reducers = Integer.parseInt(arguments[2]);
    if (arguments.length == 5) {
      workload.run(session, context, arguments[4], reducers);
    }
    TaskLog log = new TaskLog();
    session.sparkContext().addSparkListener(log);
    long began = System.currentTimeMillis();
    Digest found = workload.run(session, context, arguments[1], reducers);
    long ended = System.currentTimeMillis();
    // The listener hears of the last tasks a little later; it has heard all of them when Spark has
    // stopped.
    session.stop();
    String report = String.format("{\"began_ms\": %d, \"ended_ms\": %d, \"result\": %s, \"stages\": %s, \"tasks\": %s}%n", began, ended,
        found.json(), log.stagesJson(), log.tasksJson());
    Files.write(Path.of(arguments[3]), report.getBytes(StandardCharsets.UTF_8));
  }
}
