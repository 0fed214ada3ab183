package io.forebay.spark.shuffle;

import io.forebay.core.FetchedBlocks;
import io.forebay.core.ForebayException;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.network.buffer.ManagedBuffer;

/**
 * A block in the tier, read from there as the reducer goes: it takes no memory of the executor. All
 * blocks of a request are released together, with the last of them.
 */
final class TierBuffer extends ManagedBuffer {
  private final FetchedBlocks fetched;
  private final int number;
  private final long size;
  /** Of all blocks of the request. */
  private final AtomicInteger users;

  private TierBuffer(FetchedBlocks fetched, int number, AtomicInteger users) throws ForebayException {
    this.fetched = fetched;
    this.number = number;
    this.size = fetched.size(number);
    this.users = users;
  }

  /** Each has one user. */
  static List<ManagedBuffer> of(FetchedBlocks fetched, int count) throws ForebayException {
    AtomicInteger users = new AtomicInteger(count);
    List<ManagedBuffer> buffers = new ArrayList<>(count);
    for (int number = 0; number < count; number++) {
      buffers.add(new TierBuffer(fetched, number, users));
    }
    return buffers;
  }

  @Override
  public long size() {
    return size;
  }

  @Override
  public ByteBuffer nioByteBuffer() throws IOException {
    return ByteBuffer.wrap(createInputStream().readNBytes(Math.toIntExact(size)));
  }

  @Override
  public InputStream createInputStream() {
    return new Stream();
  }

  @Override
  public ManagedBuffer retain() {
    users.incrementAndGet();
    return this;
  }

  @Override
  public ManagedBuffer release() {
    if (users.decrementAndGet() == 0) {
      fetched.close();
    }
    return this;
  }

  @Override
  public Object convertToNetty() {
    throw new UnsupportedOperationException("blocks in the tier are sent by agents, not by executors");
  }

  /** As of Spark 4.1. */
  public Object convertToNettyForSsl() {
    return convertToNetty();
  }

  private final class Stream extends InputStream {
    private long at;

    @Override
    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] array, int start, int length) throws IOException {
      if (length == 0) {
        return 0;
      }
      if (at == size) {
        return -1;
      }
      int read = fetched.read(number, at, array, start, length);
      if (read <= 0) {
        throw new EOFException("a block of " + size + " bytes ends at " + at);
      }
      at += read;
      return read;
    }

    @Override
    public long skip(long bytes) {
      long skipped = Math.max(0, Math.min(bytes, size - at));
      at += skipped;
      return skipped;
    }

    @Override
    public int available() {
      return (int) Math.min(Integer.MAX_VALUE, size - at);
    }
  }
}
