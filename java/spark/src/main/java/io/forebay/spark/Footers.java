package io.forebay.spark;

import java.io.EOFException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What tasks read of Parquet files: the chunks of their columns in the row groups of their splits,
 * and the footers.
 *
 * <p>The footers of a stage's files are read at once, in parallel and through the tier, where tasks
 * find them again. Where the ranges cannot be told nothing is: tasks then fetch what they read, and
 * a whole split would be many times as much. The log has each reason once, and at level {@code
 * DEBUG} the number of files of each stage.
 */
final class Footers {
  /** Files of one stage whose footers are read; the driver's memory is bounded by it. */
  static final int FILES_MAX = 20_000;

  /** Longer footers are left to the tasks; parsed they take many times as much memory. */
  static final int FOOTER_BYTES_MAX = 16 << 20;

  private static final int THREADS = 8;
  private static final long DEADLINE_S = 30;

  /** Length and magic number at the end of a file. */
  private static final int TAIL_BYTES = 8;

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");
  private static final Set<String> SAID = ConcurrentHashMap.newKeySet();

  /** A range of bytes. */
  record Range(long offset, long length) {
    long end() {
      return offset + length;
    }
  }

  /** One file, as far as its scan needs it. */
  private record Footer(Range own, List<Group> groups) {}

  /** A row group: its middle, by which it belongs to a split, and what is read of it. */
  private record Group(long middle, List<Range> chunks) {}

  private final Map<Path, Footer> footers = new HashMap<>();

  /** Files that are read without a plan, by the reason. The threads that read footers add to it. */
  private final Map<String, Integer> withoutPlan = new ConcurrentHashMap<>();

  private Footers() {}

  /** Whether programs read parts of such a file: its splits are not what tasks read then. */
  static boolean isColumnar(Path path) {
    String name = path.getName().toLowerCase(Locale.ROOT);
    return name.endsWith(".parquet") || name.endsWith(".parq") || name.endsWith(".orc");
  }

  /** Reads the footers of these files, each for its scan; null for a scan that is not known. */
  static Footers of(Map<Path, Scan> files, Configuration hadoop) {
    Footers footers = new Footers();
    if (files.isEmpty()) {
      return footers;
    }
    if (files.size() > FILES_MAX) {
      footers.leaveOut("a stage reads more columnar files than " + FILES_MAX, files.size(), null);
    } else {
      footers.read(files, hadoop);
    }
    footers.withoutPlan.forEach((why, count) -> LOG.debug("Forebay: {} files of a stage are read without a plan: {}", count, why));
    return footers;
  }

  /** How many files are read without a plan, by the reason. */
  Map<String, Integer> withoutPlan() {
    return withoutPlan;
  }

  private void read(Map<Path, Scan> files, Configuration hadoop) {
    ExecutorService pool = Executors.newFixedThreadPool(Math.min(THREADS, files.size()), task -> {
      Thread thread = new Thread(task, "forebay-footers");
      thread.setDaemon(true);
      return thread;
    });
    try {
      Map<Path, Future<Footer>> reading = new HashMap<>();
      files.forEach((path, scan) -> {
        String why = scan == null ? "the columns of a scan are not known" : path.getName().toLowerCase(Locale.ROOT).endsWith(".orc") ? "ORC's stripes are not looked at" : null;
        if (why == null) {
          reading.put(path, pool.submit(() -> read(path, scan, hadoop)));
        } else {
          leaveOut(why, 1, path);
        }
      });
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
      for (Map.Entry<Path, Future<Footer>> entry : reading.entrySet()) {
        Footer footer = await(entry.getKey(), entry.getValue(), deadline);
        if (footer != null) {
          footers.put(entry.getKey(), footer);
        }
      }
    } finally {
      pool.shutdownNow();
    }
  }

