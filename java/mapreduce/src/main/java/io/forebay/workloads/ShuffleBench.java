package io.forebay.workloads;

import java.io.DataInput;
import java.io.DataOutput;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.Scanner;
import java.util.stream.IntStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Writable;
import org.apache.hadoop.mapreduce.InputFormat;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskCounter;
import org.apache.hadoop.mapreduce.lib.output.NullOutputFormat;

/**
 * Shuffles records that compress badly by MapReduce in this JVM, for java/shuffle-bench.py: for
 * each line {@code BYTES REDUCERS} on stdin it runs a job and prints its milliseconds. System
 * properties are the job's configuration.
 */
public final class ShuffleBench {
  private static final int RECORD_BYTES = 1000;
  private static final int MAPS = 16;
  private static final String BYTES = "forebay.bench.bytes";

  private ShuffleBench() {}

  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    Properties properties = System.getProperties();
    properties.stringPropertyNames().stream().filter(name -> name.matches("(mapreduce|fs|hadoop)\\..*"))
        .forEach(name -> conf.set(name, properties.getProperty(name)));
    try (Scanner lines = new Scanner(System.in)) {
      while (lines.hasNextLong()) {
        conf.setLong(BYTES, lines.nextLong());
        long started = System.nanoTime();
        run(conf, lines.nextInt());
        System.out.println((System.nanoTime() - started) / 1_000_000);
      }
    }
  }

  private static void run(Configuration conf, int reducers) throws Exception {
    Job job = Job.getInstance(conf);
    job.setInputFormatClass(Randoms.class);
    job.setReducerClass(Reading.class);
    job.setNumReduceTasks(reducers);
    job.setMapOutputKeyClass(IntWritable.class);
    job.setMapOutputValueClass(BytesWritable.class);
    job.setOutputFormatClass(NullOutputFormat.class);
    long records = conf.getLong(BYTES, 0) / RECORD_BYTES / MAPS * MAPS;
    if (!job.waitForCompletion(false) || job.getCounters().findCounter(TaskCounter.REDUCE_INPUT_RECORDS).getValue() != records) {
      throw new IllegalStateException("the job has failed, or lost records");
    }
  }

  /** Reads all, and writes nothing. */
  public static final class Reading extends Reducer<IntWritable, BytesWritable, NullWritable, NullWritable> {
    @Override
    protected void reduce(IntWritable key, Iterable<BytesWritable> values, Context context) {
      for (BytesWritable value : values) {
        if (value.getLength() != RECORD_BYTES) {
          throw new IllegalStateException("a record of " + value.getLength() + " bytes");
        }
      }
    }
  }

  /** Random records of one split. */
  public static final class Split extends InputSplit implements Writable {
    private int seed;

    /** Read by Hadoop. */
    public Split() {}

    private Split(int seed) {
      this.seed = seed;
    }

    @Override
    public long getLength() {
      return 1;
    }

    @Override
    public String[] getLocations() {
      return new String[0];
    }

    @Override
    public void write(DataOutput out) throws java.io.IOException {
      out.writeInt(seed);
    }

    @Override
    public void readFields(DataInput in) throws java.io.IOException {
      seed = in.readInt();
    }
  }

  /** Random records. */
  public static final class Randoms extends InputFormat<IntWritable, BytesWritable> {
    @Override
    public List<InputSplit> getSplits(JobContext context) {
      return IntStream.range(0, MAPS).<InputSplit>mapToObj(Split::new).toList();
    }

    @Override
    public RecordReader<IntWritable, BytesWritable> createRecordReader(InputSplit split, TaskAttemptContext context) {
      return new Records();
    }
  }

  private static final class Records extends RecordReader<IntWritable, BytesWritable> {
    private final IntWritable key = new IntWritable();
    private final byte[] record = new byte[RECORD_BYTES];
    private final BytesWritable value = new BytesWritable(record);
    private Random dice;
    private long left;

    @Override
    public void initialize(InputSplit split, TaskAttemptContext context) {
      dice = new Random(((Split) split).seed);
      left = context.getConfiguration().getLong(BYTES, 0) / RECORD_BYTES / MAPS;
    }

    @Override
    public boolean nextKeyValue() {
      if (left-- == 0) {
        return false;
      }
      dice.nextBytes(record);
      key.set(dice.nextInt());
      return true;
    }

    @Override
    public IntWritable getCurrentKey() {
      return key;
    }

    @Override
    public BytesWritable getCurrentValue() {
      return value;
    }

    @Override
    public float getProgress() {
      return 0;
    }

    @Override
    public void close() {}
  }
}
