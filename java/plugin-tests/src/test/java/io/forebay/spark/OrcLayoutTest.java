package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.exec.vector.BytesColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.LongColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.orc.InMemoryKeystore;
import org.apache.orc.OrcFile;
import org.apache.orc.OrcProto;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/**
 * Tails of ORC files that are not what they should be: their files are left to the tasks, each with
 * a reason. {@link SparkTest} compares what is reported of good files with what Spark reads.
 */
public class OrcLayoutTest {
  private static final Configuration HADOOP = new Configuration(false);
  private static final Scan SCAN = new Scan(Columns.named(Set.of("a")), List.of());
  private static final Footers.Range ALL = new Footers.Range(0, Long.MAX_VALUE);
  private static final int ROWS = 40_000;
  private static final byte[] KEY = "0123456789012345".getBytes(StandardCharsets.UTF_8);

  static {
    HADOOP.set("orc.stripe.row.count", "5000");
  }

  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private Path good;
  private byte[] bytes;

  @Before
  public void write() throws IOException {
    good = write("good.orc", "a", OrcFile.writerOptions(HADOOP));
    bytes = Files.readAllBytes(local(good));
  }

  private static java.nio.file.Path local(Path path) {
    return java.nio.file.Path.of(path.toUri().getPath());
  }

  private Path path(String name) {
    return new Path("file://" + folder.getRoot().getPath() + "/" + name);
  }

  /** Numbers that do not compress, and strings, in stripes of 5,000 rows. */
  private Path write(String name, String column, OrcFile.WriterOptions options) throws IOException {
    TypeDescription schema = TypeDescription.fromString("struct<" + column + ":bigint,b:string>");
    try (Writer writer = OrcFile.createWriter(path(name), options.setSchema(schema).rowIndexStride(1000))) {
      VectorizedRowBatch batch = schema.createRowBatch();
      for (int i = 0; i < ROWS; i++) {
        ((LongColumnVector) batch.cols[0]).vector[batch.size] = i * 0x9e3779b97f4a7c15L;
        ((BytesColumnVector) batch.cols[1]).setVal(batch.size, ("row " + i).getBytes(StandardCharsets.UTF_8));
        if (++batch.size == batch.getMaxSize() || i == ROWS - 1) {
          writer.addRowBatch(batch);
          batch.reset();
        }
      }
    }
    return path(name);
  }

  private Path raw(String name, byte[] content) throws IOException {
    Files.write(local(path(name)), content);
    return path(name);
  }

  private OrcProto.PostScript postscript() throws IOException {
    int length = bytes[bytes.length - 1] & 0xff;
    return OrcProto.PostScript.parseFrom(Arrays.copyOfRange(bytes, bytes.length - 1 - length, bytes.length - 1));
  }

  /** The good file with another postscript. */
  private byte[] with(OrcProto.PostScript script) {
    int before = bytes.length - 1 - (bytes[bytes.length - 1] & 0xff);
    byte[] made = script.toByteArray();
    byte[] changed = Arrays.copyOf(bytes, before + made.length + 1);
    System.arraycopy(made, 0, changed, before, made.length);
    changed[changed.length - 1] = (byte) made.length;
    return changed;
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
    assertFalse(footers.of(good, SCAN, ALL).isEmpty());
    assertEquals(footers(good).of(good, SCAN, ALL), footers.of(good, SCAN, ALL));
  }

  @Test
  public void aStripeBelongsToTheSplitThatHoldsItsStart() {
    Footers footers = footers(good);
    List<Footers.Range> all = footers.of(good, SCAN, ALL);
    assertTrue(all.toString(), all.size() > 4);
    assertEquals(bytes.length, all.get(all.size() - 1).end());
    // The header has 3 bytes, so the first stripe begins at 3.
    List<Footers.Range> none = footers.of(good, SCAN, new Footers.Range(0, 3));
    List<Footers.Range> first = footers.of(good, SCAN, new Footers.Range(3, 1));
    assertEquals(1, none.size());
    assertTrue(first.toString(), first.size() > none.size() && first.size() < all.size());
    assertEquals(Map.of(), footers.withoutPlan());
  }

  @Test
  public void aFileWithoutTheColumnHasItsFootersRead() throws IOException {
    Path older = write("older.orc", "z", OrcFile.writerOptions(HADOOP));
    Footers footers = footers(older);
    long reported = footers.of(older, SCAN, ALL).stream().mapToLong(Footers.Range::length).sum();
    assertTrue(reported + " bytes", reported > 0 && reported < 2L * Tail.GUESS_BYTES);
    assertEquals(Map.of(), footers.withoutPlan());
  }

