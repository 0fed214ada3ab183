package io.forebay.spark.shuffle;

import java.io.IOException;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleWriter;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/** Spark's own writer; its output's location is this node's agent if the output is in the tier. */
final class TierShuffleWriter<K, V> extends ShuffleWriter<K, V> {
  /** The one whose records this thread writes: Spark's writer commits its output in that call. */
  private static final ThreadLocal<TierShuffleWriter<?, ?>> WRITING = new ThreadLocal<>();

  private final ShuffleWriter<K, V> writer;
  private final String node;
  private boolean isInTier;

  TierShuffleWriter(ShuffleWriter<K, V> writer, String node) {
    this.writer = writer;
    this.node = node;
  }

  /** The output that this thread writes is in the tier. */
  static void committed() {
    WRITING.get().isInTier = true;
  }

  @Override
  public void write(Iterator<Product2<K, V>> records) throws IOException {
    WRITING.set(this);
    try {
      writer.write(records);
    } finally {
      WRITING.remove();
    }
  }

  @Override
  public Option<MapStatus> stop(boolean success) {
    Option<MapStatus> status = writer.stop(success);
    if (isInTier && status.isDefined()) {
      status.get().updateLocation(TierAddress.of(node, status.get().location()));
    }
    return status;
  }

  @Override
  public long[] getPartitionLengths() {
    return writer.getPartitionLengths();
  }
}
