package io.forebay.spark;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.apache.parquet.ParquetReadOptions;
import org.apache.parquet.format.converter.ParquetMetadataConverter;
import org.apache.parquet.hadoop.metadata.ParquetMetadata;

/**
 * The footer of a Parquet file, as far as some scans need it.
 *
 * <p>A footer describes each column of each row group, and most scans read few columns. Parquet's
 * own parser makes dozens of objects of each description, which takes most of the driver's time for
 * a table of many files. So the descriptions that no scan wants are cut out of the encoded footer
 * first, and Parquet parses the rest. The first column of a row group stays, because its place is
 * that of the row group.
 *
 * @param metadata what Parquet has parsed
 * @param groupBytes the bytes of all columns of each row group
 */
record ParquetFooter(ParquetMetadata metadata, long[] groupBytes) {
  /**
   * Without options, a converter of Parquet 1.17, which is in Spark 4.3, refuses every footer. To
   * build them, it loads Hadoop's default configuration, which takes some milliseconds.
   */
  private static final ParquetReadOptions OPTIONS = ParquetReadOptions.builder().build();

  static ParquetFooter parse(byte[] bytes, int length, List<Scan> scans) throws IOException {
    Cutter cutter = new Cutter(bytes, length, scans);
    byte[] needed = cutter.cut();
    ParquetMetadataConverter converter = new ParquetMetadataConverter(OPTIONS);
    ParquetMetadata metadata = converter.readParquetMetadata(new ByteArrayInputStream(needed), ParquetMetadataConverter.NO_FILTER);
    if (metadata.getBlocks().size() != cutter.groupBytes.size()) {
      throw new IOException("a footer with " + cutter.groupBytes.size() + " row groups, of which " + metadata.getBlocks().size() + " can be read");
    }
    return new ParquetFooter(metadata, cutter.groupBytes.stream().mapToLong(Long::longValue).toArray());
  }

  /** Copies a footer without what is not needed. The numbers of fields are Parquet's. */
  private static final class Cutter {
    private static final int SCHEMA = 2;
    private static final int ROW_GROUPS = 4;
    private static final int KEY_VALUES = 5;

    private static final int COLUMNS_OF_GROUP = 1;

    private static final int CHUNK_METADATA = 3;

    private static final int PATH = 3;
    private static final int COMPRESSED_BYTES = 7;

    private static final int NAME = 4;
    private static final int CHILDREN = 5;
    private static final int FIELD_ID = 9;

    private static final int SIZE_SHIFT = 4;
    private static final int SIZE_ELSEWHERE = 0xf0;
    private static final int SHORT_LIST_MAX = 14;

    final List<Long> groupBytes = new ArrayList<>();

    private final byte[] bytes;
    private final int length;
    private final ThriftBytes in;
    private final List<Scan> scans;

    /** Columns whose statistics or page indexes are looked at, in lower case. */
    private final Set<String> filtered = new TreeSet<>();

    /** Field IDs of the columns at the root. */
    private final Map<String, Integer> ids = new HashMap<>();

    /** Whether a column is wanted, by its path as it is encoded. */
    private final Map<String, Boolean> wanted = new HashMap<>();

    private final ByteArrayOutputStream out;

    /** Bytes before this are copied, or cut out. */
    private int done;

    /** Of the column that was read last. */
    private boolean isWanted;

    private long chunkBytes;

    Cutter(byte[] bytes, int length, List<Scan> scans) {
      this.bytes = bytes;
      this.length = length;
      this.scans = scans;
      in = new ThriftBytes(bytes, length);
      out = new ByteArrayOutputStream(length);
      for (Scan scan : scans) {
        scan.filters().forEach(filter -> filtered.addAll(RowGroups.columns(filter)));
      }
    }

    byte[] cut() throws IOException {
      int field = 0;
      while ((field = in.field(field)) != 0) {
        if (field == SCHEMA && in.type() == ThriftBytes.LIST) {
          schema();
        } else if (field == ROW_GROUPS && in.type() == ThriftBytes.LIST) {
          for (int left = in.list(ThriftBytes.STRUCT); left > 0; left--) {
            rowGroup();
          }
        } else if (field == KEY_VALUES && in.type() == ThriftBytes.LIST) {
          copy(in.at());
          in.skip();
          header(0);
          done = in.at();
        } else {
          in.skip();
        }
      }
      copy(length);
      return out.toByteArray();
    }

