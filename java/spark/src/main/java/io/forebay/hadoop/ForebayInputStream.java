package io.forebay.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.EnumSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.ByteBufferPositionedReadable;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.ByteBufferUtil;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.HasEnhancedByteBufferAccess;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.io.ByteBufferPool;

/**
 * A file being read: by position, in sequence, into arrays and buffers, by many ranges at once, and
 * without a copy.
 *
 * <p>Reads of at least the buffer's size go straight to the caller's memory; only smaller ones in
 * sequence are served from the buffer, which is made when the first of them comes. Read-ahead is
 * the agent's, so nothing is fetched here before it is asked for.
 *
 * <p>Threads may read by position at the same time; the position of the stream is for one at a
 * time, and guarded all the same.
 */
final class ForebayInputStream extends FSInputStream
    implements ByteBufferReadable, ByteBufferPositionedReadable, HasEnhancedByteBufferAccess, CanUnbuffer, StreamCapabilities {
  /** {@code StreamCapabilities.VECTOREDIO}, which the oldest Hadoop does not have. */
  private static final String VECTORED = "in:readvectored";

  private final String path;
  private final Contents.Reader reader;
  private final FileSystem.Statistics statistics;
  private final long size;
  private final int bufferBytes;
  private final MappedWindows windows;
  /** Buffers of a caller's pool that stand in for mapped ones. */
  private final Map<ByteBuffer, ByteBufferPool> pooled = new IdentityHashMap<>();
  /** Bytes of the file from {@link #bufferStart} on, {@link #filled} of them. Null until needed. */
  private byte[] buffer;
  private long bufferStart;
  private int filled;
  private long position;
  private volatile boolean closed;
  /** Something was asked of the stream. */
  private boolean used;

  /**
   * A stream on {@code reader}, which is closed with it; and at once if there is no stream after
   * all, as nobody else could.
   */
  static ForebayInputStream on(String path, Contents.Reader reader, FileSystem.Statistics statistics, int bufferBytes, int mapWindowBytes)
      throws IOException {
    try {
      return new ForebayInputStream(path, reader, statistics, bufferBytes, mapWindowBytes);
    } catch (IOException | RuntimeException e) {
      try {
        reader.close();
      } catch (IOException second) {
        e.addSuppressed(second);
      }
      throw e;
    }
  }

  private ForebayInputStream(String path, Contents.Reader reader, FileSystem.Statistics statistics, int bufferBytes, int mapWindowBytes)
      throws IOException {
    this.path = path;
    this.reader = reader;
    this.statistics = statistics;
    this.bufferBytes = Math.max(512, Math.min(bufferBytes, 1 << 20));
    size = reader.size();
    windows = new MappedWindows(reader, mapWindowBytes);
  }

  /** Whether it is open and nothing was asked of it. For the thread that has opened it. */
  boolean isOpenAndUnread() {
    return !used && !closed;
  }

  private void checkOpen() throws IOException {
    used = true;
    if (closed) {
      throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
    }
  }

  private int counted(int n) {
    if (n > 0 && statistics != null) {
      statistics.incrementBytesRead(n);
    }
    return n;
  }

  /** Reads at {@code offset}; -1 at the end of the file. */
  private int readAt(long offset, byte[] array, int start, int length) throws IOException {
    try {
      int n = counted(reader.read(offset, array, start, length));
      return n == 0 && length > 0 ? -1 : n;
    } catch (IOException e) {
      throw Errors.translate(e, path);
    }
  }

  private int readAt(long offset, ByteBuffer target) throws IOException {
    boolean wanted = target.hasRemaining();
    try {
      int n = counted(reader.read(offset, target));
      return n == 0 && wanted ? -1 : n;
    } catch (IOException e) {
      throw Errors.translate(e, path);
    }
  }

  long length() {
    return size;
  }

  // ---- in sequence ----

  /** Bytes of the buffer that come next. */
  private int buffered() {
    long at = position - bufferStart;
    return at >= 0 && at < filled ? filled - (int) at : 0;
  }

  /** Index in the buffer of the byte that comes next, if one of it does. */
  private int next() {
    return (int) (position - bufferStart);
  }

  /** Fills the buffer from the position on; false at the end of the file. */
  private boolean fill() throws IOException {
    if (buffer == null) {
      buffer = new byte[bufferBytes];
    }
    filled = 0;
    bufferStart = position;
    filled = Math.max(0, readAt(position, buffer, 0, bufferBytes));
    return filled > 0;
  }

  @Override
  public synchronized int read() throws IOException {
    checkOpen();
    if (buffered() == 0 && !fill()) {
      return -1;
    }
    int value = buffer[next()] & 0xff;
    position++;
    return value;
  }

  @Override
  public synchronized int read(byte[] array, int start, int length) throws IOException {
    checkOpen();
    Objects.checkFromIndexSize(start, length, array.length);
    if (length == 0) {
      return 0;
    }
    if (buffered() == 0) {
      if (length >= bufferBytes) {
        int n = readAt(position, array, start, length);
        position += Math.max(n, 0);
        return n;
      }
      if (!fill()) {
        return -1;
      }
    }
    int n = Math.min(length, buffered());
    System.arraycopy(buffer, next(), array, start, n);
    position += n;
    return n;
  }

  @Override
  public synchronized int read(ByteBuffer target) throws IOException {
    checkOpen();
    if (!target.hasRemaining()) {
      return 0;
    }
    int n;
    if (buffered() > 0) {
      n = Math.min(target.remaining(), buffered());
      target.put(buffer, next(), n);
    } else {
      n = readAt(position, target);
    }
    position += Math.max(n, 0);
    return n;
  }

  @Override
  public synchronized void seek(long target) throws IOException {
    checkOpen();
    if (target < 0) {
      throw new EOFException(path + ": " + FSExceptionMessages.NEGATIVE_SEEK + " " + target);
    }
    if (target > size) {
      throw new EOFException(path + ": " + FSExceptionMessages.CANNOT_SEEK_PAST_EOF + ": to " + target + " of " + size);
    }
    position = target;
  }

  @Override
  public synchronized long skip(long bytes) throws IOException {
    checkOpen();
    long skipped = Math.max(0, Math.min(bytes, size - position));
    seek(position + skipped);
    return skipped;
  }

  @Override
  public synchronized long getPos() {
    return position;
  }

  @Override
  public boolean seekToNewSource(long target) {
    return false;
  }

  @Override
  public synchronized int available() throws IOException {
    checkOpen();
    return (int) Math.min(Integer.MAX_VALUE, Math.max(0, size - position));
  }

  // ---- by position ----

  @Override
  public int read(long offset, byte[] array, int start, int length) throws IOException {
    checkOpen();
    validatePositionedReadArgs(offset, array, start, length);
    Objects.checkFromIndexSize(start, length, array.length);
    return length == 0 ? 0 : readAt(offset, array, start, length);
  }

  @Override
  public void readFully(long offset, byte[] array, int start, int length) throws IOException {
    // A read is short only at the end of the file.
    if (read(offset, array, start, length) < length) {
      throw Errors.endOfFile(path, offset + length);
    }
  }

  @Override
  public int read(long offset, ByteBuffer target) throws IOException {
    checkOpen();
    if (offset < 0) {
      throw new EOFException(path + ": " + FSExceptionMessages.NEGATIVE_SEEK + " " + offset);
    }
    return target.hasRemaining() ? readAt(offset, target) : 0;
  }

  @Override
  public void readFully(long offset, ByteBuffer target) throws IOException {
    int length = target.remaining();
    if (read(offset, target) < length) {
      throw Errors.endOfFile(path, offset + length);
    }
  }

  /** Reads what takes no waiting; -1 otherwise. Not counted. */
  int readResident(long offset, ByteBuffer target) throws IOException {
    checkOpen();
    return reader.readResident(offset, target);
  }

  /** As {@link #readFully(long, ByteBuffer)}, and not counted. */
  void readFullyUncounted(long offset, ByteBuffer target) throws IOException {
    checkOpen();
    int length = target.remaining();
    int n;
    try {
      n = length > 0 ? reader.read(offset, target) : 0;
    } catch (IOException e) {
      throw Errors.translate(e, path);
    }
    if (n < length) {
      throw Errors.endOfFile(path, offset + length);
    }
  }

  /** Counts a read for the calling thread, as Hadoop's statistics are by thread. */
  void count(int bytes) {
    counted(bytes);
  }

  /**
   * Overrides {@code PositionedReadable.readVectored} where Hadoop has it: by its erasure, as the
   * oldest has no FileRange to name.
   */
  public void readVectored(List<?> ranges, IntFunction<ByteBuffer> allocate) throws IOException {
    checkOpen();
    VectoredRead.read(this, size, ranges, allocate);
  }

  // ---- without a copy ----

  @Override
  public synchronized ByteBuffer read(ByteBufferPool pool, int maxLength, EnumSet<ReadOption> options) throws IOException {
    checkOpen();
    if (maxLength < 0) {
      throw new IllegalArgumentException("a read of " + maxLength + " bytes");
    }
    if (position >= size && maxLength > 0) {
      return null;
    }
    ByteBuffer mapped = maxLength == 0 ? ByteBuffer.allocate(0) : windows.lend(position, maxLength, size);
    if (mapped != null) {
      seek(position + mapped.remaining());
      counted(mapped.remaining());
      return mapped;
    }
    if (pool == null) {
      throw new UnsupportedOperationException(path + ": these bytes cannot be read without a copy, and the call has no pool for one");
    }
    ByteBuffer copied = ByteBufferUtil.fallbackRead(this, pool, maxLength);
    if (copied != null) {
      pooled.put(copied, pool);
    }
    return copied;
  }

  @Override
  public synchronized void releaseBuffer(ByteBuffer lent) {
    ByteBufferPool pool = pooled.remove(lent);
    if (pool != null) {
      pool.putBuffer(lent);
    } else if (!windows.takeBack(lent) && lent.capacity() > 0) {
      throw new IllegalArgumentException("a buffer that this stream has not lent, or that was released before");
    }
  }

  @Override
  public synchronized void unbuffer() {
    buffer = null;
    filled = 0;
    windows.pass();
  }

  @Override
  public boolean hasCapability(String capability) {
    return switch (capability.toLowerCase(Locale.ROOT)) {
      case StreamCapabilities.UNBUFFER, StreamCapabilities.READBYTEBUFFER, StreamCapabilities.PREADBYTEBUFFER, VECTORED -> true;
      default -> false;
    };
  }

  @Override
  public synchronized void close() throws IOException {
    if (!closed) {
      closed = true;
      unbuffer();
      reader.close();
    }
  }
}
