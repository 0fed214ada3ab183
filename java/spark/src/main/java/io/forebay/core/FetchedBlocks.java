package io.forebay.core;

/** Blocks of map outputs, in the order of the request; their memory stays until this is closed. */
public final class FetchedBlocks implements AutoCloseable {
  private final long handle;

  FetchedBlocks(long handle) {
    this.handle = handle;
  }

  /** Length of a block in bytes. */
  public long size(int number) throws ForebayException {
    return Native.blockSize(handle, number);
  }

  /** Bytes of the partitions of a block, of which it may be a part. */
  public long total(int number) throws ForebayException {
    return Native.blockTotal(handle, number);
  }

  /** Reads from a block; the number of bytes, 0 at its end. */
  public int read(int number, long offset, byte[] array, int start, int length) throws ForebayException {
    return Native.blockRead(handle, number, offset, array, start, length);
  }

  @Override
  public void close() {
    Native.blocksClose(handle);
  }
}
