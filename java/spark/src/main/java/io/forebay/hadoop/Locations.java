package io.forebay.hadoop;

import io.forebay.core.ForebayClient;
import io.forebay.core.Preferred;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;

/**
 * Where the extents of files are, for schedulers.
 *
 * <p>One location for each extent, with the name of one node: its owner, which has the bytes or
 * will be the one to fetch them. To name more would spread the tasks over nodes that have to ask
 * it. Owners are drawn by lot, so one node may have a good deal more than its share of a job. Where
 * the input is prefetched before the tasks run, it is better that tasks are
 * <em>balanced</em>: then the second in the ranking of the extent is named where the owner has been
 * named more often. Where executors run on the storage servers of the PFS, it is better that tasks
 * read from their own host: then the server that holds most of a block is named, and the blocks are
 * the stripes of the file if these are long enough. Without a coordinator nothing is named, and
 * tasks go anywhere, as on any shared file system.
 */
final class Locations {
  /** Unit of placement where no agent says otherwise: 128 MiB. */
  private static final long EXTENT_BYTES = 128L << 20;

  /** An agent that was not there is asked again after this long. */
  private static final long ASK_AGAIN_NS = TimeUnit.SECONDS.toNanos(10);

  private final Contents contents;
  private final Preferred preferred;
  private List<ForebayClient.Mount> mounts = List.of();
  private boolean asked;
  private long askedAt;

  Locations(Contents contents, Preferred preferred) {
    this.contents = contents;
    this.preferred = preferred;
  }

  /** What the agent serves; asked for once, and again from time to time while there is no agent. */
  synchronized List<ForebayClient.Mount> mounts() throws IOException {
    if (mounts.isEmpty() && (!asked || System.nanoTime() - askedAt > ASK_AGAIN_NS)) {
      asked = true;
      askedAt = System.nanoTime();
      mounts = contents.mounts();
    }
    return mounts;
  }

  /** Whether {@code path} is {@code root} or below it. */
  static boolean isBelow(String path, String root) {
    return path.startsWith(root) && (path.length() == root.length() || root.endsWith("/") || path.charAt(root.length()) == '/');
  }

  /**
   * The mount that {@code path} is on; null if the agent serves none there, or there is no agent.
   */
  ForebayClient.Mount mountOf(String path) {
    ForebayClient.Mount found = null;
    try {
      for (ForebayClient.Mount mount : mounts()) {
        if (isBelow(path, mount.root()) && (found == null || mount.root().length() > found.root().length())) {
          found = mount;
        }
      }
    } catch (IOException e) {
      // As without an agent.
    }
    return found;
  }

  /** Bytes of an extent of files at {@code path}. */
  long extentBytes(String path) {
    ForebayClient.Mount mount = mountOf(path);
    return mount == null ? EXTENT_BYTES : mount.extentBytes();
  }

  private List<ForebayClient.Location> parts(ForebayClient.Mount mount, String path, FileStatus file, long offset, long length) {
    return file instanceof ListedStatus listed && listed.inode() != 0
        ? contents.locateListed(mount, path, listed.inode(), listed.getLen(), offset, length, preferred)
        : contents.locate(path, offset, length, preferred);
  }

  /** Whether files of one mount may have blocks of different sizes. */
  boolean blocksDiffer() {
    return preferred == Preferred.STORAGE;
  }

  /** Bytes of a block of the file at {@code path}: a split of this size is on one node. */
  long blockBytes(String path, FileStatus file) {
    ForebayClient.Mount mount = mountOf(path);
    // A shorter file is one block, however long that might be.
    if (mount == null || file.getLen() == 0) {
      return extentBytes(path);
    }
    List<ForebayClient.Location> parts = parts(mount, path, file, 0, mount.extentBytes());
    return parts == null || parts.size() < 2 ? mount.extentBytes() : parts.get(0).length();
  }

  /** The locations of a range of the file at {@code path}; null if nobody knows. */
  BlockLocation[] of(String path, FileStatus file, long offset, long length) {
    ForebayClient.Mount mount = mountOf(path);
    if (mount == null) {
      return null;
    }
    List<ForebayClient.Location> parts = parts(mount, path, file, offset, length);
    if (parts == null || parts.stream().allMatch(part -> part.hosts().isEmpty())) {
      return null;
    }
    List<BlockLocation> locations = new ArrayList<>(parts.size());
    for (ForebayClient.Location part : parts) {
      String[] hosts = part.hosts().toArray(String[]::new);
      locations.add(new BlockLocation(hosts, hosts, part.offset(), part.length()));
    }
    return locations.toArray(BlockLocation[]::new);
  }
}
