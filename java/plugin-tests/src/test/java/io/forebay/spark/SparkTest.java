package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import java.util.stream.Stream;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.lib.input.TextInputFormat;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.TaskLocation;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.storage.StorageLevel;
import org.junit.Before;
import org.junit.Test;

import io.forebay.core.JobUpdate;
import io.forebay.core.JobUpdate.Part;
import io.forebay.hadoop.ForebayConfig;
import io.forebay.hadoop.ForebayLocalFileSystem;
import scala.Tuple2;

/**
 * Real Spark, in this process: every way in which a stage reads files, and what is reported of it.
 */
public class SparkTest extends ListeningSpark {
  private static final int FILES = 4;
  private static final int LINES = 5000;

  private static final StageInput.Source SOURCE = new StageInput.Source(ALL, Map.of(), new Configuration(false));

  private String text;
  private Map<String, Long> sizes;

  @Before
  public void write() throws IOException {
    text = folder.newFolder("text").getPath();
    sizes = new TreeMap<>();
    for (int i = 0; i < FILES; i++) {
      StringBuilder content = new StringBuilder();
      for (int line = 0; line < LINES; line++) {
        content.append("word").append(line % 17).append(' ').append(line * (i + 1)).append('\n');
      }
      Path file = Path.of(text, "part-" + i);
      Files.write(file, content.toString().getBytes(StandardCharsets.UTF_8));
      sizes.put(file.getFileName().toString(), Files.size(file));
    }
  }

  private JavaRDD<String> words(JavaRDD<String> lines) {
    return lines.flatMap(line -> Arrays.asList(line.split(" ")).iterator());
  }

  /** Parts of each task cover the files, each byte once, in the order of the files and offsets. */
  private void assertCovers(Reported all) {
    assertEquals(sizes, all.bytesByName());
    Set<String> seen = new HashSet<>();
    List<String> files = all.files();
    all.everySplit().flatMap(List::stream).forEach(part -> assertTrue("twice: " + part, seen.add(files.get(part.file()) + part.offset())));
  }

  @Test
  public void wordCountReportsItsFirstStageAndEachTask() throws Exception {
    List<Tuple2<String, Integer>> counts =
        words(spark.textFile(text, 8)).mapToPair(word -> new Tuple2<>(word, 1)).reduceByKey(Integer::sum, 3).collect();
    assertFalse(counts.isEmpty());
    Reported all = heard();
    assertCovers(all);
    assertEquals(1, all.splits().size());
    int stage = all.splits().keySet().iterator().next();
    int tasks = all.splits().get(stage).size();
    assertTrue(tasks >= 8);
    assertEquals(tasks, all.all(JobUpdate.TaskStarted.class).size());
    assertEquals(tasks, all.all(JobUpdate.TaskEnded.class).stream().filter(JobUpdate.TaskEnded::ok).map(JobUpdate.TaskEnded::task).distinct().count());
    // The stage is reported before its first task.
    List<JobUpdate> order = all.all();
    int ready = order.indexOf(new JobUpdate.StageReady(stage));
    int first = order.indexOf(all.all(JobUpdate.TaskStarted.class).get(0));
    assertTrue(ready >= 0 && ready < first);
    assertEquals(1, all.all(JobUpdate.StageEnded.class).size());
  }

  @Test
  public void theNewInterfaceOfHadoop() throws Exception {
    JavaPairRDD<LongWritable, Text> lines =
        spark.newAPIHadoopFile(text, TextInputFormat.class, LongWritable.class, Text.class, spark.hadoopConfiguration());
    assertEquals(FILES * LINES, lines.count());
    assertCovers(heard());
  }

  @Test
  public void manyFilesOfOneTask() throws Exception {
    assertEquals(FILES, spark.wholeTextFiles(text, 1).count());
    Reported all = heard();
    assertCovers(all);
    assertTrue(all.everySplit().anyMatch(split -> split.size() > 1));
  }

  @Test
  public void aTaskOfACoalescedUnionReadsPartsOfBoth() throws Exception {
    JavaRDD<String> both = spark.textFile(text + "/part-0", 2).union(spark.textFile(text + "/part-1", 2)).coalesce(1);
    assertEquals(2 * LINES, both.count());
    Reported all = heard();
    List<List<Part>> splits = all.everySplit().toList();
    assertEquals(1, splits.size());
    assertEquals(sizes.get("part-0") + sizes.get("part-1"), splits.get(0).stream().mapToLong(Part::length).sum());
  }

