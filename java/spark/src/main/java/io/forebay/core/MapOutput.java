package io.forebay.core;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/** A map output that is being written; closing it removes it unless it is committed. */
public final class MapOutput implements AutoCloseable {
  private final long handle;

  MapOutput(long handle) {
    this.handle = handle;
  }

  /** Appends; fails, without a change, if the tier has no room. */
  public void append(byte[] array, int start, int length) throws ForebayException {
    Native.outputAppend(handle, array, start, length);
  }

  /** Reads what was appended, from {@code offset} on; the number of bytes. */
  public int read(long offset, byte[] array, int length) throws ForebayException {
    return Native.outputRead(handle, offset, array, length);
  }

  /** Ends the output: others can read it from now on, also when this process has ended. */
  public void commit(long[] partitionBytes) throws ForebayException {
    ByteBuffer lengths = ByteBuffer.allocate(partitionBytes.length * Long.BYTES);
    lengths.asLongBuffer().put(partitionBytes);
    Native.outputCommit(handle, lengths.array());
  }

  /**
   * Has a second node keep a copy of the output, which is committed; the name of that node. Fails
   * if none takes it: the output is on this node only then.
   */
  public String copy() throws ForebayException {
    return new String(Native.outputCopy(handle), StandardCharsets.UTF_8);
  }

  @Override
  public void close() {
    Native.outputClose(handle);
  }
}
