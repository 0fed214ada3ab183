package io.forebay.mapreduce;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import org.apache.hadoop.fs.PositionedReadable;
import org.apache.hadoop.fs.Seekable;

/**
 * A stream where Hadoop asks for one that can seek: its reader of segments only reads on, and asks
 * where it is.
 */
final class ForwardStream extends FilterInputStream implements Seekable, PositionedReadable {
  private long at;

  ForwardStream(InputStream in) {
    super(in);
  }

  @Override
  public int read() throws IOException {
    int read = super.read();
    at += read < 0 ? 0 : 1;
    return read;
  }

  @Override
  public int read(byte[] array, int start, int length) throws IOException {
    int read = super.read(array, start, length);
    at += Math.max(0, read);
    return read;
  }

  @Override
  public boolean markSupported() {
    return false;
  }

  @Override
  public long getPos() {
    return at;
  }

  private static IOException forward() {
    return new IOException("a segment of a map output is read from its start to its end");
  }

  @Override
  public void seek(long position) throws IOException {
    throw forward();
  }

  @Override
  public boolean seekToNewSource(long position) throws IOException {
    throw forward();
  }

  @Override
  public int read(long position, byte[] array, int start, int length) throws IOException {
    throw forward();
  }

  @Override
  public void readFully(long position, byte[] array, int start, int length) throws IOException {
    throw forward();
  }

  @Override
  public void readFully(long position, byte[] array) throws IOException {
    throw forward();
  }
}
