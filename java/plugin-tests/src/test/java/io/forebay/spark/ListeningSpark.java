package io.forebay.spark;

import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;

import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.sql.SparkSession;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.rules.TemporaryFolder;

/** Real Spark in this process, beside an agent that hears what is reported. */
abstract class ListeningSpark {
  /** All paths are reported, as if each were on the PFS. */
  static final Predicate<URI> ALL = path -> true;

  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  SparkSession session;
  JavaSparkContext spark;
  Reporter reporter;
  Reported reported;

  @Before
  public final void start() throws IOException {
    SparkSession.Builder builder = SparkSession.builder().master("local[2]").appName("plug-in test")
        .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "3").config("spark.driver.host", "localhost")
        .config("spark.sql.warehouse.dir", folder.getRoot().getPath()).config("spark.plugins", Punctual.class.getName())
        .config("spark.sql.files.maxPartitionBytes", "30000").config("spark.sql.files.openCostInBytes", "0")
        .config("spark.hadoop.mapreduce.input.fileinputformat.split.maxsize", "30000");
    settings().forEach(builder::config);
    session = builder.getOrCreate();
    spark = new JavaSparkContext(session.sparkContext());
    listen();
  }

  /** Settings of the session beside the usual ones. */
  Map<String, String> settings() {
    return Map.of();
  }

  /** From here on, a new agent hears what is reported. */
  void listen() {
    listen(ALL);
  }

  /** The same, of these paths. */
  void listen(Predicate<URI> ours) {
    reported = new Reported();
    Reported line = reported;
    reporter = new Reporter(new JobState(1), name -> line, Reporter.QUEUE_MAX);
    reporter.start();
    reporter.named("test");
    Punctual.reporter = reporter;
    session.sparkContext().addSparkListener(new JobListener(session.sparkContext(), reporter, ours));
  }

  /** What the plug-in has reported. Waits until it has reported everything. */
  Reported heard() throws Exception {
    session.sparkContext().listenerBus().waitUntilEmpty();
    Punctual.reporter = null;
    reporter.close();
    return reported;
  }

  @After
  public final void stop() {
    Punctual.reporter = null;
    session.stop();
  }

  /**
   * A job of a few milliseconds may be over before it is reported, which is as well for prefetch.
   * Here the first tasks of each stage wait until all that came before them has been reported.
   */
  public static final class Punctual implements SparkPlugin {
    private static volatile Reporter reporter;

    @Override
    public DriverPlugin driverPlugin() {
      return null;
    }

    @Override
    public ExecutorPlugin executorPlugin() {
      Set<Integer> stages = new HashSet<>();
      return new ExecutorPlugin() {
        @Override
        public synchronized void onTaskStart() {
          Reporter listening = reporter;
          if (listening != null && stages.add(TaskContext.get().stageId())) {
            awaitReport(listening);
          }
        }
      };
    }

    /** A batch is reported when it has lasted its time; the third of these is in a later one. */
    private static void awaitReport(Reporter reporter) {
      try {
        SparkContext.getOrCreate().listenerBus().waitUntilEmpty();
        for (int i = 0; i < 3; i++) {
          CountDownLatch done = new CountDownLatch(1);
          reporter.put(state -> {
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(Reporter.BATCH_MS + 1));
            done.countDown();
          });
          assertTrue(done.await(1, TimeUnit.MINUTES));
        }
      } catch (InterruptedException | TimeoutException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  /** The ranges that were reported of each file, by its name; those of all tasks together. */
  static Map<String, List<Footers.Range>> reportedByName(Reported all) {
    Map<String, List<Footers.Range>> reported = new TreeMap<>();
    List<String> files = all.files();
    all.everySplit().flatMap(List::stream).forEach(part -> {
      String name = ReadRecord.name(files.get(part.file()));
      reported.computeIfAbsent(name, n -> new ArrayList<>()).add(new Footers.Range(part.offset(), part.length()));
    });
    reported.replaceAll((name, ranges) -> Footers.merged(ranges));
    return reported;
  }
}
