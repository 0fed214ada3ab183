package io.forebay.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The parts of Parquet and ORC files that tasks read: the footers, and the columns of their scan in
 * the row groups or stripes of their splits ({@link ParquetLayout}, {@link OrcLayout}).
 *
 * <p>The footers of a stage's files are read at once, in parallel and through the tier, where tasks
 * find them again. A file that several scans read, such as both sides of a union of a table with
 * itself, has its footer read once, and each task is reported what its own scan reads. Where the
 * ranges cannot be determined, nothing is reported: tasks then fetch what they read, and a whole
 * split would be many times as much. The log has each reason once, and at level {@code DEBUG} the
 * number of files of each stage.
 */
final class Footers {
  /** Files of one stage whose footers are read; the driver's memory is bounded by it. */
  static final int FILES_MAX = 20_000;

  /** Longer footers are left to the tasks; parsed they take many times as much memory. */
  static final int FOOTER_BYTES_MAX = 16 << 20;

  private static final int THREADS = 8;
  private static final long DEADLINE_S = 30;

  /** Limit on the parts of files in one stage, which bounds the driver's memory. */
  static final int RANGES_MAX = 1 << 20;

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");
  private static final Set<String> SAID = ConcurrentHashMap.newKeySet();

  /** Of a columnar file. */
  enum Format {
    PARQUET,
    ORC
  }

  /** A range of bytes. */
  record Range(long offset, long length) {
    long end() {
      return offset + length;
    }
  }

  /** One file, as far as its scan needs it: the footer, which every task reads, and the groups. */
  record Layout(Range own, List<Group> groups) {}

  /**
   * A row group of Parquet, or a stripe of ORC.
   *
   * @param at it belongs to the split that holds this byte
   * @param rows the number of rows that are read of it
   * @param read the ranges that a task reads
   */
  record Group(long at, long rows, List<Range> read) {}

  /** The ranges and rows that are read of a split. */
  record Read(List<Range> ranges, long rows) {}

  /** A file is read without a plan; the message says why, and is the same for all such files. */
  static final class Unplanned extends IOException {
    private static final long serialVersionUID = 1;

    Unplanned(String why) {
      super(why);
    }
  }

  private final Map<Path, Map<Scan, Layout>> layouts = new HashMap<>();

  /** Bytes of footers that may be parsed at the same time. */
  private final Semaphore parsing = new Semaphore(FOOTER_BYTES_MAX);

  /** Bytes at the end of the last file, by which the end of the next one is read. */
  private final AtomicInteger tails = new AtomicInteger();

  /** Parts of all files so far. */
  private final AtomicInteger ranges = new AtomicInteger();

  /** Files that are read without a plan, by the reason. The threads that read footers add to it. */
  private final Map<String, Integer> withoutPlan = new ConcurrentHashMap<>();

  private Footers() {}

  /**
   * The format by the suffix of a file; null if it is not columnar. Of columnar files programs read
   * parts: their splits are not what tasks read.
   */
  static Format format(Path path) {
    String name = path.getName().toLowerCase(Locale.ROOT);
    if (name.endsWith(".orc")) {
      return Format.ORC;
    }
    return name.endsWith(".parquet") || name.endsWith(".parq") ? Format.PARQUET : null;
  }

