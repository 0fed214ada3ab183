package io.forebay.spark.shuffle;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.spark.HashPartitioner;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaRDDLike;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;
import scala.Tuple2;

/**
 * A driver of its own, which the tests start, talk to by its standard streams, and kill. Its
 * configuration comes by {@code -Dspark...}.
 *
 * <p>It says {@code key value} lines; at {@code wait} it waits for a line.
 */
public final class ShuffleProgram {
  private static final int MAPS = 8;
  private static final int REDUCERS = 5;

  private ShuffleProgram() {}

  public static void main(String[] args) throws Exception {
    try (SparkSession session = SparkSession.builder().appName("shuffle test").getOrCreate()) {
      session.sparkContext().setLogLevel("WARN");
      JavaSparkContext spark = new JavaSparkContext(session.sparkContext());
      AtomicInteger mapTasks = new AtomicInteger();
      session.sparkContext().addSparkListener(new SparkListener() {
        @Override
        public void onTaskEnd(SparkListenerTaskEnd end) {
          if (end.taskType().equals("ShuffleMapTask") && end.taskInfo().successful()) {
            mapTasks.incrementAndGet();
          }
        }
      });
      switch (args[0]) {
        case "results" -> results(session, spark);
        case "twice" -> twice(spark, mapTasks, numbers(spark, 80_000).reduceByKey(Integer::sum, REDUCERS));
        case "large" -> large(spark, mapTasks);
        case "removed" -> removed(spark);
        case "tiny" -> tiny(spark);
        case "repeats" -> repeats(spark, Path.of(args[1]));
        default -> throw new IllegalArgumentException(args[0]);
      }
    } catch (Throwable e) {
      e.printStackTrace();
      say("failed", e);
      Runtime.getRuntime().halt(1);
    }
    say("end", "");
  }

  private static void say(String key, Object value) {
    System.out.println("says " + key + " " + String.valueOf(value).replace('\n', ' '));
    System.out.flush();
  }

  private static void await(String key, Object value) throws Exception {
    say(key, value);
    // A line from the test.
    for (int read = System.in.read(); read != '\n'; read = System.in.read()) {
      if (read < 0) {
        throw new IllegalStateException("the test is gone");
      }
    }
  }

  /** Numbers with repeated keys, of which one is much more frequent. */
  private static JavaPairRDD<Integer, Integer> numbers(JavaSparkContext spark, int count) {
    List<Integer> seeds = IntStream.range(0, MAPS).boxed().toList();
    int each = count / MAPS;
    return spark.parallelize(seeds, MAPS).flatMapToPair(seed -> pairs(seed, each).iterator());
  }

  private static Stream<Tuple2<Integer, Integer>> pairs(int seed, int each) {
    return IntStream.range(0, each).mapToObj(i -> new Tuple2<>(i % 3 == 0 ? 7 : (seed * 31 + i * 17) % 9973, seed * each + i));
  }

  private static int digest(List<?> lines) {
    return Arrays.hashCode(lines.stream().map(String::valueOf).sorted().toArray());
  }

  private static void results(SparkSession session, JavaSparkContext spark) {
    JavaPairRDD<Integer, Integer> numbers = numbers(spark, 40_000);
    say("sort", numbers.mapToPair(Tuple2::swap).sortByKey(false, REDUCERS).collect().hashCode());
    say("reduce", digest(numbers.reduceByKey(Integer::sum, REDUCERS).collect()));
    say("group", digest(numbers.groupByKey(REDUCERS).mapValues(values -> {
      List<Integer> sorted = new ArrayList<>();
      values.forEach(sorted::add);
      sorted.sort(null);
      return sorted.hashCode();
    }).collect()));
    say("join", digest(numbers.filter(pair -> pair._1() < 500 && pair._1() != 7).join(numbers.filter(pair -> pair._2() % 3 == 1), REDUCERS).collect()));
    say("many", digest(numbers.partitionBy(new HashPartitioner(40)).glom().map(List::size).collect()));
    say("empty", numbers.filter(pair -> false).repartition(REDUCERS).count());
    Dataset<Row> table = session.range(0, 60_000, 1, MAPS).selectExpr("id", "if(id % 2 = 0, 7, id % 997) as key", "repeat(cast(id as string), 3) as text");
    say("sql", digest(table.groupBy("key").agg(functions.max("text"), functions.count("*")).collectAsList()));
    Dataset<Row> small = session.range(0, 997, 1, 2).selectExpr("id as key", "id * 2 as twice");
    Dataset<Row> joined = table.join(small, "key").selectExpr("sum(twice)", "count(*)", "min(text)");
    say("skew", digest(joined.collectAsList()));
    say("plan", joined.queryExecution().executedPlan().toString().contains("skewed"));
  }

