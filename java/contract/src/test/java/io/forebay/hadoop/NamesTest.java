package io.forebay.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeFalse;
import static org.junit.Assume.assumeTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.permission.FsPermission;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Names, attributes and places: what the contract tests leave open. */
public class NamesTest {
  private final TestAgent agent = TestAgent.shared();
  private final java.nio.file.Path directory = agent.root().resolve("names");
  private FileSystem fs;

  @Before
  public void open() throws Exception {
    Files.createDirectories(directory);
    fs = FileSystem.newInstance(java.net.URI.create("forebay:///"), agent.configuration());
  }

  @After
  public void close() throws Exception {
    fs.delete(path(""), true);
    fs.close();
  }

  private Path path(String name) {
    return new Path("forebay", null, directory.resolve(name).toString());
  }

  private void file(String name, int... bytes) throws Exception {
    byte[] content = new byte[bytes.length];
    for (int i = 0; i < bytes.length; i++) {
      content[i] = (byte) bytes[i];
    }
    agent.file("names/" + name, content);
  }

  private byte[] content(String name) throws IOException {
    return Files.readAllBytes(directory.resolve(name));
  }

  @Test
  public void aRenameNeverReplacesWhatIsThere() throws Exception {
    file("a", 1);
    file("b", 2);
    assertFalse(fs.rename(path("a"), path("b")));
    assertArrayEquals(new byte[] {2}, content("b"));
    assertFalse("of what is not there", fs.rename(path("gone"), path("c")));
    assertFalse("into what is not there", fs.rename(path("a"), path("no/c")));
    assertTrue(fs.rename(path("a"), path("c")));
    assertArrayEquals(new byte[] {1}, content("c"));
    Files.createDirectories(directory.resolve("dir/c"));
    assertFalse("an empty directory of that name", fs.rename(path("c"), path("dir")));
    assertTrue("into a directory", fs.rename(path("b"), path("dir")));
    assertArrayEquals(new byte[] {2}, content("dir/b"));
    assertFalse("below itself", fs.rename(path("dir"), path("dir/below")));
  }

  /** Work in a directory on another device than that of the tests. */
  private interface Elsewhere {
    void run(java.nio.file.Path other) throws Exception;
  }

  private void onAnotherDevice(Elsewhere work) throws Exception {
    java.nio.file.Path memory = java.nio.file.Path.of("/dev/shm");
    assumeTrue("/dev/shm can be written", Files.isWritable(memory));
    assumeFalse("all is on one device", Files.getAttribute(memory, "unix:dev").equals(Files.getAttribute(directory, "unix:dev")));
    java.nio.file.Path other = Files.createTempDirectory(memory, "forebay-names-");
    try {
      work.run(other);
    } finally {
      fs.delete(on(other, ""), true);
    }
  }

  private static Path on(java.nio.file.Path other, String name) {
    return new Path("forebay", null, other.resolve(name).toString());
  }

  @Test
  public void aRenameToAnotherDeviceIsACopyThatReplacesNothing() throws Exception {
    onAnotherDevice(other -> {
      file("a", 1);
      Files.write(other.resolve("there"), new byte[] {2});
      assertFalse(fs.rename(path("a"), on(other, "there")));
      assertArrayEquals(new byte[] {2}, Files.readAllBytes(other.resolve("there")));
      Files.createSymbolicLink(other.resolve("link"), other.resolve("nowhere"));
      assertFalse("a link to nowhere", fs.rename(path("a"), on(other, "link")));
      assertFalse(Files.exists(other.resolve("nowhere")));
      Files.createDirectories(other.resolve("dir/a"));
      assertFalse("a directory of that name in the directory", fs.rename(path("a"), on(other, "dir")));
      assertFalse(Files.exists(other.resolve("dir/a/a")));
      assertFalse("into what is not there", fs.rename(path("a"), on(other, "no/a")));
      assertFalse(Files.exists(other.resolve("no")));
      assertArrayEquals("it is where it was", new byte[] {1}, content("a"));
      assertTrue(fs.rename(path("a"), on(other, "a")));
      assertArrayEquals(new byte[] {1}, Files.readAllBytes(other.resolve("a")));
      assertFalse(Files.exists(directory.resolve("a")));
    });
  }

  @Test
  public void aDirectoryGoesToAnotherDeviceAsAWholeOrNotAtAll() throws Exception {
    onAnotherDevice(other -> {
      file("tree/a", 1);
      file("tree/sub/b", 2);
      assertTrue(fs.rename(path("tree"), on(other, "tree")));
      assertArrayEquals(new byte[] {1}, Files.readAllBytes(other.resolve("tree/a")));
      assertArrayEquals(new byte[] {2}, Files.readAllBytes(other.resolve("tree/sub/b")));
      assertFalse(Files.exists(directory.resolve("tree")));
      file("kept/file", 3);
      file("linked/a", 4);
      Files.createSymbolicLink(directory.resolve("linked/link"), directory.resolve("kept"));
      IOException e = assertThrows(IOException.class, () -> fs.rename(path("linked"), on(other, "linked")));
      assertTrue(e.getMessage(), e.getMessage().contains("linked/link"));
      assertArrayEquals(new byte[] {3}, content("kept/file"));
      assertArrayEquals(new byte[] {4}, content("linked/a"));
      assertFalse(Files.exists(other.resolve("linked")));
    });
  }

