package io.forebay.spark.shuffle;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import io.forebay.core.ClientOptions;
import io.forebay.core.FetchedBlocks;
import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayException;
import io.forebay.core.ForebayShuffles;
import io.forebay.core.ForebayShuffles.Block;
import io.forebay.core.MapOutput;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.After;
import org.junit.Test;

/** What docs/spark.md promises of the shuffle, by drivers, executors and agents of their own. */
public class ShuffleTest {
  private static final Map<String, String> ADAPTIVE = Map.of("spark.sql.shuffle.partitions", "4", "spark.sql.autoBroadcastJoinThreshold", "-1",
      "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes", "20k", "spark.sql.adaptive.advisoryPartitionSizeInBytes", "40k",
      "spark.sql.adaptive.skewJoin.skewedPartitionFactor", "2");

  private TwoNodes nodes;

  private void start(String capacity) throws Exception {
    nodes = new TwoNodes(capacity);
  }

  @After
  public void end() throws Exception {
    if (nodes != null) {
      nodes.close();
    }
  }

  private static Map<String, String> own;

  private static Map<String, String> with(Map<String, String> settings, String... more) {
    Map<String, String> all = new LinkedHashMap<>(settings);
    for (int i = 0; i < more.length; i += 2) {
      all.put(more[i], more[i + 1]);
    }
    return all;
  }

  private static List<Long> processes(String said) {
    return Arrays.stream(said.replaceAll("[\\[\\]]", "").split(", ")).map(Long::valueOf).toList();
  }

  private static void killExecutor(long process) {
    ProcessHandle executor = ProcessHandle.of(process).orElseThrow();
    executor.destroyForcibly();
    executor.onExit().join();
  }

  /** What the program says without the tier; the same for all tests. */
  private Map<String, String> ofSparksOwnShuffle() throws Exception {
    if (own == null) {
      own = nodes.run("results", ADAPTIVE).saysAll();
      assertEquals("true", own.get("plan"));
      assertEquals(0, nodes.number(0, "shuffle_blocks_total"));
    }
    return own;
  }

  @Test
  public void resultsAreThoseOfSparksOwnShuffle() throws Exception {
    start("256MiB");
    Map<String, String> own = ofSparksOwnShuffle();
    assertEquals(own, nodes.run("results", with(ADAPTIVE, with(TwoNodes.tier()))).saysAll());
    for (int node = 0; node < 2; node++) {
      assertNotEquals(0, nodes.number(node, "shuffle_blocks_total"));
      assertNotEquals("blocks of the other node", 0, nodes.number(node, "shuffle_from_peers_bytes"));
    }
    nodes.awaitNothingLeft();
    Map<String, String> encrypted = with(ADAPTIVE, with(TwoNodes.tier(), "spark.io.encryption.enabled", "true", "spark.io.compression.codec", "zstd"));
    assertEquals(own, nodes.run("results", encrypted).saysAll());
    nodes.awaitNothingLeft();
  }

  private static Map<String, String> with(Map<String, String> settings, Map<String, String> more) {
    Map<String, String> all = new LinkedHashMap<>(settings);
    all.putAll(more);
    return all;
  }

