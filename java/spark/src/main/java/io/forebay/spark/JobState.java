package io.forebay.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

import io.forebay.core.JobUpdate;
import io.forebay.core.JobUpdate.Part;

/**
 * The state of the application, and what the coordinator has to learn of it. No threads, no
 * clock, no calls to anybody: {@link Reporter} feeds it and carries away its {@link #take updates}.
 *
 * <p>It remembers all of the stages that have not ended, so that an agent that was restarted can be
 * reported to again ({@link #again}). A stage that has ended is forgotten; if Spark runs some of
 * its tasks again because their output was lost, those read their input without a plan.
 */
final class JobState {
  /** What is so of no stage: the slots. Spark counts its stages from 0. */
  static final int NO_STAGE = -1;

  /** Notes that are kept until somebody takes them. */
  private static final int NOTES_MAX = 256;

  /**
   * What is kept of the stages that have not ended: some 200,000 small files. An agent takes about
   * as much.
   */
  static final long KEPT_BYTES_MAX = 64 << 20;

  /** Splits in one update: the first are reported while the others are still being written down. */
  private static final int SPLITS_PER_UPDATE = 1024;

  private final int coresPerTask;
  private final boolean tasksAsk;
  private final Map<String, Executor> executors = new HashMap<>();
  private final Map<Integer, StageEntry> stages = new LinkedHashMap<>();
  private final Map<Integer, List<Integer>> jobs = new HashMap<>();
  /** Those of {@link #jobs} that were there at the last look at what runs. */
  private Set<Integer> jobsLookedAt = Set.of();
  private final ScanHistory history = new ScanHistory();
  private ScanHistory.Counts all = ScanHistory.Counts.NONE;
  private List<JobUpdate> updates = new ArrayList<>();
  private List<Note> notes = new ArrayList<>();
  private int filesReported;

  private record Executor(String host, int slots) {}

  /** Something of a stage for the log; {@code isNews} if it changes what is prefetched. */
  record Note(String text, boolean isNews) {}

  /**
   * A task: how many of its attempts run, where the first of them was started, and whether one has
   * ended well.
   */
  private static final class Task {
    int running;
    String host;
    boolean done;
    long runMs;
  }

  private static final class StageEntry {
    /** Null if the stage was left out. */
    StageInput input;
    /** Those that were started, by their numbers. */
    final Map<Integer, Task> tasks = new TreeMap<>();
    /** As of {@link ScanHistory}. */
    final String scan;
    ScanHistory.Counts counts = ScanHistory.Counts.NONE;
    int counted;

    StageEntry(StageInput input) {
      this.input = input;
      scan = input == null ? "" : input.scan;
    }

    /** The number of the task of a partition; negative if there is none, or nothing is kept. */
    int task(int partition) {
      return input == null ? -1 : input.task(partition);
    }
  }

  /** Of an application whose tasks do not ask before they read. */
  JobState(int coresPerTask) {
    this(coresPerTask, false);
  }

  JobState(int coresPerTask, boolean tasksAsk) {
    this.coresPerTask = Math.max(coresPerTask, 1);
    this.tasksAsk = tasksAsk;
  }

  /** What there is for the log, once. */
  List<Note> takeNotes() {
    List<Note> taken = notes;
    notes = new ArrayList<>();
    return taken;
  }

  /** Of all stages that have ended, what was reported and what was read. */
  ScanHistory.Counts counts() {
    return all;
  }

  private void note(String text, boolean isNews) {
    if (notes.size() < NOTES_MAX) {
      notes.add(new Note(text, isNews));
    }
  }

  /** What is to be reported, once. */
  List<JobUpdate> take() {
    List<JobUpdate> taken = updates;
    updates = new ArrayList<>();
    return taken;
  }

