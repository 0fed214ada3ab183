package io.forebay.spark;

import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.function.Predicate;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkEnv;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.ResultStage;
import org.apache.spark.scheduler.ShuffleMapStage;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;

import io.forebay.core.JobUpdate.Part;

/**
 * What the tasks of a stage read: ranges of files by task, in the order of the tasks.
 *
 * <p>Spark's events do not say it, but the driver knows: a stage has an RDD, a task computes one
 * partition of it, and narrow dependencies lead from there to the partitions that stand for a range
 * of a file ({@link InputRanges}). The walk stops at shuffles, which end a stage, and at partitions
 * that are cached: those are not read again. On its way it meets the locations by which the
 * scheduler will choose a host: those of the first partition that has any, as in {@code
 * DAGScheduler.getPreferredLocs}. It asks nothing of the file system, and computes no partition
 * that the scheduler has not computed.
 *
 * <p>Of columnar files a task reads parts of its range. Which, their footers say, together with
 * what the scan wants ({@link Scan}, {@link Footers}).
 */
final class StageInput {
  /**
   * Steps of one walk. A lineage of a thousand RDDs with a thousand tasks is a million; what is
   * longer is not worth the driver's time.
   */
  static final int STEPS_MAX = 4_000_000;

  /**
   * Ranges of files in one stage, which bounds the driver's memory while they are collected: some
   * 400 bytes each.
   */
  static final int PIECES_MAX = 1 << 18;

  /** What the driver keeps of a file beside the letters of its path. */
  private static final int FILE_BYTES = 64;

  private static final int PART_BYTES = 20;

  /** What the driver keeps of a task: its number, its node, and its state when it has started. */
  private static final int TASK_BYTES = 144;

  /** A stage is too large to be reported; the message says why. */
  static final class TooLarge extends RuntimeException {
    private static final long serialVersionUID = 1;

    TooLarge(String why) {
      super(why);
    }
  }

  /** Tables of one stage by which it is known again. */
  private static final int SCANS_MAX = 16;

  /** Paths, by their numbers. */
  final List<String> files;

  /** The partitions that tasks will compute, in the order of the tasks. */
  final int[] partitions;

  /** What each of those tasks reads; the numbers of files are those of {@link #files}. */
  final PackedSplits splits;

  /** The host that the scheduler prefers for each of them; empty if none. */
  final List<String> preferredNodes;

  /**
   * Names the scans of the stage: the tables and the columns, not the files or values. Empty if it
   * has none that may come again.
   */
  final String scan;

  /** Partition and number of each task, by the partition: 32 bits each. */
  private final long[] numbers;