  @Test
  public void noMapTaskRunsAgainWhenExecutorsAreKilled() throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("twice", TwoNodes.tier());
    List<Long> executors = processes(program.says("executors"));
    assertEquals(2, executors.size());
    assertTrue("map outputs in the tier", nodes.outputs(0) + nodes.outputs(1) == Integer.parseInt(program.says("maps")));
    executors.forEach(ShuffleTest::killExecutor);
    program.goOn();
    assertEquals("map tasks that ran again", "0", program.says("again"));
    assertEquals(program.says("first"), program.says("second"));
    program.goOn();
    program.saysAll();
    nodes.awaitNothingLeft();
  }

  @Test
  public void mapTasksRunAgainWhenTheirNodesAgentIsKilled() throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("twice", TwoNodes.tier());
    program.says("executors");
    assertTrue(nodes.outputs(1) > 0);
    nodes.kill(1);
    nodes.start(1);
    program.goOn();
    assertTrue("map tasks that ran again", Integer.parseInt(program.says("again")) > 0);
    assertEquals(program.says("first"), program.says("second"));
    assertTrue(program.log(), program.log().contains("FetchFailed"));
    program.goOn();
    program.saysAll();
    nodes.awaitNothingLeft();
  }

  @Test
  public void anApplicationGoesOnWhenTheAgentOfItsDriverRestarts() throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("twice", TwoNodes.tier());
    program.says("executors");
    assertTrue(nodes.outputs(0) > 0 && nodes.outputs(1) > 0);
    nodes.kill(0);
    // The other node asks twice meanwhile.
    Thread.sleep(5000);
    nodes.start(0);
    program.goOn();
    // Outputs of the other node too, if they are wanted before the new agent knows its peers.
    assertTrue("map tasks that ran again", Integer.parseInt(program.says("again")) > 0);
    assertEquals(program.says("first"), program.says("second"));
    assertFalse(program.log(), program.log().contains("the application has ended"));
    program.goOn();
    program.saysAll();
    nodes.awaitNothingLeft();
  }

  private static Map<String, String> twoCopies() {
    return with(TwoNodes.tier(), ForebayShuffleManager.COPIES, "2");
  }

  /** A node is lost between two jobs on one shuffle; the program, which has ended the second. */
  private TwoNodes.Program afterTheLossOfANode(Map<String, String> settings) throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("twice", settings);
    List<Long> executors = processes(program.says("executors"));
    assertTrue(nodes.outputs(1) > 0);
    nodes.lose(1);
    executors.forEach(ShuffleTest::killExecutor);
    program.goOn();
    program.says("again");
    assertEquals(program.says("first"), program.says("second"));
    return program;
  }

  @Test
  public void noMapTaskRunsAgainWhenANodeIsLostAndOutputsHaveTwoCopies() throws Exception {
    TwoNodes.Program program = afterTheLossOfANode(twoCopies());
    assertEquals("true", program.says("reliable"));
    assertEquals("map tasks that ran again", "0", program.says("again"));
    program.goOn();
    program.saysAll();
    TwoNodes.until("an end of all map outputs", () -> nodes.outputs(0) == 0);
  }

  @Test
  public void mapTasksRunAgainWhenANodeIsLostAndOutputsHaveOneCopy() throws Exception {
    TwoNodes.Program program = afterTheLossOfANode(TwoNodes.tier());
    assertEquals("false", program.says("reliable"));
    assertTrue("map tasks that ran again", Integer.parseInt(program.says("again")) > 0);
    assertTrue(program.log(), program.log().contains("FetchFailed"));
    program.goOn();
    program.saysAll();
  }

  @Test
  public void secondCopiesGoWithTheirApplication() throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("twice", twoCopies());
    program.says("executors");
    assertEquals(2 * Long.parseLong(program.says("maps")), nodes.outputs(0) + nodes.outputs(1));
    assertNotEquals(0, nodes.number(0, "shuffle_copied_bytes"));
    program.process.destroyForcibly().waitFor();
    nodes.awaitNothingLeft();
  }

  @Test
  public void outputsThatNoOtherNodeTakesHaveOneCopy() throws Exception {
    start("256MiB");
    nodes.lose(1);
    TwoNodes.Program program = nodes.run("twice", twoCopies());
    program.says("executors");
    assertEquals(Long.parseLong(program.says("maps")), nodes.outputs(0));
    assertNotEquals(0, nodes.number(0, "shuffle_copies_missed_total"));
    program.goOn();
    assertEquals("0", program.says("again"));
    assertEquals(program.says("first"), program.says("second"));
    program.goOn();
    program.saysAll();
  }

  @Test
  public void nothingIsLeftOfADriverThatIsKilled() throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("twice", TwoNodes.tier());
    program.says("executors");
    assertTrue(nodes.outputs(0) > 0 && nodes.outputs(1) > 0);
    program.process.destroyForcibly().waitFor();
    nodes.awaitNothingLeft();
  }

  @Test
  public void aShuffleThatNobodyUsesIsRemoved() throws Exception {
    start("256MiB");
    TwoNodes.Program program = nodes.run("removed", TwoNodes.tier());
    program.says("used");
    assertTrue(nodes.outputs(0) > 0 && nodes.outputs(1) > 0);
    program.goOn();
    program.says("collected");
    nodes.awaitNothingLeft();
    program.goOn();
    program.saysAll();
  }

  private static long sizeOf(ForebayShuffles at, List<String> nodes, Block block) throws ForebayException {
    try (FetchedBlocks found = at.fetch(nodes, List.of(block))) {
      assertEquals(block.first() == 0 ? 3 : 2, found.total(0));
      return found.size(0);
    }
  }

  private static void assertAbsent(ForebayShuffles at, String node, Block block) {
    ForebayException absent = assertThrows(ForebayException.class, () -> at.fetch(List.of(node), List.of(new Block(0, 5, 0, 1), block)));
    assertEquals(absent.getMessage(), ForebayException.ENOENT, absent.errno());
  }

  @Test
  public void anUnknownBlockIsAnErrorAndNeverAnEmptyOne() throws Exception {
    start("256MiB");
    ClientOptions[] options = {null, null};
    for (int node = 0; node < 2; node++) {
      options[node] = new ClientOptions(nodes.socket(node).toString(), -1, -1, -1, false);
    }
    try (ForebayClient clientA = new ForebayClient(options[0]);
        ForebayClient clientB = new ForebayClient(options[1]);
        ForebayShuffles a = clientA.beginShuffles();
        ForebayShuffles b = clientB.joinShuffles(a.token(), a.origin())) {
      a.setLives(0, true);
      MapOutput output = b.create(0, 5);
      byte[] bytes = {1, 2, 3};
      output.append(bytes, 0, 3);
      for (ForebayShuffles at : List.of(a, b)) {
        assertAbsent(at, "b", new Block(0, 5, 0, 1));
      }
      output.commit(new long[] {1, 0, 2});
      output.close();
      for (ForebayShuffles at : List.of(a, b)) {
        try (FetchedBlocks found = at.fetch(List.of("b"), List.of(new Block(0, 5, 1, 3), new Block(0, 5, 1, 2), new Block(0, 5, 0, 1)))) {
          byte[] read = new byte[3];
          assertEquals(2, found.read(0, 0, read, 0, 3));
          assertEquals(0, found.size(1));
          assertEquals(1, found.read(2, 0, read, 2, 1));
          assertArrayEquals(new byte[] {2, 3, 1}, read);
        }
        assertAbsent(at, "b", new Block(0, 6, 0, 1));
        assertAbsent(at, "b", new Block(0, 5, 2, 4));
        assertAbsent(at, "b", new Block(1, 5, 0, 1));
        assertAbsent(at, "a", new Block(0, 5, 0, 1));
        assertEquals(2, sizeOf(at, List.of("gone", "b"), new Block(0, 5, 1, 3)));
        assertEquals("a part", 1, sizeOf(at, List.of("b"), new Block(0, 5, 0, 3, 2, 9)));
        assertThrows(ForebayException.class, () -> at.fetch(List.of("c"), List.of(new Block(0, 5, 0, 1))));
      }
      a.setLives(0, false);
      nodes.awaitNothingLeft();
      assertAbsent(a, "b", new Block(0, 5, 0, 1));
    }
  }

  @Test
  public void aShuffleLargerThanTheTierSpillsAndOutlivesExecutors() throws Exception {
    nodes = new TwoNodes("48MiB", TwoNodes.Disk.LARGE);
    TwoNodes.Program program = nodes.run("large", TwoNodes.tier());
    executorsAreKilled(program);
    for (int node = 0; node < 2; node++) {
      assertNotEquals(0, nodes.number(node, "shuffle_spilled_bytes"));
      assertNotEquals(0, nodes.spilled(node));
    }
    program.goOn();
    program.saysAll();
    nodes.awaitNothingLeft();
  }

  /** All map outputs are at the agents; executors are killed, and no map task runs again. */
  @Test
  public void aHundredThousandTinyBlocksAreReadRight() throws Exception {
    start("256MiB");
    assertEquals("true", nodes.run("tiny", TwoNodes.tier()).saysAll().get("right"));
    assertTrue("blocks", nodes.number(0, "shuffle_blocks_total") + nodes.number(1, "shuffle_blocks_total") > 1000);
    nodes.awaitNothingLeft();
  }

  @Test
  public void twoApplicationsAtATimeDoNotMixTheirShuffles() throws Exception {
    start("256MiB");
    Map<String, String> own = ofSparksOwnShuffle();
    TwoNodes.Program one = nodes.run("results", with(ADAPTIVE, TwoNodes.tier()));
    TwoNodes.Program other = nodes.run("results", with(ADAPTIVE, TwoNodes.tier()));
    // Neither has ended when the other begins to shuffle.
    other.says("sort");
    assertTrue(one.process.isAlive());
    assertEquals(own, one.saysAll());
    assertEquals(own, other.saysAll());
    nodes.awaitNothingLeft();
  }

  /** As many kills as {@code -Dforebay.kills} says; a thousand take most of an hour. */
  @Test
  public void jobsAreRightOrSayWhyTheyFailedWhileExecutorsAgentsAndDriversAreKilled() throws Exception {
    int kills = Integer.getInteger("forebay.kills", 6);
    Random dice = new Random(Long.getLong("forebay.seed", 1));
    start("256MiB");
    // Spark gives up a task after four failures, and an application after ten executors.
    Map<String, String> patient = with(TwoNodes.tier(), "spark.task.maxFailures", "100", "spark.deploy.maxExecutorRetries", "-1",
        "spark.shuffle.io.maxRetries", "15");
    Path results = nodes.directory.resolve("results");
    TwoNodes.Program program = nodes.run("repeats", patient, results.toString());
    Map<String, Integer> struck = new TreeMap<>();
    int known = 0;
    long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60 + 10L * kills);
    while (struck.values().stream().mapToInt(Integer::intValue).sum() < kills) {
      assertTrue("so few faults happened: " + struck, System.nanoTime() < until);
      // New executors need seconds; without them every job would be under kills from its first task
      // on, and only time would be tested.
      int done = lines(results).size();
      for (int waited = 0; dice.nextInt(4) != 0 && waited < 100 && lines(results).size() == done; waited++) {
        Thread.sleep(100);
      }
      Thread.sleep(dice.nextInt(500));
      if (!program.process.isAlive()) {
        assertTrue(program.log(), program.log().contains("Exception"));
        struck.merge("driver that had ended", 1, Integer::sum);
        program = nodes.run("repeats", patient, results.toString());
      }
      List<ProcessHandle> executors = program.process.descendants().filter(process -> process.info().command().orElse("").endsWith("java")).toList();
      int what = dice.nextInt(12);
      if (executors.isEmpty()) {
        continue;
      } else if (what < 6) {
        killExecutor(executors.get(dice.nextInt(executors.size())).pid());
        struck.merge("executor", 1, Integer::sum);
      } else if (what < 11) {
        int node = dice.nextInt(2);
        nodes.kill(node);
        Thread.sleep(dice.nextInt(500));
        nodes.start(node);
        struck.merge("agent", 1, Integer::sum);
      } else if (lines(results).size() > known + 2) {
        known = lines(results).size();
        program.process.destroyForcibly().waitFor();
        executors.forEach(ProcessHandle::destroyForcibly);
        program = nodes.run("repeats", patient, results.toString());
        struck.merge("driver", 1, Integer::sum);
      }
    }
    // Left alone, the next job but one is right.
    int before = lines(results).size();
    TwoNodes.until("jobs after the kills", () -> lines(results).size() > before + 1);
    List<String> all = lines(results);
    assertEquals("right", all.get(before + 1));
    program.process.destroyForcibly().waitFor();
    long right = all.stream().filter("right"::equals).count();
    Map<String, Long> failed = all.stream().filter(line -> line.startsWith("failed ")).collect(Collectors.groupingBy(line -> line.replaceAll("[0-9]+", "N"), TreeMap::new, Collectors.counting()));
    System.out.println("shuffle under kills: " + struck + "; " + right + " jobs right, failed: " + failed);
    assertEquals(all.toString(), all.size(), right + failed.values().stream().mapToLong(Long::longValue).sum());
    assertTrue("jobs that failed without a cause", failed.keySet().stream().noneMatch("failed "::equals));
    assertTrue("jobs that were right", right > 0 && nodes.number(0, "shuffle_blocks_total") + nodes.number(1, "shuffle_blocks_total") > 0);
    nodes.awaitNothingLeft();
  }

  private static List<String> lines(Path file) {
    try {
      return Files.exists(file) ? Files.readAllLines(file) : List.of();
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
  }

  private void executorsAreKilled(TwoNodes.Program program) throws Exception {
    List<Long> executors = processes(program.says("executors"));
    assertEquals(2, executors.size());
    assertEquals(program.says("maps"), String.valueOf(nodes.outputs(0) + nodes.outputs(1)));
    executors.forEach(ShuffleTest::killExecutor);
    program.goOn();
    assertEquals("map tasks that ran again", "0", program.says("again"));
    assertEquals(program.says("expected"), program.says("first"));
    assertEquals(program.says("expected"), program.says("second"));
  }

  @Test
  public void outputsGiveTheirMemoryBackToCompute() throws Exception {
    nodes = new TwoNodes("256MiB", TwoNodes.Disk.LARGE);
    TwoNodes.Program program = nodes.run("large", TwoNodes.tier());
    program.says("executors");
    for (int node = 0; node < 2; node++) {
      int of = node;
      assertEquals(0, nodes.number(node, "shuffle_spilled_bytes"));
      nodes.ask(node, "capacity", "32MiB");
      TwoNodes.until("memory given back", () -> nodes.number(of, "scratch") <= 32 << 20);
      assertNotEquals(0, nodes.number(node, "shuffle_spilled_bytes"));
    }
    executorsAreKilled(program);
    program.goOn();
    program.saysAll();
    nodes.awaitNothingLeft();
  }

  @Test
  public void nothingSpilledIsLeftOfADriverThatIsKilled() throws Exception {
    nodes = new TwoNodes("48MiB", TwoNodes.Disk.LARGE);
    TwoNodes.Program program = nodes.run("large", TwoNodes.tier());
    program.says("executors");
    assertTrue(nodes.spilled(0) > 0 && nodes.spilled(1) > 0);
    program.process.destroyForcibly().waitFor();
    nodes.awaitNothingLeft();
  }

  @Test
  public void outputsThatAFullDiskDoesNotTakeAreSparksOwn() throws Exception {
    assumeTrue("mounts need root", "root".equals(System.getProperty("user.name")));
    someOutputsAreSparksOwn(TwoNodes.Disk.SMALL);
    for (String count : List.of("shuffle_spilled_bytes", "shuffle_spills_failed_total")) {
      assertNotEquals(count, 0, nodes.number(0, count) + nodes.number(1, count));
    }
  }

  @Test
  public void outputsThatBeginInTheTierAndDoNotFitAreSparksOwn() throws Exception {
    someOutputsAreSparksOwn(TwoNodes.Disk.NONE);
  }

  private void someOutputsAreSparksOwn(TwoNodes.Disk disk) throws Exception {
    nodes = new TwoNodes("48MiB", disk);
    TwoNodes.Program program = nodes.run("large", TwoNodes.tier());
    program.says("executors");
    long outputs = nodes.outputs(0) + nodes.outputs(1);
    assertTrue(outputs + " of " + program.says("maps"), outputs > 0 && outputs < Integer.parseInt(program.says("maps")));
    program.goOn();
    program.says("again");
    assertEquals(program.says("expected"), program.says("first"));
    assertEquals(program.says("expected"), program.says("second"));
    program.goOn();
    program.saysAll();
    nodes.awaitNothingLeft();
  }

  @Test
  public void withoutAnAgentOrRoomTheShuffleIsSparksOwn() throws Exception {
    // Room for some outputs and not for all.
    start("26MiB");
    Map<String, String> own = ofSparksOwnShuffle();
    TwoNodes.Program crowded = nodes.run("results", with(ADAPTIVE, TwoNodes.tier()));
    assertEquals(own, crowded.saysAll());
    assertNotEquals("blocks in the tier", 0, nodes.number(0, "shuffle_blocks_total"));
    nodes.kill(0);
    TwoNodes.Program alone = nodes.run("results", with(ADAPTIVE, TwoNodes.tier()));
    assertEquals(own, alone.saysAll());
    assertTrue(alone.log(), alone.log().contains("this application uses Spark's own shuffle"));
  }
}