  /**
   * Reads the footers of these files, each once, for all scans that read the file. A scan that is
   * not known is null.
   */
  static Footers of(Map<Path, Set<Scan>> files, Configuration hadoop) {
    Footers footers = new Footers();
    if (files.isEmpty()) {
      return footers;
    }
    if (files.size() > FILES_MAX) {
      footers.leaveOut("a stage reads more columnar files than " + FILES_MAX, files.size(), null);
    } else {
      long beganNs = System.nanoTime();
      footers.read(files, hadoop);
      LOG.debug("Forebay: the footers of {} files of a stage took {} ms", files.size(), TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - beganNs));
    }
    footers.withoutPlan.forEach((why, count) -> LOG.debug("Forebay: {} files of a stage are read without a plan: {}", count, why));
    return footers;
  }

  AtomicInteger tails() {
    return tails;
  }

  /** How many files are read without a plan, by the reason. */
  Map<String, Integer> withoutPlan() {
    return withoutPlan;
  }

  private void read(Map<Path, Set<Scan>> files, Configuration hadoop) {
    ExecutorService pool = Executors.newFixedThreadPool(Math.min(THREADS, files.size()), task -> {
      Thread thread = new Thread(task, "forebay-footers");
      thread.setDaemon(true);
      return thread;
    });
    try {
      Map<Path, Future<Map<Scan, Layout>>> reading = new HashMap<>();
      files.forEach((path, scans) -> {
        List<Scan> known = scans.stream().filter(Objects::nonNull).toList();
        if (known.size() < scans.size()) {
          leaveOut("the columns of a scan are not known", 1, path);
        }
        if (!known.isEmpty()) {
          reading.put(path, pool.submit(() -> read(path, known, hadoop)));
        }
      });
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
      reading.forEach((path, future) -> layouts.put(path, await(path, future, deadline)));
    } finally {
      pool.shutdownNow();
    }
  }

  private Map<Scan, Layout> await(Path path, Future<Map<Scan, Layout>> reading, long deadline) {
    try {
      return reading.get(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    } catch (ExecutionException e) {
      // Whatever is wrong with the file, the task that reads it says so.
      Throwable why = e.getCause();
      leaveOut(why instanceof Unplanned ? why.getMessage() : "the footer of a file cannot be read, " + why.getClass().getSimpleName(), 1, path);
    } catch (java.util.concurrent.TimeoutException | CancellationException e) {
      leaveOut("footers are not read within " + DEADLINE_S + " s", 1, path);
    }
    return Map.of();
  }

  private Map<Scan, Layout> read(Path path, List<Scan> scans, Configuration hadoop) throws IOException {
    Format format = scans.stream().map(Scan::format).filter(Objects::nonNull).findFirst().orElseGet(() -> format(path));
    Map<Scan, Layout> read = format == Format.ORC ? OrcLayout.read(path, scans, hadoop, this) : ParquetLayout.read(path, scans, hadoop, this);
    int count = read.values().stream().flatMap(layout -> layout.groups().stream()).mapToInt(group -> group.read().size()).sum();
    if (ranges.addAndGet(count) > RANGES_MAX) {
      throw new Unplanned("a stage reads more parts of columnar files than " + RANGES_MAX);
    }
    return read;
  }

  /** The layouts of one file for its scans. */
  static Map<Scan, Layout> forEach(List<Scan> scans, Range own, GroupsOf of) throws IOException {
    Map<Scan, Layout> layouts = new HashMap<>();
    for (Scan scan : scans) {
      layouts.put(scan, scan.footersAlone() ? new Layout(own, List.of()) : new Layout(own, of.groups(scan)));
    }
    return layouts;
  }

  /** Finds what a scan reads of a file whose footer is parsed. */
  interface GroupsOf {
    List<Group> groups(Scan scan) throws IOException;
  }

  /** Waits until the footers that are being parsed leave room for these bytes, then parses. */
  <T> T parsed(long bytes, Parser<T> parser) throws IOException {
    int permits = (int) Math.min(bytes, FOOTER_BYTES_MAX);
    try {
      parsing.acquire(permits);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("the time for footers is over");
    }
    try {
      return parser.parse();
    } finally {
      parsing.release(permits);
    }
  }

  /** Parses a footer. */
  interface Parser<T> {
    T parse() throws IOException;
  }

  /** Checks a length that a file states for one of its parts, if this part is to be read here. */
  static int bounded(long bytes, long most) throws Unplanned {
    if (bytes < 0 || bytes > FOOTER_BYTES_MAX || bytes > most) {
      throw new Unplanned("a footer has more than " + FOOTER_BYTES_MAX + " bytes, or more than its file");
    }
    return (int) bytes;
  }

  /** A range that a footer states, if it lies before {@code end}. */
  static Range before(long end, long offset, long length) throws IOException {
    if (offset < 0 || length < 0 || offset > end || length > end - offset) {
      throw new IOException("a footer names " + length + " bytes at " + offset + ", and " + end + " are the end of its data");
    }
    return new Range(offset, length);
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

  /** The ranges that the task of {@code split} reads for a scan; empty if they are not known. */
  List<Range> of(Path path, Scan scan, Range split) {
    return of(path, scan, split, Long.MAX_VALUE).ranges();
  }

  /** The same, for a task that takes at most this many rows. */
  Read of(Path path, Scan scan, Range split, long rowsMax) {
    Layout layout = layouts.getOrDefault(path, Map.of()).get(scan);
    if (layout == null) {
      return new Read(List.of(), 0);
    }
    List<Range> read = new ArrayList<>();
    long rows = 0;
    for (Group group : layout.groups()) {
      if (group.at() >= split.offset() && group.at() < split.end() && rows < rowsMax) {
        read.addAll(group.read());
        rows += group.rows();
      }
    }
    if (layout.own().length() > 0) {
      read.add(layout.own());
    }
    return new Read(merged(read), rows);
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
