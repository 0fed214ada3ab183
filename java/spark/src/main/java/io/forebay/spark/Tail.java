package io.forebay.spark;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.util.Arrays;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** An open file whose end is read: one read for most footers, two for long ones. */
final class Tail implements Closeable {
  /** Bytes of the first read: a small page of the tier; ORC's readers also start with this. */
  static final int GUESS_BYTES = 16 << 10;

  private final FileStatus status;
  private final FSDataInputStream in;
  private byte[] bytes;

  private Tail(FileStatus status, FSDataInputStream in) throws IOException {
    this.status = status;
    this.in = in;
    bytes = read((int) Math.min(status.getLen(), GUESS_BYTES));
  }

  static Tail open(Path path, Configuration hadoop) throws IOException {
    FileSystem fs = path.getFileSystem(hadoop);
    FileStatus status = fs.getFileStatus(path);
    FSDataInputStream in = fs.open(path);
    try {
      return new Tail(status, in);
    } catch (IOException | RuntimeException e) {
      in.close();
      throw e;
    }
  }

  private byte[] read(int length) throws IOException {
    byte[] read = new byte[length];
    in.readFully(status.getLen() - length, read);
    return read;
  }

  long fileBytes() {
    return status.getLen();
  }

  long modified() {
    return status.getModificationTime();
  }

  FSDataInputStream in() {
    return in;
  }

  /** The last {@code length} bytes of the file. */
  byte[] last(int length) throws IOException {
    if (length > fileBytes()) {
      throw new EOFException("it has " + fileBytes() + " bytes, and " + length + " of its end are wanted");
    }
    if (length > bytes.length) {
      byte[] more = new byte[length];
      int front = length - bytes.length;
      in.readFully(fileBytes() - length, more, 0, front);
      System.arraycopy(bytes, 0, more, front, bytes.length);
      bytes = more;
    }
    return Arrays.copyOfRange(bytes, bytes.length - length, bytes.length);
  }

  @Override
  public void close() throws IOException {
    in.close();
  }
}
