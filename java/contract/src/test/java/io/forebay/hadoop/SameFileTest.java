package io.forebay.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileUtil;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.junit.function.ThrowingRunnable;

/** Source and target of a copy or a rename that are one file, by any of its names: it stays. */
public class SameFileTest {
  private static final String CONTENT = "precious";

  private final TestAgent agent = TestAgent.shared();
  private final java.nio.file.Path pfs = agent.root().resolve("same");
  private java.nio.file.Path mount;
  private FileSystem fs;
  private FileSystem mapped;

  @Before
  public void open() throws Exception {
    Files.createDirectories(pfs);
    Files.writeString(pfs.resolve("file"), CONTENT);
    Files.createSymbolicLink(pfs.resolve("link"), java.nio.file.Path.of("file"));
    Files.createLink(pfs.resolve("hard"), pfs.resolve("file"));
    Files.createSymbolicLink(pfs.resolve("to-directory"), pfs);
    Configuration conf = agent.configuration();
    fs = FileSystem.newInstance(URI.create("forebay:///"), conf);
    conf.set("fs.file.impl", ForebayLocalFileSystem.class.getName());
    mapped = FileSystem.newInstance(URI.create("file:///"), conf);
  }

  @After
  public void close() throws Exception {
    if (mount != null) {
      agent.run("umount", mount.toString());
      Files.delete(mount);
    }
    fs.delete(forebay("file").getParent(), true);
    fs.close();
    mapped.close();
  }

  private static Path path(String scheme, java.nio.file.Path file) {
    return new Path(scheme, null, file.toString());
  }

  private Path forebay(String name) {
    return path("forebay", pfs.resolve(name));
  }

  /** All names of the file, on a mount too if there can be one. */
  private List<java.nio.file.Path> names() throws Exception {
    List<java.nio.file.Path> all = new ArrayList<>();
    List<java.nio.file.Path> places = new ArrayList<>(List.of(pfs));
    if (!"1".equals(System.getenv("FOREBAY_SKIP_FUSE")) && Files.isWritable(java.nio.file.Path.of("/dev/fuse"))) {
      mount = Files.createTempDirectory("forebay-mount-");
      assertEquals(0, agent.run("mount", "--socket", agent.socket(), agent.root().toString(), mount.toString()));
      places.add(mount.resolve("same"));
    }
    for (java.nio.file.Path place : places) {
      for (String name : List.of("file", "link", "hard", "to-directory/file")) {
        all.add(place.resolve(name));
      }
    }
    return all;
  }

  private void refused(String what, Class<? extends IOException> with, ThrowingRunnable call) throws Exception {
    IOException e = assertThrows(what, with, call);
    assertTrue(e.toString(), e.getMessage().contains("same file") || e.getMessage().contains("itself"));
    assertEquals(what, CONTENT, Files.readString(pfs.resolve("file")));
  }

  @Test
  public void copiesOntoItselfAreRefused() throws Exception {
    Path file = forebay("file");
    Path local = path("file", pfs.resolve("file"));
    FileContext context = FileContext.getFileContext(URI.create("forebay:///"), contextConfiguration());
    for (java.nio.file.Path name : names()) {
      Path other = path("forebay", name);
      Path otherLocal = path("file", name);
      String what = name.toString();
      refused(what, PathIOException.class, () -> FileUtil.copy(fs, file, fs, other, false, true, fs.getConf()));
      refused(what, PathIOException.class, () -> FileUtil.copy(fs, other, fs, file, true, true, fs.getConf()));
      refused(what, PathIOException.class, () -> FileUtil.copy(fs, file, mapped, local, false, true, fs.getConf()));
      refused(what, PathIOException.class, () -> context.util().copy(other, file, true, true));
      refused(what, PathIOException.class, () -> fs.copyFromLocalFile(otherLocal, file));
      refused(what, PathIOException.class, () -> fs.moveFromLocalFile(otherLocal, file));
      refused(what, PathIOException.class, () -> fs.copyFromLocalFile(true, true, new Path[] {otherLocal}, file));
      refused(what, PathIOException.class, () -> fs.copyToLocalFile(file, otherLocal));
      refused(what, PathIOException.class, () -> fs.copyToLocalFile(true, other, local));
      refused(what, PathIOException.class, () -> mapped.copyFromLocalFile(otherLocal, local));
      refused(what, PathIOException.class, () -> mapped.copyToLocalFile(local, otherLocal));
      refused(what, PathIOException.class, () -> mapped.copyFromLocalFile(true, true, otherLocal, local));
    }
    refused("into its own directory", PathIOException.class, () -> fs.copyFromLocalFile(local, file.getParent()));
  }

