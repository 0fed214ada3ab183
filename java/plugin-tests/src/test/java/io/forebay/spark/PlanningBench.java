package io.forebay.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroupFactory;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SparkSession;

import io.forebay.core.ForebayClient;
import io.forebay.core.JobUpdate;
import io.forebay.hadoop.ForebayConfig;
import io.forebay.hadoop.ForebayLocalFileSystem;

/**
 * Time and memory of the driver to report a scan of many Parquet files, from the RDD of the stage
 * to the agent's answer; beside it, the time to read the same footers without Forebay, in as many
 * threads. {@code java/planning-bench.py} runs it. Of each two rounds, the first begins with
 * nothing of the table in the tier.
 *
 * <p>Usage: {@code PlanningBench DIRECTORY SOCKET FILES GROUPS COLUMNS ROUNDS}. The directory gets
 * the table if it is empty.
 */
public final class PlanningBench {
  private static final int THREADS = 8;
  private static final int ROWS_PER_GROUP = 1000;

  private PlanningBench() {}

  public static void main(String[] args) throws Exception {
    Path directory = Path.of(args[0]);
    int files = Integer.parseInt(args[2]);
    int columns = Integer.parseInt(args[4]);
    make(directory, files, Integer.parseInt(args[3]), columns);
    SparkSession session = SparkSession.builder().master("local[2]").appName("planning").config("spark.ui.enabled", "false")
        .config("spark.driver.host", "localhost").config("spark.hadoop.fs.file.impl", ForebayLocalFileSystem.class.getName())
        .config("spark.hadoop." + ForebayConfig.SOCKET, args[1]).getOrCreate();
    try {
      measure(session, directory, columns, Integer.parseInt(args[5]));
    } finally {
      session.stop();
    }
  }

  private static void measure(SparkSession session, Path directory, int columns, int rounds) throws Exception {
    String schema = String.join(", ", IntStream.range(0, columns).mapToObj(i -> "c" + i + " bigint").toList());
    RDD<?> rdd = session.read().schema(schema).parquet("file://" + directory).select("c0", "c1").javaRDD().rdd();
    int[] partitions = IntStream.range(0, rdd.partitions().length).toArray();
    Configuration hadoop = session.sparkContext().hadoopConfiguration();
    if (!(path(directory).getFileSystem(hadoop) instanceof ForebayLocalFileSystem)) {
      throw new IllegalStateException("footers would be read without Forebay");
    }
    StageInput.Source source = new StageInput.Source(path -> true, Map.of(), hadoop);
    AgentConnector connector = new AgentConnector(new ForebayConfig(hadoop).client(), "no-action");
    List<Path> files;
    try (var there = Files.list(directory)) {
      files = there.toList();
    }
    Times plainMs = new Times();
    Times readMs = new Times();
    Times reportedMs = new Times();
    List<StageInput> kept = new ArrayList<>();
    try (ForebayClient client = new ForebayClient(new ForebayConfig(hadoop).client())) {
      for (int round = 0; round < 2 * rounds; round++) {
        if (round % 2 == 0) {
          for (Path file : files) {
            client.evict(file.toString());
          }
        }
        long beganNs = System.nanoTime();
        footers(directory);
        plainMs.add(msSince(beganNs));
        JobState state = new JobState(1);
        try (Reporter.Connection agent = connector.begin("planning-" + round)) {
          beganNs = System.nanoTime();
          StageInput input = StageInput.of(rdd, partitions, source);
          readMs.add(msSince(beganNs));
          state.stageReads(0, input);
          agent.report(state.take());
          reportedMs.add(msSince(beganNs));
          agent.report(List.of(new JobUpdate.StageEnded(0)));
          kept.add(input);
        }
      }
    }
    System.out.printf("{\"files\": %d, \"tasks\": %d, \"parts\": %d, \"plain_ms\": %s, \"looked_up_ms\": %s, \"reported_ms\": %s, \"kept_bytes\": %d}%n",
        kept.get(0).files.size(), partitions.length, kept.get(0).splits.parts(), plainMs, readMs, reportedMs, keptBytes(kept));
  }

