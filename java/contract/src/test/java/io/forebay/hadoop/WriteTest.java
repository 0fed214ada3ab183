package io.forebay.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayFile;
import io.forebay.core.ReadMode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.channels.ClosedChannelException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.junit.Test;

/** The write modes, and what a file is like that was written. */
public class WriteTest {
  private static final int SIZE = (3 << 20) + 4_321;

  private final TestAgent agent = TestAgent.shared();
  private final java.nio.file.Path directory = agent.root().resolve("write");

  private FileSystem fs(String writeMode) throws IOException {
    Configuration conf = agent.configuration();
    conf.set(ForebayConfig.WRITE_MODE, writeMode);
    return FileSystem.newInstance(java.net.URI.create("forebay:///"), conf);
  }

  private Path path(String name) {
    return new Path("forebay", null, directory.resolve(name).toString());
  }

  private long residentBytes(String name) throws IOException {
    try (ForebayClient client = new ForebayClient(new ClientOptions(agent.socket(), -1, -1, -1, true));
        ForebayFile open = client.open(directory.resolve(name).toString(), ReadMode.CACHED)) {
      return open.residentBytes();
    }
  }

  /** Writes by pieces of many sizes. */
  private static void write(FSDataOutputStream out, byte[] bytes, long seed) throws IOException {
    Random random = new Random(seed);
    for (int at = 0; at < bytes.length;) {
      int n = Math.min(bytes.length - at, 1 + random.nextInt(random.nextBoolean() ? 50 : 2_000_000));
      if (n == 1) {
        out.write(bytes[at]);
      } else {
        out.write(bytes, at, n);
      }
      at += n;
      assertEquals(at, out.getPos());
    }
  }

