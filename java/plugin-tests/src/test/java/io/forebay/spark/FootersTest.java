package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.ColumnEncryptionProperties;
import org.apache.parquet.crypto.FileEncryptionProperties;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroupFactory;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.metadata.ColumnPath;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;
import org.apache.spark.sql.sources.IsNotNull;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/**
 * Footers that are not what they should be: their files are left to the tasks, each with a reason,
 * and the files beside them are reported as ever.
 */
public class FootersTest {
  private static final Configuration HADOOP = new Configuration(false);
  private static final MessageType SCHEMA = MessageTypeParser.parseMessageType("message t { required int64 a; required binary b; }");
  private static final Scan SCAN = new Scan(Columns.named(Set.of("a")), List.of());
  private static final Footers.Range ALL = new Footers.Range(0, Long.MAX_VALUE);
  private static final int ROWS = 20_000;
  private static final byte[] KEY = "0123456789012345".getBytes(StandardCharsets.UTF_8);

  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private Path good;
  private byte[] bytes;

  @Before
  public void write() throws IOException {
    good = write("good.parquet", SCHEMA, null);
    bytes = Files.readAllBytes(local(good));
  }

  private static java.nio.file.Path local(Path path) {
    return java.nio.file.Path.of(path.toUri().getPath());
  }

  private Path path(String name) {
    return new Path("file://" + folder.getRoot().getPath() + "/" + name);
  }

  private Path write(String name, MessageType schema, FileEncryptionProperties encryption) throws IOException {
    SimpleGroupFactory rows = new SimpleGroupFactory(schema);
    try (ParquetWriter<Group> writer = ExampleParquetWriter.builder(HadoopOutputFile.fromPath(path(name), HADOOP)).withConf(HADOOP).withType(schema)
        .withRowGroupSize(100_000L).withEncryption(encryption).build()) {
      for (int i = 0; i < ROWS; i++) {
        Group row = rows.newGroup();
        if (schema.containsField("a")) {
          row.add("a", i * 0x9e3779b97f4a7c15L);
        }
        row.add("b", "row " + i);
        if (schema.containsField("s")) {
          row.add("B2", i);
          Group s = row.addGroup("s");
          s.add("a", (long) i);
          s.addGroup("t").add("a", (long) i);
          row.addGroup("deep").addGroup("list").addGroup("element").add("b", (long) i);
        }
        writer.write(row);
      }
    }
    return path(name);
  }

  private Path raw(String name, byte[] content) throws IOException {
    Files.write(local(path(name)), content);
    return path(name);
  }

  /** The good file with another length of its footer. */
  private byte[] withFooterOf(int length) {
    byte[] changed = bytes.clone();
    ByteBuffer.wrap(changed, changed.length - 8, 4).order(ByteOrder.LITTLE_ENDIAN).putInt(length);
    return changed;
  }

  private int footerBytes() {
    return ByteBuffer.wrap(bytes, bytes.length - 8, 4).order(ByteOrder.LITTLE_ENDIAN).getInt();
  }

  private Footers footers(Path... paths) {
    Map<Path, Set<Scan>> files = new HashMap<>();
    for (Path path : paths) {
      files.put(path, Set.of(SCAN));
    }
    return Footers.of(files, HADOOP);
  }

  /** The file is left out for this reason; the good one beside it is not. */
  private void assertLeftOut(String why, Path path) {
    Footers footers = footers(good, path);
    assertEquals(List.of(), footers.of(path, SCAN, ALL));
    assertEquals("reasons", 1, footers.withoutPlan().size());
    String said = footers.withoutPlan().keySet().iterator().next();
    assertTrue(said, said.contains(why));
    assertEquals(footers(good).of(good, SCAN, ALL), footers.of(good, SCAN, ALL));
  }

  @Test
  public void ofAGoodFileTheChunksAndTheFooterAreKnown() {
    Footers footers = footers(good);
    List<Footers.Range> ranges = footers.of(good, SCAN, ALL);
    assertTrue(ranges.toString(), ranges.size() > 2);
    Footers.Range last = ranges.get(ranges.size() - 1);
    assertEquals(bytes.length, last.end());
    assertTrue(last.length() >= footerBytes() + 8);
    assertEquals(Map.of(), footers.withoutPlan());
  }

  @Test
  public void aFileWithoutTheColumnHasItsFooterRead() throws IOException {
    Path older = write("older.parquet", MessageTypeParser.parseMessageType("message t { required binary b; }"), null);
    Footers footers = footers(older);
    assertEquals(1, footers.of(older, SCAN, ALL).size());
    assertEquals(Files.size(local(older)), footers.of(older, SCAN, ALL).get(0).end());
    assertEquals(Map.of(), footers.withoutPlan());
  }

