package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.junit.Test;

import io.forebay.core.JobUpdate;
import io.forebay.core.JobUpdate.Part;

/** What is reported, exactly. */
public class JobStateTest {
  private static final List<List<Part>> TWO = List.of(List.of(new Part(0, 0, 10)), List.of(new Part(0, 10, 5), new Part(1, 0, 5)));

  private static final List<String> PREFERRED_NODES = List.of("h1", "");

  private static StageInput input() {
    return StageInput.of(List.of("/pfs/a", "/pfs/b"), TWO, PREFERRED_NODES);
  }

  @Test
  public void slotsAreOfAllExecutorsOfAHost() {
    JobState state = new JobState(2);
    state.executorAdded("0", "h1", 4);
    state.executorAdded("1", "h1", 2);
    state.executorAdded("2", "h2", 5);
    state.take();
    state.executorRemoved("0");
    state.executorRemoved("unknown");
    assertEquals(List.of(new JobUpdate.Slots(Map.of("h1", 1, "h2", 2))), state.take());
  }

  @Test
  public void filesAreNumberedOverTheWholeJob() {
    JobState state = new JobState(1);
    state.stageReads(3, input());
    assertEquals(
        List.of(new JobUpdate.Files(List.of("/pfs/a", "/pfs/b")), new JobUpdate.Splits(3, TWO, PREFERRED_NODES), new JobUpdate.StageReady(3)), state.take());
    state.stageReads(4, input());
    JobUpdate.Splits second = (JobUpdate.Splits) state.take().get(1);
    assertEquals(List.of(new Part(2, 10, 5), new Part(3, 0, 5)), second.splits().get(1));
  }

  @Test
  public void tasksThatAskAreAnnouncedWithTheirPartitions() {
    JobState state = new JobState(1, true);
    assertEquals(List.of(new JobUpdate.TasksAsk(), new JobUpdate.Slots(Map.of())), state.again().get(JobState.NO_STAGE));
    state.stageReads(3, input());
    assertFalse(state.take().stream().anyMatch(update -> update instanceof JobUpdate.Partitions));
    state.stageReads(4, StageInput.of(List.of("/pfs/a", "/pfs/b"), new int[] {2, 7}, TWO, PREFERRED_NODES));
    assertEquals(new JobUpdate.Partitions(4, List.of(2, 7)), state.take().get(0));
    state.taskStarted(4, 7, "h1");
    assertEquals(List.of(new JobUpdate.TaskStarted(4, 1, "h1")), state.take());
  }

  /** Otherwise its tasks would wait until nobody reports it any more. */
  @Test
  public void ofTasksThatAskStagesAreReportedAlsoThatReadNothing() {
    JobState state = new JobState(1, true);
    state.stageReadsNothing(5);
    assertEquals(List.of(new JobUpdate.StageReady(5)), state.take());
    state.taskStarted(5, 0, "h1");
    state.stageReadsNothing(5);
    assertEquals(List.of(), state.take());
    assertEquals(List.of(new JobUpdate.StageReady(5)), state.again().get(5));
    state.stageEnded(5);
    assertEquals(List.of(new JobUpdate.StageEnded(5)), state.take());
    JobState others = new JobState(1);
    others.stageReadsNothing(5);
    assertEquals(List.of(), others.take());
  }

  @Test
  public void longStagesAreReportedInPieces() {
    JobState state = new JobState(1);
    List<List<Part>> many = new ArrayList<>();
    List<String> preferredNodes = new ArrayList<>();
    for (int i = 0; i < 3000; i++) {
      many.add(List.of(new Part(0, i, 1)));
      preferredNodes.add("h" + i);
    }
    state.stageReads(0, StageInput.of(List.of("/pfs/a"), many, preferredNodes));
    List<List<Part>> reported = new ArrayList<>();
    List<String> reportedNodes = new ArrayList<>();
    List<JobUpdate> updates = state.take();
    for (JobUpdate update : updates) {
      if (update instanceof JobUpdate.Splits some) {
        reported.addAll(some.splits());
        reportedNodes.addAll(some.preferredNodes());
      }
    }
    assertEquals(many, reported);
    assertEquals(preferredNodes, reportedNodes);
    assertEquals(5, updates.size());
  }

