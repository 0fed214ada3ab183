package io.forebay.mapreduce;

import io.forebay.core.ForebayException;
import io.forebay.core.ForebayShuffles;
import io.forebay.core.MapOutput;
import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Arrays;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A file of a map task, one partition behind the other: in the tier or, once the tier refuses, in
 * the local directory that Hadoop would have used. What was written until then is copied there.
 */
final class OutputFile extends OutputStream implements Closeable {
  private static final int BUFFER_BYTES = 64 << 10;

  /** Where a file goes that the tier does not take. */
  interface Local {
    Path path() throws IOException;
  }

  private final FileSystem local;
  private final Local place;
  private final byte[] buffer = new byte[BUFFER_BYTES];
  private final FSDataOutputStream data;
  private final long[] partBytes;
  private final long[] rawBytes;
  private int buffered;
  private long written;
  /** Null once the file is a local one. */
  private MapOutput output;
  private Path path;
  private OutputStream stream;

  OutputFile(ForebayShuffles shuffles, int shuffle, long map, int partitions, FileSystem local, Local place) throws IOException {
    this.local = local;
    this.place = place;
    this.partBytes = new long[partitions];
    this.rawBytes = new long[partitions];
    try {
      output = shuffles.create(shuffle, map);
    } catch (ForebayException e) {
      takeOver(e);
    }
    data = new FSDataOutputStream(this, null);
  }

  /** What Hadoop's writers of segments write to. */
  FSDataOutputStream data() {
    return data;
  }

  void wrote(int partition, long bytes, long raw) {
    partBytes[partition] = bytes;
    rawBytes[partition] = raw;
  }

  long[] partBytes() {
    return partBytes;
  }

  long rawBytes(int partition) {
    return rawBytes[partition];
  }

  long bytes() {
    return Arrays.stream(partBytes).sum();
  }

  @Override
  public void write(int b) throws IOException {
    if (buffered == buffer.length) {
      flush();
    }
    buffer[buffered++] = (byte) b;
  }

  @Override
  public void write(byte[] bytes, int start, int length) throws IOException {
    if (length > buffer.length - buffered) {
      flush();
    }
    if (length >= buffer.length) {
      put(bytes, start, length);
    } else {
      System.arraycopy(bytes, start, buffer, buffered, length);
      buffered += length;
    }
  }

  @Override
  public void flush() throws IOException {
    int length = buffered;
    buffered = 0;
    put(buffer, 0, length);
  }

  private void put(byte[] bytes, int start, int length) throws IOException {
    if (output != null && length > 0) {
      try {
        output.append(bytes, start, length);
        written += length;
        return;
      } catch (ForebayException e) {
        takeOver(e);
      }
    }
    if (length > 0) {
      stream.write(bytes, start, length);
      written += length;
    }
  }

  /** Goes on in a local file. */
  private void takeOver(ForebayException why) throws IOException {
    path = place.path();
    JobOutputs.LOG.info("Forebay: {} is written instead of memory of the tier: {}", path, why.toString());
    stream = local.create(path);
    byte[] copy = new byte[BUFFER_BYTES];
    for (long offset = 0; offset < written;) {
      int read = output.read(offset, copy, (int) Math.min(copy.length, written - offset));
      if (read <= 0) {
        throw new EOFException("a map output of " + written + " bytes ends in the tier at " + offset);
      }
      stream.write(copy, 0, read);
      offset += read;
    }
    if (output != null) {
      output.close();
      output = null;
    }
  }

  /** Makes it the output of its task; false if it is a local file, which is whole then. */
  boolean commit(int copies) throws IOException {
    flush();
    if (output != null) {
      try {
        output.commit(partBytes);
      } catch (ForebayException e) {
        takeOver(e);
      }
    }
    if (output == null) {
      stream.close();
      return false;
    }
    if (copies > 1) {
      try {
        output.copy();
      } catch (ForebayException e) {
        JobOutputs.LOG.warn("Forebay: a map output has one copy: {}", e.toString());
      }
    }
    output.close();
    return true;
  }

  /** Ends writing; the file is read by {@link #open} from now on. */
  void finish() throws IOException {
    flush();
    if (stream != null) {
      stream.close();
    }
  }

  /** Reads a partition. */
  FSDataInputStream open(int partition) throws IOException {
    long from = Arrays.stream(partBytes, 0, partition).sum();
    if (output == null) {
      FSDataInputStream in = local.open(path);
      in.seek(from);
      return in;
    }
    return new FSDataInputStream(new ForwardStream(new InTier(from, from + partBytes[partition])));
  }

  /** Removes it. */
  @Override
  public void close() throws IOException {
    if (output != null) {
      output.close();
    } else {
      local.delete(path, false);
    }
  }

  /** A part of it, read with few calls. */
  private final class InTier extends InputStream {
    private final byte[] ahead = new byte[BUFFER_BYTES];
    private final long end;
    private long next;
    private int at;
    private int length;

    InTier(long start, long end) {
      this.next = start;
      this.end = end;
    }

    @Override
    public int read() throws IOException {
      return fill() ? ahead[at++] & 0xff : -1;
    }

    @Override
    public int read(byte[] array, int start, int wanted) throws IOException {
      if (wanted == 0) {
        return 0;
      }
      if (!fill()) {
        return -1;
      }
      int read = Math.min(wanted, length - at);
      System.arraycopy(ahead, at, array, start, read);
      at += read;
      return read;
    }

    private boolean fill() throws IOException {
      if (at == length) {
        at = 0;
        length = (int) Math.min(ahead.length, end - next);
        if (length > 0) {
          length = output.read(next, ahead, length);
          next += length;
        }
      }
      return at < length;
    }
  }
}
