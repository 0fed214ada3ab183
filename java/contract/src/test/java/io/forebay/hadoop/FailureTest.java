package io.forebay.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayException;
import io.forebay.core.ForebayFile;
import io.forebay.core.ReadMode;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.junit.Test;

/**
 * Without an agent, or with one that dies, or without the native library, the PFS is read and
 * written itself.
 */
public class FailureTest {
  private static final int SIZE = (6 << 20) + 77;

  private static FileSystem fs(Configuration conf) throws Exception {
    return FileSystem.newInstance(java.net.URI.create("forebay:///"), conf);
  }

  private static org.apache.hadoop.fs.Path path(Path file) {
    return new org.apache.hadoop.fs.Path("forebay", null, file.toString());
  }

  @Test
  public void anAgentKilledWhileAFileIsReadAndWritten() throws Exception {
    try (TestAgent agent = new TestAgent(); FileSystem fs = fs(agent.configuration())) {
      byte[] bytes = TestAgent.pattern(SIZE, 30);
      Path file = agent.file("file", bytes);
      Path written = agent.root().resolve("written");
      try (FSDataInputStream in = fs.open(path(file)); FSDataOutputStream out = fs.create(path(written))) {
        byte[] read = new byte[SIZE];
        in.readFully(read, 0, SIZE / 2);
        out.write(bytes, 0, SIZE / 2);
        agent.kill();
        in.readFully(read, SIZE / 2, SIZE - SIZE / 2);
        out.write(bytes, SIZE / 2, SIZE - SIZE / 2);
        assertArrayEquals(bytes, read);
      }
      assertArrayEquals(bytes, Files.readAllBytes(written));
      agent.start();
      try (FSDataInputStream in = fs.open(path(file))) {
        byte[] read = new byte[SIZE];
        in.readFully(0, read);
        assertArrayEquals(bytes, read);
      }
    }
  }

  @Test
  public void withoutAnAgentEverythingGoesOn() throws Exception {
    TestAgent agent = TestAgent.shared();
    byte[] bytes = TestAgent.pattern(SIZE, 31);
    Path file = agent.file("failure/no-agent", bytes);
    Configuration conf = new Configuration();
    for (String socket : new String[] {"none", "/nonexistent/agent.sock"}) {
      conf.set(ForebayConfig.SOCKET, socket);
      try (FileSystem fs = fs(conf); FSDataInputStream in = fs.open(path(file))) {
        byte[] read = new byte[SIZE];
        in.readFully(read);
        assertArrayEquals(bytes, read);
        var locations = fs.getFileBlockLocations(path(file), 0, SIZE);
        assertArrayEquals(new String[] {"localhost"}, locations[0].getHosts());
        assertEquals(128 << 20, fs.getDefaultBlockSize(path(file)));
      }
    }
    conf.set(ForebayConfig.WRITE_MODE, "memory");
    try (FileSystem fs = fs(conf)) {
      assertThrows(java.io.IOException.class, () -> fs.create(path(agent.root().resolve("failure/memory"))));
    }
  }

  @Test
  public void withoutTheNativeLibraryThePfsIsReadAndWrittenWithOneWarning() throws Exception {
    TestAgent agent = TestAgent.shared();
    byte[] bytes = TestAgent.pattern(SIZE, 32);
    Path file = agent.file("failure/no-library", bytes);
    Path copy = agent.root().resolve("failure/copy/below");
    Path output = Files.createTempFile("forebay-java-", ".log");
    try {
      Process child = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin/java").toString(), "-Dforebay.native=/nonexistent.so",
          "-cp", System.getProperty("java.class.path") + File.pathSeparator + System.getProperty("surefire.test.class.path", ""),
          CopyTwice.class.getName(), file.toString(), copy.toString()).redirectErrorStream(true).redirectOutput(output.toFile()).start();
      assertTrue(child.waitFor(60, TimeUnit.SECONDS));
      String said = Files.readString(output, StandardCharsets.UTF_8);
      assertEquals(said, 0, child.exitValue());
      assertArrayEquals(bytes, Files.readAllBytes(copy));
      assertEquals(said, 2, said.split("native library cannot be loaded", -1).length);
    } finally {
      Files.delete(output);
    }
  }

  /** Copies a file twice, by two file systems; run as a program of its own. */
  public static final class CopyTwice {
    public static void main(String[] args) throws Exception {
      for (int i = 0; i < 2; i++) {
        try (FileSystem fs = fs(new Configuration());
            FSDataInputStream in = fs.open(path(Path.of(args[0])));
            FSDataOutputStream out = fs.create(path(Path.of(args[1])))) {
          in.transferTo(out);
          out.hsync();
        }
      }
    }
  }

  @Test
  public void aHandleThatWasClosedIsAnErrorAndNoCrash() throws Exception {
    TestAgent agent = TestAgent.shared();
    Path file = agent.loaded("failure/closed", TestAgent.pattern(SIZE, 33));
    try (ForebayClient client = new ForebayClient(new ClientOptions(agent.socket(), -1, -1, -1, true))) {
      ForebayFile open = client.open(file.toString(), ReadMode.CACHED);
      byte[] array = new byte[10];
      assertEquals(10, open.read(0, array, 0, 10));
      open.close();
      open.close();
      ForebayException e = assertThrows(ForebayException.class, () -> open.read(0, array, 0, 10));
      assertEquals(ForebayException.EBADF, e.errno());
    }
    ForebayClient closed = new ForebayClient(ClientOptions.DEFAULT);
    closed.close();
    assertThrows(ForebayException.class, () -> closed.open(file.toString(), ReadMode.CACHED));
  }

  @Test
  public void manyThreadsReadWhileOneCloses() throws Exception {
    TestAgent agent = TestAgent.shared();
    byte[] bytes = TestAgent.pattern(SIZE, 34);
    Path file = agent.loaded("failure/racing", bytes);
    try (ForebayClient client = new ForebayClient(new ClientOptions(agent.socket(), -1, -1, -1, true))) {
      for (int round = 0; round < 30; round++) {
        ForebayFile open = client.open(file.toString(), ReadMode.CACHED);
        Thread[] readers = new Thread[4];
        boolean[] wrong = new boolean[readers.length];
        for (int t = 0; t < readers.length; t++) {
          int me = t;
          readers[t] = new Thread(() -> {
            byte[] array = new byte[100_000];
            try {
              for (int at = me * 1000;; at = (at + 333_333) % (SIZE - array.length)) {
                int n = open.read(at, array, 0, array.length);
                wrong[me] |= !Arrays.equals(array, 0, n, bytes, at, at + n);
              }
            } catch (ForebayException e) {
              wrong[me] |= e.errno() != ForebayException.EBADF;
            }
          });
          readers[t].start();
        }
        Thread.sleep(2);
        open.close();
        for (Thread reader : readers) {
          reader.join();
        }
        assertArrayEquals(new boolean[readers.length], wrong);
      }
    }
  }
}
