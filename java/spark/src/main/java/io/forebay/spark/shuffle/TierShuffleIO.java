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

  /** Made by Spark. */
  public TierShuffleIO(SparkConf conf) {
    own = new LocalDiskShuffleDataIO(conf);
  }

  /**
   * Spark's own. That outputs are stored reliably, as Spark calls it, would be wrong: they are lost
   * with their node.
   */
  @Override
  public ShuffleDriverComponents driver() {
    return own.driver();
  }

  @Override
  public ShuffleExecutorComponents executor() {
    return new Executor(own.executor());
  }

  private static final class Executor implements ShuffleExecutorComponents {
    private final ShuffleExecutorComponents own;

    Executor(ShuffleExecutorComponents own) {
      this.own = own;
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
          : new TierMapOutputWriter(shuffles, own, shuffleId, mapTaskId, numPartitions);
    }

    /** Spark would move its one spill file in place of an output; into the tier it is copied. */
    @Override
    public Optional<SingleSpillShuffleMapOutputWriter> createSingleFileMapOutputWriter(int shuffleId, long mapId) throws IOException {
      return ForebayShuffleManager.current() == null ? own.createSingleFileMapOutputWriter(shuffleId, mapId) : Optional.empty();
    }
  }
}
