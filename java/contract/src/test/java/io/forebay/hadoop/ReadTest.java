package io.forebay.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayFile;
import io.forebay.core.ReadMode;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.io.ElasticByteBufferPool;
import org.junit.Test;

/** Every way of reading gives the bytes of the file, from the tier and from the PFS. */
public class ReadTest {
  /** Two pages and a bit. */
  private static final int SIZE = (4 << 20) + 12_345;

  private static final EnumSet<ReadOption> NO_OPTIONS = EnumSet.noneOf(ReadOption.class);

  private final TestAgent agent = TestAgent.shared();

  private static FileSystem fs(Configuration conf) throws IOException {
    return FileSystem.newInstance(java.net.URI.create("forebay:///"), conf);
  }

  private static Path path(java.nio.file.Path file) {
    return new Path("forebay", null, file.toString());
  }

  private FSDataInputStream open(java.nio.file.Path file, String... options) throws IOException {
    Configuration conf = agent.configuration();
    for (int i = 0; i < options.length; i += 2) {
      conf.set(options[i], options[i + 1]);
    }
    return fs(conf).open(path(file));
  }

  private long residentBytes(java.nio.file.Path file) throws IOException {
    try (ForebayClient client = new ForebayClient(new ClientOptions(agent.socket(), -1, -1, -1, true));
        ForebayFile open = client.open(file.toString(), ReadMode.CACHED)) {
      return open.residentBytes();
    }
  }

  /**
   * Reads the whole stream in sequence by pieces of many sizes, into an array or into a buffer of
   * each kind.
   */
  private static byte[] drain(FSDataInputStream in, Random random, int kind) throws IOException {
    ByteBuffer all = ByteBuffer.allocate(SIZE);
    while (true) {
      int length = 1 + random.nextInt(random.nextBoolean() ? 100 : 1_500_000);
      int n;
      byte[] piece = new byte[length + 7];
      if (kind == 0) {
        n = in.read(piece, 3, length);
      } else {
        ByteBuffer target = kind == 1 ? ByteBuffer.allocateDirect(length + 7) : ByteBuffer.allocate(length + 9).position(2).slice();
        target.position(3).limit(3 + length);
        n = in.read(target);
        assertEquals(3 + Math.max(n, 0), target.position());
        target.position(0).get(piece, 0, Math.min(piece.length, target.limit()));
      }
      if (n < 0) {
        assertEquals(-1, in.read());
        return Arrays.copyOf(all.array(), all.position());
      }
      all.put(piece, 3, n);
      assertEquals(all.position(), in.getPos());
      if (random.nextInt(4) == 0 && all.hasRemaining()) {
        int single = in.read();
        assertTrue(single >= 0);
        all.put((byte) single);
      }
    }
  }

  private void readsInSequence(java.nio.file.Path file, byte[] bytes, String... options) throws IOException {
    for (int kind = 0; kind < 3; kind++) {
      try (FSDataInputStream in = open(file, options)) {
        assertArrayEquals("kind " + kind, bytes, drain(in, new Random(kind), kind));
      }
    }
  }

  @Test
  public void aFileOfWhichNoStreamCanBeMadeIsClosedAgain() {
    boolean[] closed = new boolean[1];
    Contents.Reader broken = new Contents.Reader() {
      @Override
      public long size() throws IOException {
        throw new IOException("no size");
      }

      @Override
      public int read(long offset, byte[] array, int start, int length) {
        throw new AssertionError();
      }

      @Override
      public int read(long offset, ByteBuffer target) {
        throw new AssertionError();
      }

      @Override
      public void close() throws IOException {
        closed[0] = true;
        throw new IOException("no end");
      }
    };
    IOException e = assertThrows(IOException.class, () -> ForebayInputStream.on("/pfs/a", broken, null, 4096, 0));
    assertTrue(closed[0]);
    assertEquals("no size", e.getMessage());
    assertEquals("no end", e.getSuppressed()[0].getMessage());
  }

