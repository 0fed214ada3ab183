package io.forebay.spark.shuffle;

import java.io.IOException;
import java.util.List;
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
  /** Where the output is; empty until it is in the tier. */
  private List<String> nodes = List.of();

  TierShuffleWriter(ShuffleWriter<K, V> writer) {
    this.writer = writer;
  }

  /** The output that this thread writes is in the tier of these nodes. */
  static void committed(List<String> nodes) {
    WRITING.get().nodes = nodes;
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
    if (!nodes.isEmpty() && status.isDefined()) {
      status.get().updateLocation(TierAddress.of(nodes, status.get().location()));
    }
    return status;
  }

  @Override
  public long[] getPartitionLengths() {
    return writer.getPartitionLengths();
  }
}