  /** Iceberg renames columns without a change to the files, which number them. */
  @Test
  public void aColumnIsFoundByItsNumberIfFileAndScanHaveOne() throws IOException {
    Path path = write("numbered.parquet", MessageTypeParser.parseMessageType("message t { required int64 a = 7; required binary b = 8; }"), null);
    List<Footers.Range> byName = footers(path).of(path, SCAN, ALL);
    Scan renamed = new Scan(Columns.named(Set.of("b", "new")), Set.of(7), List.of());
    assertEquals(byName, Footers.of(Map.of(path, Set.of(renamed)), HADOOP).of(path, renamed, ALL));
    // Files that do not number theirs are read by name.
    Scan known = new Scan(Columns.named(Set.of("a")), Set.of(99), List.of());
    assertEquals(footers(good).of(good, SCAN, ALL), Footers.of(Map.of(good, Set.of(known)), HADOOP).of(good, known, ALL));
  }

  /**
   * What is cut out of a footer before it is parsed changes nothing: of each column and of some
   * together, the chunks are those of the whole footer.
   */
  @Test
  public void ofManyColumnsTheChunksAreThoseOfTheWholeFooter() throws IOException {
    Configuration withoutIndexes = new Configuration(false);
    withoutIndexes.setBoolean(ParquetPages.ENABLED, false);
    String others = " optional group deep { repeated group list { optional group element { required int64 b; optional binary x; } } }"
        + " required group s { required int64 a; required group t { required int64 a; } } required int32 B2 = 300;";
    for (int more : new int[] {0, 40}) {
      String columns = String.join("", IntStream.range(0, more).mapToObj(i -> " optional int64 ä" + i + " = " + (i + 9) + ";").toList());
      Path path = write("many-" + more + ".parquet", MessageTypeParser.parseMessageType("message t { required int64 a; required binary b;" + others + columns + " }"), null);
      List<Set<String>> reads = List.of(Set.of("a"), Set.of("b"), Set.of("deep"), Set.of("s"), Set.of("b2", "ä7"), Set.of("ä39", "a"), Set.of());
      for (Set<String> read : reads) {
        Scan scan = new Scan(Columns.named(read), List.of(new IsNotNull("a")));
        Footers.Read found = Footers.of(Map.of(path, Set.of(scan)), withoutIndexes).of(path, scan, ALL, Long.MAX_VALUE);
        List<Footers.Range> whole = new ArrayList<>();
        try (ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(path, HADOOP))) {
          reader.getFooter().getBlocks().stream().flatMap(block -> block.getColumns().stream()).filter(chunk -> scan.reads(chunk.getPath().toArray(), null))
              .forEach(chunk -> whole.add(new Footers.Range(chunk.getStartingPos(), chunk.getTotalSize())));
          assertEquals(reader.getRecordCount(), found.rows());
        }
        List<Footers.Range> reported = found.ranges().subList(0, found.ranges().size() - 1);
        assertEquals(read.toString(), Footers.merged(whole), reported);
        assertEquals(read.toString(), read.isEmpty(), reported.isEmpty());
      }
    }
  }

  /** Whatever single byte of a footer is wrong, the other files are reported. */
  @Test
  public void aWrongByteInAFooterHarmsNoOtherFile() throws IOException {
    List<Footers.Range> ranges = footers(good).of(good, SCAN, ALL);
    Map<Path, Set<Scan>> files = new HashMap<>();
    files.put(good, Set.of(SCAN));
    Random random = new Random(18);
    for (int at = bytes.length - 8 - footerBytes(); at < bytes.length - 8; at++) {
      byte[] changed = bytes.clone();
      changed[at] = (byte) random.nextInt();
      files.put(raw("wrong-" + at + ".parquet", changed), Set.of(SCAN));
    }
    Footers footers = Footers.of(files, HADOOP);
    assertEquals(ranges, footers.of(good, SCAN, ALL));
    assertTrue(footers.withoutPlan().toString(), !footers.withoutPlan().isEmpty());
    for (String why : footers.withoutPlan().keySet()) {
      assertTrue(why, why.contains("a footer") || why.contains("the footer") || why.contains("encrypted"));
    }
    for (Path path : files.keySet()) {
      for (Footers.Range range : footers.of(path, SCAN, ALL)) {
        assertTrue(path + " " + range, range.offset() >= 0 && range.end() <= bytes.length);
      }
    }
  }

  @Test
  public void eachScanOfAFileHasItsOwnColumns() {
    Scan other = new Scan(Columns.named(Set.of("b")), List.of());
    Footers both = Footers.of(Map.of(good, Set.of(SCAN, other)), HADOOP);
    assertEquals(footers(good).of(good, SCAN, ALL), both.of(good, SCAN, ALL));
    assertEquals(Footers.of(Map.of(good, Set.of(other)), HADOOP).of(good, other, ALL), both.of(good, other, ALL));
    assertNotEquals(both.of(good, SCAN, ALL), both.of(good, other, ALL));
    // A scan that is not known has no plan, and the other one keeps its own.
    Footers some = Footers.of(Map.of(good, new HashSet<>(Arrays.asList(SCAN, null))), HADOOP);
    assertEquals(footers(good).of(good, SCAN, ALL), some.of(good, SCAN, ALL));
    assertEquals(List.of(), some.of(good, null, ALL));
    assertEquals(Map.of("the columns of a scan are not known", 1), some.withoutPlan());
  }

  @Test
  public void ofALimitTheRowGroupsAreKnownThatHaveTheRows() {
    Footers footers = footers(good);
    Footers.Read all = footers.of(good, SCAN, ALL, Long.MAX_VALUE);
    assertEquals(ROWS, all.rows());
    Footers.Read some = footers.of(good, SCAN, ALL, 1);
    assertTrue(some.toString(), some.rows() >= 1 && some.rows() < ROWS);
    assertEquals("its chunk and the footer", 2, some.ranges().size());
    assertEquals(all.ranges().get(all.ranges().size() - 1), some.ranges().get(1));
  }

  @Test
  public void wrongFootersAreLeftToTheTasks() throws IOException {
    assertLeftOut("EOFException", raw("short.parquet", "PAR1".getBytes(StandardCharsets.UTF_8)));
    assertLeftOut("EOFException", raw("empty.parquet", new byte[0]));
    assertLeftOut("not of Parquet", raw("text.parquet", "no footer at all".getBytes(StandardCharsets.UTF_8)));
    assertLeftOut("more than its file", raw("longer.parquet", withFooterOf(bytes.length)));
    assertLeftOut("more than its file", raw("negative.parquet", withFooterOf(-1)));
    assertLeftOut("cannot be read", raw("none.parquet", withFooterOf(0)));
    byte[] garbage = bytes.clone();
    Arrays.fill(garbage, bytes.length - 8 - footerBytes(), bytes.length - 8, (byte) 0x55);
    assertLeftOut("cannot be read", raw("garbage.parquet", garbage));
    assertLeftOut("cannot be read", path("missing.parquet"));
  }

  /** The head of the file is gone: its chunks would be where the footer is, or behind it. */
  @Test
  public void aFooterThatNamesBytesOutsideOfItsFileIsLeftToTheTasks() throws IOException {
    byte[] tail = Arrays.copyOfRange(bytes, bytes.length - 8 - footerBytes() - 4, bytes.length);
    System.arraycopy("PAR1".getBytes(StandardCharsets.UTF_8), 0, tail, 0, 4);
    assertLeftOut("cannot be read, IOException", raw("tail.parquet", tail));
  }

  @Test
  public void aHugeFooterIsLeftToTheTasks() throws IOException {
    Path huge = path("huge.parquet");
    try (RandomAccessFile file = new RandomAccessFile(local(huge).toFile(), "rw")) {
      file.setLength(2L * Footers.FOOTER_BYTES_MAX);
      file.seek(file.length() - 8);
      file.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putInt(Footers.FOOTER_BYTES_MAX + 1).put("PAR1".getBytes(StandardCharsets.UTF_8)).array());
    }
    assertLeftOut("more than " + Footers.FOOTER_BYTES_MAX + " bytes", huge);
  }

  @Test
  public void encryptedFilesAreLeftToTheTasks() throws IOException {
    assertLeftOut("encrypted", write("footer.parquet", SCHEMA, FileEncryptionProperties.builder(KEY).build()));
    // The footer can be read, and not what it says of the column.
    Map<ColumnPath, ColumnEncryptionProperties> columns = Map.of(ColumnPath.get("a"), ColumnEncryptionProperties.builder("a").withKey(KEY).build());
    FileEncryptionProperties column = FileEncryptionProperties.builder(KEY).withPlaintextFooter().withEncryptedColumns(columns).build();
    assertLeftOut("cannot be read", write("column.parquet", SCHEMA, column));
  }

  @Test
  public void filesOfScansThatAreNotKnownAreLeftToTheTasks() {
    Map<Path, Set<Scan>> files = new HashMap<>();
    files.put(good, Collections.singleton(null));
    Footers footers = Footers.of(files, HADOOP);
    assertEquals(Map.of("the columns of a scan are not known", 1), footers.withoutPlan());
    Map<Path, Set<Scan>> many = new HashMap<>();
    for (int i = 0; i <= Footers.FILES_MAX; i++) {
      many.put(path(i + ".parquet"), Set.of(SCAN));
    }
    assertEquals(List.of(Footers.FILES_MAX + 1), List.copyOf(Footers.of(many, HADOOP).withoutPlan().values()));
  }
}
