package io.forebay.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayClient;
import io.forebay.mapreduce.TierMapOutputCollector;
import io.forebay.mapreduce.TierShuffle;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.examples.SecondarySort;
import org.apache.hadoop.examples.WordCount;
import org.apache.hadoop.examples.terasort.TeraGen;
import org.apache.hadoop.examples.terasort.TeraSort;
import org.apache.hadoop.examples.terasort.TeraValidate;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.TaskCounter;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import org.junit.After;
import org.junit.Before;
import org.junit.BeforeClass;
import org.junit.Test;

/**
 * MapReduce's shuffle through the tier, by jobs that run in this JVM: the same bytes and counters
 * as of Hadoop's own. What needs containers is in java/mapreduce.
 */
public class MapReduceTest {
  private static final long PATIENCE_MS = 60_000;

  /** Counters that do not depend on where outputs are. */
  private static final List<TaskCounter> SAME = List.of(TaskCounter.MAP_INPUT_RECORDS, TaskCounter.MAP_OUTPUT_RECORDS,
      TaskCounter.MAP_OUTPUT_BYTES, TaskCounter.MAP_OUTPUT_MATERIALIZED_BYTES, TaskCounter.COMBINE_INPUT_RECORDS, TaskCounter.COMBINE_OUTPUT_RECORDS,
      TaskCounter.REDUCE_INPUT_GROUPS, TaskCounter.REDUCE_INPUT_RECORDS, TaskCounter.REDUCE_OUTPUT_RECORDS, TaskCounter.SHUFFLED_MAPS,
      TaskCounter.MERGED_MAP_OUTPUTS, TaskCounter.REDUCE_SHUFFLE_BYTES, TaskCounter.FAILED_SHUFFLE);

  private static TestAgent agent;
  private Path place;
  private int jobs;

  @BeforeClass
  public static void start() {
    agent = TestAgent.shared();
  }

  @Before
  public void makePlace() throws IOException {
    place = Files.createTempDirectory("forebay-mapreduce-").toRealPath();
  }

  @After
  public void removePlace() throws IOException {
    org.apache.hadoop.fs.FileUtil.fullyDelete(place.toFile());
  }

  private interface Setup {
    void of(Job job) throws IOException;
  }

  private Configuration conf(boolean isInTier, Map<String, String> settings) {
    Configuration conf = agent.configuration();
    conf.set("mapreduce.framework.name", "local");
    conf.set("hadoop.tmp.dir", place.resolve("tmp").toString());
    conf.set("mapreduce.local.map.tasks.maximum", "3");
    conf.set("mapreduce.local.reduce.tasks.maximum", "2");
    conf.set("mapreduce.task.io.sort.mb", "16");
    conf.set("mapreduce.terasort.simplepartitioner", "true");
    settings.forEach(conf::set);
    if (isInTier) {
      conf.set("mapreduce.job.map.output.collector.class", TierMapOutputCollector.class.getName());
      conf.set("mapreduce.job.reduce.shuffle.consumer.plugin.class", TierShuffle.class.getName());
    }
    return conf;
  }

  private static long number(String name) throws IOException {
    try (ForebayClient client = new ForebayClient(new ClientOptions(agent.socket(), -1, -1, -1, false))) {
      return client.counters().get(name);
    }
  }

