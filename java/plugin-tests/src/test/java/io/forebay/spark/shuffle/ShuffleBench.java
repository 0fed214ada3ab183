package io.forebay.spark.shuffle;

import java.util.List;
import java.util.Random;
import java.util.Scanner;
import java.util.stream.IntStream;
import org.apache.spark.HashPartitioner;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;
import scala.Tuple2;

/**
 * Shuffles records that compress badly, for java/shuffle-bench.py: for each line {@code BYTES
 * REDUCERS} on stdin it shuffles once and prints the milliseconds.
 */
public final class ShuffleBench {
  private static final int RECORD_BYTES = 1000;
  private static final int MAPS = 16;

  private ShuffleBench() {}

  public static void main(String[] args) throws Exception {
    try (SparkSession session = SparkSession.builder().appName("shuffle bench").getOrCreate(); Scanner lines = new Scanner(System.in)) {
      session.sparkContext().setLogLevel("ERROR");
      JavaSparkContext spark = new JavaSparkContext(session.sparkContext());
      while (lines.hasNextLong()) {
        long bytes = lines.nextLong();
        int reducers = lines.nextInt();
        long started = System.nanoTime();
        shuffle(spark, bytes, reducers);
        System.out.println((System.nanoTime() - started) / 1_000_000);
        // Spark removes a shuffle when its RDD is collected.
        System.gc();
      }
    }
  }

  private static void shuffle(JavaSparkContext spark, long bytes, int reducers) {
    int each = (int) (bytes / RECORD_BYTES / MAPS);
    List<Integer> seeds = IntStream.range(0, MAPS).boxed().toList();
    JavaPairRDD<Integer, byte[]> records = spark.parallelize(seeds, MAPS).flatMapToPair(seed -> {
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
