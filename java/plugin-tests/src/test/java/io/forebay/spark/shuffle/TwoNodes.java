package io.forebay.spark.shuffle;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * Two agents that are two nodes of a cluster, and Spark programs whose executors take one and the
 * other in turn. The driver is on the first.
 */
final class TwoNodes {
  /** Where agents may spill map outputs to: nowhere, to the disk, or to one of 16 MiB (as root). */
  enum Disk {
    NONE, LARGE, SMALL
  }

  private static final long PATIENCE_S = 60;
  /** Executors that a program may have had in all. */
  private static final int EXECUTORS_MAX = 1000;

  final Path directory;
  private final Process[] agents = new Process[2];
  private final String coordinator;
  private final List<Program> programs = new ArrayList<>();
  private final String capacity;
  private final Disk disk;

  TwoNodes(String capacity) throws Exception {
    this(capacity, Disk.NONE);
  }

  TwoNodes(String capacity, Disk disk) throws Exception {
    this.capacity = capacity;
    this.disk = disk;
    directory = Files.createTempDirectory("forebay-shuffle-").toRealPath();
    for (int node = 0; node < 2; node++) {
      Files.createDirectory(spill(node));
      if (disk == Disk.SMALL) {
        run("mount", "-t", "tmpfs", "-o", "size=16m", "forebay-test", spill(node).toString());
      }
    }
    Files.createDirectory(directory.resolve("pfs"));
    try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      coordinator = "127.0.0.1:" + free.getLocalPort();
    }
    for (int executor = 0; executor < EXECUTORS_MAX; executor++) {
      Files.createSymbolicLink(directory.resolve("executor-" + executor), socket(executor % 2));
    }
    Files.createSymbolicLink(directory.resolve("executor-driver"), socket(0));
    Files.createDirectories(directory.resolve("spark/jars"));
    start(0);
    start(1);
    until("two members", () -> status(0).contains("\"b\"") && status(1).contains("\"a\""));
  }

  Path spill(int node) {
    return directory.resolve("spill-" + node);
  }

  /** Files below its directory for spilled outputs that the agent has open. */
  long spilled(int node) {
    try (var files = Files.list(Path.of("/proc/" + agents[node].pid() + "/fd"))) {
      return files.filter(file -> {
        try {
          return Files.readSymbolicLink(file).startsWith(spill(node)) && !Files.readSymbolicLink(file).equals(spill(node));
        } catch (IOException closed) {
          return false;
        }
      }).count();
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
  }

  Path socket(int node) {
    return directory.resolve("node-" + node).resolve("agent.sock");
  }

  static String program() {
    String program = System.getProperty("forebay.program");
    if (program == null || !Files.isExecutable(Path.of(program))) {
      throw new IllegalStateException("no forebay program: run `make test-java`, or give -Dforebay.program=FILE (it is " + program + ")");
    }
    return program;
  }

  void start(int node) throws IOException {
    Path state = Files.createDirectories(directory.resolve("node-" + node));
    Path config = directory.resolve("node-" + node + ".toml");
    String link = node == 0 ? "coordinator_listen = \"" + coordinator + "\"" : "coordinator = \"" + coordinator + "\"";
    Files.writeString(config, "[agent]\nstate_dir = \"" + state + "\"\n[tier]\ncapacity = \"" + capacity + "\"\n"
        + (disk != Disk.NONE ? "spill = \"" + spill(node) + "\"\nspill_fill = \"100%\"\n" : "") + "[cluster]\nnode = \""
        + (node == 0 ? "a" : "b") + "\"\nlisten = \"127.0.0.1:0\"\n" + link + "\n[[mount]]\nlabel = \"pfs\"\nroot = \""
        + directory.resolve("pfs") + "\"\n");
    // The first has the coordinator in its process.
    List<String> command = node == 0 ? List.of(program(), "up", "--foreground", "--config") : List.of(program(), "agent", "--config");
    List<String> whole = new ArrayList<>(command);
    whole.add(config.toString());
    Path log = directory.resolve("agent-" + node + ".log");
    agents[node] = new ProcessBuilder(whole).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile())).start();
    until("an agent", () -> {
      if (!agents[node].isAlive()) {
        throw new AssertionError("the agent has ended; see " + log);
      }
      return !status(node).isEmpty();
    });
  }

  void kill(int node) throws InterruptedException {
    agents[node].destroyForcibly().waitFor();
  }

  /** The node is gone: its agent with its memory, and new executors are on the other one. */
  void lose(int node) throws Exception {
    kill(node);
    for (int executor = 0; executor < EXECUTORS_MAX; executor++) {
      Path link = directory.resolve("executor-" + executor);
      Files.delete(link);
      Files.createSymbolicLink(link, socket(1 - node));
    }
  }

  private static void run(String... command) throws Exception {
    assertEquals(String.join(" ", command), 0, new ProcessBuilder(command).inheritIO().start().waitFor());
  }

  /** What a command prints that asks the agent; empty if it fails. */
  String ask(int node, String... words) {
    List<String> command = new ArrayList<>(List.of(program()));
    command.addAll(List.of(words));
    command.addAll(List.of("--socket", socket(node).toString()));
    try {
      Process asked = new ProcessBuilder(command)
          .redirectError(ProcessBuilder.Redirect.DISCARD).start();
      String answer = new String(asked.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
      return asked.waitFor() == 0 ? answer : "";
    } catch (IOException | InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  String status(int node) {
    return ask(node, "status", "--json");
  }

  long number(int node, String name) {
    Matcher found = Pattern.compile("\"" + name + "\":\\s*(\\d+)|\"" + name + "\",\\s*(\\d+)").matcher(status(node));
    assertTrue(name + " in " + status(node), found.find());
    return Long.parseLong(found.group(1) != null ? found.group(1) : found.group(2));
  }

  long outputs(int node) {
    return number(node, "scratch_files");
  }

  /** All map outputs are gone, and what they took. */
  void awaitNothingLeft() {
    until("an end of all map outputs", () -> outputs(0) == 0 && outputs(1) == 0);
    until("an end of what was spilled", () -> spilled(0) == 0 && spilled(1) == 0);
  }

  static void until(String what, BooleanSupplier condition) {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError("not within " + PATIENCE_S + " s: " + what);
      }
      try {
        Thread.sleep(50);
      } catch (InterruptedException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  /** Settings by which programs use the tier. */
  static Map<String, String> tier() {
    Map<String, String> settings = new LinkedHashMap<>();
    settings.put("spark.shuffle.manager", ForebayShuffleManager.class.getName());
    return settings;
  }

  /** Starts {@link ShuffleProgram} with two executors. */
  Program run(String what, Map<String, String> settings, String... arguments) throws IOException {
    Map<String, String> all = new LinkedHashMap<>();
    all.put("spark.master", "local-cluster[2,1,512]");
    all.put("spark.executor.memory", "512m");
    all.put("spark.local.dir", directory.toString());
    all.put("spark.worker.cleanup.enabled", "true");
    all.putAll(settings);
    List<String> whole = new ArrayList<>(List.of(ShuffleProgram.class.getName(), what));
    whole.addAll(List.of(arguments));
    return start(all, whole.toArray(new String[0]));
  }

  /** Starts a program whose Spark has executors on both nodes. */
  Program start(Map<String, String> settings, String... mainAndArguments) throws IOException {
    String classPath = System.getProperty("java.class.path");
    Map<String, String> all = new LinkedHashMap<>();
    all.put("spark.ui.enabled", "false");
    all.put("spark.driver.host", "localhost");
    all.put("spark.executor.extraClassPath", classPath);
    all.put("spark.executor.extraJavaOptions", "-Dforebay.test.executor={{EXECUTOR_ID}}");
    all.put("spark.hadoop.fs.forebay.socket", directory + "/executor-${forebay.test.executor}");
    // Lost blocks of Spark's own are noticed soon.
    all.put("spark.shuffle.io.maxRetries", "1");
    all.put("spark.shuffle.io.retryWait", "1s");
    all.putAll(settings);
    List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin/java").toString(), "-Xmx700m", "-cp", classPath,
        "-Dforebay.test.executor=driver", "-Djava.io.tmpdir=" + directory));
    for (String module : List.of("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent")) {
      command.add("--add-opens=java.base/" + module + "=ALL-UNNAMED");
    }
    command.add("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED");
    all.forEach((key, value) -> command.add("-D" + key + "=" + value));
    command.addAll(List.of(mainAndArguments));
    ProcessBuilder builder = new ProcessBuilder(command).redirectError(directory.resolve("driver-" + programs.size() + ".log").toFile())
        .directory(directory.toFile());
    builder.environment().put("SPARK_HOME", directory.resolve("spark").toString());
    builder.environment().put("SPARK_LOCAL_HOSTNAME", "localhost");
    builder.environment().put("SPARK_SCALA_VERSION", scala.util.Properties$.MODULE$.versionNumberString().replaceFirst("\\.\\d+$", ""));
    Program program = new Program(builder.start(), directory.resolve("driver-" + programs.size() + ".log"));
    programs.add(program);
    return program;
  }

  void close() throws Exception {
    for (Program program : programs) {
      program.process.descendants().forEach(ProcessHandle::destroyForcibly);
      program.process.destroyForcibly().waitFor();
    }
    for (int node = 1; node >= 0; node--) {
      new ProcessBuilder(program(), "down", "--drop", "--socket", socket(node).toString(), "--state-dir",
          directory.resolve("node-" + node).toString()).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor();
      agents[node].destroyForcibly().waitFor();
    }
    for (int node = 0; disk == Disk.SMALL && node < 2; node++) {
      run("umount", spill(node).toString());
    }
    if (System.getProperty("forebay.test.keep") == null) {
      try (var files = Files.walk(directory)) {
        files.sorted(java.util.Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
      }
    }
  }

  /** A driver, and what it says. */
  static final class Program {
    final Process process;
    private final BufferedReader out;
    private final Path log;
    private final Map<String, String> said = new LinkedHashMap<>();

    private Program(Process process, Path log) {
      this.process = process;
      this.log = log;
      this.out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** What it says of {@code key}; waits until it does. */
    String says(String key) throws IOException {
      while (!said.containsKey(key)) {
        String line = out.readLine();
        if (line == null) {
          throw new AssertionError("the program has ended without " + key + ": " + said + "\n" + log());
        }
        if (line.startsWith("says ")) {
          String[] words = line.split(" ", 3);
          said.put(words[1], words.length > 2 ? words[2] : "");
        }
      }
      return said.get(key);
    }

    Map<String, String> saysAll() throws Exception {
      says("end");
      assertEquals(log(), 0, process.waitFor());
      return said;
    }

    /** All that it prints from now on, until it ends. */
    String rest() throws Exception {
      String rest = out.lines().collect(Collectors.joining("\n"));
      process.waitFor();
      return rest;
    }

    void goOn() throws IOException {
      process.getOutputStream().write('\n');
      process.getOutputStream().flush();
    }

    String log() throws IOException {
      return Files.readString(log);
    }
  }
}
