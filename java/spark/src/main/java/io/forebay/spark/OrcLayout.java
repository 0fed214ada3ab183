package io.forebay.spark;

import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.io.sarg.SearchArgument;
import org.apache.orc.DataReader;
import org.apache.orc.OrcFile;
import org.apache.orc.OrcProto;
import org.apache.orc.Reader;
import org.apache.orc.StripeInformation;
import org.apache.orc.TypeDescription;
import org.apache.orc.impl.BufferChunk;
import org.apache.orc.impl.BufferChunkList;
import org.apache.orc.impl.DataReaderProperties;
import org.apache.orc.impl.InStream;
import org.apache.orc.impl.OrcCodecPool;
import org.apache.orc.impl.OrcTail;
import org.apache.orc.impl.ReaderImpl;
import org.apache.orc.impl.RecordReaderUtils;

import io.forebay.spark.Footers.Group;
import io.forebay.spark.Footers.Layout;
import io.forebay.spark.Footers.Range;

/**
 * Finds the parts of an ORC file that a scan reads: in each stripe the footer, the row indexes if
 * the scan has filters, and the streams of the columns.
 *
 * <p>ORC's own reader determines the ranges. It is opened on each stripe with a data source that
 * reads footers and row indexes for it, records which data it requests, and stops there. So the
 * tasks and the report skip the same rows, by the filters that Spark itself builds for ORC. Each
 * stripe costs a read of its footer, which the tasks then find in the tier.
 */
final class OrcLayout {
  /** Hive wrote files whose columns have only numbers for names: {@code _col0}. */
  private static final String NUMBERED = "_col";

  private OrcLayout() {}

  static Map<Scan, Layout> read(Path path, List<Scan> scans, Configuration hadoop, Footers footers) throws IOException {
    try (Tail tail = Tail.open(path, hadoop, footers.tails())) {
      if (tail.fileBytes() == 0) {
        // Hive writes such files, and ORC treats them as tables without rows.
        return Footers.forEach(scans, new Range(0, 0), scan -> List.of());
      }
      int tailBytes = tailBytes(tail);
      // Readers first read this many bytes, even if the tail is shorter.
      long read = Math.min(tail.fileBytes(), Math.max(tailBytes, Tail.GUESS_BYTES));
      Range own = new Range(tail.fileBytes() - read, read);
      return footers.parsed(tailBytes, () -> {
        OrcTail parsed = tail(tail, tailBytes);
        return Footers.forEach(scans, own, scan -> groups(path, tail, parsed, scan, hadoop));
      });
    }
  }

  /** Length of footer, metadata, postscript and the byte with the postscript's length. */
  private static int tailBytes(Tail tail) throws IOException {
    int length = tail.last(1)[0] & 0xff;
    OrcProto.PostScript script = OrcProto.PostScript.parseFrom(Arrays.copyOf(tail.last(length + 1), length));
    long bytes = 1L + length;
    for (long part : new long[] {script.getFooterLength(), script.getMetadataLength(), script.getStripeStatisticsLength()}) {
      bytes += Footers.bounded(part, tail.fileBytes());
    }
    return Footers.bounded(bytes, tail.fileBytes());
  }

  @SuppressWarnings("deprecation") // Its replacement opens the file again.
  private static OrcTail tail(Tail tail, int tailBytes) throws IOException {
    return ReaderImpl.extractFileTail(ByteBuffer.wrap(tail.last(tailBytes)), tail.fileBytes(), -1);
  }

  private static List<Group> groups(Path path, Tail tail, OrcTail parsed, Scan scan, Configuration hadoop) throws IOException {
    try (Reader reader = OrcFile.createReader(path, OrcFile.readerOptions(hadoop).orcTail(parsed)); DataReader source = source(reader, path, tail)) {
      Reader.Options options = options(reader, scan);
      List<Group> groups = new ArrayList<>();
      for (StripeInformation stripe : reader.getStripes()) {
        groups.add(new Group(stripe.getOffset(), stripe.getNumberOfRows(), stripe(reader, options, stripe, source, tail.fileBytes())));
      }
      return groups;
    }
  }

  private static Reader.Options options(Reader reader, Scan scan) throws IOException {
    TypeDescription schema = reader.getSchema();
    List<String> names = schema.getFieldNames();
    if (!names.isEmpty() && names.stream().allMatch(name -> name.startsWith(NUMBERED))) {
      throw new Footers.Unplanned("a file of ORC has no names of columns");
    }
    boolean[] included = new boolean[schema.getMaximumId() + 1];
    include(schema, scan.columns(), included);
    Reader.Options options = reader.options().include(included).allowSARGToFilter(false).useSelected(false);
    SearchArgument filter = scan.filters().isEmpty() ? null : filter(schema, scan.filters());
    return filter == null ? options : options.searchArgument(filter, names.toArray(String[]::new));
  }

