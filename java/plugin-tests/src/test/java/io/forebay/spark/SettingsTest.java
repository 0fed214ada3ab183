package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.net.URI;
import java.util.Map;
import java.util.function.Predicate;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.junit.Test;

import io.forebay.hadoop.ForebayConfig;
import io.forebay.hadoop.ForebayFileSystem;
import io.forebay.hadoop.ForebayFs;
import io.forebay.hadoop.ForebayLocalFileSystem;

/** What the plug-in sets for an application, and what it leaves as the user has it. */
public class SettingsTest {
  private static Configuration settled(String planner, String... set) {
    Configuration conf = new Configuration(false);
    for (int i = 0; i < set.length; i += 2) {
      conf.set(set[i], set[i + 1]);
    }
    ForebayPlugin.Driver.settle(conf, planner);
    return conf;
  }

  @Test
  public void waves() {
    for (String planner : new String[] {"no-action", ""}) {
      Configuration conf = settled(planner);
      assertNull(conf.get(ForebayConfig.READ_MODE));
      assertNull(conf.get(ForebayConfig.LOCALITY));
      assertEquals("balanced", conf.get(ForebayConfig.LOCATIONS));
    }
  }

  /**
   * The baseline reads as Spark does without Forebay: the PFS, and what is next wherever a core is
   * free.
   */
  @Test
  public void theBaselineNamesNoPreferredNodes() {
    Configuration conf = settled("naive-bb");
    assertEquals("bypass", conf.get(ForebayConfig.READ_MODE));
    assertEquals("false", conf.get(ForebayConfig.LOCALITY));
  }

  @Test
  public void whatTheUserHasSetStays() {
    Configuration conf = settled("naive-bb", ForebayConfig.READ_MODE, "cached", ForebayConfig.LOCALITY, "true", ForebayConfig.LOCATIONS, "owner");
    assertEquals("cached", conf.get(ForebayConfig.READ_MODE));
    assertEquals("true", conf.get(ForebayConfig.LOCALITY));
    assertEquals("owner", conf.get(ForebayConfig.LOCATIONS));
  }

  private static boolean isReported(String planner, String... set) {
    return ForebayPlugin.Driver.isReported(settled(planner, set), planner);
  }

  @Test
  public void nothingIsReportedWhereTasksReadPastTheTier() {
    assertTrue(isReported(""));
    assertTrue(isReported("no-action", ForebayConfig.READ_MODE, "cached"));
    assertFalse(isReported("", ForebayConfig.READ_MODE, "bypass"));
    assertFalse(isReported("no-action", ForebayConfig.READ_MODE, " pfs "));
    assertTrue("its progress is looked at", isReported("naive-bb"));
    assertTrue(isReported("naive-bb", ForebayConfig.READ_MODE, "bypass"));
  }

  private static boolean ours(Configuration conf, boolean filePaths, String path) {
    Predicate<URI> ours = FileScheme.ours(conf, filePaths);
    return ours.test(new org.apache.hadoop.fs.Path(path).toUri());
  }

  @Test
  public void filesAreOursIfTheirFileSystemIs() {
    Configuration conf = new Configuration(false);
    assertFalse("another class, Hadoop's own", ours(conf, true, "file:/pfs/a"));
    assertTrue(ours(conf, false, "forebay:/pfs/a"));
    conf.set("fs.file.impl", LocalFileSystem.class.getName());
    FileScheme.takeOver(conf);
    assertFalse("the user's stays", ours(conf, true, "file:/pfs/a"));
    conf = new Configuration(false);
    FileScheme.takeOver(conf);
    assertTrue(ours(conf, true, "file:/pfs/a"));
    assertTrue(ours(conf, true, "/pfs/a"));
    assertFalse(ours(conf, false, "file:/pfs/a"));
    assertFalse(ours(conf, false, "/pfs/a"));
    assertFalse(ours(conf, true, "hdfs://nn/pfs/a"));
  }

  @Test
  public void filesAreOursBelowTheRoots() {
    Configuration conf = new Configuration(false);
    FileScheme.takeOver(conf);
    conf.set(ForebayConfig.ROOTS, "/pfs/, /scratch/project");
    assertTrue(ours(conf, true, "file:/pfs/a"));
    assertTrue(ours(conf, true, "file:/scratch/project/b/c"));
    assertFalse(ours(conf, true, "file:/scratch/projects"));
    assertFalse(ours(conf, true, "file:/pfs2/a"));
    assertTrue("whose root is none of these", ours(conf, true, "forebay:/other/a"));
    conf.set(ForebayConfig.ROOTS, "/");
    assertTrue(ours(conf, true, "file:/anything"));
  }

  @Test
  public void executorsGetWhatTheDriverHas() {
    Configuration conf = new Configuration(false);
    FileScheme.name(conf);
    conf.set(ForebayConfig.SOCKET, "/run/${some.where}/agent.sock");
    conf.set("fs.s3a.secret.key", "secret");
    String forebay = ForebayFileSystem.class.getName();
    Map<String, String> expected = Map.of("fs.forebay.impl", forebay, "fs.AbstractFileSystem.forebay.impl", ForebayFs.class.getName(),
        ForebayConfig.SOCKET, "/run/${some.where}/agent.sock");
    assertEquals(expected, FileScheme.settings(conf));
    FileScheme.takeOver(conf);
    assertEquals(ForebayLocalFileSystem.class.getName(), FileScheme.settings(conf).get("fs.file.impl"));
    conf.set("fs.permissions.umask-mode", "002");
    assertEquals("002", FileScheme.settings(conf).get("fs.permissions.umask-mode"));
  }
}
