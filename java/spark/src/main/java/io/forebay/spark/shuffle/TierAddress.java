package io.forebay.spark.shuffle;

import java.util.List;
import java.util.regex.Pattern;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManagerId;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * How a map output's location says that it is in the tier of a node, or of two.
 *
 * <p>The names of the nodes stand where Spark has an executor's. No executor is called so: Spark
 * keeps the output when an executor ends, and drops all of a node's outputs when a fetch of one has
 * failed. The host stays the executor's, since Spark prefers it for reducers.
 */
final class TierAddress {
  private static final String PREFIX = "forebay-";
  /** Between nodes; in no name of one. */
  private static final String BETWEEN = "|";

  private TierAddress() {}

  static BlockManagerId of(List<String> nodes, BlockManagerId writer) {
    return BlockManagerId.apply(PREFIX + String.join(BETWEEN, nodes), writer.host(), writer.port(), writer.topologyInfo());
  }

  /** The nodes of an output in the tier; none for an executor's. */
  static List<String> nodes(String executorId) {
    return executorId.startsWith(PREFIX) ? List.of(executorId.substring(PREFIX.length()).split(Pattern.quote(BETWEEN))) : List.of();
  }

  /**
   * Blocks to fetch, those in the tier with the name of a host on which no executor is: Spark would
   * look for blocks of its own host in the files of the executors there.
   */
  static final class Blocks extends AbstractIterator<Tuple2<BlockManagerId, Seq<Tuple3<BlockId, Object, Object>>>> {
    private final Iterator<Tuple2<BlockManagerId, Seq<Tuple3<BlockId, Object, Object>>>> all;

    Blocks(Iterator<Tuple2<BlockManagerId, Seq<Tuple3<BlockId, Object, Object>>>> all) {
      this.all = all;
    }

    @Override
    public boolean hasNext() {
      return all.hasNext();
    }

    @Override
    public Tuple2<BlockManagerId, Seq<Tuple3<BlockId, Object, Object>>> next() {
      Tuple2<BlockManagerId, Seq<Tuple3<BlockId, Object, Object>>> next = all.next();
      BlockManagerId at = next._1();
      if (nodes(at.executorId()).isEmpty()) {
        return next;
      }
      return new Tuple2<>(BlockManagerId.apply(at.executorId(), at.executorId() + ".tier", at.port(), at.topologyInfo()), next._2());
    }
  }
}
