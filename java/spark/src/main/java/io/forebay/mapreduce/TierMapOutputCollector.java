package io.forebay.mapreduce;

import io.forebay.core.ForebayShuffles;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.io.RawComparator;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.DefaultCodec;
import org.apache.hadoop.io.serializer.SerializationFactory;
import org.apache.hadoop.io.serializer.Serializer;
import org.apache.hadoop.mapred.Counters;
import org.apache.hadoop.mapred.IFile;
import org.apache.hadoop.mapred.IndexRecord;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.MapOutputCollector;
import org.apache.hadoop.mapred.MapOutputFile;
import org.apache.hadoop.mapred.MapTask;
import org.apache.hadoop.mapred.Merger;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.mapred.SpillRecord;
import org.apache.hadoop.mapred.Task;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.TaskCounter;
import org.apache.hadoop.util.IndexedSorter;
import org.apache.hadoop.util.Progress;
import org.apache.hadoop.util.QuickSort;
import org.apache.hadoop.util.ReflectionUtils;

/**
 * Sorts the output of a map task, combines and compresses it as Hadoop does, and leaves it in the
 * tier. What its buffer has no room for is spilled to the tier as well; nothing is written to a
 * local disk unless the tier refuses.
 *
 * <p>It spills in the thread of the map function, where Hadoop has another thread: a spill to
 * memory takes no time but that of sorting, and a container has a core.
 *
 * <p>Without an agent it is Hadoop's own collector.
 */
public final class TierMapOutputCollector<K, V> implements MapOutputCollector<K, V> {
  /** Of what the node manager serves to reducers, as Hadoop sets it. */
  private static final FsPermission SERVED = new FsPermission((short) 0640);

  /** Hadoop's, if the job uses that here. */
  private MapOutputCollector<K, V> own;
  private Context context;
  private ForebayShuffles shuffles;
  private JobConf job;
  private MapOutputFile files;
  private FileSystem local;
  private long map;
  private int partitions;
  private Class<K> keyClass;
  private Class<V> valueClass;
  private RawComparator<K> comparator;
  private Serializer<K> keys;
  private Serializer<V> values;
  private CompressionCodec codec;
  private IndexedSorter sorter;
  private RecordBuffer buffer;
  private Task.CombinerRunner<K, V> combiner;
  private Task.CombineOutputCollector<K, V> combined;
  private Counters.Counter outputRecords;
  private Counters.Counter outputBytes;
  private Counters.Counter spilledRecords;
  private final List<OutputFile> spills = new ArrayList<>();

  /** Made by Hadoop. */
  public TierMapOutputCollector() {}

  @Override
  public void init(Context context) throws IOException, ClassNotFoundException {
    this.context = context;
    job = context.getJobConf();
    MapTask task = context.getMapTask();
    shuffles = JobOutputs.join(job, task);
    if (shuffles == null) {
      own = new MapTask.MapOutputBuffer<>();
      own.init(context);
      return;
    }
    files = task.getMapOutputFile();
    local = FileSystem.getLocal(job).getRaw();
    map = JobOutputs.number(task.getTaskID());
    partitions = job.getNumReduceTasks();
    initRecords();
    initCombiner(task);
    outputRecords = context.getReporter().getCounter(TaskCounter.MAP_OUTPUT_RECORDS);
    outputBytes = context.getReporter().getCounter(TaskCounter.MAP_OUTPUT_BYTES);
    spilledRecords = context.getReporter().getCounter(TaskCounter.SPILLED_RECORDS);
  }

  @SuppressWarnings("unchecked")
  private void initRecords() throws IOException {
    keyClass = (Class<K>) job.getMapOutputKeyClass();
    valueClass = (Class<V>) job.getMapOutputValueClass();
    comparator = job.getOutputKeyComparator();
    buffer = new RecordBuffer(comparator, (long) job.getInt(MRJobConfig.IO_SORT_MB, MRJobConfig.DEFAULT_IO_SORT_MB) << 20);
    SerializationFactory serializers = new SerializationFactory(job);
    keys = serializers.getSerializer(keyClass);
    keys.open(buffer);
    values = serializers.getSerializer(valueClass);
    values.open(buffer);
    sorter = ReflectionUtils.newInstance(job.getClass(MRJobConfig.MAP_SORT_CLASS, QuickSort.class, IndexedSorter.class), job);
    codec = job.getCompressMapOutput() ? ReflectionUtils.newInstance(job.getMapOutputCompressorClass(DefaultCodec.class), job) : null;
  }

  private void initCombiner(MapTask task) throws ClassNotFoundException {
    Counters.Counter input = context.getReporter().getCounter(TaskCounter.COMBINE_INPUT_RECORDS);
    combiner = Task.CombinerRunner.create(job, task.getTaskID(), input, context.getReporter(), null);
    if (combiner != null) {
      combined = new Task.CombineOutputCollector<>(context.getReporter().getCounter(TaskCounter.COMBINE_OUTPUT_RECORDS), context.getReporter(), job);
    }
  }