  /**
   * All that is so, for an agent that knows nothing, by stage and in order; takes the place of what
   * was to be reported.
   */
  Map<Integer, List<JobUpdate>> again() {
    updates = new ArrayList<>();
    filesReported = 0;
    Map<Integer, List<JobUpdate>> again = new LinkedHashMap<>();
    if (tasksAsk) {
      updates.add(new JobUpdate.TasksAsk());
    }
    reportSlots();
    again.put(NO_STAGE, take());
    stages.forEach((stage, entry) -> {
      if (entry.input == null) {
        reportNothing(stage);
        if (!updates.isEmpty()) {
          again.put(stage, take());
        }
        return;
      }
      reportInput(stage, entry.input);
      entry.tasks.forEach((number, task) -> {
        if (task.done || task.running > 0) {
          updates.add(new JobUpdate.TaskStarted(stage, number, task.host));
        }
        if (task.done) {
          updates.add(new JobUpdate.TaskEnded(stage, number, true, task.runMs));
        }
      });
      again.put(stage, take());
    });
    return again;
  }

  /**
   * This stage gets no prefetch: until it ends it is known, and its input is not reported {@link
   * #again}.
   */
  void leaveOut(int stage) {
    StageEntry entry = stages.get(stage);
    if (entry != null) {
      entry.input = null;
      entry.tasks.clear();
      reportNothing(stage);
    }
  }

  /** Of tasks that ask: otherwise nobody could answer, and they would wait a moment. */
  private void reportNothing(int stage) {
    if (tasksAsk) {
      updates.add(new JobUpdate.StageReady(stage));
    }
  }

  void executorAdded(String id, String host, int cores) {
    executors.put(id, new Executor(host, cores / coresPerTask));
    reportSlots();
  }

  void executorRemoved(String id) {
    if (executors.remove(id) != null) {
      reportSlots();
    }
  }

  private void reportSlots() {
    Map<String, Integer> slots = new TreeMap<>();
    for (Executor executor : executors.values()) {
      slots.merge(executor.host(), executor.slots(), Integer::sum);
    }
    updates.add(new JobUpdate.Slots(slots));
  }

  /** A job of Spark's: it keeps its stages open until it ends. */
  void jobStarted(int job, List<Integer> itsStages) {
    jobs.put(job, itsStages);
  }

  /**
   * Ends those stages of the job that no other job shares: skipped ones, which never ran, among
   * them.
   */
  void jobEnded(int job) {
    List<Integer> itsStages = jobs.remove(job);
    if (itsStages == null) {
      return;
    }
    for (int stage : itsStages) {
      if (jobs.values().stream().noneMatch(others -> others.contains(stage))) {
        stageEnded(stage);
      }
    }
  }

  /**
   * A look at the jobs that run, now and then: others end, as their end was not heard. One that was
   * not here at the look before stays: what has just begun may not be among those that run yet.
   */
  void onlyRunning(Set<Integer> running) {
    for (int job : jobsLookedAt) {
      if (!running.contains(job)) {
        jobEnded(job);
      }
    }
    jobsLookedAt = Set.copyOf(jobs.keySet());
  }

  boolean knowsStage(int stage) {
    return stages.containsKey(stage);
  }

  /** This stage is too large to be reported; it is known until it ends. */
  void runsWithoutPrefetch(int stage, String why) {
    stages.put(stage, new StageEntry(null));
    note("stage " + stage + " runs without prefetch: " + why, true);
  }

  /**
   * What the tasks of a stage will read, once. It is not reported if scans like it mostly did not
   * read theirs.
   */
  void stageReads(int stage, StageInput input) {
    long kept = stages.values().stream().filter(entry -> entry.input != null).mapToLong(entry -> entry.input.keptBytes()).sum();
    if (kept + input.keptBytes() > KEPT_BYTES_MAX) {
      runsWithoutPrefetch(stage, "with it, the driver would keep more than " + (KEPT_BYTES_MAX >> 20) + " MiB of what stages read");
      return;
    }
    stages.put(stage, new StageEntry(input));
    if (history.leavesOut(input.scan)) {
      leaveOut(stage);
      note("stage " + stage + " runs without prefetch: scans like it read less than half of what was reported of them", true);
      return;
    }
    reportInput(stage, input);
  }

