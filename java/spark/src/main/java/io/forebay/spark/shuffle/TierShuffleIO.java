package io.forebay.spark.shuffle;

import io.forebay.core.ForebayShuffles;
import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.SparkConf;
import org.apache.spark.shuffle.api.ShuffleDataIO;
import org.apache.spark.shuffle.api.ShuffleDriverComponents;
import org.apache.spark.shuffle.api.ShuffleExecutorComponents;
import org.apache.spark.shuffle.api.ShuffleMapOutputWriter;
import org.apache.spark.shuffle.api.SingleSpillShuffleMapOutputWriter;
import org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO;

/** Where Spark's writers put their bytes: into the tier, or where they always do. */
public final class TierShuffleIO implements ShuffleDataIO {
  private final ShuffleDataIO own;
  private final int copies;

  /** Made by Spark. */
  public TierShuffleIO(SparkConf conf) {
    own = new LocalDiskShuffleDataIO(conf);
    copies = ForebayShuffleManager.copies(conf);
  }

  @Override
  public ShuffleDriverComponents driver() {
    return new Driver(own.driver(), copies);
  }

  @Override
  public ShuffleExecutorComponents executor() {
    return new Executor(own.executor(), copies);
  }

  private record Driver(ShuffleDriverComponents own, int copies) implements ShuffleDriverComponents {
    @Override
    public Map<String, String> initializeApplication() {
      return own.initializeApplication();
    }

    @Override
    public void cleanupApplication() {
      own.cleanupApplication();
    }

    @Override
    public void registerShuffle(int shuffleId) {
      own.registerShuffle(shuffleId);
    }

    @Override
    public void removeShuffle(int shuffleId, boolean blocking) {
      own.removeShuffle(shuffleId, blocking);
    }

    /** Whether outputs outlive a node. With one copy they are lost with it. */
    @Override
    public boolean supportsReliableStorage() {
      return copies > 1 && ForebayShuffleManager.current() != null;
    }
  }

  private static final class Executor implements ShuffleExecutorComponents {
    private final ShuffleExecutorComponents own;
    private final int copies;

    Executor(ShuffleExecutorComponents own, int copies) {
      this.own = own;
      this.copies = copies;
    }

    @Override
    public void initializeExecutor(String appId, String execId, Map<String, String> extraConfigs) {
      own.initializeExecutor(appId, execId, extraConfigs);
    }

    @Override
    public ShuffleMapOutputWriter createMapOutputWriter(int shuffleId, long mapTaskId, int numPartitions) throws IOException {
      ForebayShuffles shuffles = ForebayShuffleManager.current();
      return shuffles == null
          ? own.createMapOutputWriter(shuffleId, mapTaskId, numPartitions)
          : new TierMapOutputWriter(shuffles, copies, own, shuffleId, mapTaskId, numPartitions);
    }

    /** Spark would move its one spill file in place of an output; into the tier it is copied. */
    @Override
    public Optional<SingleSpillShuffleMapOutputWriter> createSingleFileMapOutputWriter(int shuffleId, long mapId) throws IOException {
      return ForebayShuffleManager.current() == null ? own.createSingleFileMapOutputWriter(shuffleId, mapId) : Optional.empty();
    }
  }
}
