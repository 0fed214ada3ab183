package io.forebay.hadoop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;

/**
 * A real agent over a plain directory that stands for the PFS. One serves all tests that leave it
 * alive ({@link #shared}); it ends with the JVM.
 *
 * <p>The program is the system property {@code forebay.program}, which `make test-java` sets.
 */
final class TestAgent implements AutoCloseable {
  /**
   * Twice the default {@code mount.stamp_granularity_ms}: files younger than that are not cached
   * yet.
   */
  private static final long SETTLE_MS = 50;

  private static final long START_SECONDS = 60;

  private static TestAgent shared;

  private final Path directory;
  private Process process;

  TestAgent() throws IOException, InterruptedException {
    directory = Files.createTempDirectory("forebay-java-").toRealPath();
    Files.createDirectory(root());
    Runtime.getRuntime().addShutdownHook(new Thread(this::close));
    start();
  }

  static synchronized TestAgent shared() {
    try {
      if (shared == null) {
        shared = new TestAgent();
      }
      return shared;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  static String program() {
    String program = System.getProperty("forebay.program");
    if (program == null || !Files.isExecutable(Path.of(program))) {
      throw new IllegalStateException("no forebay program: run `make test-java`, or give -Dforebay.program=FILE (it is " + program + ")");
    }
    return program;
  }

  /** The PFS. */
  Path root() {
    return directory.resolve("pfs");
  }

  String socket() {
    return directory.resolve("state/agent.sock").toString();
  }

  /** Starts the agent and waits until it answers. */
  void start() throws IOException, InterruptedException {
    process = new ProcessBuilder(program(), "up", "--foreground", "--pfs", "test=" + root(), "--capacity", "256MiB", "--state-dir",
        directory.resolve("state").toString()).redirectErrorStream(true).redirectOutput(directory.resolve("log").toFile()).start();
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
    while (run("status", "--socket", socket()) != 0) {
      if (!process.isAlive() || System.nanoTime() > deadline) {
        throw new IllegalStateException("the agent did not start:\n" + Files.readString(directory.resolve("log")));
      }
      Thread.sleep(20);
    }
  }

  /** Runs the program; returns its exit status. */
  int run(String... arguments) throws IOException, InterruptedException {
    var command = new java.util.ArrayList<>(List.of(program()));
    command.addAll(List.of(arguments));
    return new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor();
  }

  /** As kill -9. */
  void kill() throws InterruptedException {
    process.destroyForcibly().waitFor();
  }

  /** A configuration for it. */
  Configuration configuration() {
    Configuration conf = new Configuration();
    conf.set(ForebayConfig.SOCKET, socket());
    return conf;
  }

  /** A file on the PFS, old enough to be cached. */
  Path file(String name, byte[] bytes) throws IOException, InterruptedException {
    Path file = root().resolve(name);
    Files.createDirectories(file.getParent());
    Files.write(file, bytes);
    Thread.sleep(SETTLE_MS);
    return file;
  }

  /** As {@link #file}, all of it in the tier. */
  Path loaded(String name, byte[] bytes) throws IOException, InterruptedException {
    Path file = file(name, bytes);
    if (run("load", "--socket", socket(), file.toString()) != 0) {
      throw new IllegalStateException("the file was not loaded: " + file);
    }
    return file;
  }

  /** Bytes in which every eight differ from all others, so that one in the wrong place is seen. */
  static byte[] pattern(int length, long seed) {
    java.nio.ByteBuffer bytes = java.nio.ByteBuffer.allocate((length + 7) / 8 * 8);
    for (long i = 0; bytes.hasRemaining(); i++) {
      bytes.putLong(seed << 40 | i);
    }
    return java.util.Arrays.copyOf(bytes.array(), length);
  }

  @Override
  public void close() {
    try {
      kill();
      run("down", "--drop", "--state-dir", directory.resolve("state").toString(), "--socket", socket());
      Files.walkFileTree(directory, new SimpleFileVisitor<>() {
        @Override
        public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
          Files.deleteIfExists(file);
          return FileVisitResult.CONTINUE;
        }

        @Override
        public FileVisitResult postVisitDirectory(Path path, IOException e) throws IOException {
          Files.deleteIfExists(path);
          return FileVisitResult.CONTINUE;
        }
      });
    } catch (IOException e) {
      // Closed before.
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
