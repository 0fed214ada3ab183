package io.forebay.workloads;

import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.explode;
import static org.apache.spark.sql.functions.split;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;

import org.apache.spark.Partitioner;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import scala.Tuple2;

/**
 * WordCount and Sort, as HiBench has them: one stage that reads and maps (whose time is the map
 * time), one that reduces. A scan with a selective filter, which has the first stage only. TeraSort
 * and SecondarySort, as Hadoop's examples, and a join of TPC-H, each with an input of its own.
 */
public enum Workload {
  WORDCOUNT {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      JavaRDD<String> words = spark.textFile(input).flatMap(line -> Arrays.asList(line.split(" ")).iterator());
      return words.mapToPair(word -> new Tuple2<>(word, 1L)).reduceByKey(Long::sum, reducers)
          .map(pair -> Digest.of(pair._1(), pair._2())).fold(Digest.NOTHING, Digest::plus);
    }
  },

  SORT {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      // Ranges that are known beforehand. Spark's sortBy reads all of the input once more to find
      // them, which would hide what is measured.
      return spark.textFile(input).mapToPair(line -> new Tuple2<>(line, 1))
          .repartitionAndSortWithinPartitions(new ByFirstLetter(reducers)).keys()
          .mapPartitionsWithIndex(Workload::checked, true).fold(Digest.NOTHING, Digest::plus);
    }
  },

  WORDCOUNT_SQL {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      session.conf().set("spark.sql.shuffle.partitions", reducers);
      Dataset<Row> words = session.read().text(input).select(explode(split(col("value"), " ")).as("word"));
      return words.groupBy("word").count().toJavaRDD().map(row -> Digest.of(row.getString(0), row.getLong(1)))
          .fold(Digest.NOTHING, Digest::plus);
    }
  },

  FILTER_SQL {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      Dataset<Row> lines = session.read().text(input).where(col("value").startsWith(RARE));
      return lines.toJavaRDD().map(row -> Digest.of(row.getString(0), 1)).fold(Digest.NOTHING, Digest::plus);
    }
  },

  /** Writes the sorted records to a directory whose name is that of the input and "-sorted". */
  TERASORT {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      try {
        return Tera.sort(spark, input, reducers);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  },

  SECONDARY_SORT {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      return SecondarySort.run(spark, input, reducers);
    }
  },

  JOIN {
    @Override
    Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers) {
      session.conf().set("spark.sql.shuffle.partitions", reducers);
      // Small tables would be joined without a shuffle otherwise.
      session.conf().set("spark.sql.autoBroadcastJoinThreshold", -1);
      for (String table : List.of("lineitem", "orders")) {
        session.read().parquet(input + "/" + table).createOrReplaceTempView(table);
      }
      return session.sql(Q12).toJavaRDD()
          .map(row -> Digest.of(row.getString(0) + " " + row.getLong(1), row.getLong(1) + row.getLong(2))).fold(Digest.NOTHING, Digest::plus);
    }
  };

  /** A few lines of a thousand begin with it. */
  private static final String RARE = "zuz";

  /** The twelfth query of TPC-H. */
  private static final String Q12 = """
      SELECT l_shipmode, sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1L ELSE 0L END) AS high,
        sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 0L ELSE 1L END) AS low
      FROM orders JOIN lineitem ON o_orderkey = l_orderkey
      WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
        AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
      GROUP BY l_shipmode""";

  abstract Digest run(SparkSession session, JavaSparkContext spark, String input, int reducers);

  static List<String> names() {
    return Arrays.stream(values()).map(w -> w.name().toLowerCase().replace('_', '-')).toList();
  }

  static Workload named(String name) {
    return valueOf(name.toUpperCase().replace('-', '_'));
  }

  /** The digest of a partition; fails if its lines are not in order. */
  private static Iterator<Digest> checked(int partition, Iterator<String> lines) {
    Digest digest = Digest.NOTHING;
    String last = "";
    while (lines.hasNext()) {
      String line = lines.next();
      if (line.compareTo(last) < 0) {
        throw new IllegalStateException("not sorted: " + last + " stands before " + line);
      }
      last = line;
      digest = digest.plus(Digest.of(line, 1));
    }
    return List.of(digest).iterator();
  }

  /**
   * Lines by their first letter, in order: the partitions one after the other are sorted if each
   * is.
   */
  static final class ByFirstLetter extends Partitioner {
    private final int partitions;

    ByFirstLetter(int partitions) {
      this.partitions = partitions;
    }

    @Override
    public int numPartitions() {
      return partitions;
    }

    @Override
    public int getPartition(Object key) {
      String line = (String) key;
      int letter = line.isEmpty() ? 0 : Math.max(0, Math.min(line.charAt(0) - 'a', 25));
      return letter * partitions / 26;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof ByFirstLetter same && same.partitions == partitions;
    }

    @Override
    public int hashCode() {
      return partitions;
    }
  }
}
