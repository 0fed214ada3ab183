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

/** What is told, exactly. */
public class BookTest {
  private static final List<List<Part>> TWO = List.of(List.of(new Part(0, 0, 10)), List.of(new Part(0, 10, 5), new Part(1, 0, 5)));

  private static final List<String> HOMES = List.of("h1", "");

  private static StageInput input() {
    return StageInput.of(List.of("/pfs/a", "/pfs/b"), TWO, HOMES);
  }

  @Test
  public void slotsAreOfAllExecutorsOfAHost() {
    Book book = new Book(2);
    book.executorAdded("0", "h1", 4);
    book.executorAdded("1", "h1", 2);
    book.executorAdded("2", "h2", 5);
    book.take();
    book.executorRemoved("0");
    book.executorRemoved("unknown");
    assertEquals(List.of(new JobUpdate.Slots(Map.of("h1", 1, "h2", 2))), book.take());
  }

  @Test
  public void filesAreNumberedOverTheWholeJob() {
    Book book = new Book(1);
    book.stageReads(3, input());
    assertEquals(
        List.of(new JobUpdate.Files(List.of("/pfs/a", "/pfs/b")), new JobUpdate.Splits(3, TWO, HOMES), new JobUpdate.StageReady(3)), book.take());
    book.stageReads(4, input());
    JobUpdate.Splits second = (JobUpdate.Splits) book.take().get(1);
    assertEquals(List.of(new Part(2, 10, 5), new Part(3, 0, 5)), second.splits().get(1));
  }

  @Test
  public void longStagesAreToldInPieces() {
    Book book = new Book(1);
    List<List<Part>> many = new ArrayList<>();
    List<String> homes = new ArrayList<>();
    for (int i = 0; i < 3000; i++) {
      many.add(List.of(new Part(0, i, 1)));
      homes.add("h" + i);
    }
    book.stageReads(0, StageInput.of(List.of("/pfs/a"), many, homes));
    List<List<Part>> told = new ArrayList<>();
    List<String> toldHomes = new ArrayList<>();
    List<JobUpdate> updates = book.take();
    for (JobUpdate update : updates) {
      if (update instanceof JobUpdate.Splits some) {
        told.addAll(some.splits());
        toldHomes.addAll(some.homes());
      }
    }
    assertEquals(many, told);
    assertEquals(homes, toldHomes);
    assertEquals(5, updates.size());
  }

  @Test
  public void aTaskWithTwoAttemptsStartsAndEndsOnce() {
    Book book = new Book(1);
    book.stageReads(0, input());
    book.take();
    book.taskStarted(0, 1, "h1");
    book.taskStarted(0, 1, "h2");
    book.taskEnded(0, 1, true, 7);
    book.taskEnded(0, 1, false, 9);
    book.taskStarted(0, 1, "h1");
    assertEquals(List.of(new JobUpdate.TaskStarted(0, 1, "h1"), new JobUpdate.TaskEnded(0, 1, true, 7)), book.take());
  }

  @Test
  public void aFailedTaskMayRunAgain() {
    Book book = new Book(1);
    book.stageReads(0, input());
    book.take();
    book.taskStarted(0, 0, "h1");
    book.taskEnded(0, 0, false, 3);
    book.taskStarted(0, 0, "h2");
    book.taskEnded(0, 0, true, 4);
    assertEquals(
        List.of(new JobUpdate.TaskStarted(0, 0, "h1"), new JobUpdate.TaskEnded(0, 0, false, 3), new JobUpdate.TaskStarted(0, 0, "h2"),
            new JobUpdate.TaskEnded(0, 0, true, 4)),
        book.take());
  }

  @Test
  public void whatIsNotOfAStageThatReadsIsNotTold() {
    Book book = new Book(1);
    book.stageReads(0, input());
    book.take();
    book.taskStarted(9, 0, "h1");
    book.taskStarted(0, 77, "h1");
    book.taskEnded(9, 0, true, 1);
    book.stageEnded(9);
    book.stageEnded(0);
    book.taskStarted(0, 0, "h1");
    assertEquals(List.of(new JobUpdate.StageEnded(0)), book.take());
  }