  /** Times of rounds, of which every other one begins with nothing in the tier. */
  private static final class Times {
    private final List<Double> all = new ArrayList<>();

    void add(double ms) {
      all.add(ms);
    }

    /**
     * The first round, in which classes are loaded and compiled as well, and the medians of the
     * later ones with nothing in the tier, and with everything.
     */
    @Override
    public String toString() {
      return String.format(Locale.ROOT, "[%.0f, %.0f, %.0f]", all.get(0), median(0), median(1));
    }

    private double median(int first) {
      double[] some = IntStream.range(1, all.size()).filter(round -> round % 2 == first).mapToDouble(all::get).sorted().toArray();
      return some[some.length / 2];
    }
  }

  private static double msSince(long beganNs) {
    return (System.nanoTime() - beganNs) / (double) TimeUnit.MILLISECONDS.toNanos(1);
  }

  /** The heap that one of these takes, by letting go of all of them. */
  private static long keptBytes(List<StageInput> kept) {
    long before = usedBytes();
    int count = kept.size();
    kept.clear();
    return (before - usedBytes()) / count;
  }

  private static long usedBytes() {
    for (int i = 0; i < 3; i++) {
      System.gc();
    }
    return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
  }

  /** Reads all footers as a program without Forebay would, from the same directory. */
  private static void footers(Path directory) throws Exception {
    Configuration plain = plain();
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    try (var files = Files.list(directory)) {
      List<Callable<Integer>> reads = files.map(file -> (Callable<Integer>) () -> {
        try (ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(new org.apache.hadoop.fs.Path(file.toUri()), plain))) {
          return reader.getFooter().getBlocks().size();
        }
      }).toList();
      for (Future<Integer> read : pool.invokeAll(reads)) {
        read.get();
      }
    } finally {
      pool.shutdown();
    }
  }

  /** Many files of one content: a row group, so many times. */
  @SuppressWarnings("deprecation") // What replaces these constructors and methods is not in the oldest version.
  private static void make(Path directory, int files, int groups, int columns) throws IOException {
    Files.createDirectories(directory);
    try (var there = Files.list(directory)) {
      if (there.findAny().isPresent()) {
        return;
      }
    }
    MessageType schema =
        MessageTypeParser.parseMessageType("message t { " + String.join(" ", IntStream.range(0, columns).mapToObj(i -> "required int64 c" + i + ";").toList()) + " }");
    Path one = Files.createTempDirectory("planning").resolve("one.parquet");
    Path many = one.resolveSibling("many.parquet");
    SimpleGroupFactory rows = new SimpleGroupFactory(schema);
    Configuration plain = plain();
    try (ParquetWriter<Group> writer = ExampleParquetWriter.builder(HadoopOutputFile.fromPath(path(one), plain)).withConf(plain).withType(schema).build()) {
      for (int row = 0; row < ROWS_PER_GROUP; row++) {
        Group group = rows.newGroup();
        for (int column = 0; column < columns; column++) {
          group.add("c" + column, (row + column) * 0x9e3779b97f4a7c15L);
        }
        writer.write(group);
      }
    }
    ParquetFileWriter writer = new ParquetFileWriter(HadoopOutputFile.fromPath(path(many), plain), schema, ParquetFileWriter.Mode.CREATE, ParquetWriter.DEFAULT_BLOCK_SIZE, 0);
    writer.start();
    for (int group = 0; group < groups; group++) {
      writer.appendFile(HadoopInputFile.fromPath(path(one), plain));
    }
    writer.end(Map.of());
    for (int file = 0; file < files; file++) {
      Files.copy(many, directory.resolve(String.format("part-%05d.parquet", file)));
    }
  }

  /**
   * By which files are read and written without Forebay. Its file systems stay out of Hadoop's
   * cache, where the driver's would be found instead of Forebay's.
   */
  private static Configuration plain() {
    Configuration plain = new Configuration(false);
    plain.set("fs.file.impl", org.apache.hadoop.fs.RawLocalFileSystem.class.getName());
    plain.set("fs.file.impl.disable.cache", "true");
    return plain;
  }

  private static org.apache.hadoop.fs.Path path(Path path) {
    return new org.apache.hadoop.fs.Path(path.toUri());
  }
}
