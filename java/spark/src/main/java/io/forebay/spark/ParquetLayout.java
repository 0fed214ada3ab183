package io.forebay.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.Type;

import io.forebay.spark.Footers.Group;
import io.forebay.spark.Footers.Layout;
import io.forebay.spark.Footers.Range;

/** Finds the column chunks of each row group of a Parquet file that a scan reads. */
final class ParquetLayout {
  /** Length of the footer, and magic number, at the end of a file. */
  private static final int END_BYTES = 8;

  private static final int MAGIC_BYTES = 4;

  private ParquetLayout() {}

  static Map<Scan, Layout> read(Path path, List<Scan> scans, Configuration hadoop, Footers footers) throws IOException {
    try (Tail tail = Tail.open(path, hadoop, footers.tails())) {
      int footerBytes = footerBytes(tail);
      Range own = new Range(tail.fileBytes() - END_BYTES - footerBytes, (long) footerBytes + END_BYTES);
      return footers.parsed(own.length(), () -> {
        ParquetFooter footer = ParquetFooter.parse(tail.last((int) own.length()), footerBytes, scans);
        return Footers.forEach(scans, own, scan -> groups(footer, scan, hadoop, tail, own));
      });
    }
  }

  private static List<Group> groups(ParquetFooter footer, Scan scan, Configuration hadoop, Tail tail, Range own) throws IOException {
    // Iceberg's readers use no page indexes; its scans identify columns by their IDs.
    boolean indexes = !scan.filters().isEmpty() && scan.ids().isEmpty() && hadoop.getBoolean(ParquetPages.ENABLED, true);
    MessageType schema = footer.metadata().getFileMetaData().getSchema();
    List<BlockMetaData> blocks = footer.metadata().getBlocks();
    List<Group> groups = new ArrayList<>();
    for (int i = 0; i < blocks.size(); i++) {
      BlockMetaData block = blocks.get(i);
      // As in Spark, it belongs to the split that contains its middle.
      long middle = block.getStartingPos() + footer.groupBytes()[i] / 2;
      groups.add(group(middle, block, schema, scan, indexes ? tail : null, own));
    }
    return groups;
  }

  private static int footerBytes(Tail tail) throws IOException {
    byte[] end = tail.last(END_BYTES);
    if (end[MAGIC_BYTES] != 'P' || end[MAGIC_BYTES + 1] != 'A' || end[MAGIC_BYTES + 2] != 'R' || end[MAGIC_BYTES + 3] != '1') {
      throw new Footers.Unplanned("a file is encrypted, or not of Parquet");
    }
    long bytes = 0;
    for (int i = MAGIC_BYTES - 1; i >= 0; i--) {
      bytes = bytes << 8 | end[i] & 0xff;
    }
    return Footers.bounded(bytes, tail.fileBytes() - END_BYTES);
  }

  /**
   * What is read of a row group.
   *
   * @param at by which it belongs to a split
   * @param tail of the file, if tasks use its page indexes; else null
   */
  private static Group group(long at, BlockMetaData block, MessageType schema, Scan scan, Tail tail, Range own) throws IOException {
    List<ColumnChunkMetaData> chunks = new ArrayList<>();
    boolean mayMatch = RowGroups.mayMatch(block, scan.filters());
    if (mayMatch) {
      for (ColumnChunkMetaData chunk : block.getColumns()) {
        String[] path = chunk.getPath().toArray();
        Type.ID id = schema.getType(path[0]).getId();
        if (scan.reads(path, id == null ? null : id.intValue())) {
          chunks.add(chunk);
        }
      }
    }
    List<Range> read = new ArrayList<>();
    if (mayMatch && tail != null) {
      read.addAll(ParquetPages.read(block, chunks, scan.filters(), tail, own));
    } else {
      for (ColumnChunkMetaData chunk : chunks) {
        read.add(Footers.before(own.offset(), chunk.getStartingPos(), chunk.getTotalSize()));
      }
    }
    return new Group(at, mayMatch ? block.getRowCount() : 0, Footers.merged(read));
  }
}