  private Footer await(Path path, Future<Footer> reading, long deadline) {
    try {
      return reading.get(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    } catch (ExecutionException e) {
      // Whatever is wrong with the file, the task that reads it says so.
      leaveOut("the footer of a file cannot be read, " + e.getCause().getClass().getSimpleName(), 1, path);
    } catch (java.util.concurrent.TimeoutException | CancellationException e) {
      leaveOut("footers are not read within " + DEADLINE_S + " s", 1, path);
    }
    return null;
  }

  private Footer read(Path path, Scan scan, Configuration hadoop) throws IOException {
    Range own = footer(path, hadoop);
    if (own == null) {
      return null;
    }
    try (ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(path, hadoop))) {
      List<Group> groups = new ArrayList<>();
      for (BlockMetaData block : reader.getFooter().getBlocks()) {
        boolean read = RowGroups.mayMatch(block, scan.filters());
        List<Range> chunks = new ArrayList<>();
        if (read) {
          for (ColumnChunkMetaData chunk : block.getColumns()) {
            if (scan.columns().contains(chunk.getPath().toArray()[0].toLowerCase(Locale.ROOT))) {
              chunks.add(before(own.offset(), chunk.getStartingPos(), chunk.getTotalSize()));
            }
          }
        }
        groups.add(new Group(block.getStartingPos() + block.getCompressedSize() / 2, merged(chunks)));
      }
      return new Footer(own, groups);
    }
  }

  /** A chunk, which lies before the footer, whatever the footer says. */
  private static Range before(long footer, long offset, long length) throws IOException {
    if (offset < 0 || length < 0 || length > footer - offset) {
      throw new IOException("a footer names " + length + " bytes at " + offset + ", and begins at " + footer);
    }
    return new Range(offset, length);
  }

  /** Where the footer of a file is; null if it is not to be parsed here. */
  private Range footer(Path path, Configuration hadoop) throws IOException {
    FileSystem fs = path.getFileSystem(hadoop);
    FileStatus status = fs.getFileStatus(path);
    if (status.getLen() < TAIL_BYTES) {
      throw new EOFException(path + " has " + status.getLen() + " bytes");
    }
    byte[] tail = new byte[TAIL_BYTES];
    try (FSDataInputStream in = fs.open(path)) {
      in.readFully(status.getLen() - TAIL_BYTES, tail);
    }
    if (tail[4] != 'P' || tail[5] != 'A' || tail[6] != 'R' || tail[7] != '1') {
      leaveOut("a file is encrypted, or not of Parquet", 1, path);
      return null;
    }
    long bytes = 0;
    for (int i = 3; i >= 0; i--) {
      bytes = bytes << 8 | tail[i] & 0xff;
    }
    if (bytes > FOOTER_BYTES_MAX || bytes > status.getLen() - TAIL_BYTES) {
      leaveOut("a footer has more than " + FOOTER_BYTES_MAX + " bytes, or more than its file", 1, path);
      return null;
    }
    return new Range(status.getLen() - TAIL_BYTES - bytes, bytes + TAIL_BYTES);
  }

  /** In the order of the file, those that touch as one. */
  static List<Range> merged(List<Range> ranges) {
    List<Range> merged = new ArrayList<>();
    for (Range range : ranges.stream().sorted(Comparator.comparingLong(Range::offset)).toList()) {
      Range last = merged.isEmpty() ? null : merged.get(merged.size() - 1);
      if (last != null && range.offset() <= last.end()) {
        merged.set(merged.size() - 1, new Range(last.offset(), Math.max(last.end(), range.end()) - last.offset()));
      } else {
        merged.add(range);
      }
    }
    return merged;
  }

  /**
   * What a task reads whose split of the file is {@code split}: nothing if that is not known. A row
   * group belongs to the split that holds its middle, as Spark has it.
   */
  List<Range> of(Path path, Range split) {
    Footer footer = footers.get(path);
    if (footer == null) {
      return List.of();
    }
    List<Range> read = new ArrayList<>();
    for (Group group : footer.groups()) {
      if (group.middle() >= split.offset() && group.middle() < split.end()) {
        read.addAll(group.chunks());
      }
    }
    read.add(footer.own());
    return merged(read);
  }

  /** These files, {@code path} among them if it is not null, are read without a plan. */
  private void leaveOut(String why, int files, Path path) {
    withoutPlan.merge(why, files, Integer::sum);
    if (SAID.add(why)) {
      String which = path == null ? "" : " (" + path + ")";
      LOG.info("Forebay: {}{}; such files are read without a plan, and only what is read is fetched", why, which);
    }
  }
}