  /** Tasks of a stage read nothing that could be prefetched. */
  void stageReadsNothing(int stage) {
    if (tasksAsk && !knowsStage(stage)) {
      stages.put(stage, new StageEntry(StageInput.of(List.of(), List.of(), List.of())));
      leaveOut(stage);
    }
  }

  private void reportInput(int stage, StageInput input) {
    int base = filesReported;
    if (tasksAsk && !isCount(input.partitions)) {
      // Tasks know their partitions, and not their numbers.
      updates.add(new JobUpdate.Partitions(stage, Arrays.stream(input.partitions).boxed().toList()));
    }
    updates.add(new JobUpdate.Files(input.files));
    filesReported += input.files.size();
    for (int from = 0; from < input.splits.size(); from += SPLITS_PER_UPDATE) {
      int to = Math.min(from + SPLITS_PER_UPDATE, input.splits.size());
      List<List<Part>> some = input.splits.subList(from, to).stream().map(split -> rebased(split, base)).toList();
      updates.add(new JobUpdate.Splits(stage, some, input.preferredNodes.subList(from, to)));
    }
    updates.add(new JobUpdate.StageReady(stage));
  }

  private static boolean isCount(int[] partitions) {
    for (int i = 0; i < partitions.length; i++) {
      if (partitions[i] != i) {
        return false;
      }
    }
    return true;
  }

  private static List<Part> rebased(List<Part> split, int base) {
    return split.stream().map(part -> new Part(base + part.file(), part.offset(), part.length())).toList();
  }

  /** An attempt at a task begins. A second one beside it (speculation) changes nothing. */
  void taskStarted(int stage, int partition, String host) {
    StageEntry entry = stages.get(stage);
    int number = entry == null ? -1 : entry.task(partition);
    if (number < 0) {
      return;
    }
    Task task = entry.tasks.computeIfAbsent(number, n -> new Task());
    task.running++;
    if (!task.done && task.running == 1) {
      task.host = host;
      updates.add(new JobUpdate.TaskStarted(stage, number, host));
    }
  }

  /**
   * An attempt at a task is over. The task has ended with the first that ends well, or the last
   * that runs. {@code readBytes} is what it has read, 0 if that is not known.
   */
  void taskEnded(int stage, int partition, boolean ok, long runMs, long readBytes) {
    StageEntry entry = stages.get(stage);
    int number = entry == null ? -1 : entry.task(partition);
    Task task = number < 0 ? null : entry.tasks.get(number);
    if (task == null || task.running == 0) {
      return;
    }
    task.running--;
    if (!task.done && (ok || task.running == 0)) {
      task.done = ok;
      task.runMs = runMs;
      updates.add(new JobUpdate.TaskEnded(stage, number, ok, runMs));
      if (ok && readBytes > 0) {
        count(stage, entry, number, readBytes);
      }
    }
  }

  /** Compares what a task has read with what was reported of it. */
  private void count(int stage, StageEntry entry, int number, long readBytes) {
    long reported = entry.input.splits.get(number).stream().mapToLong(Part::length).sum();
    entry.counts = entry.counts.with(reported, readBytes);
    entry.counted++;
    if (entry.counts.isMostlyUnread()) {
      // The later waves would be as little read.
      updates.add(new JobUpdate.StageEnded(stage));
      leaveOut(stage);
      note("stage " + stage + " goes on without prefetch: " + inWords(entry), true);
    }
  }

  private static String inWords(StageEntry entry) {
    ScanHistory.Counts counts = entry.counts;
    return counts.reported() + " bytes were reported of " + entry.counted + " tasks, of which " + counts.unread() + " were not read, and "
        + counts.beside() + " were read beside them";
  }

  void stageEnded(int stage) {
    StageEntry entry = stages.remove(stage);
    if (entry != null) {
      updates.add(new JobUpdate.StageEnded(stage));
      history.add(entry.scan, entry.counts);
      all = all.plus(entry.counts);
      if (entry.counted > 0) {
        note("stage " + stage + ": " + inWords(entry), false);
      }
    }
  }
}
