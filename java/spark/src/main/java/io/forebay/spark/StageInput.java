package io.forebay.spark;

import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;

import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkEnv;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.ResultStage;
import org.apache.spark.scheduler.ShuffleMapStage;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.storage.RDDBlockId;

import io.forebay.core.JobUpdate.Part;

/**
 * What the tasks of a stage read: ranges of files by task, in the order of the tasks.
 *
 * <p>Spark's events do not say it, but the driver knows: a stage has an RDD, a task computes one
 * partition of it, and narrow dependencies lead from there to the partitions that stand for a range
 * of a file ({@link Leaf}). The walk stops at shuffles, which end a stage, and at partitions that
 * are cached: those are not read again. On its way it meets the locations by which the scheduler
 * will choose a host: those of the first partition that has any, as in {@code
 * DAGScheduler.getPreferredLocs}. It asks nothing of the file system, and computes no partition
 * that the scheduler has not computed.
 */
final class StageInput {
  /**
   * Steps of one walk. A lineage of a thousand RDDs with a thousand tasks is a million; what is
   * longer is not worth the driver's time.
   */
  static final int STEPS_MAX = 4_000_000;

  /** Paths, by their numbers. */
  final List<String> files;

  /** The partitions that tasks will compute, in the order of the tasks. */
  final int[] partitions;

  /** What each of those tasks reads; the numbers of files are those of {@link #files}. */
  final List<List<Part>> splits;

  /** The host that the scheduler prefers for each of them; empty if none. */
  final List<String> homes;

  private StageInput(List<String> files, int[] partitions, List<List<Part>> splits, List<String> homes) {
    this.files = files;
    this.partitions = partitions;
    this.splits = splits;
    this.homes = homes;
  }

  /** For tests of what is told. */
  static StageInput of(List<String> files, List<List<Part>> splits, List<String> homes) {
    int[] partitions = new int[splits.size()];
    for (int i = 0; i < partitions.length; i++) {
      partitions[i] = i;
    }
    return new StageInput(files, partitions, splits, homes);
  }

  /**
   * Null if the stage has nothing to do, or none of its tasks reads files whose paths are {@code
   * ours}.
   */
  static StageInput of(Stage stage, Predicate<URI> ours) throws ReflectiveOperationException {
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
    return of(stage.rdd(), partitions, ours);
  }

  /** Null if none of these partitions reads files whose paths are {@code ours}. */
  static StageInput of(RDD<?> rdd, int[] partitions, Predicate<URI> ours) throws ReflectiveOperationException {
    Walk walk = new Walk(ours);
    List<List<Part>> splits = new ArrayList<>(partitions.length);
    List<String> homes = new ArrayList<>(partitions.length);
    boolean some = false;
    for (int partition : partitions) {
      List<Part> split = walk.parts(rdd, partition);
      some |= !split.isEmpty();
      splits.add(split);
      homes.add(walk.home);
    }
    return some ? new StageInput(new ArrayList<>(walk.files.keySet()), partitions, splits, homes) : null;
  }

  /** An RDD, as far as the walk needs it. */
  private record Node(RDD<?> rdd, Partition[] partitions, List<NarrowDependency<?>> parents, boolean cached) {
    static Node of(RDD<?> rdd) throws ReflectiveOperationException {
      List<NarrowDependency<?>> parents = new ArrayList<>();
      for (Object dependency : Scala.list(Scala.call(rdd, "dependencies"))) {
        if (dependency instanceof NarrowDependency<?> narrow) {
          parents.add(narrow);
        }
      }
      return new Node(rdd, rdd.partitions(), parents, rdd.getStorageLevel().isValid());
    }

    boolean isCached(int partition) {
      return cached && SparkEnv.get().blockManager().master().contains(new RDDBlockId(rdd.id(), partition));
    }
  }

  private record Place(Node node, int partition) {}

  private static final class Walk {
    final Map<String, Integer> files = new LinkedHashMap<>();
    /** The host that is preferred for the last partition that was followed; empty if none. */
    String home;
    private final Predicate<URI> ours;
    private final Map<Integer, Node> nodes = new HashMap<>();
    private int steps;

    Walk(Predicate<URI> ours) {
      this.ours = ours;
    }

    /** What the task that computes this partition reads, in order. */
    List<Part> parts(RDD<?> rdd, int partition) throws ReflectiveOperationException {
      List<Part> parts = new ArrayList<>();
      home = "";
      Deque<Place> open = new ArrayDeque<>();
      // A partition that is reached in two ways is read once here: the second reading finds it in
      // the tier.
      Set<Long> seen = new HashSet<>();
      open.push(new Place(node(rdd), partition));
      while (!open.isEmpty()) {
        if (++steps > STEPS_MAX) {
          throw new IllegalStateException("the lineage of the stage is too long to follow");
        }
        Place place = open.pop();
        Node node = place.node();
        if (!seen.add((long) node.rdd().id() << 32 | place.partition()) || node.isCached(place.partition())) {
          continue;
        }
        if (home.isEmpty()) {
          home = preferred(node, place.partition());
        }
        if (node.parents().isEmpty()) {
          Leaf.of(node.partitions()[place.partition()], ours, (path, offset, length) -> parts.add(part(path, offset, length)));
        } else {
          List<Place> above = above(place);
          Collections.reverse(above);
          above.forEach(open::push);
        }
      }
      return parts;
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

    private Part part(String path, long offset, long length) {
      Integer file = files.computeIfAbsent(path, p -> files.size());
      return new Part(file, offset, length);
    }
  }
}
