package io.forebay.spark;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.apache.parquet.column.statistics.Statistics;
import org.apache.parquet.format.Util;
import org.apache.parquet.format.converter.ParquetMetadataConverter;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.internal.column.columnindex.ColumnIndex;
import org.apache.parquet.internal.column.columnindex.OffsetIndex;
import org.apache.parquet.internal.hadoop.metadata.IndexReference;
import org.apache.parquet.schema.PrimitiveType;

import io.forebay.spark.Footers.Range;

/**
 * Finds the pages of a Parquet row group that tasks with filters read, by the indexes before the
 * footer.
 *
 * <p>Parquet's readers do the same: the column indexes of the filtered columns say which rows may
 * match, and the offset indexes of all read columns where their pages with these rows are. In doubt
 * a row is read, as in {@link RowGroups}. The indexes are read through the tier, and tasks read
 * them again there.
 */
final class ParquetPages {
  /** If this is false, Hadoop's configuration says that readers use no indexes. */
  static final String ENABLED = "parquet.filter.columnindex.enabled";

  private final BlockMetaData block;
  private final Tail tail;
  private final Range footer;

  /** The bytes of the indexes, by their offsets in the file. */
  private final Map<Long, byte[]> indexes = new HashMap<>();

  /** Rows from {@code first} to {@code last}, both included. */
  private record Rows(long first, long last) {}

  private ParquetPages(BlockMetaData block, Tail tail, Range footer) {
    this.block = block;
    this.tail = tail;
    this.footer = footer;
  }

  /**
   * What a task reads of {@code chunks}, and the indexes.
   *
   * @param footer of the file; everything else is before it
   */
  static List<Range> read(BlockMetaData block, List<ColumnChunkMetaData> chunks, List<Object> filters, Tail tail, Range footer) throws IOException {
    ParquetPages pages = new ParquetPages(block, tail, footer);
    List<Range> whole = new ArrayList<>();
    for (ColumnChunkMetaData chunk : chunks) {
      whole.add(Footers.before(footer.offset(), chunk.getStartingPos(), chunk.getTotalSize()));
    }
    Map<String, ColumnChunkMetaData> filtered = pages.filtered(filters);
    if (filtered.isEmpty() || chunks.stream().anyMatch(chunk -> chunk.getOffsetIndexReference() == null)) {
      return whole;
    }
    List<Range> read = pages.readIndexes(chunks, filtered);
    List<Rows> rows = List.of(new Rows(0, block.getRowCount() - 1));
    for (Object filter : filters) {
      rows = both(rows, pages.rows(filter, filtered));
    }
    if (rows.size() == 1 && rows.get(0).equals(new Rows(0, block.getRowCount() - 1))) {
      read.addAll(whole);
    } else if (!rows.isEmpty()) {
      for (ColumnChunkMetaData chunk : chunks) {
        read.addAll(pages.pages(chunk, rows));
      }
    }
    return read;
  }

  /** The columns of the filters that have a column index, by their names in lower case. */
  private Map<String, ColumnChunkMetaData> filtered(List<Object> filters) {
    Set<String> names = new TreeSet<>();
    filters.forEach(filter -> names.addAll(RowGroups.columns(filter)));
    Map<String, ColumnChunkMetaData> filtered = new HashMap<>();
    for (ColumnChunkMetaData chunk : block.getColumns()) {
      String[] path = chunk.getPath().toArray();
      String name = path[0].toLowerCase(Locale.ROOT);
      boolean isIndexed = chunk.getColumnIndexReference() != null && chunk.getOffsetIndexReference() != null;
      if (path.length == 1 && names.contains(name) && isIndexed) {
        filtered.put(name, chunk);
      }
    }
    return filtered;
  }

  private List<Range> readIndexes(List<ColumnChunkMetaData> chunks, Map<String, ColumnChunkMetaData> filtered) throws IOException {
    Map<Long, IndexReference> wanted = new HashMap<>();
    for (ColumnChunkMetaData chunk : chunks) {
      wanted.put(chunk.getOffsetIndexReference().getOffset(), chunk.getOffsetIndexReference());
    }
    for (ColumnChunkMetaData chunk : filtered.values()) {
      wanted.put(chunk.getOffsetIndexReference().getOffset(), chunk.getOffsetIndexReference());
      wanted.put(chunk.getColumnIndexReference().getOffset(), chunk.getColumnIndexReference());
    }
    List<Range> ranges = new ArrayList<>();
    for (IndexReference index : wanted.values()) {
      ranges.add(Footers.before(footer.offset(), index.getOffset(), index.getLength()));
    }
    List<Range> merged = Footers.merged(ranges);
    for (Range range : merged) {
      byte[] bytes = new byte[Footers.bounded(range.length(), footer.offset())];
      tail.in().readFully(range.offset(), bytes);
      for (Range index : ranges) {
        if (index.offset() >= range.offset() && index.end() <= range.end()) {
          int from = (int) (index.offset() - range.offset());
          indexes.put(index.offset(), java.util.Arrays.copyOfRange(bytes, from, from + (int) index.length()));
        }
      }
    }
    return new ArrayList<>(merged);
  }

