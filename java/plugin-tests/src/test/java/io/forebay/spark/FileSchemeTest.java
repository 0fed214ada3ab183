package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotSame;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.EnumSet;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

import io.forebay.hadoop.ForebayConfig;
import io.forebay.hadoop.ForebayFileSystem;
import io.forebay.hadoop.ForebayLocalFileSystem;

/** The file systems for file:/// and forebay:/// while a process already has some. */
public class FileSchemeTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  @Before
  @After
  public void forget() {
    FileScheme.leave();
  }

  /** As the driver has it; without an agent, as there is none here. */
  private static Configuration driver() {
    Configuration conf = new Configuration();
    conf.set(ForebayConfig.SOCKET, "none");
    FileScheme.name(conf);
    FileScheme.takeOver(conf);
    return conf;
  }

  /** What somebody gets who knows nothing of Forebay. */
  private static FileSystem files() throws IOException {
    return FileSystem.get(FileScheme.FILES, new Configuration());
  }

  @Test
  public void whoComesNextGetsForebays() throws IOException {
    FileSystem before = files();
    assertFalse(before instanceof ForebayLocalFileSystem);
    FileScheme.fill(driver());
    assertTrue("whatever its configuration says", files() instanceof ForebayLocalFileSystem);
    assertTrue(FileSystem.get(FileScheme.FOREBAY, new Configuration()) instanceof ForebayFileSystem);
    assertTrue("who has the other goes on", before.exists(new Path("/")));
  }

  @Test
  public void aClassThatTheUserNamesStays() throws IOException {
    Configuration conf = new Configuration();
    conf.set("fs.file.impl", LocalFileSystem.class.getName());
    FileScheme.name(conf);
    FileScheme.takeOver(conf);
    FileSystem before = files();
    FileScheme.fill(conf);
    assertSame(before, files());
    assertEquals(LocalFileSystem.class, files().getClass());
  }

  /** As Delta Lake commits: it renames by FileContext. */
  @Test
  public void whoUsesFileContextGetsForebaysToo() throws IOException {
    Configuration conf = driver();
    FileScheme.fill(conf);
    File root = folder.getRoot();
    for (String scheme : new String[] {"file", "forebay"}) {
      FileContext context = FileContext.getFileContext(URI.create(scheme + ":///"), conf);
      String expected = scheme.equals("file") ? "ForebayLocalFs" : "ForebayFs";
      assertEquals(expected, context.getDefaultFileSystem().getClass().getSimpleName());
      Path from = new Path(scheme + "://" + root + "/from-" + scheme);
      Path to = new Path(scheme + "://" + root + "/to-" + scheme);
      context.create(from, EnumSet.of(CreateFlag.CREATE)).close();
      context.rename(from, to);
      assertTrue(new File(root, "to-" + scheme).exists());
      context.create(from, EnumSet.of(CreateFlag.CREATE)).close();
      assertThrows("a commit that somebody else has made", FileAlreadyExistsException.class, () -> context.rename(from, to));
    }
    FileScheme.giveBack(conf);
    assertEquals("LocalFs", FileContext.getFileContext(URI.create("file:///"), conf).getDefaultFileSystem().getClass().getSimpleName());
    assertTrue("executors as well", FileScheme.settings(driver()).containsKey("fs.AbstractFileSystem.forebay.impl"));
  }

  @Test
  public void aSecondApplicationHasItsOwnSettings() throws IOException {
    Configuration first = driver();
    first.set(ForebayConfig.LOCALITY, "false");
    FileScheme.fill(first);
    assertEquals("false", files().getConf().get(ForebayConfig.LOCALITY));
    FileScheme.fill(driver());
    for (FileSystem fs : new FileSystem[] {files(), FileSystem.get(FileScheme.FOREBAY, new Configuration())}) {
      assertNull(fs.getUri().toString(), fs.getConf().get(ForebayConfig.LOCALITY));
    }
  }

  /** One that has file:/// as Hadoop has it, after one whose end left something behind. */
  @Test
  public void aSecondApplicationMayHaveHadoopsFiles() throws IOException {
    FileScheme.fill(driver());
    Configuration second = new Configuration();
    FileScheme.name(second);
    FileScheme.fill(second);
    assertEquals(LocalFileSystem.class, files().getClass());
  }

  @Test
  public void nothingIsLeftAtTheEnd() throws IOException {
    Configuration conf = driver();
    conf.set(ForebayConfig.LOCALITY, "false");
    FileScheme.fill(conf);
    FileSystem held = files();
    FileSystem forebay = FileSystem.get(FileScheme.FOREBAY, conf);
    FileScheme.leave();
    assertEquals(LocalFileSystem.class, files().getClass());
    assertNotSame(forebay, FileSystem.get(FileScheme.FOREBAY, driver()));
    assertTrue("who still has it goes on", held.exists(new Path("/")));
  }

  @Test
  public void whatIsNotOursStaysAtTheEnd() throws IOException {
    FileSystem before = files();
    FileScheme.leave();
    assertSame(before, files());
  }

  @Test
  public void whatIsRefusedIsRefusedBeforeAnythingIsClosed() throws IOException {
    FileSystem before = files();
    Configuration conf = driver();
    conf.set(ForebayConfig.LOCALITY, "maybe");
    assertThrows(IllegalArgumentException.class, () -> FileScheme.fill(conf));
    assertSame(before, files());
  }

  /**
   * As in a session of Spark Connect, whose own class loader knows what was there when it was made.
   */
  @Test
  public void aClassLoaderThatDoesNotKnowForebayDoesNotMatter() throws IOException {
    FileScheme.fill(driver());
    Configuration conf = driver();
    conf.setClassLoader(new URLClassLoader(new URL[0], null));
    assertTrue(FileSystem.get(FileScheme.FILES, conf) instanceof ForebayLocalFileSystem);
    // And the one that fills does not depend on whose thread it is.
    FileScheme.leave();
    FileScheme.fill(conf);
    assertTrue(files() instanceof ForebayLocalFileSystem);
  }

  @Test
  public void whatIsToBeDeletedAtTheEndOfTheProcessIsStillThereAfterwards() throws IOException {
    File file = folder.newFile();
    assertTrue(files().deleteOnExit(new Path(file.toURI())));
    FileScheme.fill(driver());
    assertTrue("not yet", file.exists());
    FileScheme.leave();
    assertTrue("nor at the end of the application", file.exists());
    // As at the end of the process.
    files().close();
    assertFalse(file.exists());
  }
}