  private StageInput(String scan, List<String> files, int[] partitions, PackedSplits splits, List<String> preferredNodes) {
    this.scan = scan;
    this.files = files;
    this.partitions = partitions;
    this.splits = splits;
    // There are few nodes, and each task has named its own in a string of its own.
    Map<String, String> nodes = new HashMap<>();
    this.preferredNodes = preferredNodes.stream().map(node -> nodes.computeIfAbsent(node, n -> n)).toList();
    numbers = new long[partitions.length];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = (long) partitions[i] << Integer.SIZE | i;
    }
    Arrays.sort(numbers);
  }

  /** The number of the task that computes a partition; negative if none does. */
  int task(int partition) {
    int at = Arrays.binarySearch(numbers, (long) partition << Integer.SIZE);
    at = at < 0 ? -at - 1 : at;
    return at < numbers.length && numbers[at] >> Integer.SIZE == partition ? (int) numbers[at] : -1;
  }

  /** About how many bytes of the driver's memory this takes, with the state of its tasks. */
  long keptBytes() {
    long names = files.stream().mapToLong(String::length).sum();
    return names + (long) files.size() * FILE_BYTES + (long) splits.parts() * PART_BYTES + (long) partitions.length * TASK_BYTES;
  }

  /** For tests of what is reported. */
  static StageInput of(List<String> files, List<List<Part>> splits, List<String> preferredNodes) {
    return of("", files, splits, preferredNodes);
  }

  /** The same, with a name of its scans. */
  static StageInput of(String scan, List<String> files, List<List<Part>> splits, List<String> preferredNodes) {
    int[] partitions = new int[splits.size()];
    for (int i = 0; i < partitions.length; i++) {
      partitions[i] = i;
    }
    return new StageInput(scan, files, partitions, PackedSplits.of(splits), preferredNodes);
  }

  /** The same, of these partitions. */
  static StageInput of(List<String> files, int[] partitions, List<List<Part>> splits, List<String> preferredNodes) {
    return new StageInput("", files, partitions, PackedSplits.of(splits), preferredNodes);
  }

  /**
   * Null if the stage has nothing to do, or none of its tasks reads files whose paths are {@code
   * ours}.
   */
  static StageInput of(Stage stage, Source source) throws ReflectiveOperationException {
    int[] partitions;
    if (stage instanceof ResultStage result) {
      partitions = result.partitions();
    } else if (stage instanceof ShuffleMapStage map) {
      if (map.isAvailable()) {
        return null;
      }
      partitions = Scala.list(Scala.call(stage, "findMissingPartitions")).stream().mapToInt(p -> (Integer) p).toArray();
    } else {
      return null;
    }
    return of(stage.rdd(), partitions, source);
  }

  /** Null if nothing is known that these partitions read of files whose paths are ours. */
  static StageInput of(RDD<?> rdd, int[] partitions, Source source) throws ReflectiveOperationException {
    Walk walk = new Walk(source);
    List<List<Piece>> pieces = new ArrayList<>(partitions.length);
    List<String> preferredNodes = new ArrayList<>(partitions.length);
    for (int partition : partitions) {
      pieces.add(walk.pieces(rdd, partition));
      preferredNodes.add(walk.preferredNode);
    }
    Map<String, Integer> files = new LinkedHashMap<>();
    PackedSplits.Builder splits = new PackedSplits.Builder(partitions.length);
    Columnar columnar = Columnar.of(pieces, source.hadoop());
    for (List<Piece> task : pieces) {
      long rows = 0;
      for (Piece piece : task) {
        if (rows >= piece.rowsMax()) {
          continue;
        }
        rows += columnar.read(piece, piece.rowsMax() - rows, range -> {
          String name = piece.path().toUri().getPath();
          splits.add(files.computeIfAbsent(name, p -> files.size()), range.offset(), range.length());
        });
      }
      splits.endTask();
    }
    boolean some = splits.parts() > 0;
    return some ? new StageInput(scan(pieces), List.copyOf(files.keySet()), partitions, splits.build(), preferredNodes) : null;
  }

  private static String scan(List<List<Piece>> tasks) {
    Set<String> scans = new TreeSet<>();
    for (List<Piece> task : tasks) {
      for (Piece piece : task) {
        Path table = piece.path().getParent();
        // Partitions of one table.
        while (table != null && table.getParent() != null && table.getName().indexOf('=') > 0) {
          table = table.getParent();
        }
        scans.add(table + " " + (piece.scan() == null ? "" : piece.scan().columns()));
        if (scans.size() > SCANS_MAX) {
          return "";
        }
      }
    }
    return String.join("\n", scans);
  }

  /**
   * By what input is found.
   *
   * @param ours which paths go through Forebay
   * @param planned scans of the running SQL execution, as of {@link Scan#planned}
   * @param hadoop by which footers are read
   */
  record Source(Predicate<URI> ours, Map<Integer, Scan.Planned> planned, Configuration hadoop) {}

  /**
   * A range of a file that a partition represents; {@code scan} is null if it belongs to no scan,
   * {@code format} if the file is not columnar. A task reads no row group beyond {@code rowsMax}
   * rows.
   */
  private record Piece(Path path, long offset, long length, Scan scan, long rowsMax, Footers.Format format) {}

  /** What tasks read of the pieces of columnar files. */
  private record Columnar(Footers footers) {
    static Columnar of(List<List<Piece>> tasks, Configuration hadoop) {
      Map<Path, Set<Scan>> files = new LinkedHashMap<>();
      for (List<Piece> task : tasks) {
        for (Piece piece : task) {
          if (piece.format() != null) {
            files.computeIfAbsent(piece.path(), path -> new HashSet<>()).add(piece.scan());
          }
        }
      }
      try {
        return new Columnar(files.isEmpty() ? null : Footers.of(files, hadoop));
      } catch (LinkageError e) {
        // A program without Parquet, or with one that differs.
        return new Columnar(null);
      }
    }

    /** Hands over what is read of a piece for so many rows; returns the rows, if it knows them. */
    long read(Piece piece, long rowsMax, Consumer<Footers.Range> sink) {
      Footers.Range all = new Footers.Range(piece.offset(), piece.length());
      if (piece.format() == null) {
        sink.accept(all);
        return 0;
      }
      if (footers == null) {
        return 0;
      }
      Footers.Read read = footers.of(piece.path(), piece.scan(), all, rowsMax);
      read.ranges().forEach(sink);
      return read.rows();
    }
  }

  /** An RDD, as far as the walk needs it. */
  private record Node(RDD<?> rdd, Partition[] partitions, List<NarrowDependency<?>> parents, BitSet cached, Footers.Format ofInput) {
    static Node of(RDD<?> rdd) throws ReflectiveOperationException {
      List<NarrowDependency<?>> parents = new ArrayList<>();
      for (Object dependency : Scala.list(Scala.call(rdd, "dependencies"))) {
        if (dependency instanceof NarrowDependency<?> narrow) {
          parents.add(narrow);
        }
      }
      Partition[] partitions = rdd.partitions();
      BitSet cached = rdd.getStorageLevel().isValid() ? cached(rdd.id(), partitions.length) : new BitSet();
      return new Node(rdd, partitions, parents, cached, Scan.ofInputFormat(rdd));
    }

    /** The partitions of an RDD that are cached somewhere, by one request for all of them. */
    private static BitSet cached(int rdd, int partitions) throws ReflectiveOperationException {
      BlockId[] blocks = new BlockId[partitions];
      for (int i = 0; i < partitions; i++) {
        blocks[i] = new RDDBlockId(rdd, i);
      }
      BitSet cached = new BitSet(partitions);
      int partition = 0;
      for (Object places : Scala.list(Scala.call(SparkEnv.get().blockManager().master(), "getLocations", BlockId[].class, blocks))) {
        cached.set(partition++, !Scala.list(places).isEmpty());
      }
      return cached;
    }

    boolean isCached(int partition) {
      return cached.get(partition);
    }
  }

  private record Place(Node node, int partition) {}

  private static final class Walk {
    /** The host that is preferred for the last partition that was followed; empty if none. */
    String preferredNode;
    private final Source source;
    private final Map<Integer, Node> nodes = new HashMap<>();
    private final Map<Integer, Scan> scans = new HashMap<>();
    private final InputRanges ranges;
    private int steps;
    private int found;

    Walk(Source source) {
      this.source = source;
      ranges = new InputRanges(source.ours());
    }

    /** What the task that computes this partition reads, in order. */
    List<Piece> pieces(RDD<?> rdd, int partition) throws ReflectiveOperationException {
      List<Piece> pieces = new ArrayList<>();
      preferredNode = "";
      Deque<Place> open = new ArrayDeque<>();
      // A partition that is reached in two ways is read once here: the second reading finds it in
      // the tier.
      Set<Long> seen = new HashSet<>();
      open.push(new Place(node(rdd), partition));
      while (!open.isEmpty()) {
        if (++steps > STEPS_MAX) {
          throw new TooLarge("its lineage is too long to follow");
        }
        Place place = open.pop();
        Node node = place.node();
        if (!seen.add((long) node.rdd().id() << 32 | place.partition()) || node.isCached(place.partition())) {
          continue;
        }
        if (preferredNode.isEmpty()) {
          preferredNode = preferred(node, place.partition());
        }
        if (node.parents().isEmpty()) {
          Scan scan = scan(node.rdd());
          Partition of = node.partitions()[place.partition()];
          Scan.Planned plan = source.planned().get(node.rdd().id());
          long rowsMax = plan == null ? Long.MAX_VALUE : plan.rowsMax();
          ranges.of(of, (path, offset, length, own) -> {
            if (++found > PIECES_MAX) {
              throw new TooLarge("it reads more than " + PIECES_MAX + " ranges of files");
            }
            Scan reads = own == null ? scan : own;
            Footers.Format format = reads == null ? node.ofInput() : reads.format();
            pieces.add(new Piece(path, offset, length, reads, rowsMax, format == null ? Footers.format(path) : format));
          });
        } else {
          List<Place> above = above(place);
          Collections.reverse(above);
          above.forEach(open::push);
        }
      }
      return pieces;
    }

    private Scan scan(RDD<?> rdd) {
      if (!scans.containsKey(rdd.id())) {
        scans.put(rdd.id(), Scan.of(rdd, source.planned()));
      }
      return scans.get(rdd.id());
    }

    private static String preferred(Node node, int partition) throws ReflectiveOperationException {
      List<Object> hosts = Scala.list(Scala.call(node.rdd(), "preferredLocations", Partition.class, node.partitions()[partition]));
      return hosts.isEmpty() ? "" : (String) hosts.get(0);
    }

    private List<Place> above(Place place) throws ReflectiveOperationException {
      List<Place> above = new ArrayList<>();
      for (NarrowDependency<?> dependency : place.node().parents()) {
        Node node = node(dependency.rdd());
        for (Object parent : Scala.list(Scala.call(dependency, "getParents", place.partition()))) {
          above.add(new Place(node, (Integer) parent));
        }
      }
      return above;
    }

    private Node node(RDD<?> rdd) throws ReflectiveOperationException {
      Node node = nodes.get(rdd.id());
      if (node == null) {
        node = Node.of(rdd);
        nodes.put(rdd.id(), node);
      }
      return node;
    }
  }
}