  @Test
  public void aTaskWithTwoAttemptsStartsAndEndsOnce() {
    JobState state = new JobState(1);
    state.stageReads(0, input());
    state.take();
    state.taskStarted(0, 1, "h1");
    state.taskStarted(0, 1, "h2");
    state.taskEnded(0, 1, true, 7, 0);
    state.taskEnded(0, 1, false, 9, 0);
    state.taskStarted(0, 1, "h1");
    assertEquals(List.of(new JobUpdate.TaskStarted(0, 1, "h1"), new JobUpdate.TaskEnded(0, 1, true, 7)), state.take());
  }

  @Test
  public void aFailedTaskMayRunAgain() {
    JobState state = new JobState(1);
    state.stageReads(0, input());
    state.take();
    state.taskStarted(0, 0, "h1");
    state.taskEnded(0, 0, false, 3, 0);
    state.taskStarted(0, 0, "h2");
    state.taskEnded(0, 0, true, 4, 0);
    assertEquals(
        List.of(new JobUpdate.TaskStarted(0, 0, "h1"), new JobUpdate.TaskEnded(0, 0, false, 3), new JobUpdate.TaskStarted(0, 0, "h2"),
            new JobUpdate.TaskEnded(0, 0, true, 4)),
        state.take());
  }

  @Test
  public void whatIsNotOfAStageThatReadsIsNotReported() {
    JobState state = new JobState(1);
    state.stageReads(0, input());
    state.take();
    state.taskStarted(9, 0, "h1");
    state.taskStarted(0, 77, "h1");
    state.taskEnded(9, 0, true, 1, 0);
    state.stageEnded(9);
    state.stageEnded(0);
    state.taskStarted(0, 0, "h1");
    assertEquals(List.of(new JobUpdate.StageEnded(0)), state.take());
  }

  @Test
  public void aJobEndsTheStagesThatNoOtherShares() {
    JobState state = new JobState(1);
    state.jobStarted(1, List.of(0, 1));
    state.jobStarted(2, List.of(1, 2));
    for (int stage = 0; stage < 3; stage++) {
      state.stageReads(stage, input());
    }
    state.take();
    state.jobEnded(1);
    assertEquals(List.of(new JobUpdate.StageEnded(0)), state.take());
    state.jobEnded(2);
    assertEquals(List.of(new JobUpdate.StageEnded(1), new JobUpdate.StageEnded(2)), state.take());
  }

  @Test
  public void aJobWhoseEndWasNotHeardEndsAtTheSecondLook() {
    JobState state = new JobState(1);
    state.jobStarted(1, List.of(0));
    state.jobStarted(2, List.of(1));
    state.stageReads(0, input());
    state.stageReads(1, input());
    state.take();
    state.onlyRunning(Set.of());
    assertTrue("they may have begun just now", state.take().isEmpty());
    state.jobStarted(3, List.of(2));
    state.stageReads(2, input());
    state.take();
    state.onlyRunning(Set.of(2));
    assertEquals(List.of(new JobUpdate.StageEnded(0)), state.take());
    state.jobEnded(2);
    assertEquals(List.of(new JobUpdate.StageEnded(1)), state.take());
    state.onlyRunning(Set.of(3));
    assertTrue(state.knowsStage(2));
    state.onlyRunning(Set.of());
    assertEquals(List.of(new JobUpdate.StageEnded(2)), state.take());
  }

  @Test
  public void anAgentThatKnowsNothingGetsWhatIsSo() {
    JobState state = new JobState(1);
    state.executorAdded("0", "h1", 1);
    state.stageReads(5, input());
    state.stageEnded(5);
    state.stageReads(6, input());
    state.taskStarted(6, 0, "h1");
    state.taskEnded(6, 0, true, 2, 0);
    state.taskStarted(6, 1, "h2");
    Map<Integer, List<JobUpdate>> again = state.again();
    assertEquals("slots first", List.of(JobState.NO_STAGE, 6), List.copyOf(again.keySet()));
    assertEquals(List.of(new JobUpdate.Slots(Map.of("h1", 1))), again.get(JobState.NO_STAGE));
    assertEquals(
        List.of(new JobUpdate.Files(List.of("/pfs/a", "/pfs/b")), new JobUpdate.Splits(6, TWO, PREFERRED_NODES), new JobUpdate.StageReady(6),
            new JobUpdate.TaskStarted(6, 0, "h1"), new JobUpdate.TaskEnded(6, 0, true, 2), new JobUpdate.TaskStarted(6, 1, "h2")),
        again.get(6));
    assertTrue(state.take().isEmpty());
    state.stageReads(7, input());
    assertEquals("numbers follow those reported to this agent", 2, ((JobUpdate.Splits) state.take().get(1)).splits().get(0).get(0).file());
  }

