package io.forebay.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumException;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/**
 * file:// with the PFS taken over: Forebay's below the roots, LocalFileSystem's own everywhere
 * else.
 */
public class LocalMappingTest {
  private final TestAgent agent = TestAgent.shared();
  private final java.nio.file.Path pfs = agent.root().resolve("mapping");
  private java.nio.file.Path local;
  private FileSystem mapped;
  private FileSystem plain;

  private Configuration configuration() {
    Configuration conf = agent.configuration();
    conf.set("fs.file.impl", ForebayLocalFileSystem.class.getName());
    return conf;
  }

  @Before
  public void open() throws Exception {
    local = Files.createTempDirectory("forebay-local-").toRealPath();
    Files.createDirectories(pfs);
    mapped = FileSystem.newInstance(java.net.URI.create("file:///"), configuration());
    plain = FileSystem.newInstance(java.net.URI.create("file:///"), new Configuration());
  }

  @After
  public void close() throws Exception {
    mapped.delete(path(local, ""), true);
    mapped.delete(path(pfs, ""), true);
    mapped.close();
    plain.close();
  }

  private static Path path(java.nio.file.Path directory, String name) {
    return new Path("file", null, directory.resolve(name).toString());
  }

  private static void write(FileSystem fs, Path path, byte... bytes) throws IOException {
    try (FSDataOutputStream out = fs.create(path, true)) {
      out.write(bytes);
    }
  }

  private static byte[] read(FileSystem fs, Path path) throws IOException {
    try (FSDataInputStream in = fs.open(path)) {
      return in.readAllBytes();
    }
  }

  @Test
  public void outsideOfTheRootsChecksumsAreWrittenAndVerified() throws Exception {
    assertTrue(mapped instanceof LocalFileSystem);
    write(mapped, path(local, "a"), (byte) 1, (byte) 2);
    assertTrue(Files.exists(local.resolve(".a.crc")));
    assertEquals(1, mapped.listStatus(path(local, "")).length);
    Files.write(local.resolve("a"), new byte[] {1, 3});
    assertThrows(ChecksumException.class, () -> read(mapped, path(local, "a")));
  }

  @Test
  public void belowTheRootsThereAreNoChecksumFiles() throws Exception {
    Path file = path(pfs, "a");
    write(mapped, file, (byte) 1, (byte) 2);
    assertFalse(Files.exists(pfs.resolve(".a.crc")));
    assertArrayEquals(new byte[] {1, 2}, read(mapped, file));
    FileStatus status = mapped.getFileStatus(file);
    assertEquals(file, status.getPath());
    assertEquals("file", status.getPath().toUri().getScheme());
    assertArrayEquals(new FileStatus[] {status}, mapped.listStatus(path(pfs, "")));
    try (FSDataInputStream in = mapped.open(file)) {
      assertTrue(in.getWrappedStream() instanceof ForebayInputStream);
    }
  }

  @Test
  public void aStaleChecksumFileDoesNotDeceiveReadersWithoutForebay() throws Exception {
    for (String name : new String[] {"over", "append", "cut", "from", "to", "gone"}) {
      write(plain, path(pfs, name), (byte) 1, (byte) 2, (byte) 3);
      assertTrue(Files.exists(pfs.resolve("." + name + ".crc")));
    }
    assertEquals("checksum files are not shown", 6, mapped.listStatus(path(pfs, "")).length);
    write(mapped, path(pfs, "over"), (byte) 7);
    try (FSDataOutputStream out = mapped.append(path(pfs, "append"))) {
      out.write(4);
    }
    mapped.truncate(path(pfs, "cut"), 1);
    assertTrue(mapped.delete(path(pfs, "to"), false));
    assertTrue(mapped.rename(path(pfs, "from"), path(pfs, "to")));
    assertTrue(mapped.delete(path(pfs, "gone"), false));
    assertArrayEquals(new byte[] {7}, read(plain, path(pfs, "over")));
    assertArrayEquals(new byte[] {1, 2, 3, 4}, read(plain, path(pfs, "append")));
    assertArrayEquals(new byte[] {1}, read(plain, path(pfs, "cut")));
    assertArrayEquals(new byte[] {1, 2, 3}, read(plain, path(pfs, "to")));
    assertTrue("it moved with its file, which is still verified", Files.exists(pfs.resolve(".to.crc")));
    assertFalse(Files.exists(pfs.resolve(".from.crc")) || Files.exists(pfs.resolve(".gone.crc")));
  }