  @Test
  public void sharedLineageIsFollowedOnce() throws Exception {
    JavaRDD<String> lines = spark.textFile(text + "/part-0", 2);
    // 2^24 ways to the same partition.
    for (int i = 0; i < 24; i++) {
      lines = lines.zipPartitions(lines, (a, b) -> a);
    }
    StageInput input = StageInput.of(lines.rdd(), new int[] {0, 1}, SOURCE);
    assertEquals((long) sizes.get("part-0"), input.splits.stream().flatMap(List::stream).mapToLong(Part::length).sum());
  }

  /** A file system whose blocks are on hosts, as seen by Spark; every 10,000 bytes on another. */
  public static final class OnHosts extends LocalFileSystem {
    private static final int BLOCK = 10_000;

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) {
      List<BlockLocation> blocks = new ArrayList<>();
      int salt = file.getPath().getName().hashCode();
      for (long at = start / BLOCK * BLOCK; at < Math.min(start + length, file.getLen()); at += BLOCK) {
        String[] host = {"h" + Math.floorMod(salt + at / BLOCK, 3)};
        blocks.add(new BlockLocation(host, host, at, Math.min(BLOCK, file.getLen() - at)));
      }
      return blocks.toArray(BlockLocation[]::new);
    }
  }

  @Test
  public void thePreferredNodeIsTheHostThatSparkPrefers() throws Exception {
    spark.hadoopConfiguration().set("fs.file.impl", OnHosts.class.getName());
    spark.hadoopConfiguration().set("fs.file.impl.disable.cache", "true");
    JavaRDD<String> lines = spark.textFile(text, 40);
    List<RDD<?>> rdds = List.of(lines.rdd(), words(lines).rdd(), lines.union(lines).coalesce(5).rdd(), lines.zipPartitions(lines, (a, b) -> a).rdd(),
        session.read().text(text).javaRDD().rdd());
    Set<String> seen = new HashSet<>();
    for (RDD<?> rdd : rdds) {
      int[] partitions = IntStream.range(0, rdd.partitions().length).toArray();
      List<String> preferred = new ArrayList<>();
      for (int partition : partitions) {
        Object locations = SparkContext.class.getMethod("getPreferredLocs", RDD.class, int.class).invoke(session.sparkContext(), rdd, partition);
        List<Object> all = Scala.list(locations);
        preferred.add(all.isEmpty() ? "" : ((TaskLocation) all.get(0)).host());
      }
      assertEquals(rdd.toString(), preferred, StageInput.of(rdd, partitions, SOURCE).preferredNodes);
      seen.addAll(preferred);
    }
    assertTrue(seen.toString(), seen.containsAll(Set.of("h0", "h1", "h2")));
    // And it is what is reported.
    lines.filter(line -> line.isEmpty()).count();
    Reported all = heard();
    List<String> preferredNodes = all.all(JobUpdate.Splits.class).stream().flatMap(some -> some.preferredNodes().stream()).toList();
    assertEquals(StageInput.of(lines.rdd(), IntStream.range(0, lines.getNumPartitions()).toArray(), SOURCE).preferredNodes, preferredNodes);
  }

  @Test
  public void whatIsCachedIsNotReported() throws Exception {
    JavaRDD<String> lines = spark.textFile(text, 8).persist(StorageLevel.MEMORY_ONLY());
    assertEquals(FILES * LINES, lines.count());
    assertCovers(heard());
    listen();
    assertEquals(FILES * LINES, lines.map(String::length).count());
    Reported second = heard();
    assertTrue(second.splits().isEmpty());
    assertTrue(second.all(JobUpdate.TaskStarted.class).isEmpty());
  }

  @Test
  public void ofAnRddThatIsCachedInPartTheRestIsReported() throws Exception {
    JavaRDD<String> lines = spark.textFile(text, 8).persist(StorageLevel.MEMORY_ONLY());
    lines.take(1);
    List<List<Part>> first = heard().everySplit().toList();
    assertEquals(1, first.size());
    listen();
    assertEquals(FILES * LINES, lines.count());
    List<List<Part>> rest = heard().everySplit().toList();
    assertEquals(List.of(), rest.get(0));
    assertTrue(rest.subList(1, rest.size()).stream().noneMatch(List::isEmpty));
    long bytes = Stream.of(first, rest).flatMap(List::stream).flatMap(List::stream).mapToLong(Part::length).sum();
    assertEquals(sizes.values().stream().mapToLong(Long::longValue).sum(), bytes);
  }

  /** To look up what a stage reads may take long, and the stage before it is about to begin. */
  @Test
  public void theFirstStageIsReportedBeforeTheNextIsLookedUp() throws Exception {
    heard();
    CountDownLatch firstReported = new CountDownLatch(1);
    AtomicReference<URI> first = new AtomicReference<>();
    AtomicBoolean isOnTime = new AtomicBoolean();
    listen(path -> {
      if (!first.compareAndSet(null, path) && !first.get().equals(path)) {
        try {
          isOnTime.set(firstReported.await(30, TimeUnit.SECONDS));
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
        }
      }
      return true;
    });
    Reported hears = reported;
    CompletableFuture<Long> joined = CompletableFuture.supplyAsync(() -> {
      JavaPairRDD<String, Integer> a = spark.textFile(text + "/part-0", 2).mapToPair(line -> new Tuple2<>(line, 1));
      JavaPairRDD<String, Integer> b = spark.textFile(text + "/part-1", 2).mapToPair(line -> new Tuple2<>(line, 1));
      return a.join(b, 2).count();
    });
    while (hears.all(JobUpdate.StageReady.class).isEmpty() && !joined.isDone()) {
      Thread.sleep(10);
    }
    assertEquals("one stage alone is reported", 1, hears.splits().size());
    assertEquals(Set.of(Path.of(first.get()).getFileName().toString()), hears.bytesByName().keySet());
    firstReported.countDown();
    assertTrue(joined.get(1, TimeUnit.MINUTES) > 0);
    Reported all = heard();
    assertTrue("the second stage waited for the report of the first", isOnTime.get());
    assertEquals(2, all.splits().size());
    List<Integer> order = all.all(JobUpdate.StageReady.class).stream().map(JobUpdate.StageReady::stage).toList();
    assertEquals(order.stream().sorted().toList(), order);
  }

  /** One task reads a file in parts of a byte; it is not run over them. */
  @Test
  public void aStageOfTooManyRangesRunsWithoutPrefetch() throws Exception {
    heard();
    Path file = Path.of(text, "bytes");
    Files.write(file, new byte[StageInput.PIECES_MAX + 10]);
    spark.hadoopConfiguration().set("fs.file.impl", OnHosts.class.getName());
    spark.hadoopConfiguration().set("fs.file.impl.disable.cache", "true");
    try (LogRecord log = new LogRecord()) {
      listen();
      JavaRDD<String> lines = spark.textFile(file.toString(), StageInput.PIECES_MAX + 10);
      assertEquals(1, lines.coalesce(1).mapPartitions(all -> List.of(1).iterator()).count());
      Reported all = heard();
      assertTrue(all.splits().isEmpty());
      assertEquals(1, log.with("runs without prefetch: it reads more than " + StageInput.PIECES_MAX + " ranges of files").size());
    }
  }

  @Test
  public void aJobOfSomePartitionsReportsThose() throws Exception {
    JavaRDD<String> lines = spark.textFile(text, 8);
    lines.take(LINES + 1);
    Reported all = heard();
    long bytes = all.bytesByName().values().stream().mapToLong(Long::longValue).sum();
    long total = sizes.values().stream().mapToLong(Long::longValue).sum();
    assertTrue(bytes + " of " + total, bytes > 0 && bytes < total);
    int tasks = (int) all.everySplit().count();
    assertEquals(tasks, all.all(JobUpdate.TaskEnded.class).size());
  }

  @Test
  public void aShuffleThatIsThereIsNotReadAgain() throws Exception {
    JavaPairRDD<String, Integer> counts = words(spark.textFile(text, 8)).mapToPair(word -> new Tuple2<>(word, 1)).reduceByKey(Integer::sum, 3);
    long n = counts.count();
    assertCovers(heard());
    listen();
    assertEquals(n, counts.count());
    assertTrue(heard().splits().isEmpty());
  }

  @Test
  public void frames() throws Exception {
    Dataset<Row> lines = session.read().text(text);
    assertEquals(FILES * LINES, lines.count());
    assertCovers(heard());
    String base = folder.getRoot().getPath();
    for (String format : List.of("csv", "json")) {
      String path = base + "/" + format;
      session.read().text(text).write().format(format).save(path);
      readBack(format, path);
    }
  }

  @Test
  public void framesOfDataSourcesV2() throws Exception {
    heard();
    session.conf().set("spark.sql.sources.useV1SourceList", "");
    Dataset<Row> frame = session.read().format("text").load(text);
    assertTrue("not a data source V2", frame.queryExecution().executedPlan().toString().contains("BatchScan"));
    readBack("text", text);
    columns("BatchScan");
  }

  @Test
  public void ofParquetTheChunksOfColumnsAreReported() throws Exception {
    heard();
    columns("FileScan");
  }

  /** A table of three columns in several row groups, sorted by the first. */
  private String table() {
    String path = folder.getRoot().getPath() + "/table";
    session.range(0, 60_000, 1, 2).selectExpr("id as Key", "rand(1) as a", "cast(id as string) as b").write()
        .option("parquet.block.size", "100000").option("parquet.page.size", "10000").parquet(path);
    return path;
  }

  /** What is reported of these columns is what the footers say, found here in another way. */
  private void columns(String scan) throws Exception {
    // In the row groups that are left, all pages are read.
    spark.hadoopConfiguration().setBoolean(ParquetPages.ENABLED, false);
    String path = table();
    long all = footers(path, Set.of("Key", "a", "b"), 0, Long.MAX_VALUE);
    Dataset<Row> one = session.read().parquet(path).select("a");
    assertTrue(one.queryExecution().executedPlan().toString().contains(scan));
    assertEquals("one column", footers(path, Set.of("a"), 0, Long.MAX_VALUE), reportedBytes(one));
    assertEquals("all columns", all, reportedBytes(session.read().parquet(path)));
    long some = reportedBytes(session.read().parquet(path).where("Key between 31000 and 33000").select("Key", "b"));
    assertEquals("a range of a sorted key", footers(path, Set.of("Key", "b"), 31_000, 33_000), some);
    assertTrue(some + " of " + all, some < all / 4);
    assertEquals("no column", footers(path, Set.of(), 0, Long.MAX_VALUE), reportedBytes(session.read().parquet(path).selectExpr("1")));
    // Such a file is not reported at all: its whole splits would be too much.
    Files.write(Path.of(path, "part-bad.parquet"), "no footer".getBytes(StandardCharsets.UTF_8));
    session.conf().set("spark.sql.files.ignoreCorruptFiles", "true");
    assertEquals("beside a file without footer", all, reportedBytes(session.read().schema("Key long, a double, b string").parquet(path)));
  }

  @Test
  public void ofOrcTheBytesAreReportedThatTasksRead() throws Exception {
    heard();
    reportedIsRead("orc", "FileScan");
  }

  @Test
  public void ofOrcInDataSourcesV2TheBytesAreReportedThatTasksRead() throws Exception {
    heard();
    session.conf().set("spark.sql.sources.useV1SourceList", "");
    reportedIsRead("orc", "BatchScan");
  }

  @Test
  public void ofParquetTheBytesAreReportedThatTasksRead() throws Exception {
    heard();
    reportedIsRead("parquet", "FileScan");
  }

  /**
   * For several queries, the reported bytes are those that the tasks then read. The table has files
   * of three schemas: one lacks a column, and one has another order and another type.
   */
  private void reportedIsRead(String format, String scan) throws Exception {
    String path = folder.getRoot().getPath() + "/" + format;
    String[] columns = {"id as Key", "rand(1) as a", "cast(id as string) as b", "named_struct('x', rand(3), 'y', cast(id * 7 as string)) as s",
        "array(named_struct('u', id, 'v', rand(2))) as l", "map('k', id) as m"};
    write(format, session.range(0, 40_000, 1, 2).selectExpr(columns), path);
    write(format, session.range(40_000, 45_000, 1, 1).selectExpr("id as Key", "cast(id as string) as b"), path);
    // Spark 3.5 refuses another type in Parquet.
    String key = format.equals("orc") ? "cast(id as int) as Key" : "id as Key";
    write(format, session.range(45_000, 50_000, 1, 1).selectExpr("cast(id as string) as b", "rand(1) as a", key), path);
    spark.hadoopConfiguration().set("fs.file.impl", ReadRecord.class.getName());
    spark.hadoopConfiguration().set("fs.file.impl.disable.cache", "true");
    String schema = "Key bigint, a double, b string, s struct<x: double, y: string>, l array<struct<u: bigint, v: double>>, m map<string, bigint>";
    Dataset<Row> table = session.read().schema(schema).format(format).load(path);
    assertTrue(table.queryExecution().executedPlan().toString().contains(scan));
    Map<String, Dataset<Row>> queries = new TreeMap<>(Map.of("one column", table.select("a"), "all columns", table, "no column", table.selectExpr("1"),
        "a field", table.select("s.x"), "a field in an array", table.selectExpr("l.v"), "a map", table.selectExpr("m['k']"),
        "nothing of a sorted key", table.where("Key < -5").select("b")));
    queries.put("a range of a sorted key", table.where("Key between 21000 and 22000").select("b"));
    queries.put("keys of a list", table.where("Key in (5, 21000)").select("b"));
    queries.put("two columns that are filtered", table.where("Key between 21000 and 25000 and b < '22'").select("a"));
    Map<String, Long> bytes = new TreeMap<>();
    for (Map.Entry<String, Dataset<Row>> query : queries.entrySet()) {
      ReadRecord.clear();
      listen();
      query.getValue().collectAsList();
      Map<String, List<Footers.Range>> reported = reportedByName(heard());
      assertEquals(query.getKey(), ReadRecord.byName(), reported);
      bytes.put(query.getKey(), reported.values().stream().flatMap(List::stream).mapToLong(Footers.Range::length).sum());
    }
    assertTrue(bytes.toString(), bytes.get("one column") < bytes.get("all columns") / 2);
    assertTrue(bytes.toString(), bytes.get("a field") < bytes.get("all columns") / 2);
    assertTrue(bytes.toString(), bytes.get("no column") < bytes.get("one column") / 2);
  }

  /** Several row groups or stripes a file. */
  private static void write(String format, Dataset<Row> rows, String path) {
    rows.write().option("parquet.block.size", "100000").option("parquet.page.size", "10000").option("orc.stripe.row.count", "5000")
        .option("orc.row.index.stride", "1000").mode("append").format(format).save(path);
  }

  /** The query is planned; then a file of the table is a shorter one with its columns elsewhere. */
  @Test
  public void aFileThatIsReplacedAfterPlanningIsReportedAsItIsThen() throws Exception {
    heard();
    String path = folder.getRoot().getPath() + "/replaced-";
    for (String format : List.of("parquet", "orc")) {
      write(format, session.range(0, 60_000, 1, 2).selectExpr("id as Key", "rand(1) as a", "cast(id as string) as b"), path + format);
      isReportedAsReplaced(format, path + format);
    }
  }

  private void isReportedAsReplaced(String format, String path) throws Exception {
    Dataset<Row> query = session.read().format(format).load(path).select("Key", "b");
    assertEquals(60_000, query.count());
    Path replaced;
    try (var files = Files.list(Path.of(path))) {
      replaced = files.filter(f -> f.getFileName().toString().endsWith("." + format)).sorted().findFirst().orElseThrow();
    }
    long before = Files.size(replaced);
    String other = folder.getRoot().getPath() + "/other-" + format;
    session.range(100_000, 100_500, 1, 1).selectExpr("cast(id as string) as b", "id as Key").write().format(format).save(other);
    try (var files = Files.list(Path.of(other))) {
      Path file = files.filter(f -> f.getFileName().toString().endsWith("." + format)).findFirst().orElseThrow();
      Files.move(file, replaced, java.nio.file.StandardCopyOption.REPLACE_EXISTING);
    }
    // Hadoop's sums are those of the file before.
    Files.deleteIfExists(replaced.resolveSibling("." + replaced.getFileName() + ".crc"));
    assertTrue(Files.size(replaced) < before);
    listen();
    List<Row> rows = query.collectAsList();
    assertEquals(500, rows.stream().filter(row -> row.getLong(0) >= 100_000).count());
    assertTrue(rows.size() + " rows", rows.size() > 500 && rows.size() < 60_000);
    Reported all = heard();
    List<String> files = all.files();
    int number = files.indexOf(replaced.toString());
    List<Part> parts = all.everySplit().flatMap(List::stream).filter(part -> part.file() == number).toList();
    assertTrue("it is reported", !parts.isEmpty());
    assertTrue(parts.toString(), parts.stream().allMatch(part -> part.offset() + part.length() <= sizeOf(replaced)));
  }

  private static long sizeOf(Path file) {
    try {
      return Files.size(file);
    } catch (IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  /**
   * Bytes that are reported of a query. Each split of a file has the footer; here it counts once.
   */
  private long reportedBytes(Dataset<Row> query) throws Exception {
    listen();
    query.collectAsList();
    Reported all = heard();
    Set<String> seen = new HashSet<>();
    List<String> files = all.files();
    return all.everySplit().flatMap(List::stream).filter(part -> seen.add(files.get(part.file()) + " " + part.offset())).mapToLong(Part::length).sum();
  }

  private static long footers(String path, Set<String> columns, long low, long high) throws IOException {
    long bytes = 0;
    try (var files = Files.list(Path.of(path))) {
      for (Path file : files.filter(f -> f.getFileName().toString().endsWith(".parquet")).toList()) {
        byte[] content = Files.readAllBytes(file);
        if (content.length < 100) {
          continue;
        }
        bytes += 8 + java.nio.ByteBuffer.wrap(content, content.length - 8, 4).order(java.nio.ByteOrder.LITTLE_ENDIAN).getInt();
        var input = HadoopInputFile.fromPath(new org.apache.hadoop.fs.Path(file.toUri()), new Configuration(false));
        try (ParquetFileReader reader = ParquetFileReader.open(input)) {
          for (BlockMetaData block : reader.getFooter().getBlocks()) {
            var key = block.getColumns().get(0).getStatistics();
            if ((Long) key.genericGetMax() >= low && (Long) key.genericGetMin() <= high) {
              bytes += block.getColumns().stream().filter(c -> columns.contains(c.getPath().toDotString())).mapToLong(ColumnChunkMetaData::getTotalSize).sum();
            }
          }
        }
      }
    }
    return bytes;
  }

  private void readBack(String format, String path) throws Exception {
    Map<String, Long> expected = new TreeMap<>();
    try (var files = Files.list(Path.of(path))) {
      for (Path file : files.filter(f -> f.getFileName().toString().startsWith("part-")).toList()) {
        expected.put(file.getFileName().toString(), Files.size(file));
      }
    }
    listen();
    // The lines themselves, so that the columns are read.
    assertEquals(format, FILES * LINES, session.read().format(format).load(path).collectAsList().size());
    // Some formats have a job before, which looks at the first lines.
    assertEquals(format, expected, heard().bytesByNameOfLastStage());
  }

  @Test
  public void adaptiveJoinsReportBothSides() throws Exception {
    session.conf().set("spark.sql.autoBroadcastJoinThreshold", "-1");
    Dataset<Row> a = session.read().text(text + "/part-0");
    Dataset<Row> b = session.read().text(text + "/part-1");
    assertTrue(a.join(b, a.col("value").equalTo(b.col("value"))).count() > 0);
    Map<String, Long> bytes = heard().bytesByName();
    assertEquals(Map.of("part-0", sizes.get("part-0"), "part-1", sizes.get("part-1")), bytes);
  }

  @Test
  public void jobsAtOnceAreDistinguished() throws Exception {
    List<Thread> threads = new ArrayList<>();
    for (int i = 0; i < FILES; i++) {
      String file = text + "/part-" + i;
      threads.add(new Thread(() -> assertEquals(LINES, spark.textFile(file, 3).count())));
    }
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    Reported all = heard();
    assertCovers(all);
    assertEquals(FILES, all.splits().size());
    assertEquals(FILES, all.all(JobUpdate.StageEnded.class).size());
  }

  @Test
  public void otherFileSystemsAreNotOurs() throws Exception {
    Predicate<URI> ours = FileScheme.ours(new Configuration(false), true);
    List<String> paths = new ArrayList<>();
    for (String path : List.of("hdfs://nn/pfs/a", "forebay:/pfs/a b%20c")) {
      new InputRanges(ours).of(new org.apache.spark.rdd.HadoopPartition(0, 0,
          new org.apache.hadoop.mapred.FileSplit(new org.apache.hadoop.fs.Path(path), 0, 5, new String[0])), (p, o, l, own) -> paths.add(p.toUri().getPath()));
    }
    assertEquals(List.of("/pfs/a b%20c"), paths);
  }

  /** What is fetched for files that are read past Forebay would be fetched for nobody. */
  @Test
  public void filesThatAreNotReadThroughForebayAreNotReported() throws Exception {
    heard();
    Configuration conf = new Configuration(false);
    listen(FileScheme.ours(conf, true));
    assertEquals(LINES, spark.textFile(text + "/part-0", 2).count());
    assertEquals(LINES, session.read().text(text + "/part-1").count());
    Reported all = heard();
    assertTrue(all.splits().isEmpty());
    assertTrue(all.all(JobUpdate.TaskStarted.class).isEmpty());
  }

  @Test
  public void filesBelowTheRootsAreReported() throws Exception {
    heard();
    Configuration conf = new Configuration(false);
    conf.set("fs.file.impl", ForebayLocalFileSystem.class.getName());
    conf.set(ForebayConfig.ROOTS, text + "/part-1");
    listen(FileScheme.ours(conf, true));
    assertEquals(2 * LINES, spark.textFile(text + "/part-0," + text + "/part-1", 2).count());
    assertEquals(Map.of("part-1", sizes.get("part-1")), heard().bytesByName());
  }

  /** They are still in the queue when the scheduler has gone. */
  @Test
  public void eventsAfterTheEndOfTheApplicationDoNoHarm() throws Exception {
    CompletableFuture<SparkListenerJobStart> job = new CompletableFuture<>();
    CompletableFuture<SparkListenerStageSubmitted> stage = new CompletableFuture<>();
    session.sparkContext().addSparkListener(new SparkListener() {
      @Override
      public void onJobStart(SparkListenerJobStart event) {
        job.complete(event);
      }

      @Override
      public void onStageSubmitted(SparkListenerStageSubmitted event) {
        stage.complete(event);
      }
    });
    assertEquals(FILES * LINES, spark.textFile(text, 8).count());
    heard();
    SparkContext context = session.sparkContext();
    session.stop();
    JobListener listener = new JobListener(context, reporter, ALL);
    listener.onJobStart(job.get(30, TimeUnit.SECONDS));
    listener.onStageSubmitted(stage.get(30, TimeUnit.SECONDS));
  }

  @Test
  public void aJobThatRunsIsSeenRunning() throws Exception {
    heard();
    JobState state = new JobState(1);
    StageInput input = StageInput.of(List.of("/pfs/a"), List.of(List.of(new Part(0, 0, 1))), List.of(""));
    CompletableFuture<SparkListenerJobStart> started = new CompletableFuture<>();
    session.sparkContext().addSparkListener(new SparkListener() {
      @Override
      public void onJobStart(SparkListenerJobStart event) {
        started.complete(event);
      }
    });
    // Ends when the file is there.
    String gate = folder.getRoot().getPath() + "/gate";
    Thread thread = new Thread(() -> spark.parallelize(List.of(1), 1).filter(x -> waited(gate)).count());
    thread.setDaemon(true);
    thread.start();
    int job = started.get(30, TimeUnit.SECONDS).jobId();
    session.sparkContext().listenerBus().waitUntilEmpty();
    state.jobStarted(job, List.of(7));
    state.stageReads(7, input);
    state.take();
    JobListener.look(session.sparkContext(), state);
    JobListener.look(session.sparkContext(), state);
    assertTrue("it runs", state.take().isEmpty());
    Files.createFile(Path.of(gate));
    thread.join();
    session.sparkContext().listenerBus().waitUntilEmpty();
    JobListener.look(session.sparkContext(), state);
    assertEquals(List.of(new JobUpdate.StageEnded(7)), state.take());
  }

  private static boolean waited(String gate) throws InterruptedException {
    while (!Files.exists(Path.of(gate))) {
      Thread.sleep(10);
    }
    return true;
  }

  @Test
  public void theExecutorIsASlot() throws Exception {
    spark.parallelize(List.of(1, 2, 3)).count();
    Reported all = heard();
    assertTrue(all.splits().isEmpty());
  }
}