  /** Two jobs on one shuffle, with whatever the test does in between. */
  private static void twice(JavaSparkContext spark, AtomicInteger mapTasks, JavaRDDLike<?, ?> shuffled) throws Exception {
    say("first", digest(shuffled.collect()));
    say("reliable", spark.sc().shuffleDriverComponents().supportsReliableStorage());
    JavaRDD<Long> processes = spark.parallelize(IntStream.range(0, 20).boxed().toList(), 20).map(i -> {
      Thread.sleep(50);
      return ProcessHandle.current().pid();
    });
    spark.sc().listenerBus().waitUntilEmpty();
    say("maps", mapTasks.get());
    await("executors", processes.collect().stream().distinct().toList());
    mapTasks.set(0);
    say("second", digest(shuffled.collect()));
    spark.sc().listenerBus().waitUntilEmpty();
    await("again", mapTasks.get());
  }

  /** {@link #twice} on outputs of 12 MB that do not compress, after what it should say. */
  private static void large(JavaSparkContext spark, AtomicInteger mapTasks) throws Exception {
    JavaPairRDD<Integer, byte[]> records = spark.parallelize(IntStream.range(0, MAPS).boxed().toList(), MAPS).flatMapToPair(seed -> {
      Random dice = new Random(seed);
      return IntStream.range(0, 12_000).mapToObj(i -> {
        byte[] record = new byte[1000];
        dice.nextBytes(record);
        return new Tuple2<>(i % REDUCERS, record);
      }).iterator();
    });
    // Without a shuffle: Spark would remove it when its RDD is collected, at any time.
    say("expected", digest(sums(records).reduceByKeyLocally(Long::sum).entrySet().stream().map(sum -> new Tuple2<>(sum.getKey(), sum.getValue())).toList()));
    twice(spark, mapTasks, sums(records.partitionBy(new HashPartitioner(REDUCERS))).reduceByKey(Long::sum));
  }

  private static JavaPairRDD<Integer, Long> sums(JavaPairRDD<Integer, byte[]> records) {
    return records.mapToPair(record -> new Tuple2<>(record._1(), (long) Arrays.hashCode(record._2())));
  }

  /** A hundred thousand blocks of a few bytes. */
  private static void tiny(JavaSparkContext spark) {
    int maps = 320;
    int reducers = 320;
    List<Integer> seeds = IntStream.range(0, maps).boxed().toList();
    JavaPairRDD<Integer, Integer> records = spark.parallelize(seeds, maps)
        .flatMapToPair(seed -> IntStream.range(0, reducers).mapToObj(i -> new Tuple2<>(i, seed * reducers + i)).iterator());
    List<Tuple2<Integer, Long>> sums = records.mapValues(Integer::longValue).partitionBy(new HashPartitioner(reducers)).reduceByKey(Long::sum).collect();
    say("right", sums.size() == reducers && sums.stream()
        .allMatch(sum -> sum._2() == IntStream.range(0, maps).mapToLong(seed -> (long) seed * reducers + sum._1()).sum()));
  }

  /** Jobs until it is killed. Each has a line in {@code results}: right, wrong, or failed, why. */
  private static void repeats(JavaSparkContext spark, Path results) throws Exception {
    Map<Integer, Long> expected = new TreeMap<>();
    for (int seed = 0; seed < MAPS; seed++) {
      pairs(seed, 5000).forEach(pair -> expected.merge(pair._1(), (long) pair._2(), Long::sum));
    }
    for (int job = 0; !spark.sc().isStopped(); job++) {
      int factor = job;
      String result;
      try {
        List<Tuple2<Integer, Long>> sums = numbers(spark, 5000 * MAPS).mapValues(value -> (long) value * factor).reduceByKey(Long::sum, REDUCERS).collect();
        result = sums.size() == expected.size() && sums.stream().allMatch(sum -> sum._2() == factor * expected.get(sum._1())) ? "right" : "wrong";
      } catch (Exception e) {
        // Scala does not declare what it throws.
        result = "failed " + String.valueOf(e.getMessage()).lines().findFirst().orElse("");
      }
      Files.writeString(results, result + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
  }

  /** Shuffles that nobody refers to any more. */
  private static void removed(JavaSparkContext spark) throws Exception {
    say("first", digest(numbers(spark, 100_000).reduceByKey(Integer::sum, REDUCERS).collect()));
    await("used", "");
    System.gc();
    await("collected", "");
  }
}
