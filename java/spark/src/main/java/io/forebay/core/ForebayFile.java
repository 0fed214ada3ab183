package io.forebay.core;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;

/**
 * A file open for reading at any position. Threads may share it; a read during a close finishes,
 * one after it fails with EBADF.
 */
public final class ForebayFile implements AutoCloseable {
  private final long handle;

  ForebayFile(long handle) {
    this.handle = handle;
  }

  /** Length in bytes: of the version that was opened, or, without an agent, now. */
  public long size() throws ForebayException {
    return Native.size(handle);
  }

  /** Bytes that are in the tier now. */
  public long residentBytes() throws ForebayException {
    return Native.residentBytes(handle);
  }

  /**
   * Fills an array from {@code start} on; returns the bytes read, fewer than {@code length} only at
   * the end of the file.
   */
  public int read(long offset, byte[] array, int start, int length) throws ForebayException {
    return Native.readArray(handle, offset, array, start, length);
  }

  /**
   * Fills a buffer, direct (one copy) or not, and moves its position; returns the bytes read, fewer
   * than asked for only at the end of the file.
   */
  public int read(long offset, ByteBuffer target) throws ForebayException {
    int position = target.position();
    int n;
    if (target.isReadOnly()) {
      throw new ReadOnlyBufferException();
    } else if (target.isDirect()) {
      n = Native.readDirect(handle, offset, target, position, target.remaining());
    } else {
      n = Native.readArray(handle, offset, target.array(), target.arrayOffset() + position, target.remaining());
    }
    target.position(position + n);
    return n;
  }

  /**
   * As {@link #read(long, ByteBuffer)}, but only if nobody has to be asked or waited for; -1
   * otherwise, and nothing is changed.
   */
  public int readResident(long offset, ByteBuffer target) throws ForebayException {
    int position = target.position();
    int n;
    if (target.isReadOnly()) {
      throw new ReadOnlyBufferException();
    } else if (target.isDirect()) {
      n = Native.readResidentDirect(handle, offset, target, position, target.remaining());
    } else {
      n = Native.readResidentArray(handle, offset, target.array(), target.arrayOffset() + position, target.remaining());
    }
    target.position(position + Math.max(n, 0));
    return n;
  }

  /**
   * The tier's own memory for a range of the file, without a copy; null if not all of it is
   * resident, or the agent lets no more be held: read it then. The agent cannot give this memory
   * back until the mapping is closed.
   */
  public Mapping map(long offset, int length) throws ForebayException {
    long mapping = Native.map(handle, offset, length);
    return mapping == 0 ? null : new Mapping(mapping);
  }

  @Override
  public void close() {
    Native.close(handle);
  }
}
