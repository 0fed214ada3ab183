package io.forebay.spark;

import java.net.URI;
import java.util.List;
import java.util.function.Predicate;

import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapred.FileSplit;
import org.apache.hadoop.mapreduce.lib.input.CombineFileSplit;
import org.apache.spark.Partition;
import org.apache.spark.rdd.HadoopPartition;
import org.apache.spark.rdd.NewHadoopPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/**
 * The partitions that stand for ranges of files: of Hadoop's two input format interfaces, of SQL's
 * file scans, and of SQL's data sources V2; those of table formats by {@link TableFormats}.
 */
final class InputRanges {
  /** Whether SQL is there at all: a program may bring Spark's core alone. */
  private static final boolean SQL = sqlIsThere();

  private static final String SOURCE_V2 = "org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition";

  private final Predicate<URI> ours;
  private final Sql sql = SQL ? new Sql() : null;

  /** Of paths that are ours. */
  InputRanges(Predicate<URI> ours) {
    this.ours = ours;
  }

  /** Takes a range of a file; {@code own} is its scan if it is another than that of its RDD. */
  interface Sink {
    void range(Path path, long offset, long length, Scan own);
  }

  /**
   * Hands over what the partition reads; nothing if it is not of a kind that names files.
   */
  void of(Partition partition, Sink sink) throws ReflectiveOperationException {
    Sink found = (path, offset, length, own) -> {
      if (length > 0 && ours.test(path.toUri())) {
        sink.range(path, offset, length, own);
      }
    };
    if (partition instanceof HadoopPartition old) {
      split(old.inputSplit().value(), found);
    } else if (partition instanceof NewHadoopPartition hadoop) {
      split(hadoop.serializableHadoopSplit().value(), found);
    } else if (sql != null) {
      sql.of(partition, found);
    }
  }

  private static void split(Object split, Sink found) {
    if (split instanceof FileSplit file) {
      found.range(file.getPath(), file.getStart(), file.getLength(), null);
    } else if (split instanceof org.apache.hadoop.mapreduce.lib.input.FileSplit file) {
      found.range(file.getPath(), file.getStart(), file.getLength(), null);
    } else if (split instanceof CombineFileSplit files) {
      // The old interface's class of that name is a subclass.
      for (int i = 0; i < files.getNumPaths(); i++) {
        found.range(files.getPath(i), files.getOffset(i), files.getLength(i), null);
      }
    }
  }

  private static boolean sqlIsThere() {
    try {
      Class.forName("org.apache.spark.sql.execution.datasources.FilePartition", false, InputRanges.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException | LinkageError e) {
      return false;
    }
  }

  /** Apart, so that its classes are looked for only if they are there. */
  private static final class Sql {
    private final TableFormats formats = new TableFormats();

    void of(Object partition, Sink found) throws ReflectiveOperationException {
      if (partition instanceof FilePartition files) {
        for (PartitionedFile file : files.files()) {
          found.range(file.toPath(), file.start(), file.length(), null);
        }
      } else if (partition.getClass().getName().equals(SOURCE_V2)) {
        for (Object input : inputs(partition)) {
          if (!formats.iceberg(input, found) && input instanceof FilePartition) {
            of(input, found);
          }
        }
      }
    }

    /** A list in Spark 3.5 to 4.2, one or none since. */
    private static List<Object> inputs(Object partition) throws ReflectiveOperationException {
      String method = Scala.has(partition, "inputPartitions") ? "inputPartitions" : "inputPartition";
      return Scala.list(Scala.call(partition, method));
    }
  }
}
