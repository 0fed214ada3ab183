package io.forebay.spark.shuffle;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;

import java.io.File;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import javax.xml.parsers.DocumentBuilderFactory;
import org.apache.spark.DistributedSuite;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.scalatest.tools.Runner;
import org.w3c.dom.Element;
import org.w3c.dom.NodeList;

/**
 * Spark's own tests of shuffles, from its published test jars, with map outputs in the tier of two
 * nodes: a few of each suite, or all with {@code -Dforebay.suites=all}.
 */
public class SparkSuitesTest {
  private static final boolean ALL = "all".equals(System.getProperty("forebay.suites"));

  private static final String NO_LOCAL_FILES = "expects the files of map outputs in Spark's local directory";

  /** Tests that must fail, each with the reason. */
  private static final Map<String, String> EXCEPTIONS = Map.of(
      "multiple simultaneous attempts for one task (SPARK-8029)",
      "gives two writers one map ID and expects outputs in one place; Spark's scheduler gives each attempt an ID of its own",
      "SPARK-36206: shuffle checksum detect disk corruption", NO_LOCAL_FILES,
      "shuffle with different compression settings (SPARK-3426)", NO_LOCAL_FILES,
      "[SPARK-4085] rerun map stage if reduce stage cannot find its local shuffle file", NO_LOCAL_FILES,
      "cannot find its local shuffle file if no execution of the stage and rerun shuffle", NO_LOCAL_FILES,
      "SortShuffleManager properly cleans up files for shuffles that use the serialized path", NO_LOCAL_FILES,
      "SortShuffleManager properly cleans up files for shuffles that use the deserialized path", NO_LOCAL_FILES);

  private TwoNodes nodes;

  @Before
  public void start() throws Exception {
    nodes = new TwoNodes("512MiB");
  }

  @After
  public void end() throws Exception {
    nodes.close();
  }

  /** {@code SortShuffleSuite} contains the tests of {@code ShuffleSuite}. */
  @Test
  public void sortShuffleSuite() throws Exception {
    check(TierSuites.Sort.class, "zero sized blocks", "shuffle can be removed", "the serialized path");
    assertNotEquals("blocks of the other node", 0, nodes.number(0, "shuffle_from_peers_bytes") + nodes.number(1, "shuffle_from_peers_bytes"));
  }

  @Test
  public void shuffleDependencySuite() throws Exception {
    check(TierSuites.Dependency.class, "null combiner");
  }

  @Test
  public void distributedSuite() throws Exception {
    check(DistributedSuite.class, "simple groupByKey", "node failures during shuffle-reduce");
    assertNotEquals("blocks in the tier", 0, nodes.number(0, "shuffle_blocks_total"));
  }

  /** Runs the tests of a suite, or only those with one of these words in their names. */
  private void check(Class<?> suite, String... words) throws Exception {
    Path reports = nodes.directory.resolve("reports");
    List<String> command = new ArrayList<>(List.of(Runner.class.getName(), "-o", "-u", reports.toString(), "-s", suite.getName()));
    if (!ALL) {
      Arrays.stream(words).forEach(word -> command.addAll(List.of("-z", word)));
    }
    Map<String, String> settings = new LinkedHashMap<>(TwoNodes.tier());
    settings.put("spark.testing", "true");
    settings.put("spark.test.home", nodes.directory.resolve("spark").toString());
    settings.put("spark.unsafe.exceptionOnMemoryLeak", "true");
    TwoNodes.Program program = nodes.start(settings, command.toArray(String[]::new));
    String said = program.rest();
    Set<String> ran = new TreeSet<>();
    Set<String> failed = new TreeSet<>();
    for (File report : reports.toFile().listFiles()) {
      collect(report, ran, failed);
    }
    Set<String> passed = new TreeSet<>(ran);
    passed.removeAll(failed);
    System.out.println(suite.getSimpleName() + ": " + passed.size() + " of " + ran.size() + " tests of Spark passed");
    Set<String> exceptions = new TreeSet<>(EXCEPTIONS.keySet());
    exceptions.retainAll(ran);
    assertFalse(said + program.log(), passed.isEmpty());
    assertEquals(said, exceptions, failed);
    nodes.awaitNothingLeft();
  }

  private static void collect(File report, Set<String> ran, Set<String> failed) throws Exception {
    NodeList cases = DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(report).getElementsByTagName("testcase");
    for (int i = 0; i < cases.getLength(); i++) {
      Element test = (Element) cases.item(i);
      if (test.getElementsByTagName("skipped").getLength() == 0) {
        ran.add(test.getAttribute("name"));
      }
      if (test.getElementsByTagName("failure").getLength() > 0) {
        failed.add(test.getAttribute("name"));
      }
    }
  }
}