  @Test
  public void aRenameFromOneSideToTheOtherCopies() throws Exception {
    write(mapped, path(local, "out"), (byte) 1);
    assertTrue(mapped.rename(path(local, "out"), path(pfs, "in")));
    assertArrayEquals(new byte[] {1}, Files.readAllBytes(pfs.resolve("in")));
    assertFalse(Files.exists(local.resolve("out")) || Files.exists(local.resolve(".out.crc")) || Files.exists(pfs.resolve(".in.crc")));
    assertTrue(mapped.rename(path(pfs, "in"), path(local, "back")));
    assertTrue(Files.exists(local.resolve(".back.crc")));
    assertFalse(Files.exists(pfs.resolve("in")));
    write(mapped, path(pfs, "there"), (byte) 2);
    assertFalse("what is there is not replaced", mapped.rename(path(local, "back"), path(pfs, "there")));
    assertArrayEquals(new byte[] {2}, Files.readAllBytes(pfs.resolve("there")));
    assertFalse("and nothing is made above it", mapped.rename(path(local, "back"), path(pfs, "no/back")));
    assertFalse(Files.exists(pfs.resolve("no")));
    assertArrayEquals(new byte[] {1}, read(plain, path(local, "back")));
  }

  @Test
  public void rootsAreTakenByTheirNamesAndNotByTheirBeginnings() throws Exception {
    Configuration conf = configuration();
    conf.set(ForebayConfig.ROOTS, pfs + "/inside/, /nowhere");
    Files.createDirectories(pfs.resolve("inside"));
    Files.createDirectories(pfs.resolve("inside-not"));
    try (FileSystem fs = FileSystem.newInstance(java.net.URI.create("file:///"), conf)) {
      write(fs, path(pfs, "inside/a"), (byte) 1);
      write(fs, path(pfs, "inside-not/a"), (byte) 1);
    }
    assertFalse(Files.exists(pfs.resolve("inside/.a.crc")));
    assertTrue(Files.exists(pfs.resolve("inside-not/.a.crc")));
  }

  @Test
  public void hadoopsOwnWaysToTheLocalFileSystemLeadHere() throws Exception {
    try (LocalFileSystem fs = FileSystem.newInstanceLocal(configuration())) {
      assertTrue(fs instanceof ForebayLocalFileSystem);
    }
    write(mapped, path(pfs, "new"), (byte) 1);
    write(mapped, path(pfs, "old"), (byte) 2);
    context().rename(path(pfs, "new"), path(pfs, "old"), Options.Rename.OVERWRITE);
    assertArrayEquals(new byte[] {1}, Files.readAllBytes(pfs.resolve("old")));
  }

  private FileContext context() throws IOException {
    Configuration conf = configuration();
    conf.set("fs.AbstractFileSystem.file.impl", ForebayLocalFs.class.getName());
    return FileContext.getFileContext(java.net.URI.create("file:///"), conf);
  }

