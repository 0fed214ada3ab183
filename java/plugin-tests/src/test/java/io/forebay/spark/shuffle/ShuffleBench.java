package io.forebay.spark.shuffle;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.apache.spark.HashPartitioner;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;
import scala.Tuple2;

/** Shuffles records that compress badly, as java/shuffle-bench.py says; prints milliseconds. */
public final class ShuffleBench {
  private static final int RECORD_BYTES = 1000;
  private static final int MAPS = 16;

  private ShuffleBench() {}

  public static void main(String[] args) throws Exception {
    long bytes = Long.parseLong(args[0]);
    int reducers = Integer.parseInt(args[1]);
    int rounds = Integer.parseInt(args[2]);
    try (SparkSession session = SparkSession.builder().appName("shuffle bench").getOrCreate()) {
      session.sparkContext().setLogLevel("ERROR");
      JavaSparkContext spark = new JavaSparkContext(session.sparkContext());
      List<Long> millis = new ArrayList<>();
      // The first warms the JVM up.
      for (int round = 0; round <= rounds; round++) {
        long started = System.nanoTime();
        shuffle(spark, bytes, reducers);
        millis.add((System.nanoTime() - started) / 1_000_000);
        System.gc();
      }
      System.out.println(millis.subList(1, millis.size()));
    }
  }

  private static void shuffle(JavaSparkContext spark, long bytes, int reducers) {
    int each = (int) (bytes / RECORD_BYTES / MAPS);
    JavaPairRDD<Integer, byte[]> records = spark.parallelize(IntStream.range(0, MAPS).boxed().toList(), MAPS).flatMapToPair(seed -> {
      Random dice = new Random(seed);
      return IntStream.range(0, each).mapToObj(i -> {
        byte[] record = new byte[RECORD_BYTES];
        dice.nextBytes(record);
        return new Tuple2<>(dice.nextInt(), record);
      }).iterator();
    });
    long read = records.partitionBy(new HashPartitioner(reducers)).map(pair -> (long) pair._2().length).fold(0L, Long::sum);
    if (read != (long) each * MAPS * RECORD_BYTES) {
      throw new IllegalStateException("lost records: " + read + " bytes of " + bytes);
    }
  }
}
