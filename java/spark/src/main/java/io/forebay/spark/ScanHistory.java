package io.forebay.spark;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * How much of what was reported of scans their tasks have read. No threads, no clock, no calls to
 * anybody.
 *
 * <p>A report that tasks mostly do not read (a query with a limit, a filter that is known only when
 * the task runs) costs bytes of the PFS and room in the tier. So a scan with such a report is left
 * out the next times it comes, and tried again now and then.
 */
final class ScanHistory {
  /** Less is not judged: a task or two may be unlike the rest. */
  static final long JUDGED_BYTES = 4 << 20;

  /** Scans that are remembered; those that were not met for longest are forgotten. */
  static final int SCANS_MAX = 1024;

  private static final float LOAD_FACTOR = 0.75f;

  private final Map<String, Counts> scans = new LinkedHashMap<>(16, LOAD_FACTOR, true) {
    private static final long serialVersionUID = 1;

    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Counts> eldest) {
      return size() > SCANS_MAX;
    }
  };

  /**
   * Bytes of tasks that have ended.
   *
   * <p>By task: one that has read as many bytes as were reported, but others, has read all of it
   * here.
   *
   * @param reported that the tasks would read
   * @param unread of these
   * @param beside bytes that were read and not reported
   */
  record Counts(long reported, long unread, long beside) {
    static final Counts NONE = new Counts(0, 0, 0);

    /** With a task more. */
    Counts with(long itsReported, long itsRead) {
      return plus(new Counts(itsReported, Math.max(0, itsReported - itsRead), Math.max(0, itsRead - itsReported)));
    }

    Counts plus(Counts other) {
      return new Counts(reported + other.reported, unread + other.unread, beside + other.beside);
    }

    /** Whether more than half of it was read by nobody. */
    boolean isMostlyUnread() {
      return reported >= JUDGED_BYTES && unread > reported / 2;
    }
  }

  /** Tasks of a scan have ended. */
  void add(String scan, Counts counts) {
    if (!scan.isEmpty() && counts.reported() > 0) {
      scans.merge(scan, counts, Counts::plus);
    }
  }

  /**
   * Whether the scan that comes now is to be left out. Each time counts less than the one before,
   * so that it is reported again at last.
   */
  boolean leavesOut(String scan) {
    Counts counts = scans.get(scan);
    if (counts == null || !counts.isMostlyUnread()) {
      return false;
    }
    scans.put(scan, new Counts(counts.reported() / 2, counts.unread() / 2, counts.beside() / 2));
    return true;
  }
}