  /**
   * Makes a file again as soon as it is gone, as a task does that has not heard of its end: so
   * often, or until its directory is gone.
   */
  private static Thread maker(java.nio.file.Path file, int times, AtomicBoolean end) {
    Thread maker = new Thread(() -> {
      try {
        for (int i = 0; i < times && !end.get(); i++) {
          while (Files.exists(file) && !end.get()) {
            Thread.onSpinWait();
          }
          if (!end.get()) {
            Files.createFile(file);
          }
        }
      } catch (IOException e) {
        // There is no directory any more.
      }
    });
    maker.setDaemon(true);
    maker.start();
    return maker;
  }

  private java.nio.file.Path busyDirectory() throws IOException {
    java.nio.file.Path busy = Files.createDirectories(directory.resolve("busy"));
    for (int i = 0; i < 100; i++) {
      Files.createFile(busy.resolve("file-" + i));
    }
    return busy;
  }

  @Test
  public void whatAppearsInADirectoryWhileItIsRemovedIsRemovedToo() throws Exception {
    java.nio.file.Path busy = busyDirectory();
    assertThrows(PathIsNotEmptyDirectoryException.class, () -> fs.delete(path("busy"), false));
    // Each file that is made again costs one walk at most, and there are five.
    Thread maker = maker(busy.resolve("file-0"), 4, new AtomicBoolean());
    assertTrue(fs.delete(path("busy"), true));
    maker.join();
    assertFalse(Files.exists(busy));
  }

  @Test
  public void aDirectoryThatNeverGetsEmptyIsNotSaidToBeGone() throws Exception {
    java.nio.file.Path busy = busyDirectory();
    AtomicBoolean end = new AtomicBoolean();
    Thread[] makers = {maker(busy.resolve("file-0"), Integer.MAX_VALUE, end), maker(busy.resolve("file-50"), Integer.MAX_VALUE, end)};
    boolean gone = fs.delete(path("busy"), true);
    end.set(true);
    for (Thread maker : makers) {
      maker.join();
    }
    assertEquals(gone, !Files.exists(busy));
  }

  @Test
  public void fileContextReplacesInOneStep() throws Exception {
    Configuration conf = agent.configuration();
    conf.set("fs.AbstractFileSystem.forebay.impl", ForebayFs.class.getName());
    FileContext context = FileContext.getFileContext(java.net.URI.create("forebay:///"), conf);
    file("old", 1);
    file("new", 2);
    assertThrows(FileAlreadyExistsException.class, () -> context.rename(path("new"), path("old")));
    Object inode = Files.getAttribute(directory.resolve("new"), "unix:ino");
    context.rename(path("new"), path("old"), Options.Rename.OVERWRITE);
    assertEquals(inode, Files.getAttribute(directory.resolve("old"), "unix:ino"));
    assertFalse(Files.exists(directory.resolve("new")));
    assertEquals(1, context.getFileStatus(path("old")).getLen());
    try (var in = context.open(path("old"))) {
      assertEquals(2, in.read());
    }
  }

  @Test
  public void aListingIsWhatTheDirectoryHolds() throws Exception {
    file("b:c d%41ü", 1, 2);
    file(".hidden", 1);
    Files.createDirectory(directory.resolve("sub"));
    Files.createSymbolicLink(directory.resolve("link"), directory.resolve(".hidden"));
    Files.createSymbolicLink(directory.resolve("to-nowhere"), directory.resolve("gone"));
    FileStatus[] list = fs.listStatus(path(""));
    List<String> names = Arrays.stream(list).map(status -> status.getPath().toUri().getPath()).toList();
    assertEquals(List.of(directory + "/.hidden", directory + "/b:c d%41ü", directory + "/link", directory + "/sub"), names);
    for (FileStatus status : list) {
      assertEquals(fs.getFileStatus(status.getPath()).getLen(), status.getLen());
    }
    assertEquals(2, list[1].getLen());
    assertEquals(1, fs.listStatus(list[1].getPath()).length);
  }

  @Test
  public void attributesAreThoseOfTheFileSystem() throws Exception {
    file("attributes", 1, 2, 3);
    Path file = path("attributes");
    fs.setPermission(file, new FsPermission((short) 0640));
    fs.setTimes(file, 1_000_000_000_000L, -1);
    FileStatus status = fs.getFileStatus(file);
    assertEquals(0640, status.getPermission().toShort());
    assertEquals(1_000_000_000_000L, status.getModificationTime());
    assertEquals(Files.getOwner(directory.resolve("attributes")).getName(), status.getOwner());
    assertEquals(3, status.getLen());
    assertEquals(128 << 20, status.getBlockSize());
    fs.setOwner(file, status.getOwner(), status.getGroup());
    fs.mkdirs(path("made/of/parents"), new FsPermission((short) 0777));
    assertEquals(0755, fs.getFileStatus(path("made/of")).getPermission().toShort());
  }