  @Test
  public void aStageThatIsLeftOutIsKnownAndNotReportedAgain() {
    JobState state = new JobState(1);
    state.stageReads(5, input());
    state.taskStarted(5, 0, "h1");
    state.stageReads(6, input());
    state.leaveOut(5);
    Map<Integer, List<JobUpdate>> again = state.again();
    assertEquals(List.of(JobState.NO_STAGE, 6), List.copyOf(again.keySet()));
    assertEquals("files are counted from the first that is reported", new JobUpdate.Splits(6, TWO, PREFERRED_NODES), again.get(6).get(1));
    assertTrue("it is not looked up once more", state.knowsStage(5));
    state.taskEnded(5, 0, true, 1, 0);
    state.taskStarted(5, 1, "h1");
    assertTrue(state.take().isEmpty());
    state.stageEnded(5);
    assertFalse(state.knowsStage(5));
  }

  private static final int MIB = 1 << 20;

  /** A stage of ten tasks of 2 MiB each. */
  private static StageInput large(String scan) {
    List<List<Part>> splits = new ArrayList<>();
    List<String> nodes = new ArrayList<>();
    for (int i = 0; i < 10; i++) {
      splits.add(List.of(new Part(0, 2L * i * MIB, MIB), new Part(0, (2L * i + 1) * MIB, MIB)));
      nodes.add("");
    }
    return StageInput.of(scan, List.of("/pfs/a"), splits, nodes);
  }

  private static void runs(JobState state, int stage, int task, long readBytes) {
    state.taskStarted(stage, task, "h1");
    state.taskEnded(stage, task, true, 1, readBytes);
  }

  private static List<Class<?>> kinds(List<JobUpdate> updates) {
    List<Class<?>> kinds = new ArrayList<>();
    updates.forEach(update -> kinds.add(update.getClass()));
    return kinds;
  }

  @Test
  public void aStageThatReadsLittleOfItsReportGoesOnWithoutPlan() {
    JobState state = new JobState(1);
    state.stageReads(0, large("t"));
    state.take();
    runs(state, 0, 0, 100);
    assertFalse("too early to judge", state.take().contains(new JobUpdate.StageEnded(0)));
    runs(state, 0, 1, 100);
    assertTrue(state.take().contains(new JobUpdate.StageEnded(0)));
    assertTrue(state.takeNotes().get(0).isNews());
    runs(state, 0, 2, 100);
    assertEquals(List.of(), state.take());
    assertEquals("not reported again either", Set.of(JobState.NO_STAGE), state.again().keySet());
    state.take();
    state.stageEnded(0);
    assertEquals(new ScanHistory.Counts(4 * MIB, 4 * MIB - 200, 0), state.counts());
  }

  @Test
  public void aScanWhoseReportsAreNotReadIsLeftOutAndTriedAgain() {
    JobState state = new JobState(1);
    state.stageReads(0, large("t"));
    runs(state, 0, 0, 100);
    runs(state, 0, 1, 100);
    state.stageEnded(0);
    state.take();
    state.stageReads(1, large("t"));
    assertEquals("as the last one was not read", List.of(), state.take());
    state.stageReads(2, large("other"));
    assertEquals(List.of(JobUpdate.Files.class, JobUpdate.Splits.class, JobUpdate.StageReady.class), kinds(state.take()));
    state.stageReads(3, large("t"));
    assertEquals("another try", List.of(JobUpdate.Files.class, JobUpdate.Splits.class, JobUpdate.StageReady.class), kinds(state.take()));
  }

