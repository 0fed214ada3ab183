package io.forebay.spark.shuffle;

import io.forebay.core.FetchedBlocks;
import io.forebay.core.ForebayException;
import io.forebay.core.ForebayShuffles;
import io.forebay.core.ForebayShuffles.Block;
import java.io.IOException;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.spark.network.buffer.ManagedBuffer;
import org.apache.spark.network.shuffle.BlockFetchingListener;
import org.apache.spark.network.shuffle.BlockPushingListener;
import org.apache.spark.network.shuffle.BlockStoreClient;
import org.apache.spark.network.shuffle.DownloadFileManager;
import org.apache.spark.network.shuffle.MergeFinalizerListener;
import org.apache.spark.network.shuffle.MergedBlocksMetaListener;
import org.apache.spark.network.shuffle.checksum.Cause;
import org.apache.spark.storage.BlockManager;

/**
 * Fetches blocks in the tier from the agent, and all others as Spark does.
 *
 * <p>It stands in the place of the block manager's own client, so that Spark's reader keeps what it
 * does with blocks: bytes in flight, corruption, decompression, and a fetch that failed.
 */
final class TierBlockClient extends BlockStoreClient {
  private static final String FIELD = "blockStoreClient";

  private final BlockStoreClient own;
  private final ForebayShuffles shuffles;
  /** Spark bounds the requests under way; one of another node's waits for its agent. */
  private final ExecutorService waiting = Executors.newCachedThreadPool(body -> {
    Thread thread = new Thread(body, "forebay-blocks");
    thread.setDaemon(true);
    return thread;
  });

  private TierBlockClient(BlockStoreClient own, ForebayShuffles shuffles) {
    this.own = own;
    this.shuffles = shuffles;
  }

  /**
   * Puts one in the place of a block manager's own, once. Spark has no setting for it, and its
   * reader takes the client from there.
   */
  static synchronized void install(BlockManager blocks, ForebayShuffles shuffles) {
    if (blocks.blockStoreClient() instanceof TierBlockClient) {
      return;
    }
    try {
      Field field = BlockManager.class.getDeclaredField(FIELD);
      field.setAccessible(true);
      field.set(blocks, new TierBlockClient(blocks.blockStoreClient(), shuffles));
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException("this version of Spark has no BlockManager." + FIELD + ": unset spark.shuffle.manager", e);
    }
  }

  @Override
  public void fetchBlocks(String host, int port, String executorId, String[] ids, BlockFetchingListener listener, DownloadFileManager files) {
    List<String> nodes = TierAddress.nodes(executorId);
    if (nodes.isEmpty()) {
      own.fetchBlocks(host, port, executorId, ids, listener, files);
    } else if (nodes.equals(List.of(shuffles.node()))) {
      fetch(nodes, ids, listener);
    } else {
      // This node first, if it has a copy.
      List<String> nearest = nodes.stream().sorted(Comparator.comparing(node -> !node.equals(shuffles.node()))).toList();
      waiting.execute(() -> fetch(nearest, ids, listener));
    }
  }

  private void fetch(List<String> nodes, String[] ids, BlockFetchingListener listener) {
    for (int from = 0; from < ids.length; from += ForebayShuffles.BLOCKS_MAX) {
      String[] some = Arrays.copyOfRange(ids, from, Math.min(ids.length, from + ForebayShuffles.BLOCKS_MAX));
      List<ManagedBuffer> buffers = new ArrayList<>();
      try {
        FetchedBlocks fetched = shuffles.fetch(nodes, Arrays.stream(some).map(TierBlockClient::parse).toList());
        buffers = TierBuffer.of(fetched, some.length);
      } catch (ForebayException | RuntimeException e) {
        for (String id : some) {
          listener.onBlockFetchFailure(id, e);
        }
        continue;
      }
      for (int i = 0; i < some.length; i++) {
        listener.onBlockFetchSuccess(some[i], buffers.get(i));
        buffers.get(i).release();
      }
    }
  }

  /** Of {@code shuffle_S_M_P}, or {@code shuffle_S_M_P_E} for partitions P up to but not E. */
  private static Block parse(String id) {
    String[] words = id.split("_");
    if (words.length < 4 || words.length > 5 || !words[0].equals("shuffle")) {
      throw new IllegalArgumentException(id + " is no block of a map output");
    }
    int first = Integer.parseInt(words[3]);
    int end = words.length == 5 ? Integer.parseInt(words[4]) : first + 1;
    return new Block(Integer.parseInt(words[1]), Long.parseLong(words[2]), first, end);
  }

  /**
   * The tier keeps no checksums of Spark's by which to distinguish a bad disk from a bad network.
   */
  @Override
  public Cause diagnoseCorruption(String host, int port, String executorId, int shuffle, long map, int reduce, long checksum, String algorithm) {
    return TierAddress.nodes(executorId).isEmpty()
        ? own.diagnoseCorruption(host, port, executorId, shuffle, map, reduce, checksum, algorithm)
        : Cause.UNKNOWN_ISSUE;
  }

  @Override
  public void setAppAttemptId(String id) {
    own.setAppAttemptId(id);
  }

  @Override
  public String getAppAttemptId() {
    return own.getAppAttemptId();
  }

  @Override
  public void getHostLocalDirs(String host, int port, String[] executors, CompletableFuture<Map<String, String[]>> found) {
    own.getHostLocalDirs(host, port, executors, found);
  }

  @Override
  public void pushBlocks(String host, int port, String[] ids, ManagedBuffer[] buffers, BlockPushingListener listener) {
    own.pushBlocks(host, port, ids, buffers, listener);
  }

  @Override
  public void finalizeShuffleMerge(String host, int port, int shuffle, int merge, MergeFinalizerListener listener) {
    own.finalizeShuffleMerge(host, port, shuffle, merge, listener);
  }

  @Override
  public void getMergedBlockMeta(String host, int port, int shuffle, int merge, int reduce, MergedBlocksMetaListener listener) {
    own.getMergedBlockMeta(host, port, shuffle, merge, reduce, listener);
  }

  @Override
  public boolean removeShuffleMerge(String host, int port, int shuffle, int merge) {
    return own.removeShuffleMerge(host, port, shuffle, merge);
  }

  @Override
  public void close() throws IOException {
    waiting.shutdownNow();
    own.close();
  }
}
