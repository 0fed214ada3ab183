package io.forebay.workloads;

import java.util.Iterator;
import java.util.List;

import org.apache.spark.Partitioner;
import org.apache.spark.api.java.JavaSparkContext;
import scala.Tuple2;

/**
 * As Hadoop's example: lines of two whole numbers, partitioned and grouped by the first one, and
 * sorted by both, so that each group has its values in order.
 */
final class SecondarySort {
  private SecondarySort() {}

  static Digest run(JavaSparkContext spark, String input, int reducers) {
    return spark.textFile(input).mapToPair(SecondarySort::pair).repartitionAndSortWithinPartitions(new ByFirst(reducers))
        .mapPartitions(SecondarySort::groups).fold(Digest.NOTHING, Digest::plus);
  }

  /** The key is both numbers, which are not negative, in the order of pairs. */
  private static Tuple2<Long, Integer> pair(String line) {
    int space = line.indexOf(' ');
    int second = Integer.parseInt(line, space + 1, line.length(), 10);
    return new Tuple2<>((long) Integer.parseInt(line, 0, space, 10) << 32 | second, second);
  }

  private static int first(long key) {
    return (int) (key >> 32);
  }

  /** The digest of each group depends on the order of its values. */
  private static Iterator<Digest> groups(Iterator<Tuple2<Long, Integer>> pairs) {
    Digest found = Digest.NOTHING;
    long last = -1;
    long count = 0;
    long hash = 0;
    while (pairs.hasNext()) {
      Tuple2<Long, Integer> pair = pairs.next();
      if (pair._1() < last) {
        throw new IllegalStateException(String.format("not sorted: %x stands before %x", last, pair._1()));
      }
      if (count > 0 && first(pair._1()) != first(last)) {
        found = found.plus(Digest.of(first(last) + " " + hash, count));
        count = 0;
        hash = 0;
      }
      last = pair._1();
      count++;
      hash = 31 * hash + pair._2();
    }
    return List.of(count == 0 ? found : found.plus(Digest.of(first(last) + " " + hash, count))).iterator();
  }

  static final class ByFirst extends Partitioner {
    private final int partitions;

    ByFirst(int partitions) {
      this.partitions = partitions;
    }

    @Override
    public int numPartitions() {
      return partitions;
    }

    @Override
    public int getPartition(Object key) {
      return (first((Long) key) * 127 & Integer.MAX_VALUE) % partitions;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof ByFirst same && same.partitions == partitions;
    }

    @Override
    public int hashCode() {
      return partitions;
    }
  }
}