  private OffsetIndex offsets(ColumnChunkMetaData chunk) throws IOException {
    byte[] bytes = indexes.get(chunk.getOffsetIndexReference().getOffset());
    return ParquetMetadataConverter.fromParquetOffsetIndex(Util.readOffsetIndex(new ByteArrayInputStream(bytes)));
  }

  /** The rows that may satisfy a filter; all, if it is not of one column alone. */
  private List<Rows> rows(Object filter, Map<String, ColumnChunkMetaData> filtered) throws IOException {
    List<Rows> all = List.of(new Rows(0, block.getRowCount() - 1));
    List<String> columns = RowGroups.columns(filter);
    ColumnChunkMetaData chunk = columns.size() == 1 ? filtered.get(columns.get(0)) : null;
    if (chunk == null) {
      return all;
    }
    PrimitiveType type = chunk.getPrimitiveType();
    byte[] bytes = indexes.get(chunk.getColumnIndexReference().getOffset());
    ColumnIndex bounds = ParquetMetadataConverter.fromParquetColumnIndex(type, Util.readColumnIndex(new ByteArrayInputStream(bytes)));
    OffsetIndex offsets = offsets(chunk);
    if (bounds == null || bounds.getNullPages().size() != offsets.getPageCount()) {
      return all;
    }
    List<Rows> rows = new ArrayList<>();
    for (int page = 0; page < offsets.getPageCount(); page++) {
      Statistics<?> statistics = statistics(type, bounds, page);
      if (RowGroups.mayMatch(filter, Map.of(columns.get(0), statistics))) {
        rows.add(new Rows(offsets.getFirstRowIndex(page), offsets.getLastRowIndex(page, block.getRowCount())));
      }
    }
    return joined(rows);
  }

  private static Statistics<?> statistics(PrimitiveType type, ColumnIndex bounds, int page) {
    Statistics.Builder builder = Statistics.getBuilderForReading(type);
    if (!bounds.getNullPages().get(page)) {
      builder = builder.withMin(bytes(bounds.getMinValues().get(page))).withMax(bytes(bounds.getMaxValues().get(page)));
    }
    return builder.build();
  }

  private static byte[] bytes(ByteBuffer buffer) {
    byte[] bytes = new byte[buffer.remaining()];
    buffer.duplicate().get(bytes);
    return bytes;
  }

  /** The pages of a chunk that contain some of the rows, and the dictionary. */
  private List<Range> pages(ColumnChunkMetaData chunk, List<Rows> rows) throws IOException {
    OffsetIndex offsets = offsets(chunk);
    List<Range> pages = new ArrayList<>();
    if (offsets.getPageCount() > 0 && chunk.getStartingPos() < offsets.getOffset(0)) {
      pages.add(Footers.before(footer.offset(), chunk.getStartingPos(), offsets.getOffset(0) - chunk.getStartingPos()));
    }
    for (int page = 0; page < offsets.getPageCount(); page++) {
      long first = offsets.getFirstRowIndex(page);
      long last = offsets.getLastRowIndex(page, block.getRowCount());
      if (rows.stream().anyMatch(some -> some.first() <= last && some.last() >= first)) {
        pages.add(Footers.before(footer.offset(), offsets.getOffset(page), offsets.getCompressedPageSize(page)));
      }
    }
    return pages;
  }

  /** Adjacent rows as one; they are in order. */
  private static List<Rows> joined(List<Rows> rows) {
    List<Rows> joined = new ArrayList<>();
    for (Rows some : rows) {
      Rows last = joined.isEmpty() ? null : joined.get(joined.size() - 1);
      if (last != null && last.last() + 1 >= some.first()) {
        joined.set(joined.size() - 1, new Rows(last.first(), Math.max(last.last(), some.last())));
      } else {
        joined.add(some);
      }
    }
    return joined;
  }

  /** The rows that are in both; each is in order. */
  private static List<Rows> both(List<Rows> left, List<Rows> right) {
    List<Rows> both = new ArrayList<>();
    int l = 0;
    int r = 0;
    while (l < left.size() && r < right.size()) {
      long first = Math.max(left.get(l).first(), right.get(r).first());
      long last = Math.min(left.get(l).last(), right.get(r).last());
      if (first <= last) {
        both.add(new Rows(first, last));
      }
      if (left.get(l).last() < right.get(r).last()) {
        l++;
      } else {
        r++;
      }
    }
    return both;
  }
}