  @Test
  public void aStageThatReadsWhatWasReportedAndMoreIsCountedAndStays() {
    JobState state = new JobState(1);
    state.stageReads(0, large("t"));
    for (int task = 0; task < 10; task++) {
      runs(state, 0, task, 2 * MIB + 5);
    }
    assertFalse(state.take().contains(new JobUpdate.StageEnded(0)));
    state.stageEnded(0);
    assertEquals(new ScanHistory.Counts(20 * MIB, 0, 50), state.counts());
    state.stageReads(1, large("t"));
    assertEquals(List.of(JobUpdate.StageEnded.class, JobUpdate.Files.class, JobUpdate.Splits.class, JobUpdate.StageReady.class), kinds(state.take()));
  }

  @Test
  public void aTaskOfWhichNobodyKnowsWhatItReadIsNotCounted() {
    JobState state = new JobState(1);
    state.stageReads(0, large("t"));
    for (int task = 0; task < 10; task++) {
      runs(state, 0, task, 0);
    }
    state.stageEnded(0);
    assertEquals(ScanHistory.Counts.NONE, state.counts());
  }

  @Test
  public void scansThatWereNotMetForLongAreForgotten() {
    ScanHistory history = new ScanHistory();
    ScanHistory.Counts unread = new ScanHistory.Counts(8 * MIB, 8 * MIB, 0);
    for (int i = 0; i <= ScanHistory.SCANS_MAX; i++) {
      history.add("t" + i, unread);
    }
    assertFalse(history.leavesOut("t0"));
    assertTrue(history.leavesOut("t1"));
  }

  /** A stage of so many small files, with a task each, as Spark names its files and nodes. */
  private static StageInput smallFiles(int files) {
    List<String> paths = new ArrayList<>();
    List<List<Part>> splits = new ArrayList<>();
    List<String> nodes = new ArrayList<>();
    for (int i = 0; i < files; i++) {
      paths.add(String.format("/lustre/project/data/table/day=2026-11-25/part-%05d-1f2e3d4c.c000.txt", i));
      splits.add(List.of(new Part(i, 0, 10_000 + i)));
      nodes.add(new StringBuilder("node-").append(i % 16).toString());
    }
    return StageInput.of(paths, splits, nodes);
  }

  @Test
  public void whatTheDriverKeepsOfManySmallFilesIsKnown() {
    int files = 100_000;
    JobState state = new JobState(1);
    long before = usedBytes();
    StageInput input = smallFiles(files);
    state.stageReads(0, input);
    state.take();
    for (int i = 0; i < files; i++) {
      state.taskStarted(0, i, "node-1");
      state.taskEnded(0, i, true, 5, 10_000 + i);
    }
    state.take();
    long kept = usedBytes() - before;
    assertTrue(state.knowsStage(0));
    long expected = input.keptBytes();
    assertTrue(kept + " bytes are kept, and " + expected + " are expected", kept < expected * 5 / 4 && kept > expected / 2);
    assertTrue(expected + " bytes", expected < JobState.KEPT_BYTES_MAX);
  }

  private static long usedBytes() {
    Runtime runtime = Runtime.getRuntime();
    for (int i = 0; i < 3; i++) {
      System.gc();
    }
    return runtime.totalMemory() - runtime.freeMemory();
  }

  @Test
  public void stagesThatTheDriverHasNoRoomForRunWithoutPrefetch() {
    JobState state = new JobState(1);
    StageInput large = smallFiles(90_000);
    state.stageReads(0, large);
    state.stageReads(1, large);
    state.take();
    state.stageReads(2, large);
    assertTrue(state.knowsStage(2));
    assertEquals(List.of(), state.take());
    List<JobState.Note> notes = state.takeNotes();
    assertEquals(1, notes.size());
    assertTrue(notes.toString(), notes.get(0).isNews() && notes.get(0).text().startsWith("stage 2 runs without prefetch"));
    state.taskStarted(2, 0, "h1");
    state.taskEnded(2, 0, true, 7, 100);
    assertEquals(List.of(), state.take());
    assertEquals(Set.of(JobState.NO_STAGE, 0, 1), state.again().keySet());
    // When one has ended, there is room again.
    state.stageEnded(0);
    state.take();
    state.stageReads(3, large);
    assertTrue(state.take().contains(new JobUpdate.StageReady(3)));
  }
}
