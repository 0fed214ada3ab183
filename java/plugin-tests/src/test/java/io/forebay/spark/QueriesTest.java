package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.junit.Before;
import org.junit.Test;

import io.forebay.core.JobUpdate;
import io.forebay.core.JobUpdate.Part;

/**
 * Queries as Spark plans them: joins in all forms, adaptive execution, runtime filters. What is
 * reported of each is compared with the bytes that its tasks read.
 */
public class QueriesTest extends ListeningSpark {
  private static final int ROWS = 40_000;

  /** Of the bytes that are reported or read, the share that may be in one of both alone. */
  private static final double MARGIN = 0.02;

  private static final String FACTS = "key bigint, a double, b string, day bigint";

  @Override
  Map<String, String> settings() {
    return Map.of("spark.hadoop.fs.file.impl", ReadRecord.class.getName(), "spark.hadoop.fs.file.impl.disable.cache", "true",
        "spark.sql.autoBroadcastJoinThreshold", "-1", "spark.hadoop.parquet.block.size", "100000", "spark.hadoop.parquet.page.size", "10000",
        "spark.sql.parquet.compression.codec", "uncompressed");
  }

  @Before
  public void tables() throws Exception {
    session.range(0, ROWS, 1, 2).selectExpr("id as key", "rand(1) as a", "cast(id * 7 as string) as b", "id div 4000 as day").write().parquet(path("facts"));
    session.range(0, 400, 1, 1).selectExpr("id * 100 as key", "cast(id as string) as name", "id div 40 as day").write().parquet(path("names"));
    heard();
  }

  private String path(String table) {
    return folder.getRoot().getPath() + "/" + table;
  }

  private Dataset<Row> facts() {
    return session.read().schema(FACTS).parquet(path("facts"));
  }

  private Dataset<Row> names() {
    return session.read().schema("key bigint, name string, day bigint").parquet(path("names"));
  }

  private void adaptive(boolean on) {
    session.conf().set("spark.sql.adaptive.enabled", Boolean.toString(on));
  }

  /** What was reported of a query, and what its tasks have read. */
  private record Seen(Reported all, Map<String, List<Footers.Range>> reported, Map<String, List<Footers.Range>> read, List<Row> rows, String plan) {
    /** The last parts of the names of the files that each stage was reported to read, by stage. */
    List<Set<String>> tables() {
      List<String> files = all.files();
      List<Set<String>> tables = new ArrayList<>();
      all.splits().values().forEach(splits -> {
        Set<String> names = new HashSet<>();
        splits.stream().flatMap(List::stream).forEach(part -> names.add(java.nio.file.Path.of(files.get(part.file())).getParent().getFileName().toString()));
        tables.add(names);
      });
      return tables;
    }

    /** The tables in the order in which their stages were reported. */
    List<Set<String>> order() {
      List<Integer> stages = List.copyOf(all.splits().keySet());
      return all.all(JobUpdate.StageReady.class).stream().map(ready -> tables().get(stages.indexOf(ready.stage()))).toList();
    }

    long reportedBytes() {
      return bytes(reported);
    }
  }

  private Seen seen(Dataset<Row> query) throws Exception {
    ReadRecord.clear();
    listen();
    List<Row> rows = query.collectAsList();
    Reported all = heard();
    Map<String, List<Footers.Range>> reported = reportedByName(all);
    return new Seen(all, reported, ReadRecord.byName(), rows, query.queryExecution().executedPlan().toString());
  }

  /** Runs a query; what was reported is what was read. */
  private Seen same(String what, Dataset<Row> query) throws Exception {
    Seen seen = seen(query);
    long unread = alone(seen.reported(), seen.read());
    long unreported = alone(seen.read(), seen.reported());
    String words = what + ": of " + seen.reportedBytes() + " bytes that were reported, " + unread + " were not read, and " + unreported + " were read beside them";
    assertTrue(words, seen.reportedBytes() > 0);
    assertTrue(words + "; reported " + seen.reported() + ", read " + seen.read(), Math.max(unread, unreported) <= MARGIN * seen.reportedBytes());
    return seen;
  }

