package io.forebay.spark;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

import io.forebay.hadoop.ForebayFileSystem;

/**
 * An open file whose end is read, mostly by one read.
 *
 * <p>The files of a table have footers of similar length, so the length of the last one says how
 * much of the next file to read.
 */
final class Tail implements Closeable {
  /** Least bytes of the first read: a small page of the tier, and what ORC's readers start with. */
  static final int GUESS_BYTES = 16 << 10;

  /** The first read of a file is not longer than this. */
  private static final int GUESS_BYTES_MAX = 1 << 20;

  private final FSDataInputStream in;
  private final long fileBytes;
  private final AtomicInteger guess;
  private byte[] bytes;

  private Tail(FSDataInputStream in, long fileBytes, AtomicInteger guess) throws IOException {
    this.in = in;
    this.fileBytes = fileBytes;
    this.guess = guess;
    long from = Math.max(0, fileBytes - Math.max(guess.get(), GUESS_BYTES));
    // The tier fetches the rest of the first page anyway.
    from -= from % GUESS_BYTES;
    bytes = new byte[(int) (fileBytes - from)];
    in.readFully(from, bytes);
  }

  /**
   * Opens a file.
   *
   * @param guess the length of the end of a similar file; set to that of this one
   */
  static Tail open(Path path, Configuration hadoop, AtomicInteger guess) throws IOException {
    FileSystem fs = path.getFileSystem(hadoop);
    FSDataInputStream in = fs.open(path);
    try {
      long known = ForebayFileSystem.lengthOf(in);
      return new Tail(in, known >= 0 ? known : fs.getFileStatus(path).getLen(), guess);
    } catch (IOException | RuntimeException e) {
      in.close();
      throw e;
    }
  }

  long fileBytes() {
    return fileBytes;
  }

  FSDataInputStream in() {
    return in;
  }

  /** The last {@code length} bytes of the file. */
  byte[] last(int length) throws IOException {
    if (length > fileBytes) {
      throw new EOFException("it has " + fileBytes + " bytes, and " + length + " of its end are wanted");
    }
    if (length > GUESS_BYTES) {
      guess.set(Math.min(length, GUESS_BYTES_MAX));
    }
    if (length > bytes.length) {
      byte[] more = new byte[length];
      int front = length - bytes.length;
      in.readFully(fileBytes - length, more, 0, front);
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