  @Test
  public void fileContextWritesThroughForebayAndElsewhereWithChecksums() throws Exception {
    FileContext context = context();
    EnumSet<CreateFlag> replace = EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE);
    write(plain, path(pfs, "a"), (byte) 1, (byte) 2, (byte) 3);
    try (FSDataOutputStream out = context.create(path(pfs, "a"), replace)) {
      assertTrue(out.getWrappedStream() instanceof ForebayOutputStream);
      out.write(7);
    }
    assertFalse(Files.exists(pfs.resolve(".a.crc")));
    try (FSDataOutputStream out = context.create(path(pfs, "a"), EnumSet.of(CreateFlag.CREATE, CreateFlag.APPEND))) {
      out.write(8);
    }
    assertArrayEquals(new byte[] {7, 8}, read(plain, path(pfs, "a")));
    assertThrows(FileAlreadyExistsException.class, () -> context.create(path(pfs, "a"), EnumSet.of(CreateFlag.CREATE)));
    write(mapped, path(local, "b"), (byte) 1, (byte) 2, (byte) 3);
    try (FSDataOutputStream out = context.create(path(local, "b"), replace)) {
      out.write(9);
    }
    assertArrayEquals("verified by a checksum of its own", new byte[] {9}, read(plain, path(local, "b")));
    assertTrue(Files.exists(local.resolve(".b.crc")));
    context.mkdir(path(pfs, "made/below"), null, true);
    context.mkdir(path(local, "made/below"), null, true);
    assertTrue(Files.isDirectory(pfs.resolve("made/below")) && Files.isDirectory(local.resolve("made/below")));
  }

  @Test
  public void whatFileContextRenamesKeepsItsOwnChecksums() throws Exception {
    FileContext context = context();
    write(mapped, path(local, "new"), (byte) 1, (byte) 2);
    write(mapped, path(local, "old"), (byte) 3);
    assertThrows(FileAlreadyExistsException.class, () -> context.rename(path(local, "new"), path(local, "old")));
    context.rename(path(local, "new"), path(local, "old"), Options.Rename.OVERWRITE);
    assertArrayEquals(new byte[] {1, 2}, read(plain, path(local, "old")));
    assertTrue(Files.exists(local.resolve(".old.crc")));
    assertFalse(Files.exists(local.resolve(".new.crc")));
    Files.write(local.resolve("bare"), new byte[] {4});
    context.rename(path(local, "bare"), path(local, "old"), Options.Rename.OVERWRITE);
    assertArrayEquals("it has none, and that of what was there is gone", new byte[] {4}, read(plain, path(local, "old")));
    assertFalse(Files.exists(local.resolve(".old.crc")));
    assertThrows(FileAlreadyExistsException.class,
        () -> context.rename(path(local, "old"), path(local, "old"), Options.Rename.OVERWRITE));
    assertArrayEquals(new byte[] {4}, Files.readAllBytes(local.resolve("old")));
  }

  @Test
  public void fileContextRenamesFromOneSideToTheOther() throws Exception {
    FileContext context = context();
    write(mapped, path(local, "from"), (byte) 1, (byte) 2);
    write(mapped, path(pfs, "to"), (byte) 3);
    assertThrows(FileAlreadyExistsException.class, () -> context.rename(path(local, "from"), path(pfs, "to")));
    assertArrayEquals(new byte[] {3}, Files.readAllBytes(pfs.resolve("to")));
    context.rename(path(local, "from"), path(pfs, "to"), Options.Rename.OVERWRITE);
    assertArrayEquals(new byte[] {1, 2}, Files.readAllBytes(pfs.resolve("to")));
    assertFalse(Files.exists(pfs.resolve(".to.crc")) || Files.exists(local.resolve("from")) || Files.exists(local.resolve(".from.crc")));
    assertThrows(IOException.class, () -> context.rename(path(pfs, "to"), path(local, "no/to")));
    assertFalse(Files.exists(local.resolve("no")));
    context.rename(path(pfs, "to"), path(local, "back"));
    assertArrayEquals(new byte[] {1, 2}, read(plain, path(local, "back")));
    assertTrue(Files.exists(local.resolve(".back.crc")));
    assertFalse(Files.exists(pfs.resolve("to")));
  }

  @Test
  public void whatCannotBeCopiedReplacesNothing() throws Exception {
    FileContext context = context();
    Files.createDirectories(local.resolve("from"));
    Files.createSymbolicLink(local.resolve("from/link"), local);
    Files.createDirectories(pfs.resolve("to"));
    assertThrows(IOException.class, () -> context.rename(path(local, "from"), path(pfs, "to"), Options.Rename.OVERWRITE));
    assertArrayEquals("the target is there, and nothing beside it", new String[] {"to"}, pfs.toFile().list());
    assertTrue(Files.exists(local.resolve("from")));
    Files.delete(local.resolve("from/link"));
    Files.write(local.resolve("from/a"), new byte[] {1});
    context.rename(path(local, "from"), path(pfs, "to"), Options.Rename.OVERWRITE);
    assertArrayEquals(new byte[] {1}, Files.readAllBytes(pfs.resolve("to/a")));
    assertArrayEquals(new String[] {"to"}, pfs.toFile().list());
    assertFalse(Files.exists(local.resolve("from")));
  }

  @Test
  public void aRenameDoesNotMoveAFileToMemory() throws Exception {
    Configuration conf = configuration();
    conf.set(ForebayConfig.WRITE_MODE, "memory");
    conf.set("fs.AbstractFileSystem.file.impl", ForebayLocalFs.class.getName());
    write(plain, path(local, "lasts"), (byte) 1);
    write(plain, path(pfs, "there"), (byte) 2);
    FileContext context = FileContext.getFileContext(java.net.URI.create("file:///"), conf);
    try (FileSystem fs = FileSystem.newInstance(java.net.URI.create("file:///"), conf)) {
      assertThrows(IOException.class, () -> fs.rename(path(local, "lasts"), path(pfs, "new")));
      assertThrows(IOException.class, () -> context.rename(path(local, "lasts"), path(pfs, "there"), Options.Rename.OVERWRITE));
    }
    assertArrayEquals(new byte[] {1}, Files.readAllBytes(local.resolve("lasts")));
    assertArrayEquals(new byte[] {2}, Files.readAllBytes(pfs.resolve("there")));
  }

  @Test
  public void copiesFromAndToTheLocalDisk() throws Exception {
    Files.write(local.resolve("source"), new byte[] {1, 2, 3});
    mapped.copyFromLocalFile(false, path(local, "source"), path(pfs, "copied"));
    assertArrayEquals(new byte[] {1, 2, 3}, Files.readAllBytes(pfs.resolve("copied")));
    mapped.copyToLocalFile(false, path(pfs, "copied"), path(local, "back"));
    assertArrayEquals(new byte[] {1, 2, 3}, Files.readAllBytes(local.resolve("back")));
  }
}