    /** Copies what is before {@code end} and not done. */
    private void copy(int end) {
      out.write(bytes, done, end - done);
      done = end;
    }

    /** The header of a list of so many structures. */
    private void header(int count) {
      if (count <= SHORT_LIST_MAX) {
        out.write(count << SIZE_SHIFT | ThriftBytes.STRUCT);
        return;
      }
      out.write(SIZE_ELSEWHERE | ThriftBytes.STRUCT);
      int left = count;
      for (; left > 0x7f; left >>>= 7) {
        out.write(left & 0x7f | 0x80);
      }
      out.write(left);
    }

    /** Takes the field IDs of the columns at the root: the tree of columns comes in order. */
    private void schema() throws IOException {
      // Elements that are still to come of the root's child that was read last, and below it.
      int below = 0;
      int elements = in.list(ThriftBytes.STRUCT);
      for (int element = 0; element < elements; element++) {
        String name = "";
        Integer id = null;
        int children = 0;
        int field = 0;
        while ((field = in.field(field)) != 0) {
          switch (field) {
            case NAME -> name = text();
            case CHILDREN -> children = (int) in.number();
            case FIELD_ID -> id = (int) in.number();
            default -> in.skip();
          }
        }
        if (element > 0) {
          if (below == 0 && id != null) {
            ids.put(name, id);
          }
          below = Math.max(0, below - 1) + children;
        }
      }
    }

    private String text() throws IOException {
      int size = in.binary();
      String text = new String(bytes, in.at(), size, StandardCharsets.UTF_8);
      in.pass(size);
      return text;
    }

    private void rowGroup() throws IOException {
      long total = 0;
      int field = 0;
      while ((field = in.field(field)) != 0) {
        if (field == COLUMNS_OF_GROUP && in.type() == ThriftBytes.LIST) {
          total = columns();
        } else {
          in.skip();
        }
      }
      groupBytes.add(total);
    }

    /** Copies the columns that are wanted; returns the bytes of all. */
    private long columns() throws IOException {
      copy(in.at());
      int count = in.list(ThriftBytes.STRUCT);
      long total = 0;
      // From and to, of each column that stays.
      int[] kept = new int[2 * count];
      int keeps = 0;
      for (int column = 0; column < count; column++) {
        int from = in.at();
        column();
        total += chunkBytes;
        if (isWanted || column == 0) {
          kept[keeps++] = from;
          kept[keeps++] = in.at();
        }
      }
      header(keeps / 2);
      for (int i = 0; i < keeps; i += 2) {
        out.write(bytes, kept[i], kept[i + 1] - kept[i]);
      }
      done = in.at();
      return total;
    }

    private void column() throws IOException {
      // One that does not say what it is stays: an encrypted one, of which the parser complains.
      isWanted = true;
      chunkBytes = 0;
      int field = 0;
      while ((field = in.field(field)) != 0) {
        if (field == CHUNK_METADATA && in.type() == ThriftBytes.STRUCT) {
          metadata();
        } else {
          in.skip();
        }
      }
    }

    private void metadata() throws IOException {
      int field = 0;
      while ((field = in.field(field)) != 0) {
        if (field == PATH && in.type() == ThriftBytes.LIST) {
          isWanted = path();
        } else if (field == COMPRESSED_BYTES) {
          chunkBytes = in.number();
        } else {
          in.skip();
        }
      }
    }

    private boolean path() throws IOException {
      int from = in.at();
      in.skip();
      String encoded = new String(bytes, from, in.at() - from, StandardCharsets.ISO_8859_1);
      Boolean known = wanted.get(encoded);
      if (known == null) {
        known = isWanted(names(from));
        wanted.put(encoded, known);
      }
      return known;
    }

    /** The names of a path that is encoded there. */
    private String[] names(int from) throws IOException {
      ThriftBytes path = new ThriftBytes(bytes, in.at());
      path.pass(from);
      String[] names = new String[path.list(ThriftBytes.BINARY)];
      for (int i = 0; i < names.length; i++) {
        int size = path.binary();
        names[i] = new String(bytes, path.at(), size, StandardCharsets.UTF_8);
        path.pass(size);
      }
      return names;
    }

    private boolean isWanted(String[] path) {
      if (path.length == 0 || filtered.contains(path[0].toLowerCase(Locale.ROOT))) {
        return true;
      }
      Integer id = ids.get(path[0]);
      return scans.stream().anyMatch(scan -> scan.reads(path, id));
    }
  }
}
