package io.forebay.spark.shuffle;

import io.forebay.core.ForebayException;
import io.forebay.core.ForebayShuffles;
import io.forebay.core.MapOutput;
import java.io.IOException;
import java.io.OutputStream;
import java.util.List;
import org.apache.spark.shuffle.api.ShuffleExecutorComponents;
import org.apache.spark.shuffle.api.ShuffleMapOutputWriter;
import org.apache.spark.shuffle.api.ShufflePartitionWriter;
import org.apache.spark.shuffle.api.metadata.MapOutputCommitMessage;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Writes one map output into the tier. When the tier refuses, be it at the last byte, what was
 * written is copied to Spark's own writer, which gets the rest too.
 */
final class TierMapOutputWriter implements ShuffleMapOutputWriter {
  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  /** A partition's stream is written in records of any size; a call into the agent's file costs. */
  private static final int BUFFER_BYTES = 64 << 10;

  private final ForebayShuffles shuffles;
  private final int copies;
  private final ShuffleExecutorComponents own;
  private final int shuffle;
  private final long map;
  private final long[] lengths;
  private final byte[] buffer = new byte[BUFFER_BYTES];
  private int buffered;
  /** Null once Spark's own writer has taken over. */
  private MapOutput output;
  private ShuffleMapOutputWriter ownWriter;
  /** Spark's own stream for the partition that is being written. */
  private OutputStream ownStream;
  private boolean hasCopied;

  TierMapOutputWriter(ForebayShuffles shuffles, int copies, ShuffleExecutorComponents own, int shuffle, long map, int partitions)
      throws IOException {
    this.shuffles = shuffles;
    this.copies = copies;
    this.own = own;
    this.shuffle = shuffle;
    this.map = map;
    this.lengths = new long[partitions];
    try {
      output = shuffles.create(shuffle, map);
    } catch (ForebayException e) {
      takeOver(-1, e);
    }
  }

  @Override
  public ShufflePartitionWriter getPartitionWriter(int partition) throws IOException {
    if (output != null) {
      return new Partition(partition);
    }
    ShufflePartitionWriter own = ownWriter.getPartitionWriter(partition);
    return hasCopied ? new ByStream(own) : own;
  }

  @Override
  public MapOutputCommitMessage commitAllPartitions(long[] checksums) throws IOException {
    if (output != null) {
      try {
        output.commit(lengths);
        TierShuffleWriter.committed(copied());
        output.close();
        return MapOutputCommitMessage.of(lengths);
      } catch (ForebayException e) {
        takeOver(lengths.length - 1, e);
        closeOwnStream();
      }
    }
    return ownWriter.commitAllPartitions(checksums);
  }

  /** The nodes that have the output, once as many have it as should and can. */
  private List<String> copied() {
    if (copies < 2) {
      return List.of(shuffles.node());
    }
    try {
      return List.of(shuffles.node(), output.copy());
    } catch (ForebayException e) {
      LOG.warn("Forebay: map output {} of shuffle {} has one copy: {}", map, shuffle, e.toString());
      return List.of(shuffles.node());
    }
  }

  @Override
  public void abort(Throwable error) throws IOException {
    if (output != null) {
      output.close();
    } else {
      ownWriter.abort(error);
    }
  }

  /** Has Spark's own writer write it all, of which the partitions up to {@code last} have begun. */
  private void takeOver(int last, ForebayException why) throws IOException {
    LOG.info("Forebay: map output {} of shuffle {} is written Spark's own way: {}", map, shuffle, why.toString());
    ownWriter = own.createMapOutputWriter(shuffle, map, lengths.length);
    hasCopied = last >= 0;
    byte[] copy = new byte[BUFFER_BYTES];
    long offset = 0;
    for (int partition = 0; partition <= last; partition++) {
      closeOwnStream();
      ownStream = ownWriter.getPartitionWriter(partition).openStream();
      for (long end = offset + lengths[partition]; offset < end;) {
        int read = output.read(offset, copy, (int) Math.min(copy.length, end - offset));
        if (read <= 0) {
          throw new IOException("map output " + map + " of shuffle " + shuffle + " ends too early in the tier");
        }
        ownStream.write(copy, 0, read);
        offset += read;
      }
    }
    if (output != null) {
      output.close();
      output = null;
    }
  }

  private void closeOwnStream() throws IOException {
    if (ownStream != null) {
      ownStream.close();
      ownStream = null;
    }
  }

  private void put(int partition, byte[] bytes, int start, int length) throws IOException {
    if (output != null && length > 0) {
      try {
        output.append(bytes, start, length);
        lengths[partition] += length;
        return;
      } catch (ForebayException e) {
        takeOver(partition, e);
      }
    }
    if (length > 0) {
      ownStream.write(bytes, start, length);
      lengths[partition] += length;
    }
  }

  /** Spark miscounts an output of which a part comes by stream and a part by channel. */
  private record ByStream(ShufflePartitionWriter own) implements ShufflePartitionWriter {
    @Override
    public OutputStream openStream() throws IOException {
      return own.openStream();
    }

    @Override
    public long getNumBytesWritten() {
      return own.getNumBytesWritten();
    }
  }

  private final class Partition extends OutputStream implements ShufflePartitionWriter {
    private final int number;
    private boolean isClosed;

    Partition(int number) {
      this.number = number;
    }

    @Override
    public OutputStream openStream() {
      return this;
    }

    @Override
    public long getNumBytesWritten() {
      return lengths[number] + (isClosed ? 0 : buffered);
    }

    @Override
    public void write(int b) throws IOException {
      if (buffered == buffer.length) {
        flush();
      }
      buffer[buffered++] = (byte) b;
    }

    @Override
    public void write(byte[] bytes, int start, int length) throws IOException {
      if (length > buffer.length - buffered) {
        flush();
      }
      if (length >= buffer.length) {
        put(number, bytes, start, length);
      } else {
        System.arraycopy(bytes, start, buffer, buffered, length);
        buffered += length;
      }
    }

    @Override
    public void flush() throws IOException {
      int length = buffered;
      buffered = 0;
      put(number, buffer, 0, length);
    }

    @Override
    public void close() throws IOException {
      if (!isClosed) {
        flush();
        closeOwnStream();
        isClosed = true;
      }
    }
  }
}