  private static long bytes(Map<String, List<Footers.Range>> ranges) {
    return ranges.values().stream().flatMap(List::stream).mapToLong(Footers.Range::length).sum();
  }

  /** Bytes in the first that are not in the second. */
  private static long alone(Map<String, List<Footers.Range>> first, Map<String, List<Footers.Range>> second) {
    Map<String, List<Footers.Range>> both = new HashMap<>();
    first.forEach((name, ranges) -> both.computeIfAbsent(name, n -> new ArrayList<>()).addAll(ranges));
    second.forEach((name, ranges) -> both.computeIfAbsent(name, n -> new ArrayList<>()).addAll(ranges));
    both.replaceAll((name, ranges) -> Footers.merged(ranges));
    return bytes(both) - bytes(second);
  }

  /** The files of each table are reported in one stage alone, and no part of a file twice. */
  private static void assertOnce(Seen seen) {
    Set<String> parts = new HashSet<>();
    List<String> files = seen.all().files();
    for (List<Part> split : seen.all().everySplit().toList()) {
      for (Part part : split) {
        // Each split of a file has its footer.
        boolean isFooter = part.offset() + part.length() == java.nio.file.Path.of(files.get(part.file())).toFile().length();
        assertTrue("twice: " + part, parts.add(files.get(part.file()) + part.offset()) || isFooter);
      }
    }
  }

