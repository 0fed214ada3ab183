package io.forebay.spark.shuffle;

import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayShuffles;
import io.forebay.hadoop.ForebayConfig;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.BlockStoreShuffleReader;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.sort.SortShuffleManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Spark's sort shuffle with its map outputs in the memory of the nodes' agents, which outlive
 * executors.
 *
 * <p>The driver begins an application at its node's agent and passes its name to the executors in
 * their configuration. An output in the tier is registered with a location that is no executor but
 * an agent ({@link TierAddress}): so Spark forgets it when a fetch from the agent has failed, and
 * not when the executor that wrote it ends. An output that the tier has no room for is written and
 * registered Spark's own way; the reader takes each from where it is.
 */
public final class ForebayShuffleManager extends SortShuffleManager {
  /** Set by the driver for the executors; Spark hides the values of such names in its pages. */
  static final String APPLICATION = "spark.forebay.shuffle.token";

  /** Nodes that have an output when its task ends: 1 or 2. */
  static final String COPIES = "spark.forebay.shuffle.copies";

  private static final String SHUFFLE_IO = "spark.shuffle.sort.io.plugin.class";
  private static final String PUSH = "spark.shuffle.push.enabled";

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  private final boolean isDriver;
  /** Null: Spark's own shuffle. */
  private final ForebayShuffles shuffles;

  /** Made by Spark, once for each process. */
  public ForebayShuffleManager(SparkConf conf, boolean isDriver) {
    super(withShuffleIO(conf));
    this.isDriver = isDriver;
    this.shuffles = isDriver ? begin(conf) : join(conf);
  }

  static int copies(SparkConf conf) {
    int copies = conf.getInt(COPIES, 1);
    if (copies < 1 || copies > 2) {
      throw new IllegalArgumentException(COPIES + " = " + copies + ": map outputs can be on 1 node or on 2");
    }
    return copies;
  }

  private static SparkConf withShuffleIO(SparkConf conf) {
    copies(conf);
    String given = conf.get(SHUFFLE_IO, TierShuffleIO.class.getName());
    if (!given.equals(TierShuffleIO.class.getName())) {
      throw new IllegalArgumentException("spark.shuffle.manager = " + ForebayShuffleManager.class.getName() + " needs its own " + SHUFFLE_IO
          + ", which is set to " + given + ": unset one of the two");
    }
    return conf.set(SHUFFLE_IO, TierShuffleIO.class.getName());
  }

  private static ForebayShuffles begin(SparkConf conf) {
    conf.remove(APPLICATION);
    if (conf.getBoolean(PUSH, false)) {
      LOG.warn("Forebay: {} = true merges map outputs on Spark's own servers; this application uses Spark's own shuffle", PUSH);
      return null;
    }
    try (ForebayClient client = client(conf)) {
      ForebayShuffles begun = client.beginShuffles();
      conf.set(APPLICATION, begun.token() + "@" + begun.origin());
      return begun;
    } catch (IOException | LinkageError e) {
      LOG.warn("Forebay: this application uses Spark's own shuffle: {}", e.toString());
      return null;
    }
  }

  private static ForebayShuffles join(SparkConf conf) {
    String application = conf.get(APPLICATION, "");
    if (application.isEmpty()) {
      return null;
    }
    int at = application.indexOf('@');
    try (ForebayClient client = client(conf)) {
      return client.joinShuffles(application.substring(0, at), application.substring(at + 1));
    } catch (IOException | LinkageError e) {
      // Its own outputs could be written Spark's way, but those of others could not be read.
      throw new IllegalStateException("this application's map outputs are in Forebay's tier, and this executor cannot reach them: start an"
          + " agent on every node that runs executors, or unset spark.shuffle.manager", e);
    }
  }

  private static ForebayClient client(SparkConf conf) throws IOException {
    return new ForebayClient(new ForebayConfig(SparkHadoopUtil.get().newConfiguration(conf)).client());
  }

  /** Null if this application uses Spark's own shuffle. */
  static ForebayShuffles current() {
    return SparkEnv.get().shuffleManager() instanceof ForebayShuffleManager manager ? manager.shuffles : null;
  }

  @Override
  public <K, V, C> ShuffleHandle registerShuffle(int shuffleId, ShuffleDependency<K, V, C> dependency) {
    if (shuffles != null) {
      try {
        shuffles.setLives(shuffleId, true);
      } catch (IOException e) {
        // Agents refuse outputs of an application that has ended: they are written Spark's own way.
        LOG.warn("Forebay: shuffle {} uses Spark's own way: {}", shuffleId, e.toString());
      }
    }
    return super.registerShuffle(shuffleId, dependency);
  }

  @Override
  public <K, V> ShuffleWriter<K, V> getWriter(ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
    ShuffleWriter<K, V> writer = super.getWriter(handle, mapId, context, metrics);
    return shuffles == null ? writer : new TierShuffleWriter<>(writer);
  }

  @Override
  @SuppressWarnings("unchecked")
  public <K, C> ShuffleReader<K, C> getReader(ShuffleHandle handle, int startMapIndex, int endMapIndex, int startPartition,
      int endPartition, TaskContext context, ShuffleReadMetricsReporter metrics) {
    if (shuffles == null) {
      return super.getReader(handle, startMapIndex, endMapIndex, startPartition, endPartition, context, metrics);
    }
    try {
      // Without the agent every block would seem lost, and all map tasks would run again in vain.
      // One that has answered in the last second is not asked.
      shuffles.check();
    } catch (IOException e) {
      throw new UncheckedIOException("this node's agent has map outputs, or fetches them, and does not answer", e);
    }
    SparkEnv env = SparkEnv.get();
    TierBlockClient.install(env.blockManager(), shuffles);
    return new BlockStoreShuffleReader<>((BaseShuffleHandle<K, ?, C>) handle,
        new TierAddress.Blocks(
            env.mapOutputTracker().getMapSizesByExecutorId(handle.shuffleId(), startMapIndex, endMapIndex, startPartition, endPartition)),
        context, metrics, env.serializerManager(), env.blockManager(), env.mapOutputTracker(),
        SortShuffleManager.canUseBatchFetch(startPartition, endPartition, context));
  }

  @Override
  public boolean unregisterShuffle(int shuffleId) {
    if (shuffles != null) {
      try {
        if (isDriver) {
          shuffles.setLives(shuffleId, false);
        } else {
          shuffles.remove(shuffleId);
        }
      } catch (IOException e) {
        LOG.debug("Forebay: the agent removes shuffle {} with the application", shuffleId, e);
      }
    }
    return super.unregisterShuffle(shuffleId);
  }

  @Override
  public void stop() {
    super.stop();
    if (shuffles != null) {
      shuffles.close();
    }
  }
}