  @Test
  public void sequentialReadsOfACachedFile() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 1);
    java.nio.file.Path file = agent.loaded("read/cached", bytes);
    assertEquals(SIZE, residentBytes(file));
    readsInSequence(file, bytes);
  }

  @Test
  public void sequentialReadsOfAColdFileWhichIsCachedThen() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 2);
    java.nio.file.Path file = agent.file("read/cold", bytes);
    assertEquals(0, residentBytes(file));
    // On a machine that is very slow a reader may give up waiting and read the PFS itself; sooner
    // or later all of it is there.
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    do {
      readsInSequence(file, bytes);
    } while (residentBytes(file) < SIZE && System.nanoTime() < deadline);
    assertEquals(SIZE, residentBytes(file));
  }

  @Test
  public void bypassReadsThePfsAndCachesNothing() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 3);
    java.nio.file.Path file = agent.file("read/bypass", bytes);
    readsInSequence(file, bytes, ForebayConfig.READ_MODE, "bypass");
    assertEquals(0, residentBytes(file));
  }

  @Test
  public void readsByPositionLeaveThePositionAlone() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 4);
    Random random = new Random(4);
    for (java.nio.file.Path file : List.of(agent.loaded("read/position-cached", bytes), agent.file("read/position-cold", bytes))) {
      try (FSDataInputStream in = open(file)) {
        in.seek(77);
        for (int i = 0; i < 200; i++) {
          int at = random.nextInt(SIZE);
          byte[] expected = Arrays.copyOfRange(bytes, at, Math.min(SIZE, at + 1 + random.nextInt(9_000)));
          byte[] array = new byte[expected.length];
          in.readFully(at, array);
          assertArrayEquals(expected, array);
          ByteBuffer direct = ByteBuffer.allocateDirect(expected.length);
          in.readFully(at, direct);
          assertFalse(direct.hasRemaining());
          assertEquals(ByteBuffer.wrap(expected), direct.flip());
        }
        assertEquals(77, in.getPos());
        assertEquals(-1, in.read(SIZE, new byte[1], 0, 1));
        assertEquals(-1, in.read(SIZE, ByteBuffer.allocateDirect(1)));
        assertThrows(EOFException.class, () -> in.readFully(SIZE - 1, new byte[2]));
        assertThrows(EOFException.class, () -> in.readFully(SIZE - 1, ByteBuffer.allocate(2)));
      }
    }
  }

  @Test
  public void seeksWithinAndBeyondTheBuffer() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 5);
    Random random = new Random(5);
    try (FSDataInputStream in = open(agent.loaded("read/seek", bytes))) {
      long at = 0;
      for (int i = 0; i < 5_000; i++) {
        at = Math.max(0, Math.min(SIZE - 1, random.nextBoolean() ? random.nextInt(SIZE) : at + random.nextInt(6_000) - 3_000));
        in.seek(at);
        byte[] piece = new byte[random.nextInt(20) == 0 ? 50_000 : 1 + random.nextInt(40)];
        int n = in.read(piece);
        assertArrayEquals(Arrays.copyOfRange(bytes, (int) at, (int) at + n), Arrays.copyOf(piece, n));
        at += n;
        assertEquals(at, in.getPos());
      }
    }
  }

  @Test
  public void bytesWithoutACopyAreTheTiersOwn() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 6);
    java.nio.file.Path file = agent.loaded("read/mapped", bytes);
    ByteBuffer kept;
    int keptAt = 0;
    try (FSDataInputStream in = open(file, ForebayConfig.MAP_WINDOW, "1m")) {
      List<ByteBuffer> lent = new ArrayList<>();
      ByteBuffer all = ByteBuffer.allocate(SIZE);
      for (ByteBuffer piece = in.read(null, 300_000, NO_OPTIONS); piece != null; piece = in.read(null, 300_000, NO_OPTIONS)) {
        assertTrue(piece.isDirect() && piece.isReadOnly() && piece.remaining() <= 300_000);
        all.put(piece.duplicate());
        assertEquals(all.position(), in.getPos());
        lent.add(piece);
        if (lent.size() > 3) {
          keptAt += lent.get(0).remaining();
          in.releaseBuffer(lent.remove(0));
        }
      }
      assertArrayEquals(bytes, all.array());
      kept = lent.remove(0);
      ByteBuffer last = lent.remove(0);
      in.releaseBuffer(last);
      assertThrows("released twice", IllegalArgumentException.class, () -> in.releaseBuffer(last));
    }
    // Not returned before the stream was closed: it must still be readable.
    byte[] tail = new byte[kept.remaining()];
    kept.get(tail);
    assertArrayEquals(Arrays.copyOfRange(bytes, keptAt, keptAt + tail.length), tail);
  }

  @Test
  public void whatCannotBeMappedIsCopiedIntoAPooledBuffer() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 7);
    java.nio.file.Path file = agent.file("read/pooled", bytes);
    try (FSDataInputStream in = open(file, ForebayConfig.READ_MODE, "bypass")) {
      assertThrows(UnsupportedOperationException.class, () -> in.read(null, 10, NO_OPTIONS));
      ElasticByteBufferPool pool = new ElasticByteBufferPool();
      ByteBuffer piece = in.read(pool, 1_000, NO_OPTIONS);
      assertEquals(ByteBuffer.wrap(bytes, 0, piece.remaining()), piece);
      in.releaseBuffer(piece);
      in.seek(SIZE);
      assertNull(in.read(pool, 1_000, NO_OPTIONS));
    }
  }

  @Test
  public void vectoredReadsOfCachedAndColdRanges() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 8);
    for (java.nio.file.Path file : List.of(agent.loaded("read/vectored-cached", bytes), agent.file("read/vectored-cold", bytes))) {
      try (FSDataInputStream in = open(file)) {
        List<FileRange> ranges = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
          ranges.add(FileRange.createFileRange((long) i * 200_000, 150_000 + i));
        }
        assertTrue(in.hasCapability("in:readvectored"));
        in.readVectored(ranges, length -> length % 2 == 0 ? ByteBuffer.allocate(length) : ByteBuffer.allocateDirect(length));
        for (FileRange range : ranges) {
          ByteBuffer data = range.getData().get(30, TimeUnit.SECONDS);
          assertEquals(ByteBuffer.wrap(bytes, (int) range.getOffset(), range.getLength()), data);
        }
        assertEquals(0, in.getPos());
      }
    }
  }

  @Test
  public void aFileThatChangesWhileItIsReadIsAnErrorAndNeverAMixture() throws Exception {
    byte[] before = TestAgent.pattern(SIZE, 9);
    java.nio.file.Path file = agent.file("read/changing", before);
    try (FSDataInputStream in = open(file)) {
      byte[] first = new byte[1 << 20];
      in.readFully(0, first);
      assertArrayEquals(Arrays.copyOf(before, first.length), first);
      Files.write(file, TestAgent.pattern(SIZE, 10));
      Thread.sleep(60);
      IOException stale = assertThrows(IOException.class, () -> {
        byte[] rest = new byte[1 << 20];
        for (int at = 1 << 20; at < SIZE; at += rest.length) {
          int n = in.read(at, rest, 0, rest.length);
          // What is resident is of the version opened, and may be given out.
          assertArrayEquals(Arrays.copyOfRange(before, at, at + n), Arrays.copyOf(rest, n));
        }
        in.readFully(0, first);
        assertArrayEquals(Arrays.copyOf(before, first.length), first);
        throw new IOException("changed while it was read, though all was resident");
      });
      assertTrue(stale.toString(), stale.getMessage().contains("changed while it was read"));
    }
    readsInSequence(file, TestAgent.pattern(SIZE, 10));
  }

  @Test
  @SuppressWarnings("deprecation") // getStatistics: what Spark asks, too
  public void bytesAreCountedForTheUserInterface() throws Exception {
    java.nio.file.Path file = agent.loaded("read/counted", TestAgent.pattern(SIZE, 11));
    try (FileSystem fs = fs(agent.configuration())) {
      FileSystem.Statistics statistics = FileSystem.getStatistics("forebay", ForebayFileSystem.class);
      long before = statistics.getBytesRead();
      try (FSDataInputStream in = fs.open(path(file))) {
        in.readFully(0, new byte[100_000]);
        in.read(ByteBuffer.allocateDirect(50_000));
        ByteBuffer mapped = in.read(null, 1_000, NO_OPTIONS);
        assertNotNull(mapped);
        in.releaseBuffer(mapped);
      }
      assertEquals(151_000, statistics.getBytesRead() - before);
    }
  }

  @Test
  public void aClosedStreamSaysSo() throws Exception {
    FSDataInputStream in = open(agent.loaded("read/closed", TestAgent.pattern(100, 12)));
    in.close();
    in.close();
    assertThrows(IOException.class, in::read);
    assertThrows(IOException.class, () -> in.read(ByteBuffer.allocateDirect(1)));
    assertThrows(IOException.class, () -> in.read(0L, new byte[1], 0, 1));
    assertThrows(IOException.class, () -> in.read(null, 1, NO_OPTIONS));
  }
}
