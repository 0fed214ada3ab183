package io.forebay.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/**
 * Names that the JVM's locale cannot write, and names that are no text: an error that says so, and
 * a listing without them.
 */
public class LocaleTest {
  /**
   * An ASCII name, one that UTF-8 has, and one that is no UTF-8. By the shell, which takes them for
   * what they are: bytes.
   */
  private static final String MAKE_FILES = "cd \"$1\" && : >plain && : >\"$(printf 'u-\\303\\274')\" && : >\"$(printf 'latin-\\374')\"";

  private Path directory;

  @Before
  public void make() throws Exception {
    directory = Files.createTempDirectory("forebay-locale-").toRealPath();
    assertEquals(0, new ProcessBuilder("sh", "-c", MAKE_FILES, "sh", directory.toString()).start().waitFor());
  }

  @After
  public void remove() throws Exception {
    try (FileSystem fs = fs()) {
      assertTrue("what is not listed is removed with its directory", fs.delete(path(directory, ""), true));
    }
  }

  private static FileSystem fs() throws IOException {
    Configuration conf = new Configuration();
    conf.set(ForebayConfig.SOCKET, "none");
    return FileSystem.newInstance(java.net.URI.create("forebay:///"), conf);
  }

  private static org.apache.hadoop.fs.Path path(Path directory, String name) {
    return new org.apache.hadoop.fs.Path("forebay", null, name.isEmpty() ? directory.toString() : directory + "/" + name);
  }

  private static List<String> listed(FileSystem fs, Path directory) throws IOException {
    return Arrays.stream(fs.listStatus(path(directory, ""))).map(FileStatus::getPath).map(org.apache.hadoop.fs.Path::getName).toList();
  }

  @Test
  public void aListingLeavesOutWhatIsNoText() throws Exception {
    try (FileSystem fs = fs()) {
      assertEquals(List.of("plain", "u-\u00fc"), listed(fs, directory));
    }
  }

  @Test
  public void aNameThatCannotBeWrittenIsAnErrorThatNamesTheLocale() throws Exception {
    // Half of a character: there is no encoding that has it.
    org.apache.hadoop.fs.Path name = path(directory, "half-\ud800");
    org.apache.hadoop.fs.Path plain = path(directory, "plain");
    try (FileSystem fs = fs()) {
      assertRefused(() -> fs.getFileStatus(name));
      assertRefused(() -> fs.listStatus(name));
      assertRefused(() -> fs.open(name));
      assertRefused(() -> fs.create(name));
      assertRefused(() -> fs.mkdirs(name));
      assertRefused(() -> fs.delete(name, true));
      assertRefused(() -> fs.rename(plain, name));
      assertRefused(() -> fs.rename(name, plain));
      assertEquals(List.of("plain", "u-\u00fc"), listed(fs, directory));
    }
  }

  private static void assertRefused(org.junit.function.ThrowingRunnable work) {
    IOException e = assertThrows(IOException.class, work);
    assertTrue(e.getMessage(), e.getMessage().contains("LC_ALL"));
  }

  @Test
  public void inALocaleOfAsciiNoNameIsLeftOutInSilence() throws Exception {
    Path output = Files.createTempFile("forebay-java-", ".log");
    try {
      ProcessBuilder child = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin/java").toString(), "-cp",
          System.getProperty("java.class.path") + File.pathSeparator + System.getProperty("surefire.test.class.path", ""),
          ListTwice.class.getName(), directory.toString()).redirectErrorStream(true).redirectOutput(output.toFile());
      child.environment().put("LC_ALL", "C");
      Process running = child.start();
      assertTrue(running.waitFor(60, TimeUnit.SECONDS));
      String said = Files.readString(output, StandardCharsets.ISO_8859_1);
      assertEquals(said, 0, running.exitValue());
      assertEquals(said, 3, said.split("listed: \\[plain\\]", -1).length);
      assertEquals(said, 3, said.split("refused: .*LC_ALL", -1).length);
      assertEquals(said, 2, said.split("\\(sun\\.jnu\\.encoding\\)", -1).length);
      assertEquals(said, 3, said.split("not listed: .*LC_ALL=C\\.UTF-8", -1).length);
    } finally {
      Files.delete(output);
    }
  }

  /**
   * Lists a directory twice, by two file systems, and a file in it, and looks at a file that the
   * locale has no letters for; run as a program of its own.
   */
  public static final class ListTwice {
    public static void main(String[] args) throws Exception {
      for (int i = 0; i < 2; i++) {
        try (FileSystem fs = fs()) {
          System.out.println("listed: " + listed(fs, Path.of(args[0], "plain")));
          IOException lost = assertThrows(IOException.class, () -> listed(fs, Path.of(args[0])));
          System.out.println("not listed: " + lost.getMessage());
          IOException e = assertThrows(IOException.class, () -> fs.getFileStatus(path(Path.of(args[0]), "u-\u00fc")));
          System.out.println("refused: " + e.getMessage());
        }
      }
    }
  }
}
