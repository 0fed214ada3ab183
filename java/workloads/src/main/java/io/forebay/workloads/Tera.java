package io.forebay.workloads;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.RecordWriter;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.spark.Partitioner;
import org.apache.spark.api.java.JavaSparkContext;
import scala.Tuple2;

/**
 * TeraSort, as Hadoop's examples have it: records of 100 bytes whose first 10 are the key, ranges
 * of keys from a sample that the driver reads, and output files in the order of the ranges.
 */
final class Tera {
  static final int RECORD_BYTES = 100;
  private static final int KEY_BYTES = 10;
  private static final int SAMPLES = 100_000;
  private static final int SAMPLED_FILES = 10;

  private Tera() {}

  /**
   * Input files are whole records and have one split each: splits of longer files would not begin
   * where blocks do.
   */
  static Digest sort(JavaSparkContext spark, String input, int reducers) throws IOException {
    String output = input + "-sorted";
    Comparator<byte[]> order = (Comparator<byte[]> & Serializable) Arrays::compareUnsigned;
    spark.binaryRecords(input, RECORD_BYTES)
        .mapToPair(record -> new Tuple2<>(Arrays.copyOf(record, KEY_BYTES), Arrays.copyOfRange(record, KEY_BYTES, RECORD_BYTES)))
        .repartitionAndSortWithinPartitions(new Ranges(sample(spark, input), reducers), order)
        .saveAsNewAPIHadoopFile(output, byte[].class, byte[].class, Output.class, spark.hadoopConfiguration());
    Path written = new Path(output);
    long bytes = written.getFileSystem(spark.hadoopConfiguration()).getContentSummary(written).getLength();
    // Who reads the output checks order and checksum: here that would be a part of the time.
    return new Digest(bytes / RECORD_BYTES, bytes, 0);
  }

  /** Keys from the beginnings of up to ten files, sorted. */
  private static List<byte[]> sample(JavaSparkContext spark, String input) throws IOException {
    Path directory = new Path(input);
    FileSystem fileSystem = directory.getFileSystem(spark.hadoopConfiguration());
    FileStatus[] files = fileSystem.listStatus(directory);
    int sampled = Math.min(SAMPLED_FILES, files.length);
    List<byte[]> keys = new ArrayList<>();
    byte[] record = new byte[RECORD_BYTES];
    for (int i = 0; i < sampled; i++) {
      FileStatus file = files[files.length / sampled * i];
      long records = Math.min(SAMPLES / sampled, file.getLen() / RECORD_BYTES);
      try (DataInputStream in = new DataInputStream(new BufferedInputStream(fileSystem.open(file.getPath()), 1 << 20))) {
        for (long n = 0; n < records; n++) {
          in.readFully(record);
          keys.add(Arrays.copyOf(record, KEY_BYTES));
        }
      }
    }
    keys.sort(Arrays::compareUnsigned);
    return keys;
  }

  /** Ranges of keys with as many keys of the sample each. */
  static final class Ranges extends Partitioner {
    private final byte[][] begins;

    Ranges(List<byte[]> sample, int partitions) {
      begins = new byte[partitions - 1][];
      for (int i = 1; i < partitions; i++) {
        begins[i - 1] = sample.get((int) ((long) sample.size() * i / partitions));
      }
    }

    @Override
    public int numPartitions() {
      return begins.length + 1;
    }

    @Override
    public int getPartition(Object key) {
      int at = Arrays.binarySearch(begins, (byte[]) key, Arrays::compareUnsigned);
      return at < 0 ? -at - 1 : at + 1;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Ranges same && Arrays.deepEquals(begins, same.begins);
    }

    @Override
    public int hashCode() {
      return Arrays.deepHashCode(begins);
    }
  }

  /** Keys and values one after the other, without anything between them. */
  public static final class Output extends FileOutputFormat<byte[], byte[]> {
    @Override
    public RecordWriter<byte[], byte[]> getRecordWriter(TaskAttemptContext context) throws IOException {
      Path path = getDefaultWorkFile(context, "");
      FSDataOutputStream out = path.getFileSystem(context.getConfiguration()).create(path, true);
      return new RecordWriter<>() {
        @Override
        public void write(byte[] key, byte[] value) throws IOException {
          out.write(key);
          out.write(value);
        }

        @Override
        public void close(TaskAttemptContext context) throws IOException {
          out.close();
        }
      };
    }
  }
}