  /** Several threads of a mapper may call it, as they may with Hadoop's own. */
  @Override
  public synchronized void collect(K key, V value, int partition) throws IOException, InterruptedException {
    if (own != null) {
      own.collect(key, value, partition);
      return;
    }
    context.getReporter().progress();
    check(keyClass, key.getClass(), "key");
    check(valueClass, value.getClass(), "value");
    if (partition < 0 || partition >= partitions) {
      throw new IOException("Illegal partition for " + key + " (" + partition + ")");
    }
    if (buffer.isFull() && buffer.records() > 0) {
      spill();
    }
    try {
      keys.serialize(key);
      int keyBytes = buffer.written();
      values.serialize(value);
      outputBytes.increment(buffer.written());
      buffer.add(partition, keyBytes);
    } finally {
      buffer.abandon();
    }
    outputRecords.increment(1);
  }

  private static void check(Class<?> wanted, Class<?> is, String what) throws IOException {
    if (is != wanted) {
      throw new IOException("Type mismatch in " + what + " from map: expected " + wanted.getName() + ", received " + is.getName());
    }
  }

  private void spill() throws IOException, InterruptedException {
    int number = spills.size();
    long bytes = buffer.bytes();
    // A number of its own for each of the task's spills, which are at most a few thousand.
    OutputFile spill = new OutputFile(shuffles, JobOutputs.SPILLS, map << 16 | number, partitions, local,
        () -> files.getSpillFileForWrite(number, bytes));
    spills.add(spill);
    writeSorted(spill);
    spill.finish();
  }

  /** Sorts what is in the buffer and writes it, combined. */
  private void writeSorted(OutputFile file) throws IOException, InterruptedException {
    sorter.sort(buffer, 0, buffer.records(), context.getReporter());
    int first = 0;
    for (int partition = 0; partition < partitions; partition++) {
      RecordBuffer.Sorted records = buffer.new Sorted(first, partition);
      write(file, partition, records, records.end() > first);
      first = records.end();
    }
    buffer.clear();
  }

  private void write(OutputFile file, int partition, RawKeyValueIterator records, boolean combines) throws IOException, InterruptedException {
    IFile.Writer<K, V> writer = new IFile.Writer<>(job, file.data(), keyClass, valueClass, codec, spilledRecords);
    if (combiner != null && combines) {
      combined.setWriter(writer);
      try {
        combiner.combine(records, combined);
      } catch (ClassNotFoundException e) {
        throw new IOException(e);
      }
    } else {
      Merger.writeFile(records, writer, context.getReporter(), job);
    }
    writer.close();
    file.wrote(partition, writer.getCompressedLength(), writer.getRawLength());
  }

  @Override
  public void flush() throws IOException, InterruptedException, ClassNotFoundException {
    if (own != null) {
      own.flush();
      return;
    }
    if (!spills.isEmpty() && buffer.records() > 0) {
      spill();
    }
    long bytes = spills.stream().mapToLong(OutputFile::bytes).sum() + buffer.bytes();
    OutputFile output = new OutputFile(shuffles, JobOutputs.OUTPUTS, map, partitions, local, () -> files.getOutputFileForWrite(bytes));
    if (spills.isEmpty()) {
      writeSorted(output);
    } else {
      merge(output);
    }
    context.getMapTask().getSortPhase().complete();
    if (!output.commit(JobOutputs.copies(job))) {
      serveFromHere(output);
    }
    context.getReporter().getCounter(TaskCounter.MAP_OUTPUT_MATERIALIZED_BYTES).increment(output.bytes());
  }

  private void merge(OutputFile output) throws IOException, InterruptedException {
    boolean combines = spills.size() >= job.getInt(MRJobConfig.MAP_COMBINE_MIN_SPILLS, 3);
    Progress phases = context.getMapTask().getSortPhase();
    phases.addPhases(partitions);
    for (int partition = 0; partition < partitions; partition++) {
      List<Merger.Segment<K, V>> segments = new ArrayList<>();
      for (OutputFile spill : spills) {
        segments.add(new Merger.Segment<>(
            new IFile.Reader<>(job, spill.open(partition), spill.partBytes()[partition], codec, null), true));
      }
      // All at once: they are in memory.
      RawKeyValueIterator merged = Merger.merge(job, local, keyClass, valueClass, segments, Math.max(2, segments.size()),
          new Path(context.getMapTask().getTaskID().toString()), comparator, context.getReporter(), false, null, spilledRecords,
          phases.phase());
      write(output, partition, merged, combines);
      phases.startNextPhase();
    }
    for (OutputFile spill : spills) {
      spill.close();
    }
  }

  /** A local output is Hadoop's own: reducers get it from the node manager, by its index. */
  private void serveFromHere(OutputFile output) throws IOException {
    SpillRecord index = new SpillRecord(partitions);
    long start = 0;
    for (int partition = 0; partition < partitions; partition++) {
      index.putIndex(new IndexRecord(start, output.rawBytes(partition), output.partBytes()[partition]), partition);
      start += output.partBytes()[partition];
    }
    Path file = files.getOutputIndexFileForWrite((long) partitions * MapTask.MAP_OUTPUT_INDEX_RECORD_LENGTH);
    index.writeToFile(file, job);
    local.setPermission(file, SERVED);
    local.setPermission(files.getOutputFile(), SERVED);
  }

  @Override
  public void close() throws IOException, InterruptedException {
    if (own != null) {
      own.close();
    }
  }
}