  @Test
  public void throughIsOnThePfsAndInTheTier() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 20);
    try (FileSystem fs = fs("through")) {
      // A page that finds no room in the staging buffer in time is left out: on a slow machine it
      // may take a second try.
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
      do {
        try (FSDataOutputStream out = fs.create(path("through"))) {
          write(out, bytes, 20);
        }
        assertArrayEquals(bytes, Files.readAllBytes(directory.resolve("through")));
      } while (residentBytes("through") < SIZE && System.nanoTime() < deadline);
      assertEquals(SIZE, residentBytes("through"));
    }
  }

  @Test
  public void bypassIsOnThePfsOnly() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 21);
    try (FileSystem fs = fs("bypass")) {
      try (FSDataOutputStream out = fs.create(path("bypass"))) {
        write(out, bytes, 21);
      }
      assertArrayEquals(bytes, Files.readAllBytes(directory.resolve("bypass")));
      assertEquals(0, residentBytes("bypass"));
    }
  }

  @Test
  public void memoryOnlyIsNeverOnThePfsAndStillHasAName() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 22);
    Path file = path("memory/only/part-0");
    try (FileSystem fs = fs("memory")) {
      try (FSDataOutputStream out = fs.create(file)) {
        write(out, bytes, 22);
        assertFalse("nothing is promised for it", out.hasCapability("hsync"));
      }
      assertFalse(Files.exists(directory.resolve("memory")));
      FileStatus status = fs.getFileStatus(file);
      assertEquals(SIZE, status.getLen());
      assertEquals(file, status.getPath());
      assertArrayEquals(new FileStatus[] {status}, fs.listStatus(file.getParent()));
      byte[] read = new byte[SIZE];
      try (FSDataInputStream in = fs.open(file)) {
        in.readFully(read);
      }
      assertArrayEquals(bytes, read);
      assertThrows(IOException.class, () -> fs.rename(file, path("elsewhere")));
      assertTrue(fs.delete(file, false));
      assertFalse(fs.exists(file));
      assertFalse(fs.delete(file, false));
    }
  }

  @Test
  public void hflushShowsToOthersWhatWasWritten() throws Exception {
    byte[] bytes = TestAgent.pattern(1_000, 23);
    try (FileSystem fs = fs("through"); FSDataOutputStream out = fs.create(path("flushed"))) {
      assertTrue(out.hasCapability("hflush") && out.hasCapability("hsync"));
      out.write(bytes);
      assertEquals(0, Files.size(directory.resolve("flushed")));
      out.hflush();
      assertArrayEquals(bytes, Files.readAllBytes(directory.resolve("flushed")));
      out.write(bytes);
      out.hsync();
      assertEquals(2_000, Files.size(directory.resolve("flushed")));
    }
  }

  @Test
  public void appendGoesOnWhereTheFileEnds() throws Exception {
    try (FileSystem fs = fs("through")) {
      agent.file("write/appended", new byte[] {1, 2, 3});
      try (FSDataOutputStream out = fs.append(path("appended"))) {
        assertEquals(3, out.getPos());
        out.write(new byte[] {4, 5});
        assertEquals(5, out.getPos());
      }
      assertArrayEquals(new byte[] {1, 2, 3, 4, 5}, Files.readAllBytes(directory.resolve("appended")));
      assertThrows(FileNotFoundException.class, () -> fs.append(path("not-there")));
      EnumSet<CreateFlag> appendOrCreate = EnumSet.of(CreateFlag.CREATE, CreateFlag.APPEND);
      for (int length = 6; length <= 7; length++) {
        fs.createNonRecursive(path("appended"), null, appendOrCreate, 4096, (short) 1, 0, null).close();
        try (FSDataOutputStream out =
            fs.createNonRecursive(path("appended"), FsPermission.getFileDefault(), appendOrCreate, 4096, (short) 1, 0, null)) {
          out.write(9);
        }
        assertEquals(length, Files.size(directory.resolve("appended")));
      }
    }
  }

  @Test
  public void twoAppendersLoseNothingAndCutNoRecord() throws Exception {
    // Larger than what the native side copies at a time from an array.
    int length = 1_500_001;
    agent.file("write/two", new byte[] {7});
    try (FileSystem fs = fs("through")) {
      try (FSDataOutputStream first = fs.append(path("two")); FSDataOutputStream second = fs.append(path("two"))) {
        for (int i = 0; i < 3; i++) {
          first.write(filled(length, (byte) 1));
          second.write(filled(length, (byte) 2));
        }
      }
    }
    byte[] all = Files.readAllBytes(directory.resolve("two"));
    assertEquals(1 + 6 * length, all.length);
    for (int i = 0; i < 6; i++) {
      byte[] record = Arrays.copyOfRange(all, 1 + i * length, 1 + (i + 1) * length);
      assertArrayEquals(filled(length, record[0]), record);
    }
  }

  private static byte[] filled(int length, byte value) {
    byte[] bytes = new byte[length];
    Arrays.fill(bytes, value);
    return bytes;
  }

  @Test
  public void aNewFileHasHadoopsUmaskWhateverItsPermissions() throws Exception {
    Files.createDirectories(directory);
    Configuration conf = agent.configuration();
    conf.set("fs.permissions.umask-mode", "027");
    try (FileSystem fs = FileSystem.newInstance(java.net.URI.create("forebay:///"), conf)) {
      fs.create(path("masked-0"), null, true, 4096, (short) 1, 0, null).close();
      assertEquals(0640, fs.getFileStatus(path("masked-0")).getPermission().toShort());
      FsPermission all = new FsPermission((short) 0777);
      fs.create(path("masked-1"), all, true, 4096, (short) 1, 0, null).close();
      assertEquals(0750, fs.getFileStatus(path("masked-1")).getPermission().toShort());
      fs.createNonRecursive(path("masked-2"), all, EnumSet.of(CreateFlag.CREATE), 4096, (short) 1, 0, null).close();
      assertEquals(0750, fs.getFileStatus(path("masked-2")).getPermission().toShort());
      fs.create(path("masked-2"), FsPermission.getFileDefault(), true, 4096, (short) 1, 0, null).close();
      assertEquals("of a file that was there", 0750, fs.getFileStatus(path("masked-2")).getPermission().toShort());
    }
  }

  /** What the process's umask leaves of all bits of a file. */
  private int allowed() throws IOException {
    java.nio.file.Path probe = directory.resolve("allowed");
    Files.deleteIfExists(probe);
    Files.createFile(probe, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-rw-rw-")));
    return (Integer) Files.getAttribute(probe, "unix:mode") & 0777;
  }

  @Test
  public void whatFileContextMakesHasItsUmaskAndNotTheConfigurations() throws Exception {
    Files.createDirectories(directory);
    Configuration conf = agent.configuration();
    conf.set("fs.permissions.umask-mode", "077");
    conf.set("fs.AbstractFileSystem.forebay.impl", ForebayFs.class.getName());
    conf.set("fs.AbstractFileSystem.file.impl", ForebayLocalFs.class.getName());
    for (String scheme : new String[] {"forebay", "file"}) {
      FileContext context = FileContext.getFileContext(java.net.URI.create(scheme + ":///"), conf);
      context.setUMask(new FsPermission((short) 0002));
      java.nio.file.Path file = directory.resolve("context-" + scheme);
      Files.deleteIfExists(file);
      context.create(new Path(scheme, null, file.toString()), EnumSet.of(CreateFlag.CREATE)).close();
      assertEquals(scheme, 0664 & allowed(), (Integer) Files.getAttribute(file, "unix:mode") & 0777);
    }
  }

  @Test
  public void truncateCutsOff() throws Exception {
    byte[] bytes = TestAgent.pattern(SIZE, 24);
    agent.loaded("write/cut", bytes);
    try (FileSystem fs = fs("through")) {
      assertTrue(fs.truncate(path("cut"), 1_000));
      byte[] read = new byte[2_000];
      try (FSDataInputStream in = fs.open(path("cut"))) {
        assertEquals(1_000, in.read(0, read, 0, read.length));
      }
      assertArrayEquals(Arrays.copyOf(bytes, 1_000), Arrays.copyOf(read, 1_000));
      assertThrows(IllegalArgumentException.class, () -> fs.truncate(path("cut"), 1_001));
    }
  }

  @Test
  public void whatIsInTheWayIsNamed() throws Exception {
    try (FileSystem fs = fs("through")) {
      agent.file("write/way/file", new byte[1]);
      assertThrows(FileAlreadyExistsException.class, () -> fs.create(path("way/file"), false));
      assertThrows(FileAlreadyExistsException.class, () -> fs.create(path("way"), true));
      assertThrows(IOException.class, () -> fs.create(path("way/file/below")));
      assertThrows(FileNotFoundException.class,
          () -> fs.createNonRecursive(path("no/parent"), FsPermission.getFileDefault(), false, 4096, (short) 1, 0, null));
      assertFalse(Files.exists(directory.resolve("no")));
    }
  }

  @Test
  public void aClosedStreamTakesNothingMore() throws Exception {
    try (FileSystem fs = fs("through")) {
      FSDataOutputStream out = fs.create(path("closed"));
      out.write(1);
      out.close();
      out.close();
      assertThrows(ClosedChannelException.class, () -> out.write(2));
      assertThrows(IOException.class, out::hflush);
      assertEquals(1, Files.size(directory.resolve("closed")));
    }
  }
}