  @Test
  public void theSideThatIsBroadcastIsReportedFirst() throws Exception {
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Dataset<Row> joined = facts().selectExpr("key", "a").join(org.apache.spark.sql.functions.broadcast(names()), "key");
      Seen seen = same("adaptive " + on, joined);
      assertTrue(seen.plan(), seen.plan().contains("BroadcastHashJoin"));
      assertEquals(400, seen.rows().size());
      assertEquals(List.of(Set.of("names"), Set.of("facts")), seen.order());
      assertOnce(seen);
    }
  }

  @Test
  public void aScanThatTwoStagesNeedIsReportedOnce() throws Exception {
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Dataset<Row> sums = facts().groupBy("day").sum("a");
      Seen seen = same("adaptive " + on, sums.as("l").join(sums.as("r"), org.apache.spark.sql.functions.expr("l.day = r.day + 1")));
      assertTrue(seen.plan(), seen.plan().contains("ReusedExchange"));
      assertEquals(9, seen.rows().size());
      assertEquals(1, seen.all().splits().size());
      assertOnce(seen);
    }
  }

  @Test
  public void ofASelfJoinEachStageIsReportedItsOwnColumnsAndFilters() throws Exception {
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Dataset<Row> left = facts().where("key < 9000").select("key", "a");
      Dataset<Row> right = facts().where("key > 30000").selectExpr("key - 30000 as key", "b");
      Seen seen = same("adaptive " + on, left.join(right, "key"));
      assertFalse(seen.plan(), seen.plan().contains("ReusedExchange"));
      assertEquals(8999, seen.rows().size());
      assertEquals(2, seen.all().splits().size());
    }
  }

  /** Both scans are in one stage. */
  @Test
  public void ofAUnionOfATableWithItselfEachTaskIsReportedItsOwnColumnsAndFilters() throws Exception {
    for (String sources : List.of("parquet", "")) {
      session.conf().set("spark.sql.sources.useV1SourceList", sources);
      Dataset<Row> low = facts().where("key < 9000").selectExpr("a");
      Dataset<Row> high = facts().where("key > 30000").selectExpr("cast(b as double) as a");
      Seen seen = same("V1: " + sources, low.union(high));
      assertEquals(9000 + ROWS - 30_001, seen.rows().size());
      assertEquals(1, seen.all().splits().size());
    }
  }

  /** A join of two scans in one stage, without a shuffle. */
  @Test
  public void bucketedTablesAreReportedByTheBucketsThatTasksRead() throws Exception {
    facts().write().bucketBy(4, "key").sortBy("key").saveAsTable("bucketed");
    names().write().bucketBy(4, "key").sortBy("key").saveAsTable("named");
    heard();
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Seen joined = same("a join, adaptive " + on, session.table("bucketed").select("key", "a").join(session.table("named"), "key"));
      assertFalse(joined.plan(), joined.plan().contains("Exchange"));
      assertEquals(400, joined.rows().size());
      assertEquals(List.of(Set.of("bucketed", "named")), joined.tables());
      assertEquals(4, joined.all().everySplit().count());
      Dataset<Row> low = session.table("bucketed").where("key < 9000").select("key", "a");
      Dataset<Row> high = session.table("bucketed").where("key > 5000").select("key", "b");
      Seen self = same("a join with itself, adaptive " + on, low.join(high, "key"));
      assertFalse(self.plan(), self.plan().contains("Exchange"));
      assertEquals(3999, self.rows().size());
      Seen pruned = same("one bucket, adaptive " + on, session.table("bucketed").where("key = 4242").select("b"));
      assertEquals(1, pruned.rows().size());
      assertTrue(pruned.reported().toString(), pruned.reported().size() < joined.reported().size() / 2);
    }
  }

  @Test
  public void aFrameIsReportedUntilItIsCached() throws Exception {
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Dataset<Row> cached = facts().select("key", "a").cache();
      Seen first = same("the first time, adaptive " + on, cached.groupBy().sum("a"));
      Seen again = seen(cached.groupBy().max("a"));
      assertEquals(Map.of(), again.read());
      assertEquals(Map.of(), again.reported());
      assertTrue(first.reportedBytes() > 0);
      cached.unpersist(true);
      same("no longer, adaptive " + on, cached.groupBy().sum("a"));
    }
  }

  @Test
  public void partitionsThatAdaptiveExecutionCoalescesOrSplitsAreNotReportedAgain() throws Exception {
    session.conf().set("spark.sql.shuffle.partitions", "20");
    Seen coalesced = same("coalesced", facts().groupBy("day").sum("a"));
    assertTrue(coalesced.plan(), coalesced.plan().contains("AQEShuffleRead coalesced"));
    assertEquals(1, coalesced.all().splits().size());
    assertOnce(coalesced);
    session.conf().set("spark.sql.shuffle.partitions", "3");
    session.conf().set("spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes", "20000");
    session.conf().set("spark.sql.adaptive.skewJoin.skewedPartitionFactor", "1");
    session.conf().set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "20000");
    Dataset<Row> skewed = facts().selectExpr("case when key < 39000 then 100 else key end as key", "a", "b");
    Seen joined = same("skewed", skewed.join(names(), "key").select("a", "b", "name"));
    assertTrue(joined.plan(), joined.plan().contains("skewed"));
    assertEquals(39_010, joined.rows().size());
    assertEquals(2, joined.all().splits().size());
    assertOnce(joined);
  }

  /** What the small side has is known when the large one is planned. */
  @Test
  public void dynamicPartitionPruningIsFollowed() throws Exception {
    facts().repartition(2).write().partitionBy("day").parquet(path("days"));
    heard();
    Dataset<Row> days = session.read().schema(FACTS).parquet(path("days"));
    long all = same("all", days.select("key", "b")).reportedBytes();
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Dataset<Row> few = names().where("name in ('41', '42', '85')").select("day").distinct();
      Seen seen = same("adaptive " + on, days.join(org.apache.spark.sql.functions.broadcast(few), "day").select("key", "b"));
      assertTrue(seen.plan(), seen.plan().contains("dynamicpruning"));
      assertEquals(8000, seen.rows().size());
      assertTrue(seen.reportedBytes() + " of " + all, seen.reportedBytes() < all / 3);
    }
  }

  @Test
  public void filtersAtRunTimeChangeNothing() throws Exception {
    session.conf().set("spark.sql.optimizer.runtime.bloomFilter.enabled", "true");
    session.conf().set("spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold", "1");
    for (boolean on : new boolean[] {false, true}) {
      adaptive(on);
      Seen seen = same("adaptive " + on, facts().select("key", "a").join(names().where("name like '7%'"), "key"));
      assertTrue(seen.plan(), seen.plan().contains("might_contain"));
      assertEquals(11, seen.rows().size());
    }
  }

  @Test
  public void ofALimitWhatTheFirstTasksReadIsReported() throws Exception {
    long all = same("all", facts()).reportedBytes();
    for (String sources : List.of("parquet", "")) {
      session.conf().set("spark.sql.sources.useV1SourceList", sources);
      for (boolean on : new boolean[] {false, true}) {
        adaptive(on);
        String what = " V1: " + sources + ", adaptive " + on;
        Seen limited = same("a limit," + what, facts().limit(10));
        assertEquals(10, limited.rows().size());
        assertTrue(limited.reportedBytes() + " of " + all, limited.reportedBytes() < all / 4);
        Seen grouped = same("a limit below a group," + what, facts().limit(10).groupBy("day").count());
        assertEquals(1, grouped.rows().size());
        // How many rows pass the filter is not known, and the first tasks stop early.
        Seen filtered = seen(facts().where("key % 2 = 1").limit(10));
        assertEquals(10, filtered.rows().size());
        assertEquals(filtered.toString(), 0, alone(filtered.read(), filtered.reported()));
      }
    }
  }

  /** Hive gives its files no suffix. */
  @Test
  public void filesWithoutASuffixAreReportedByTheFormatOfTheirScan() throws Exception {
    facts().coalesce(2).write().orc(path("orc-facts"));
    heard();
    for (String table : List.of("facts", "orc-facts")) {
      try (var files = java.nio.file.Files.list(java.nio.file.Path.of(path(table)))) {
        int number = 0;
        for (java.nio.file.Path file : files.filter(f -> f.getFileName().toString().startsWith("part-")).toList()) {
          java.nio.file.Files.move(file, file.resolveSibling("00000" + number++ + "_0"));
        }
        assertEquals(2, number);
      }
    }
    for (String sources : List.of("parquet,orc", "")) {
      session.conf().set("spark.sql.sources.useV1SourceList", sources);
      for (String format : List.of("parquet", "orc")) {
        String what = format + ", V1: " + sources;
        Dataset<Row> table = format.equals("orc") ? session.read().schema(FACTS).orc(path("orc-facts")) : facts();
        Seen all = same("all columns, " + what, table);
        Seen few = same("two columns of some rows, " + what, table.where("key < 9000").select("key", "a"));
        assertEquals(9000, few.rows().size());
        assertTrue(few.reportedBytes() + " of " + all.reportedBytes() + ", " + what, few.reportedBytes() < all.reportedBytes() * 2 / 3);
      }
    }
  }

  @Test
  public void aCountIsReportedTheFooters() throws Exception {
    facts().coalesce(2).write().orc(path("orc-facts"));
    heard();
    long all = same("all", facts()).reportedBytes();
    for (String sources : List.of("parquet,orc", "")) {
      for (boolean pushed : new boolean[] {false, true}) {
        session.conf().set("spark.sql.sources.useV1SourceList", sources);
        session.conf().set("spark.sql.parquet.aggregatePushdown", Boolean.toString(pushed));
        session.conf().set("spark.sql.orc.aggregatePushdown", Boolean.toString(pushed));
        for (String format : List.of("parquet", "orc")) {
          String what = format + ", V1: " + sources + ", pushed " + pushed;
          Dataset<Row> table = format.equals("orc") ? session.read().schema(FACTS).orc(path("orc-facts")) : facts();
          Seen count = same("a count, " + what, table.groupBy().count());
          assertEquals((long) ROWS, count.rows().get(0).getLong(0));
          assertTrue(count.reportedBytes() + " of " + all + ", " + what, count.reportedBytes() < all / 10);
          Seen most = same("a maximum, " + what, table.selectExpr("max(key)", "count(a)"));
          assertEquals(ROWS - 1L, most.rows().get(0).getLong(0));
          if (pushed && sources.isEmpty()) {
            assertTrue(most.reportedBytes() + " of " + all + ", " + what, most.reportedBytes() < all / 10);
          }
        }
      }
    }
  }
}
