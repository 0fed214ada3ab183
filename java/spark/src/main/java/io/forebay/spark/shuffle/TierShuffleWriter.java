package io.forebay.spark.shuffle;

import java.io.IOException;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleWriter;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/** Spark's own writer; its output's location is this node's agent if the output is in the tier. */
final class TierShuffleWriter<K, V> extends ShuffleWriter<K, V> {
  private final ShuffleWriter<K, V> writer;
  private final int shuffle;
  private final long map;
  private final String node;

  TierShuffleWriter(ShuffleWriter<K, V> writer, int shuffle, long map, String node) {
    this.writer = writer;
    this.shuffle = shuffle;
    this.map = map;
    this.node = node;
  }

  @Override
  public void write(Iterator<Product2<K, V>> records) throws IOException {
    writer.write(records);
  }

  @Override
  public Option<MapStatus> stop(boolean success) {
    boolean inTier = TierShuffleIO.takeCommitted(shuffle, map);
    Option<MapStatus> status = writer.stop(success);
    if (inTier && status.isDefined()) {
      status.get().updateLocation(TierAddress.of(node, status.get().location()));
    }
    return status;
  }

  @Override
  public long[] getPartitionLengths() {
    return writer.getPartitionLengths();
  }
}