  private Configuration contextConfiguration() {
    Configuration conf = agent.configuration();
    conf.set("fs.AbstractFileSystem.forebay.impl", ForebayFs.class.getName());
    conf.set("fs.AbstractFileSystem.file.impl", ForebayLocalFs.class.getName());
    return conf;
  }

  @Test
  public void hadoopsCommandsKeepTheFile() throws Exception {
    Configuration conf = agent.configuration();
    conf.set("fs.file.impl", ForebayLocalFileSystem.class.getName());
    // Not the one that another test's programs have opened in this JVM.
    conf.setBoolean("fs.file.impl.disable.cache", true);
    FsShell shell = new FsShell(conf);
    Path file = forebay("file");
    for (java.nio.file.Path name : names()) {
      for (String scheme : List.of("forebay", "file")) {
        Path other = path(scheme, name);
        for (String[] command : new String[][] {
            {"-cp", "-f", file.toString(), other.toString()},
            {"-cp", "-f", other.toString(), file.toString()},
            {"-cp", "-f", "-d", file.toString(), other.toString()},
            {"-mv", other.toString(), file.toString()},
            {"-put", "-f", name.toString(), file.toString()},
            {"-get", "-f", file.toString(), name.toString()}}) {
          shell.run(command);
          assertEquals(String.join(" ", command), CONTENT, Files.readString(pfs.resolve("file")));
        }
      }
    }
  }

  @Test
  public void renamesOntoItselfChangeNothing() throws Exception {
    Path file = forebay("file");
    FileContext context = FileContext.getFileContext(URI.create("forebay:///"), contextConfiguration());
    assertTrue(fs.rename(file, file));
    for (java.nio.file.Path name : names()) {
      Path other = path("forebay", name);
      String what = name.toString();
      boolean equal = name.equals(pfs.resolve("file"));
      assertEquals(what, equal, fs.rename(file, other));
      assertEquals(what, equal, fs.rename(other, file));
      for (String scheme : List.of("forebay", "file")) {
        refused(what, FileAlreadyExistsException.class,
            () -> context.rename(path(scheme, name), path(scheme, pfs.resolve("file")), Options.Rename.OVERWRITE));
        refused(what, FileAlreadyExistsException.class,
            () -> context.rename(path(scheme, pfs.resolve("file")), path(scheme, name), Options.Rename.OVERWRITE));
      }
    }
  }

  @Test
  public void aDirectoryGoesNotBelowItself() throws Exception {
    names();
    assumeTrue("a mount needs /dev/fuse", mount != null);
    Files.createDirectories(pfs.resolve("deep/er"));
    java.nio.file.Path seen = mount.resolve("same");
    for (String below : List.of("deep/er/x", "to-directory/deep/x")) {
      assertFalse(below, fs.rename(path("forebay", seen), forebay(below)));
      refused(below, PathIOException.class, () -> fs.copyFromLocalFile(path("file", seen), forebay(below)));
      refused(below, PathIOException.class, () -> fs.copyToLocalFile(forebay("."), path("file", seen.resolve(below))));
    }
    assertEquals(0, Files.list(pfs.resolve("deep/er")).count());
  }

  /** Nothing but a copy is refused: a program may replace what it has read, or closed. */
  @Test
  public void aFileThatWasReadOrClosedMayBeOverwritten() throws Exception {
    Path file = forebay("file");
    fs.open(file).close();
    fs.create(file, true).close();
    Files.writeString(pfs.resolve("file"), CONTENT);
    try (FSDataInputStream in = fs.open(file)) {
      assertEquals('p', in.read());
      try (FSDataOutputStream out = fs.create(file, true)) {
        out.write(1);
      }
    }
    assertEquals(1, Files.size(pfs.resolve("file")));
    Files.copy(pfs.resolve("file"), pfs.resolve("other"));
    assertTrue(FileUtil.copy(fs, file, fs, forebay("other"), false, true, fs.getConf()));
  }
}
