import alluxio.AlluxioURI;
import alluxio.client.file.FileInStream;
import alluxio.client.file.FileOutStream;
import alluxio.client.file.FileSystem;
import alluxio.grpc.CreateFilePOptions;
import alluxio.grpc.DeletePOptions;
import alluxio.grpc.WritePType;
import alluxio.metrics.MetricKey;
import alluxio.metrics.MetricsSystem;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.zip.CRC32C;

/**
 * Sequential read of one cached file through Alluxio's own client, 1 MiB at a time.
 *
 * <p>Usage: {@code ReadBench SIZE_BYTES PASSES}; where the cluster is comes in as {@code
 * -Dalluxio...} properties. It writes the file to the RAM tier only, reads it back once to compare
 * checksums, warms up the compiler, and then times whole passes, each with its own open. Two ways
 * are timed, into a heap array and into a direct buffer, because which one is faster depends on the
 * client's version; the caller takes the better one. The last line on stdout is one JSON object,
 * rates in GB/s (1e9 bytes).
 *
 * <p>The client's own counter of short-circuit bytes is in the result: without it a misconfigured
 * host name would silently time gRPC.
 */
public final class ReadBench {
  private static final int BUFFER_BYTES = 1 << 20;
  private static final int WARM_UP_PASSES = 2;
  private static final AlluxioURI FILE = new AlluxioURI("/forebay-bench");

  /** Reads the open stream to its end and returns the number of bytes. */
  private interface Reader {
    long drain(FileInStream in) throws IOException;
  }

  public static void main(String[] args) throws Exception {
    long sizeBytes = Long.parseLong(args[0]);
    int passes = Integer.parseInt(args[1]);
    try (FileSystem fs = FileSystem.Factory.create()) {
      CRC32C written = new CRC32C();
      double writeGbPerS = write(fs, sizeBytes, written);
      verify(fs, sizeBytes, written.getValue());

      byte[] array = new byte[BUFFER_BYTES];
      ByteBuffer direct = ByteBuffer.allocateDirect(BUFFER_BYTES);
      long shortCircuitBefore = shortCircuitBytes();
      List<Double> arrayGbPerS = timedPasses(fs, sizeBytes, passes, in -> drain(in, array));
      List<Double> directGbPerS = timedPasses(fs, sizeBytes, passes, in -> drain(in, direct));
      long read = 2L * (passes + WARM_UP_PASSES) * sizeBytes;
      double shortCircuitShare = (double) (shortCircuitBytes() - shortCircuitBefore) / read;

      fs.delete(FILE, DeletePOptions.newBuilder().setAlluxioOnly(true).build());
      System.out.printf(
          "{\"write_gb_per_s\": %.4f, \"array_gb_per_s\": %s, \"direct_gb_per_s\": %s, \"short_circuit_share\": %.4f}%n",
          writeGbPerS, arrayGbPerS, directGbPerS, shortCircuitShare);
    }
  }

  private static double write(FileSystem fs, long sizeBytes, CRC32C checksum) throws Exception {
    byte[] block = new byte[BUFFER_BYTES];
    SplittableRandom random = new SplittableRandom(7);
    for (int i = 0; i < block.length; i++) {
      block[i] = (byte) random.nextInt();
    }
    CreateFilePOptions options =
        CreateFilePOptions.newBuilder().setWriteType(WritePType.MUST_CACHE).setRecursive(true).build();
    long startNs = System.nanoTime();
    try (FileOutStream out = fs.createFile(FILE, options)) {
      for (long position = 0; position < sizeBytes; position += BUFFER_BYTES) {
        // Each block differs, so that a block delivered twice or out of order changes the checksum.
        ByteBuffer.wrap(block).putLong(position);
        int length = (int) Math.min(BUFFER_BYTES, sizeBytes - position);
        checksum.update(block, 0, length);
        out.write(block, 0, length);
      }
    }
    return (double) sizeBytes / (System.nanoTime() - startNs);
  }

  private static void verify(FileSystem fs, long sizeBytes, long expected) throws Exception {
    CRC32C checksum = new CRC32C();
    byte[] buffer = new byte[BUFFER_BYTES];
    long total = 0;
    try (FileInStream in = fs.openFile(FILE)) {
      for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
        checksum.update(buffer, 0, count);
        total += count;
      }
    }
    if (total != sizeBytes || checksum.getValue() != expected) {
      throw new IOException("read " + total + " of " + sizeBytes + " bytes of " + FILE + ", checksum "
          + (checksum.getValue() == expected ? "right" : "wrong") + ": the tier lost data or was too small");
    }
  }

  private static List<Double> timedPasses(FileSystem fs, long sizeBytes, int passes, Reader reader) throws Exception {
    List<Double> gbPerS = new ArrayList<>();
    for (int pass = -WARM_UP_PASSES; pass < passes; pass++) {
      long total;
      long startNs = System.nanoTime();
      try (FileInStream in = fs.openFile(FILE)) {
        total = reader.drain(in);
      }
      long elapsedNs = System.nanoTime() - startNs;
      if (total != sizeBytes) {
        throw new IOException("read " + total + " of " + sizeBytes + " bytes of " + FILE);
      }
      if (pass >= 0) {
        gbPerS.add((double) sizeBytes / elapsedNs);
      }
    }
    return gbPerS;
  }

  private static long drain(FileInStream in, byte[] buffer) throws IOException {
    long total = 0;
    for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
      total += count;
    }
    return total;
  }

  private static long drain(FileInStream in, ByteBuffer buffer) throws IOException {
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

  private static long shortCircuitBytes() {
    return MetricsSystem.counter(MetricKey.CLIENT_BYTES_READ_LOCAL.getName()).getCount();
  }
}