  @Test
  public void wrongTailsAreLeftToTheTasks() throws IOException {
    assertLeftOut("cannot be read", raw("short.orc", "OR".getBytes(StandardCharsets.UTF_8)));
    assertLeftOut("cannot be read", raw("text.orc", "no footer at all, and no stripe".getBytes(StandardCharsets.UTF_8)));
    assertLeftOut("cannot be read", raw("truncated.orc", Arrays.copyOf(bytes, bytes.length * 2 / 3)));
    assertLeftOut("more than its file", raw("longer.orc", with(postscript().toBuilder().setFooterLength(bytes.length).build())));
    assertLeftOut("more than its file", raw("negative.orc", with(postscript().toBuilder().setFooterLength(-1).build())));
    assertLeftOut("cannot be read", raw("none.orc", with(postscript().toBuilder().setFooterLength(0).build())));
    byte[] garbage = bytes.clone();
    int script = garbage[garbage.length - 1] & 0xff;
    int end = garbage.length - 1 - script;
    Arrays.fill(garbage, end - (int) postscript().getFooterLength(), end, (byte) 0x55);
    assertLeftOut("cannot be read", raw("garbage.orc", garbage));
    // The tail is right, and the footers of the stripes are not.
    byte[] stripes = bytes.clone();
    Arrays.fill(stripes, 3, end - (int) postscript().getFooterLength() - (int) postscript().getMetadataLength(), (byte) 0x55);
    assertLeftOut("cannot be read", raw("stripes.orc", stripes));
    assertLeftOut("cannot be read", path("missing.orc"));
  }

  /** The head of the file is gone: its stripes would be where the tail is, or behind it. */
  @Test
  public void aTailThatNamesBytesOutsideOfItsFileIsLeftToTheTasks() throws IOException {
    int tail = 1 + (bytes[bytes.length - 1] & 0xff) + (int) postscript().getFooterLength() + (int) postscript().getMetadataLength();
    assertLeftOut("cannot be read", raw("tail.orc", Arrays.copyOfRange(bytes, bytes.length - tail, bytes.length)));
  }

  @Test
  public void aHugeTailIsLeftToTheTasks() throws IOException {
    Path huge = path("huge.orc");
    try (RandomAccessFile file = new RandomAccessFile(local(huge).toFile(), "rw")) {
      byte[] content = with(postscript().toBuilder().setFooterLength(Footers.FOOTER_BYTES_MAX + 1).build());
      file.setLength(2L * Footers.FOOTER_BYTES_MAX);
      file.seek(file.length() - content.length);
      file.write(content);
    }
    assertLeftOut("more than " + Footers.FOOTER_BYTES_MAX + " bytes", huge);
  }

  /** Without its key, a reader reads what stands in its place. */
  @Test
  public void anEncryptedColumnDoesNotStopTheReport() throws IOException {
    InMemoryKeystore keys = new InMemoryKeystore();
    keys.addKey("pii", org.apache.orc.EncryptionAlgorithm.AES_CTR_128, KEY);
    OrcFile.WriterOptions options = OrcFile.writerOptions(HADOOP).setKeyProvider(keys).encrypt("pii:a");
    Path encrypted = write("encrypted.orc", "a", options);
    Footers footers = footers(good, encrypted);
    long reported = footers.of(encrypted, SCAN, ALL).stream().mapToLong(Footers.Range::length).sum();
    long whole = footers.of(good, SCAN, ALL).stream().mapToLong(Footers.Range::length).sum();
    assertTrue(reported + " of " + whole + " bytes, " + footers.withoutPlan(), reported < whole / 2);
  }

  @Test
  public void filesOfHiveWithoutNamesOfColumnsAreLeftToTheTasks() throws IOException {
    TypeDescription schema = TypeDescription.fromString("struct<_col0:bigint,_col1:string>");
    Path numbered = path("numbered.orc");
    OrcFile.createWriter(numbered, OrcFile.writerOptions(HADOOP).setSchema(schema)).close();
    assertLeftOut("no names of columns", numbered);
  }

  @Test
  public void anEmptyFileIsATableWithoutRows() throws IOException {
    Path empty = raw("empty.orc", new byte[0]);
    Footers footers = footers(good, empty);
    assertEquals(0, footers.of(empty, SCAN, ALL).stream().mapToLong(Footers.Range::length).sum());
    assertEquals(Map.of(), footers.withoutPlan());
  }
}
