package io.forebay.workloads;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.StringTokenizer;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskInputOutputContext;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/**
 * A WordCount whose tasks of number 0 wait for the test: {@code GatedCount GATES INPUT OUTPUT}. The
 * first attempt of each writes its process to {@code GATES/map} or {@code GATES/reduce}, and goes
 * on once {@code GATES/go} is there. The map task waits after its last record, the reduce task
 * before its first. Later attempts do not wait.
 */
public final class GatedCount extends Configured implements Tool {
  private static final String GATES = "forebay.test.gates";
  private static final long LOOK_MS = 50;

  /** Waits if it is the task that does. */
  private static void gate(TaskInputOutputContext<?, ?, ?, ?> context, String name) throws IOException, InterruptedException {
    TaskAttemptID attempt = context.getTaskAttemptID();
    if (attempt.getTaskID().getId() != 0 || attempt.getId() != 0) {
      return;
    }
    Path gates = Path.of(context.getConfiguration().get(GATES));
    Path written = Files.writeString(gates.resolve(name + ".new"), String.valueOf(ProcessHandle.current().pid()));
    Files.move(written, gates.resolve(name));
    while (!Files.exists(gates.resolve("go"))) {
      context.progress();
      Thread.sleep(LOOK_MS);
    }
  }

  /** Counts words. */
  public static final class Words extends Mapper<LongWritable, Text, Text, LongWritable> {
    private static final LongWritable ONE = new LongWritable(1);

    @Override
    protected void map(LongWritable offset, Text line, Context context) throws IOException, InterruptedException {
      for (StringTokenizer words = new StringTokenizer(line.toString()); words.hasMoreTokens();) {
        context.write(new Text(words.nextToken()), ONE);
      }
    }

    @Override
    protected void cleanup(Context context) throws IOException, InterruptedException {
      gate(context, "map");
    }
  }

  /** Adds them up. */
  public static final class Sum extends Reducer<Text, LongWritable, Text, LongWritable> {
    @Override
    protected void setup(Context context) throws IOException, InterruptedException {
      gate(context, "reduce");
    }

    @Override
    protected void reduce(Text word, Iterable<LongWritable> counts, Context context) throws IOException, InterruptedException {
      long sum = 0;
      for (LongWritable count : counts) {
        sum += count.get();
      }
      context.write(word, new LongWritable(sum));
    }
  }

  @Override
  public int run(String[] arguments) throws Exception {
    getConf().set(GATES, arguments[0]);
    Job job = Job.getInstance(getConf(), "gated count");
    job.setJarByClass(GatedCount.class);
    job.setMapperClass(Words.class);
    job.setReducerClass(Sum.class);
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(LongWritable.class);
    FileInputFormat.addInputPath(job, new org.apache.hadoop.fs.Path(arguments[1]));
    FileOutputFormat.setOutputPath(job, new org.apache.hadoop.fs.Path(arguments[2]));
    return job.waitForCompletion(true) ? 0 : 1;
  }

  public static void main(String[] arguments) throws Exception {
    System.exit(ToolRunner.run(new GatedCount(), arguments));
  }
}