  private static long files() throws IOException, InterruptedException {
    Process status = new ProcessBuilder(TestAgent.program(), "status", "--json", "--socket", agent.socket()).start();
    String said = new String(status.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
    return Long.parseLong(said.replaceAll("(?s).*\"scratch_files\":\\s*(\\d+).*", "$1"));
  }

  private static void awaitNothingLeft() throws Exception {
    long end = System.currentTimeMillis() + PATIENCE_MS;
    while (files() > 0) {
      assertTrue("map outputs are left", System.currentTimeMillis() < end);
      Thread.sleep(50);
    }
  }

  /** All parts of an output. */
  private static Map<String, String> content(Path directory) throws IOException {
    Map<String, String> parts = new TreeMap<>();
    try (Stream<Path> files = Files.list(directory)) {
      for (Path file : files.filter(file -> file.getFileName().toString().startsWith("part-")).toList()) {
        parts.put(file.getFileName().toString(), new String(Files.readAllBytes(file), java.nio.charset.StandardCharsets.ISO_8859_1));
      }
    }
    assertTrue("a job without output proves nothing", parts.values().stream().anyMatch(part -> !part.isEmpty()));
    return parts;
  }

  private record Done(Map<String, String> content, Map<TaskCounter, Long> counters) {}

  private Done run(boolean isInTier, Map<String, String> settings, Path input, Setup setup) throws Exception {
    Job job = Job.getInstance(conf(isInTier, settings));
    Path output = place.resolve("output-" + jobs++);
    FileInputFormat.addInputPath(job, new org.apache.hadoop.fs.Path(input.toUri()));
    FileOutputFormat.setOutputPath(job, new org.apache.hadoop.fs.Path(output.toUri()));
    setup.of(job);
    assertTrue(job.waitForCompletion(false));
    Map<TaskCounter, Long> counters = new LinkedHashMap<>();
    for (TaskCounter counter : TaskCounter.values()) {
      counters.put(counter, job.getCounters().findCounter(counter).getValue());
    }
    return new Done(content(output), counters);
  }

  /** Both ways; the one through the tier. */
  private Done same(Map<String, String> settings, Path input, Setup setup) throws Exception {
    long before = number("shuffle_blocks_total");
    Done own = run(false, settings, input, setup);
    assertEquals("blocks of Hadoop's own shuffle", before, number("shuffle_blocks_total"));
    Done tier = run(true, settings, input, setup);
    assertNotEquals("blocks in the tier", before, number("shuffle_blocks_total"));
    assertEquals(own.content, tier.content);
    own.counters.keySet().retainAll(SAME);
    Map<TaskCounter, Long> counters = new LinkedHashMap<>(tier.counters);
    counters.keySet().retainAll(SAME);
    if (own.counters.get(TaskCounter.COMBINE_INPUT_RECORDS) > 0 && settings.containsKey("mapreduce.task.io.sort.mb")) {
      // Combined as often as there were spills, and what was written is as large.
      List<TaskCounter> bySpills = List.of(TaskCounter.COMBINE_INPUT_RECORDS, TaskCounter.COMBINE_OUTPUT_RECORDS);
      counters.keySet().removeAll(bySpills);
      own.counters.keySet().removeAll(bySpills);
    }
    assertEquals(own.counters, counters);
    awaitNothingLeft();
    return tier;
  }

  private Path text(int files, int lines, int words) throws IOException {
    Path input = Files.createDirectory(place.resolve("text-" + jobs++));
    Random dice = new Random(words);
    for (int file = 0; file < files; file++) {
      StringBuilder text = new StringBuilder();
      for (int line = 0; line < lines; line++) {
        text.append("word").append(dice.nextInt(words)).append(" and ").append(Long.toString(dice.nextLong(), 36)).append('\n');
      }
      Files.writeString(input.resolve("file-" + file), text);
    }
    return input;
  }

  private static void wordCount(Job job) {
    job.setMapperClass(WordCount.TokenizerMapper.class);
    job.setCombinerClass(WordCount.IntSumReducer.class);
    job.setReducerClass(WordCount.IntSumReducer.class);
    job.setNumReduceTasks(3);
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(IntWritable.class);
  }

  @Test
  public void wordCountIsThatOfHadoopsOwnShuffle() throws Exception {
    Path input = text(4, 5_000, 700);
    same(Map.of(), input, MapReduceTest::wordCount);
    same(Map.of("mapreduce.map.output.compress", "true"), input, MapReduceTest::wordCount);
    same(Map.of("mapreduce.map.output.compress", "true", "mapreduce.map.output.compress.codec", "org.apache.hadoop.io.compress.BZip2Codec"), input,
        MapReduceTest::wordCount);
  }

  @Test
  public void outputsThatDoNotFitTheSortBufferSpillToTheTier() throws Exception {
    Path input = text(2, 120_000, 100_000);
    Done tier = same(Map.of("mapreduce.task.io.sort.mb", "1", "mapreduce.map.output.compress", "true"), input, MapReduceTest::wordCount);
    assertTrue("spilled", tier.counters.get(TaskCounter.SPILLED_RECORDS) > tier.counters.get(TaskCounter.REDUCE_INPUT_RECORDS));
    same(Map.of("mapreduce.task.io.sort.mb", "1"), input, job -> {
      wordCount(job);
      job.setCombinerClass(Reducer.class);
    });
  }

  @Test
  public void secondarySortIsThatOfHadoopsOwnShuffle() throws Exception {
    Path input = Files.createDirectory(place.resolve("pairs"));
    Random dice = new Random(5);
    for (int file = 0; file < 3; file++) {
      StringBuilder text = new StringBuilder();
      for (int line = 0; line < 4_000; line++) {
        text.append(dice.nextInt(60) - 30).append(' ').append(dice.nextInt()).append('\n');
      }
      Files.writeString(input.resolve("file-" + file), text);
    }
    same(Map.of(), input, job -> {
      job.setMapperClass(SecondarySort.MapClass.class);
      job.setReducerClass(SecondarySort.Reduce.class);
      job.setPartitionerClass(SecondarySort.FirstPartitioner.class);
      job.setGroupingComparatorClass(SecondarySort.FirstGroupingComparator.class);
      job.setNumReduceTasks(3);
      job.setMapOutputKeyClass(SecondarySort.IntPair.class);
      job.setMapOutputValueClass(IntWritable.class);
      job.setOutputKeyClass(Text.class);
      job.setOutputValueClass(IntWritable.class);
    });
  }

  private void tool(boolean isInTier, Map<String, String> settings, Tool tool, Object... arguments) throws Exception {
    String[] words = Stream.of(arguments).map(String::valueOf).toArray(String[]::new);
    assertEquals(0, ToolRunner.run(conf(isInTier, settings), tool, words));
  }

  @Test
  public void teraSortIsThatOfHadoopsOwnShuffleAndValid() throws Exception {
    Map<String, String> settings = Map.of("mapreduce.job.maps", "4", "mapreduce.job.reduces", "3", "mapreduce.task.io.sort.mb", "1");
    Path rows = place.resolve("rows");
    tool(false, settings, new TeraGen(), 60_000, rows.toUri());
    tool(false, settings, new TeraSort(), rows.toUri(), place.resolve("own").toUri());
    tool(true, settings, new TeraSort(), rows.toUri(), place.resolve("tier").toUri());
    assertEquals(content(place.resolve("own")), content(place.resolve("tier")));
    tool(true, settings, new TeraValidate(), place.resolve("tier").toUri(), place.resolve("report").toUri());
    String report = String.join("", content(place.resolve("report")).values());
    assertTrue(report, report.matches("checksum\\s+\\w+\\s*"));
    awaitNothingLeft();
  }

  /** Two of three records have the same key, and values that take some windows. */
  public static final class Skewed extends Mapper<LongWritable, Text, Text, Text> {
    @Override
    protected void map(LongWritable offset, Text line, Context context) throws IOException, InterruptedException {
      long number = offset.get();
      Text value = new Text(line.toString().repeat((int) (number % 23)));
      context.write(number % 3 == 0 ? new Text("key " + number % 101) : new Text("hot"), value);
    }
  }

  /** A digest that does not depend on the order of values. */
  public static final class Sums extends Reducer<Text, Text, Text, Text> {
    @Override
    protected void reduce(Text key, Iterable<Text> values, Context context) throws IOException, InterruptedException {
      long sum = 0;
      long count = 0;
      for (Text value : values) {
        sum += value.toString().hashCode() * 31L + value.getLength();
        count++;
      }
      context.write(key, new Text(count + " " + sum));
    }
  }

  private static void skewed(Job job) {
    job.setMapperClass(Skewed.class);
    job.setReducerClass(Sums.class);
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(Text.class);
    job.setNumReduceTasks(4);
  }

  @Test
  public void aSkewedKeyIsReadInManyWindows() throws Exception {
    Path input = text(3, 20_000, 10);
    same(Map.of(), input, MapReduceTest::skewed);
    // Values of one key have no order, and compress by it.
    Map<String, String> compressed = Map.of("mapreduce.map.output.compress", "true");
    assertEquals(run(false, compressed, input, MapReduceTest::skewed).content, run(true, compressed, input, MapReduceTest::skewed).content);
  }

  @Test
  public void manyTinyBlocksAreRight() throws Exception {
    Path input = text(90, 12, 1000);
    same(Map.of(), input, job -> {
      wordCount(job);
      job.setNumReduceTasks(40);
    });
  }

  /** One record of 9 MB. */
  public static final class Large extends Mapper<LongWritable, Text, Text, Text> {
    @Override
    protected void map(LongWritable offset, Text line, Context context) throws IOException, InterruptedException {
      context.write(new Text(line), new Text(offset.get() == 0 ? line.toString().repeat(300_000) : "small"));
      context.write(new Text(), new Text());
    }
  }

  @Test
  public void aRecordMayBeLargerThanTheSortBuffer() throws Exception {
    Path input = text(2, 20, 10);
    Setup setup = job -> {
      skewed(job);
      job.setMapperClass(Large.class);
    };
    // Hadoop counts the bytes of such records otherwise.
    Map<String, String> settings = Map.of("mapreduce.task.io.sort.mb", "1");
    assertEquals(run(false, settings, input, setup).content, run(true, settings, input, setup).content);
    awaitNothingLeft();
  }

  /** Of keys and values without a byte. */
  public static final class Nothing extends Mapper<LongWritable, Text, NullWritable, NullWritable> {
    @Override
    protected void map(LongWritable offset, Text line, Context context) throws IOException, InterruptedException {
      context.write(NullWritable.get(), NullWritable.get());
    }
  }

  /** Counts them. */
  public static final class Count extends Reducer<NullWritable, NullWritable, NullWritable, LongWritable> {
    @Override
    protected void reduce(NullWritable key, Iterable<NullWritable> values, Context context) throws IOException, InterruptedException {
      long count = 0;
      for (NullWritable value : values) {
        count++;
      }
      context.write(key, new LongWritable(count));
    }
  }

  @Test
  public void recordsMayBeEmpty() throws Exception {
    same(Map.of(), text(2, 50, 10), job -> {
      job.setMapperClass(Nothing.class);
      job.setReducerClass(Count.class);
      job.setMapOutputKeyClass(NullWritable.class);
      job.setMapOutputValueClass(NullWritable.class);
      job.setOutputKeyClass(NullWritable.class);
      job.setOutputValueClass(LongWritable.class);
    });
  }

  @Test
  public void withoutAnAgentTheShuffleIsHadoopsOwn() throws Exception {
    Path input = text(2, 200, 50);
    long before = number("shuffle_blocks_total");
    Map<String, String> none = Map.of("fs.forebay.socket", "none");
    assertEquals(run(false, none, input, MapReduceTest::wordCount).content, run(true, none, input, MapReduceTest::wordCount).content);
    assertEquals(before, number("shuffle_blocks_total"));
  }

  /** Fails after its first record. */
  public static final class Failing extends Reducer<Text, IntWritable, Text, IntWritable> {
    @Override
    protected void reduce(Text key, Iterable<IntWritable> values, Context context) throws IOException {
      throw new IOException("as the test wants it");
    }
  }

  @Test
  public void nothingIsLeftOfAJobThatFails() throws Exception {
    long before = number("shuffle_blocks_total");
    Job job = Job.getInstance(conf(true, Map.of()));
    wordCount(job);
    job.setReducerClass(Failing.class);
    FileInputFormat.addInputPath(job, new org.apache.hadoop.fs.Path(text(3, 3_000, 50).toUri()));
    FileOutputFormat.setOutputPath(job, new org.apache.hadoop.fs.Path(place.resolve("failed").toUri()));
    assertEquals(false, job.waitForCompletion(false));
    assertNotEquals(before, number("shuffle_blocks_total"));
    awaitNothingLeft();
  }

  @Test
  public void outputsThatTheTierHasNoRoomForAreHadoopsOwn() throws Exception {
    Path input = text(6, 100_000, 100_000);
    assertEquals(0, agent.run("capacity", "24MiB", "--socket", agent.socket()));
    try {
      Map<String, String> settings = Map.of("mapreduce.task.io.sort.mb", "4");
      Done own = run(false, settings, input, MapReduceTest::skewed);
      long before = number("shuffle_blocks_total");
      Done tier = run(true, settings, input, MapReduceTest::skewed);
      assertNotEquals("some are in the tier", before, number("shuffle_blocks_total"));
      assertEquals(own.content, tier.content);
      assertEquals(own.counters.get(TaskCounter.SHUFFLED_MAPS), tier.counters.get(TaskCounter.SHUFFLED_MAPS));
      awaitNothingLeft();
    } finally {
      assertEquals(0, agent.run("capacity", "256MiB", "--socket", agent.socket()));
    }
  }
}
