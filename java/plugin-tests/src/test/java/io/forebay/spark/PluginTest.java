package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.SparkConf;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.sql.SparkSession;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

import io.forebay.core.NativeLibrary;
import io.forebay.hadoop.ForebayConfig;
import io.forebay.hadoop.ForebayFileSystem;
import io.forebay.hadoop.ForebayLocalFileSystem;

/**
 * The plug-in as Spark starts it, in applications of this process one after another, without an
 * agent.
 */
public class PluginTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  @Before
  @After
  public void forget() {
    FileScheme.leave();
  }

  private static FileSystem files() throws IOException {
    return FileSystem.get(FileScheme.FILES, new Configuration());
  }

  private static FileSystem forebay() throws IOException {
    return FileSystem.get(FileScheme.FOREBAY, new Configuration());
  }

  private SparkSession session(String... settings) {
    SparkConf conf = new SparkConf().set("spark.ui.enabled", "false").set("spark.driver.host", "localhost")
        .set("spark.sql.warehouse.dir", folder.getRoot().getPath())
        .set("spark.plugins", ForebayPlugin.class.getName()).set("spark.hadoop.fs.forebay.socket", "none");
    for (int i = 0; i < settings.length; i += 2) {
      conf.set(settings[i], settings[i + 1]);
    }
    return SparkSession.builder().master("local[1]").appName("plug-in test").config(conf).getOrCreate();
  }

  @Test
  public void applicationsOfOneProcessHaveTheirOwnSettings() throws IOException {
    // Without the native library file:/// stays Hadoop's, and forebay:/// is there all the same.
    boolean works = NativeLibrary.failure() == null;
    Path text = folder.newFile("text").toPath();
    Files.write(text, "one\ntwo\n".getBytes(StandardCharsets.UTF_8));
    SparkSession session = session(ForebayPlugin.PLANNER, ForebayPlugin.NAIVE);
    try {
      assertEquals(works, files() instanceof ForebayLocalFileSystem);
      if (works) {
        assertEquals("false", files().getConf().get(ForebayConfig.LOCALITY));
        assertEquals("false", forebay().getConf().get(ForebayConfig.LOCALITY));
      }
      assertEquals(2, session.read().textFile("file://" + text).count());
      assertEquals(2, session.read().textFile("forebay://" + text).count());
    } finally {
      session.stop();
    }
    assertFalse(files() instanceof ForebayLocalFileSystem);
    session = session(ForebayPlugin.PLANNER, "no-action", ForebayPlugin.FILE_PATHS, "false");
    try {
      assertFalse(files() instanceof ForebayLocalFileSystem);
      assertNull(forebay().getConf().get(ForebayConfig.LOCALITY));
      assertEquals(2, session.read().textFile("forebay://" + text).count());
    } finally {
      session.stop();
    }
  }

  @Test
  public void anApplicationWithASettingThatIsRefusedReadsItsFilesByPlainSpark() throws IOException {
    Path text = folder.newFile("text").toPath();
    Files.write(text, "one\ntwo\n".getBytes(StandardCharsets.UTF_8));
    SparkSession session = session("spark.hadoop." + ForebayConfig.LOCALITY, "maybe");
    try {
      assertEquals(2, session.read().textFile("file://" + text).count());
      assertFalse(files() instanceof ForebayLocalFileSystem);
      assertNull(session.sparkContext().hadoopConfiguration().get("fs.file.impl"));
    } finally {
      session.stop();
    }
  }

  @Test
  public void anExecutorThatRefusesItsSettingsHasHadoopsFiles() throws IOException {
    FileSystem before = files();
    new ForebayPlugin().executorPlugin().init(executor("3"), Map.of("fs.file.impl", ForebayLocalFileSystem.class.getName(), ForebayConfig.LOCALITY, "maybe"));
    assertSame(before, files());
  }

  /** What an executor has of Spark. */
  private static PluginContext executor(String id) {
    SparkConf conf = new SparkConf(false).set("spark.hadoop.fs.permissions.umask-mode", "027");
    return (PluginContext) Proxy.newProxyInstance(PluginTest.class.getClassLoader(), new Class<?>[] {PluginContext.class},
        (proxy, method, arguments) -> {
          switch (method.getName()) {
            case "executorID":
              return id;
            case "conf":
              return conf;
            default:
              throw new UnsupportedOperationException(method.getName());
          }
        });
  }

  private static Map<String, String> fromDriver() {
    return Map.of("fs.file.impl", ForebayLocalFileSystem.class.getName(), "fs.forebay.impl", ForebayFileSystem.class.getName(), ForebayConfig.SOCKET,
        "none", ForebayConfig.LOCALITY, "false");
  }

  @Test
  public void anExecutorDoesAsTheDriverDoes() throws IOException {
    assertFalse(files() instanceof ForebayLocalFileSystem);
    new ForebayPlugin().executorPlugin().init(executor("3"), fromDriver());
    assertTrue(files() instanceof ForebayLocalFileSystem);
    assertTrue(forebay() instanceof ForebayFileSystem);
    for (FileSystem fs : new FileSystem[] {files(), forebay()}) {
      assertEquals("false", fs.getConf().get(ForebayConfig.LOCALITY));
      assertEquals("027", fs.getConf().get("fs.permissions.umask-mode"));
    }
  }

  @Test
  public void anExecutorInTheDriversProcessLeavesAllAsItIs() throws IOException {
    FileSystem before = files();
    new ForebayPlugin().executorPlugin().init(executor("driver"), fromDriver());
    assertSame(before, files());
  }

  @Test
  public void anExecutorThatTheDriverSendsNothingHasHadoopsFiles() throws IOException {
    FileSystem before = files();
    new ForebayPlugin().executorPlugin().init(executor("3"), Map.of());
    assertSame(before, files());
  }
}
