package io.forebay.mapreduce;

import io.forebay.core.ForebayShuffles;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.DataInputBuffer;
import org.apache.hadoop.io.RawComparator;
import org.apache.hadoop.mapred.IFile;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.Merger;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.mapred.ShuffleConsumerPlugin;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.task.reduce.MergeManager;
import org.apache.hadoop.mapreduce.task.reduce.Shuffle;

/**
 * The shuffle of a reduce task: Hadoop's own for outputs that are not in the tier, and a merge of
 * all. The segments in the tier are read from there while they are merged: they are not copied to
 * this node first, neither to memory nor to a disk.
 *
 * <p>Without an agent it is Hadoop's own shuffle.
 */
public final class TierShuffle<K, V> implements ShuffleConsumerPlugin<K, V> {
  /** In the message of Hadoop's scheduler of fetches. */
  private static final String NO_PROGRESS = "MAX_FAILED_UNIQUE_FETCHES";

  private ShuffleConsumerPlugin.Context<K, V> context;
  private ForebayShuffles shuffles;
  private MapEvents<K, V> events;
  private Shuffle<K, V> own;
  private SegmentReader segments;
  private RawKeyValueIterator merged;

  /** Made by Hadoop. */
  public TierShuffle() {}

  @Override
  public void init(ShuffleConsumerPlugin.Context<K, V> context) {
    this.context = context;
    shuffles = JobOutputs.join(context.getJobConf(), context.getReduceTask(), context.getUmbilical());
    if (shuffles == null) {
      own = new Shuffle<>();
      own.init(context);
      return;
    }
    events = new MapEvents<>(context, shuffles);
    own = new Watched<>(events);
    own.init(events.filtered());
  }

  /** Asks before each output that Hadoop copies, and waits for map tasks that run again. */
  private static final class Watched<K, V> extends Shuffle<K, V> {
    private final MapEvents<K, V> events;

    Watched(MapEvents<K, V> events) {
      this.events = events;
    }

    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    protected MergeManager<K, V> createMergeManager(ShuffleConsumerPlugin.Context context) {
      return events.watched(super.createMergeManager(context));
    }

    /**
     * Hadoop gives a reduce task up whose fetches fail and that makes no progress. Here those in
     * the tier count for none, so the few that are left may all be lost. Each may still fail thirty
     * times only.
     */
    @Override
    public synchronized void reportException(Throwable failure) {
      if (String.valueOf(failure.getMessage()).contains(NO_PROGRESS)) {
        JobOutputs.LOG.info("Forebay: waits for map tasks whose outputs are lost");
      } else {
        super.reportException(failure);
      }
    }
  }

  @Override
  public RawKeyValueIterator run() throws IOException, InterruptedException {
    RawKeyValueIterator copied = own.run();
    List<MapEvents.Found> found = events == null ? List.of() : events.inTier();
    if (found.isEmpty()) {
      return copied;
    }
    RawKeyValueIterator all = merge(copied, found);
    merged = canMergeAhead() ? new MergeAhead(all) : all;
    return merged;
  }

  /**
   * Hadoop may use one comparator to merge and to group, and those that are not its own may keep
   * what they compare in fields.
   */
  private boolean canMergeAhead() {
    RawComparator<?> sorts = context.getJobConf().getOutputKeyComparator();
    return sorts != context.getJobConf().getOutputValueGroupingComparator() || sorts.getClass().getName().startsWith("org.apache.hadoop.io.");
  }

  @SuppressWarnings("unchecked")
  private RawKeyValueIterator merge(RawKeyValueIterator copied, List<MapEvents.Found> found) throws IOException {
    JobConf job = context.getJobConf();
    long bufferBytes = (long) job.getInt(MRJobConfig.IO_SORT_MB, MRJobConfig.DEFAULT_IO_SORT_MB) << 20;
    segments = new SegmentReader(shuffles, context.getReduceId().getTaskID().getId(), bufferBytes, found.size());
    List<FSDataInputStream> streams = new ArrayList<>();
    for (MapEvents.Found output : found) {
      // All are ordered before the first is waited for.
      streams.add(new FSDataInputStream(new ForwardStream(segments.open(output))));
      context.getShuffledMapsCounter().increment(1);
      context.getReduceShuffleBytes().increment(output.length());
    }
    List<Merger.Segment<K, V>> all = new ArrayList<>();
    for (int i = 0; i < streams.size(); i++) {
      IFile.Reader<K, V> reader = new IFile.Reader<>(job, streams.get(i), found.get(i).length(), context.getCodec(), null);
      all.add(new Merger.Segment<>(reader, true, context.getMergedMapOutputsCounter()));
    }
    all.add(new Merger.Segment<>(new Copied<>(job, copied), true));
    return Merger.merge(job, context.getLocalFS(), (Class<K>) job.getMapOutputKeyClass(), (Class<V>) job.getMapOutputValueClass(), all, all.size(),
        new Path(context.getReduceId().toString()), job.getOutputKeyComparator(), context.getReporter(), false, null, null, null);
  }

  /** What Hadoop has copied and merged, as one more segment. */
  private static final class Copied<K, V> extends IFile.Reader<K, V> {
    private final RawKeyValueIterator records;

    Copied(JobConf job, RawKeyValueIterator records) throws IOException {
      super(job, null, 0, null, null);
      this.records = records;
    }

    @Override
    public boolean nextRawKey(DataInputBuffer key) throws IOException {
      if (!records.next()) {
        return false;
      }
      DataInputBuffer next = records.getKey();
      key.reset(next.getData(), next.getPosition(), next.getLength() - next.getPosition());
      bytesRead += next.getLength() - next.getPosition();
      return true;
    }

    @Override
    public void nextRawValue(DataInputBuffer value) throws IOException {
      DataInputBuffer next = records.getValue();
      value.reset(next.getData(), next.getPosition(), next.getLength() - next.getPosition());
      bytesRead += next.getLength() - next.getPosition();
    }

    @Override
    public long getPosition() {
      return bytesRead;
    }

    @Override
    public void close() throws IOException {
      records.close();
    }
  }

  @Override
  public void close() {
    own.close();
    if (segments != null) {
      try {
        merged.close();
      } catch (IOException e) {
        JobOutputs.LOG.debug("Forebay: the end of a merge", e);
      }
      segments.close();
    }
  }
}