  @Test
  public void extendedAttributesOfTheUser() throws Exception {
    file("extended", 1);
    Path file = path("extended");
    fs.setXAttr(file, "user.color", new byte[] {1, 2});
    assertArrayEquals(new byte[] {1, 2}, fs.getXAttr(file, "user.color"));
    assertEquals(List.of("user.color"), fs.listXAttrs(file));
    Map<String, byte[]> all = fs.getXAttrs(file);
    assertArrayEquals(new byte[] {1, 2}, all.get("user.color"));
    fs.removeXAttr(file, "user.color");
    assertEquals(List.of(), fs.listXAttrs(file));
    assertThrows(UnsupportedOperationException.class, () -> fs.getXAttr(file, "trusted.color"));
  }

  @Test
  public void aLinkIsRemovedAndNotFollowed() throws Exception {
    file("kept/file", 1);
    Files.createDirectory(directory.resolve("tree"));
    Files.createSymbolicLink(directory.resolve("tree/link"), directory.resolve("kept"));
    assertTrue(fs.delete(path("tree"), true));
    assertArrayEquals(new byte[] {1}, content("kept/file"));
  }

  @Test
  public void aPathWithAHostIsRefused() {
    IOException e = assertThrows(IOException.class,
        () -> FileSystem.newInstance(java.net.URI.create("forebay://host/pfs"), agent.configuration()));
    assertTrue(e.getMessage(), e.getMessage().contains("forebay:///path"));
  }

  @Test
  public void locationsNameTheNode() throws Exception {
    java.nio.file.Path file = directory.resolve("large");
    try (var large = new java.io.RandomAccessFile(file.toFile(), "rw")) {
      large.setLength((300L << 20) + 5);
    }
    FileStatus status = fs.getFileStatus(path("large"));
    // A coordinator that has just started waits for those it knew before it names anybody.
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    BlockLocation[] locations = fs.getFileBlockLocations(status, 0, status.getLen());
    while (locations.length == 1 && System.nanoTime() < deadline) {
      Thread.sleep(100);
      locations = fs.getFileBlockLocations(status, 0, status.getLen());
    }
    assertEquals(3, locations.length);
    long at = 0;
    for (BlockLocation location : locations) {
      assertEquals(at, location.getOffset());
      assertArrayEquals(new String[] {hostName()}, location.getHosts());
      at += location.getLength();
    }
    assertEquals(status.getLen(), at);
    assertTrue(status instanceof ListedStatus);
    FileStatus copy = new FileStatus(status);
    assertArrayEquals("by its path as by its number", names(locations), names(fs.getFileBlockLocations(copy, 0, status.getLen())));
    assertEquals(1, fs.getFileBlockLocations(status, 130 << 20, 1).length);
    assertEquals(0, fs.getFileBlockLocations(status, status.getLen(), 1).length);
    Configuration silent = agent.configuration();
    silent.setBoolean(ForebayConfig.LOCALITY, false);
    try (FileSystem other = FileSystem.newInstance(java.net.URI.create("forebay:///"), silent)) {
      assertArrayEquals(new String[] {"localhost"}, other.getFileBlockLocations(status, 0, 1)[0].getHosts());
    }
  }

  private static String[] names(BlockLocation[] locations) {
    return Arrays.stream(locations).map(BlockLocation::toString).toArray(String[]::new);
  }

  private static String hostName() throws IOException {
    return Files.readString(java.nio.file.Path.of("/proc/sys/kernel/hostname")).trim();
  }

  @Test
  public void whatIsNotOfferedIsNotDeclared() throws Exception {
    for (String offered : List.of(CommonPathCapabilities.FS_APPEND, CommonPathCapabilities.FS_PERMISSIONS,
        CommonPathCapabilities.FS_TRUNCATE, CommonPathCapabilities.FS_XATTRS)) {
      assertTrue(offered, fs.hasPathCapability(path(""), offered));
    }
    for (String missing : List.of(CommonPathCapabilities.FS_ACLS, CommonPathCapabilities.FS_CHECKSUMS, CommonPathCapabilities.FS_CONCAT,
        CommonPathCapabilities.FS_SNAPSHOTS, CommonPathCapabilities.FS_STORAGEPOLICY, CommonPathCapabilities.FS_PATHHANDLES)) {
      assertFalse(missing, fs.hasPathCapability(path(""), missing));
    }
    assertThrows(UnsupportedOperationException.class, () -> fs.concat(path("a"), new Path[] {path("b")}));
    assertThrows(UnsupportedOperationException.class, () -> fs.getAclStatus(path("a")));
  }
}
