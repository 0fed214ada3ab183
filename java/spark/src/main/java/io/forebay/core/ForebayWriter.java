package io.forebay.core;

/**
 * A file open for writing, at its end. Small writes are gathered to 1 MiB. Only a file closed
 * without an exception is surely all there.
 */
public final class ForebayWriter implements AutoCloseable {
  private final long handle;

  ForebayWriter(long handle) {
    this.handle = handle;
  }

  /** Writes bytes of an array. */
  public void write(byte[] array, int start, int length) throws ForebayException {
    Native.write(handle, array, start, length);
  }

  /** Sends what is gathered, so that others see it. */
  public void flush() throws ForebayException {
    Native.flush(handle, false);
  }

  /** Sends what is gathered and waits until the PFS has made it durable. */
  public void sync() throws ForebayException {
    Native.flush(handle, true);
  }

  @Override
  public void close() throws ForebayException {
    Native.closeWriter(handle);
  }
}
