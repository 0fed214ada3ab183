package io.forebay.hadoop;

import io.forebay.core.Mapping;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Bytes without a copy for a stream that reads on and on.
 *
 * <p>To map costs a request to the agent and page faults, about what it costs to copy a hundred
 * KiB; so a window is mapped, and slices of it are lent. A window is released when the stream has
 * moved on and its last slice has been returned; slices that never are go with the garbage
 * collector (see {@link Mapping}), so that a stream that is closed early cannot take memory away
 * that is still read.
 */
final class MappedWindows {
  private final Contents.Reader reader;
  private final int windowBytes;
  private final Map<ByteBuffer, Window> lent = new IdentityHashMap<>();
  private Window current;

  MappedWindows(Contents.Reader reader, int windowBytes) {
    this.reader = reader;
    this.windowBytes = windowBytes;
  }

  private static final class Window {
    private final Mapping mapping;
    private final long start;
    private final int length;
    private int slices;
    private boolean passed;

    Window(Mapping mapping, long start, int length) {
      this.mapping = mapping;
      this.start = start;
      this.length = length;
    }

    boolean holds(long offset) {
      return offset >= start && offset < start + length;
    }

    void closeIfDone() {
      if (passed && slices == 0) {
        mapping.close();
      }
    }
  }

  /**
   * At most {@code length} bytes at {@code offset}, which is before the end of a file of {@code
   * size}; null if they cannot be mapped.
   */
  synchronized ByteBuffer lend(long offset, int length, long size) throws IOException {
    if (windowBytes == 0) {
      return null;
    }
    if (current == null || !current.holds(offset)) {
      pass();
      current = map(offset, (int) Math.min(windowBytes, size - offset), (int) Math.min(length, size - offset));
      if (current == null) {
        return null;
      }
    }
    int from = (int) (offset - current.start);
    ByteBuffer slice = current.mapping.buffer().slice(from, Math.min(length, current.length - from));
    current.slices++;
    lent.put(slice, current);
    return slice;
  }

  /** A whole window, or if not all of it is resident what is asked for. */
  private Window map(long offset, int most, int least) throws IOException {
    Mapping mapping = reader.map(offset, most);
    if (mapping != null || least >= most) {
      return mapping == null ? null : new Window(mapping, offset, most);
    }
    mapping = reader.map(offset, least);
    return mapping == null ? null : new Window(mapping, offset, least);
  }

  /** Takes back a slice; false if it is none of ours. */
  synchronized boolean takeBack(ByteBuffer slice) {
    Window window = lent.remove(slice);
    if (window == null) {
      return false;
    }
    window.slices--;
    window.closeIfDone();
    return true;
  }

  /** Releases the current window as soon as nothing of it is lent. */
  synchronized void pass() {
    if (current != null) {
      current.passed = true;
      current.closeIfDone();
      current = null;
    }
  }
}