  /** Marks the parts of a type that are read, and the type itself if {@code columns} is set. */
  private static void include(TypeDescription type, Columns columns, boolean[] included) {
    if (columns == null) {
      return;
    }
    included[type.getId()] = true;
    List<TypeDescription> inner = type.getChildren() == null ? List.of() : type.getChildren();
    for (int i = 0; i < inner.size(); i++) {
      boolean structure = type.getCategory() == TypeDescription.Category.STRUCT;
      include(inner.get(i), structure ? columns.field(type.getFieldNames().get(i)) : columns, included);
    }
  }

  /** The argument that Spark builds for a task; null if ORC cannot use the filters. */
  private static SearchArgument filter(TypeDescription schema, List<Object> filters) {
    try {
      String spark = "org.apache.spark.sql.execution.datasources.orc.";
      Object types = callStatic(spark + "OrcUtils", "toCatalystSchema", schema);
      scala.collection.immutable.List<Object> all = Scala.seq(filters);
      List<Object> made = Scala.list(callStatic(spark + "OrcFilters", "createFilter", types, all));
      return made.isEmpty() ? null : (SearchArgument) made.get(0);
    } catch (ReflectiveOperationException | RuntimeException e) {
      // Then more is reported than is read, which costs bytes but does not change results.
      return null;
    }
  }

  /** Calls a method of a Scala object; parameters that newer versions add get their defaults. */
  private static Object callStatic(String type, String method, Object... arguments) throws ReflectiveOperationException {
    for (Method candidate : Class.forName(type).getMethods()) {
      if (candidate.getName().equals(method)) {
        Object[] all = Arrays.copyOf(arguments, candidate.getParameterCount());
        for (int i = arguments.length; i < all.length; i++) {
          all[i] = callStatic(type, method + "$default$" + (i + 1));
        }
        return candidate.invoke(null, all);
      }
    }
    throw new NoSuchMethodException(type + "." + method);
  }

  private static DataReader source(Reader reader, Path path, Tail tail) {
    InStream.StreamOptions compression = InStream.options();
    compression.withCodec(OrcCodecPool.getCodec(reader.getCompressionKind())).withBufferSize(reader.getCompressionSize());
    // The file is open already, so no file system is needed.
    return RecordReaderUtils.createDefaultDataReader(
        DataReaderProperties.builder().withFileSystem(null).withCompression(compression).withPath(path).withFile(tail.in()).withZeroCopy(false).build());
  }

  private static List<Range> stripe(Reader reader, Reader.Options options, StripeInformation stripe, DataReader source, long fileBytes) throws IOException {
    Range index = Footers.before(fileBytes, stripe.getOffset(), stripe.getIndexLength());
    Range data = Footers.before(fileBytes, index.end(), stripe.getDataLength());
    Range footer = Footers.before(fileBytes, data.end(), stripe.getFooterLength());
    // These are read here.
    Footers.bounded(index.length(), fileBytes);
    Footers.bounded(footer.length(), fileBytes);
    Notes notes = new Notes(source, data.offset());
    try {
      // The reader opens the first stripe when it is made.
      reader.rows(options.clone().range(stripe.getOffset(), 1).dataReader(notes)).close();
    } catch (IOException e) {
      if (!notes.isComplete) {
        throw e;
      }
    }
    notes.read.add(footer);
    for (Range range : notes.read) {
      Footers.before(footer.end(), range.offset(), range.length());
    }
    return Footers.merged(notes.read);
  }

  /** Reads footers and row indexes of a stripe, and records the requested ranges of data. */
  private static final class Notes implements DataReader {
    final List<Range> read = new ArrayList<>();
    boolean isComplete;
    private final DataReader source;
    private final long data;
    private OrcProto.StripeFooter footer;

    /**
     * Notes of a stripe.
     *
     * @param data where its data begins, after the row indexes
     */
    Notes(DataReader source, long data) {
      this.source = source;
      this.data = data;
    }

    @Override
    public void open() throws IOException {
      source.open();
    }

    @Override
    public OrcProto.StripeFooter readStripeFooter(StripeInformation stripe) throws IOException {
      // The reader requests it twice.
      if (footer == null) {
        footer = source.readStripeFooter(stripe);
      }
      return footer;
    }

    @Override
    public BufferChunkList readFileData(BufferChunkList chunks, boolean direct) throws IOException {
      boolean index = true;
      for (BufferChunk chunk = chunks.get(); chunk != null; chunk = (BufferChunk) chunk.next) {
        index &= chunk.getOffset() < data;
        read.add(new Range(chunk.getOffset(), chunk.getLength()));
      }
      if (index && chunks.get() != null) {
        return source.readFileData(chunks, direct);
      }
      isComplete = true;
      throw new IOException("what is read of a stripe is known");
    }

    @Override
    public boolean isTrackingDiskRanges() {
      return false;
    }

    @Override
    public void releaseBuffer(ByteBuffer buffer) {}

    /** Only newer versions of ORC have this method. */
    @SuppressWarnings("unused")
    public void releaseAllBuffers() {}

    /** The reader makes a copy, and closes the copy. */
    @Override
    public DataReader clone() {
      return this;
    }

    @Override
    public void close() {}

    @Override
    public InStream.StreamOptions getCompressionOptions() {
      return source.getCompressionOptions();
    }
  }
}
