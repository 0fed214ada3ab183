package io.forebay.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.EnumSet;
import java.util.Locale;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.ReadOption;

/**
 * Sequential reads of one cached file through the Hadoop file system, 1 MiB at a time: into a
 * direct buffer, into an array, and mapped, where every byte is summed in place so that it has been
 * read. {@code make bench ONLY=hadoop} runs it beside the client core.
 *
 * <p>Usage: {@code ReadBench FILE PASSES}; the agent comes from FOREBAY_SOCKET. After two passes
 * for the compiler, whole passes are timed, each with its own open; the median of each kind is
 * printed, in GB/s (1e9 bytes), as one JSON object.
 */
public final class ReadBench {
  private static final int BUFFER_BYTES = 1 << 20;
  private static final int PAGE_BYTES = 4096;
  private static final int WARM_UP_PASSES = 2;

  private ReadBench() {}

  /** Reads the stream to its end and returns the number of bytes. */
  private interface Reader {
    long drain(FSDataInputStream in) throws IOException;
  }

  public static void main(String[] args) throws IOException {
    Path file = new Path("forebay", null, args[0]);
    int passes = Integer.parseInt(args[1]);
    byte[] array = new byte[BUFFER_BYTES];
    // The kernel copies at less than half of its speed to a buffer that does not begin at a page.
    ByteBuffer direct = ByteBuffer.allocateDirect(BUFFER_BYTES + PAGE_BYTES).alignedSlice(PAGE_BYTES).limit(BUFFER_BYTES).slice();
    try (FileSystem fs = FileSystem.newInstance(java.net.URI.create("forebay:///"), new Configuration())) {
      double directGbPerS = median(fs, file, passes, in -> drain(in, direct));
      double arrayGbPerS = median(fs, file, passes, in -> drain(in, array));
      double mappedGbPerS = median(fs, file, passes, ReadBench::sum);
      System.out.printf(Locale.ROOT, "{\"direct\": %.4f, \"array\": %.4f, \"mapped\": %.4f}%n", directGbPerS, arrayGbPerS, mappedGbPerS);
    }
  }

  private static double median(FileSystem fs, Path file, int passes, Reader reader) throws IOException {
    long size = fs.getFileStatus(file).getLen();
    double[] gbPerS = new double[passes];
    for (int pass = -WARM_UP_PASSES; pass < passes; pass++) {
      long total;
      long startNs = System.nanoTime();
      try (FSDataInputStream in = fs.open(file)) {
        total = reader.drain(in);
      }
      long elapsedNs = System.nanoTime() - startNs;
      if (total != size) {
        throw new IOException("read " + total + " of " + size + " bytes of " + file);
      }
      if (pass >= 0) {
        gbPerS[pass] = (double) size / elapsedNs;
      }
    }
    java.util.Arrays.sort(gbPerS);
    return gbPerS[passes / 2];
  }

  private static long drain(FSDataInputStream in, ByteBuffer buffer) throws IOException {
    long total = 0;
    while (true) {
      buffer.clear();
      int count = in.read(buffer);
      if (count < 0) {
        return total;
      }
      total += count;
    }
  }

  private static long drain(FSDataInputStream in, byte[] buffer) throws IOException {
    long total = 0;
    for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
      total += count;
    }
    return total;
  }

  private static long sum(FSDataInputStream in) throws IOException {
    long total = 0;
    long sum = 0;
    EnumSet<ReadOption> options = EnumSet.noneOf(ReadOption.class);
    // No pool: a byte that had to be copied is an error and not a figure.
    for (ByteBuffer piece = in.read(null, BUFFER_BYTES, options); piece != null; piece = in.read(null, BUFFER_BYTES, options)) {
      total += piece.remaining();
      sum += sum(piece.order(ByteOrder.nativeOrder()).asLongBuffer());
      in.releaseBuffer(piece);
    }
    // Used, so that the reads are not optimised away.
    return sum == Long.MIN_VALUE + 1 ? -1 : total;
  }

  private static long sum(LongBuffer longs) {
    long sum = 0;
    for (int i = 0, n = longs.limit(); i < n; i++) {
      sum += longs.get(i);
    }
    return sum;
  }
}