  @Test
  public void aJobEndsTheStagesThatNoOtherShares() {
    Book book = new Book(1);
    book.jobStarted(1, List.of(0, 1));
    book.jobStarted(2, List.of(1, 2));
    for (int stage = 0; stage < 3; stage++) {
      book.stageReads(stage, input());
    }
    book.take();
    book.jobEnded(1);
    assertEquals(List.of(new JobUpdate.StageEnded(0)), book.take());
    book.jobEnded(2);
    assertEquals(List.of(new JobUpdate.StageEnded(1), new JobUpdate.StageEnded(2)), book.take());
  }

  @Test
  public void aJobWhoseEndWasNotHeardEndsAtTheSecondLook() {
    Book book = new Book(1);
    book.jobStarted(1, List.of(0));
    book.jobStarted(2, List.of(1));
    book.stageReads(0, input());
    book.stageReads(1, input());
    book.take();
    book.onlyRunning(Set.of());
    assertTrue("they may have begun just now", book.take().isEmpty());
    book.jobStarted(3, List.of(2));
    book.stageReads(2, input());
    book.take();
    book.onlyRunning(Set.of(2));
    assertEquals(List.of(new JobUpdate.StageEnded(0)), book.take());
    book.jobEnded(2);
    assertEquals(List.of(new JobUpdate.StageEnded(1)), book.take());
    book.onlyRunning(Set.of(3));
    assertTrue(book.knowsStage(2));
    book.onlyRunning(Set.of());
    assertEquals(List.of(new JobUpdate.StageEnded(2)), book.take());
  }

  @Test
  public void anAgentThatKnowsNothingIsToldWhatIsSo() {
    Book book = new Book(1);
    book.executorAdded("0", "h1", 1);
    book.stageReads(5, input());
    book.stageEnded(5);
    book.stageReads(6, input());
    book.taskStarted(6, 0, "h1");
    book.taskEnded(6, 0, true, 2);
    book.taskStarted(6, 1, "h2");
    Map<Integer, List<JobUpdate>> again = book.again();
    assertEquals("slots first", List.of(Book.NO_STAGE, 6), List.copyOf(again.keySet()));
    assertEquals(List.of(new JobUpdate.Slots(Map.of("h1", 1))), again.get(Book.NO_STAGE));
    assertEquals(
        List.of(new JobUpdate.Files(List.of("/pfs/a", "/pfs/b")), new JobUpdate.Splits(6, TWO, HOMES), new JobUpdate.StageReady(6),
            new JobUpdate.TaskStarted(6, 0, "h1"), new JobUpdate.TaskEnded(6, 0, true, 2), new JobUpdate.TaskStarted(6, 1, "h2")),
        again.get(6));
    assertTrue(book.take().isEmpty());
    book.stageReads(7, input());
    assertEquals("numbers follow those told to this agent", 2, ((JobUpdate.Splits) book.take().get(1)).splits().get(0).get(0).file());
  }

  @Test
  public void aStageThatIsLeftOutIsKnownAndNotToldAgain() {
    Book book = new Book(1);
    book.stageReads(5, input());
    book.taskStarted(5, 0, "h1");
    book.stageReads(6, input());
    book.leaveOut(5);
    Map<Integer, List<JobUpdate>> again = book.again();
    assertEquals(List.of(Book.NO_STAGE, 6), List.copyOf(again.keySet()));
    assertEquals("files are counted from the first that is told", new JobUpdate.Splits(6, TWO, HOMES), again.get(6).get(1));
    assertTrue("it is not looked up once more", book.knowsStage(5));
    book.taskEnded(5, 0, true, 1);
    book.taskStarted(5, 1, "h1");
    assertTrue(book.take().isEmpty());
    book.stageEnded(5);
    assertFalse(book.knowsStage(5));
  }
}
