package io.forebay.hadoop;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.ClosedChannelException;
import java.util.Locale;
import java.util.Objects;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;

/**
 * A file being written. Single bytes are gathered here, small writes once more in the client core,
 * which sends a megabyte at a time.
 */
final class ForebayOutputStream extends OutputStream implements Syncable, StreamCapabilities {
  private final String path;
  private final Contents.Writer writer;
  private final byte[] gathered;
  private int count;
  private boolean closed;

  ForebayOutputStream(String path, Contents.Writer writer, int bufferBytes) {
    this.path = path;
    this.writer = writer;
    gathered = new byte[Math.max(512, Math.min(bufferBytes, 1 << 20))];
  }

  /** Work on the writer, its errors as Hadoop's. */
  private interface Work {
    void run() throws IOException;
  }

  private void run(Work work) throws IOException {
    try {
      work.run();
    } catch (IOException e) {
      throw Errors.translate(e, path);
    }
  }

  private void checkOpen() throws IOException {
    if (closed) {
      throw new ClosedChannelException();
    }
  }

  private void sendGathered() throws IOException {
    if (count > 0) {
      run(() -> writer.write(gathered, 0, count));
      count = 0;
    }
  }

  @Override
  public synchronized void write(int b) throws IOException {
    checkOpen();
    if (count == gathered.length) {
      sendGathered();
    }
    gathered[count++] = (byte) b;
  }

  @Override
  public synchronized void write(byte[] array, int start, int length) throws IOException {
    checkOpen();
    Objects.checkFromIndexSize(start, length, array.length);
    if (length > gathered.length - count) {
      sendGathered();
    }
    if (length >= gathered.length) {
      run(() -> writer.write(array, start, length));
    } else {
      System.arraycopy(array, start, gathered, count, length);
      count += length;
    }
  }

  /**
   * As of other Hadoop streams: hands on what is gathered here, but promises nothing. Use hflush.
   */
  @Override
  public synchronized void flush() throws IOException {
    checkOpen();
    sendGathered();
  }

  @Override
  public synchronized void hflush() throws IOException {
    flush();
    run(writer::flush);
  }

  @Override
  public synchronized void hsync() throws IOException {
    flush();
    run(writer::sync);
  }

  @Override
  @SuppressWarnings("deprecation") // HFLUSH: Hadoop 3.3.4 says to use HSYNC, later versions have both again
  public boolean hasCapability(String capability) {
    return switch (capability.toLowerCase(Locale.ROOT)) {
      case StreamCapabilities.HFLUSH, StreamCapabilities.HSYNC -> writer.isOnPfs();
      default -> false;
    };
  }

  @Override
  public synchronized void close() throws IOException {
    if (closed) {
      return;
    }
    closed = true;
    try {
      sendGathered();
    } catch (IOException e) {
      try {
        writer.close();
      } catch (IOException second) {
        e.addSuppressed(second);
      }
      throw e;
    }
    run(writer::close);
  }
}
