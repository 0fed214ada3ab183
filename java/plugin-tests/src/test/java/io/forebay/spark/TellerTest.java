package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

import org.junit.Test;

import io.forebay.core.ForebayException;
import io.forebay.core.JobUpdate;
import io.forebay.core.JobUpdate.Part;

/** The thread between Spark and the agent, with agents that come, go and hang. */
public class TellerTest {
  private static final long PATIENCE_S = 30;

  private static StageInput input() {
    return StageInput.of(List.of("/pfs/a"), List.of(List.of(new Part(0, 0, 10))), List.of("h"));
  }

  @Test
  public void allIsToldInOrderAndTheLineClosed() throws InterruptedException {
    Told told = new Told();
    CountDownLatch begun = new CountDownLatch(1);
    Teller teller = new Teller(new Book(1), name -> {
      assertEquals("app-1", name);
      begun.countDown();
      return told;
    }, 100);
    teller.start();
    teller.named("app-1");
    assertTrue(begun.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.put(book -> book.stageReads(0, input()));
    teller.put(book -> book.taskStarted(0, 0, "h"));
    teller.put(book -> book.stageEnded(0));
    teller.close();
    List<JobUpdate> all = told.all();
    assertEquals(new JobUpdate.StageEnded(0), all.get(all.size() - 1));
    assertEquals(List.of(new JobUpdate.TaskStarted(0, 0, "h")), told.all(JobUpdate.TaskStarted.class));
    assertTrue(told.closed);
  }

  @Test
  public void anAgentThatComesLaterIsToldEverything() throws InterruptedException {
    AtomicInteger dials = new AtomicInteger();
    CountDownLatch reached = new CountDownLatch(1);
    Told told = new Told();
    Teller teller = new Teller(new Book(1), name -> {
      if (dials.incrementAndGet() < 3) {
        throw new IOException("nobody there");
      }
      reached.countDown();
      return told;
    }, 100);
    teller.start();
    teller.named("app-1");
    teller.put(book -> book.stageReads(0, input()));
    assertTrue(reached.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.close();
    assertEquals(List.of(new JobUpdate.StageReady(0)), told.all(JobUpdate.StageReady.class));
  }

  @Test
  public void anAgentThatDiesIsFollowedByAnotherWhichHearsAllOfIt() throws InterruptedException {
    AtomicInteger dials = new AtomicInteger();
    CountDownLatch again = new CountDownLatch(1);
    Told second = new Told();
    Teller teller = new Teller(new Book(1), name -> {
      if (dials.incrementAndGet() == 1) {
        return new Teller.Line() {
          @Override
          public void tell(List<JobUpdate> updates) throws IOException {
            throw new IOException("connection reset");
          }

          @Override
          public void close() {}
        };
      }
      again.countDown();
      return second;
    }, 100);
    teller.start();
    teller.named("app-1");
    teller.put(book -> book.stageReads(0, input()));
    assertTrue(again.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.put(book -> book.taskStarted(0, 0, "h"));
    teller.close();
    assertEquals(1, second.all(JobUpdate.StageReady.class).size());
    assertEquals(1, second.all(JobUpdate.TaskStarted.class).size());
  }

  @Test
  public void anAgentThatAnswersAndDoesNotListenIsTriedLessOften() throws InterruptedException {
    List<Long> dialledAtNanos = new CopyOnWriteArrayList<>();
    CountDownLatch dials = new CountDownLatch(3);
    Teller teller = new Teller(new Book(1), name -> {
      dialledAtNanos.add(System.nanoTime());
      dials.countDown();
      return new Teller.Line() {
        @Override
        public void tell(List<JobUpdate> updates) throws IOException {
          throw new IOException("not now");
        }

        @Override
        public void close() {}
      };
    }, 100);
    teller.start();
    teller.named("app-1");
    assertTrue(dials.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.close();
    long pauseMs = TimeUnit.NANOSECONDS.toMillis(dialledAtNanos.get(2) - dialledAtNanos.get(1));
    assertTrue("twice the first pause, not " + pauseMs + " ms", pauseMs >= 1000);
  }

  @Test
  public void stagesThatTheAgentHasNoRoomForAreLeftOutAndTheOthersTold() throws InterruptedException {
    List<JobUpdate> tooLarge = List.of(new JobUpdate.StageReady(1), new JobUpdate.StageReady(3));
    AtomicInteger refused = new AtomicInteger();
    Semaphore toldTheLast = new Semaphore(0);
    List<Told> lines = new CopyOnWriteArrayList<>();
    Teller teller = new Teller(new Book(1), name -> {
      Told told = new Told();
      lines.add(told);
      return new Teller.Line() {
        @Override
        public void tell(List<JobUpdate> updates) throws IOException {
          if (updates.stream().anyMatch(tooLarge::contains)) {
            refused.incrementAndGet();
            throw new ForebayException(ForebayException.ENOSPC, "too many files and splits in one analytics job");
          }
          told.tell(updates);
          if (updates.contains(new JobUpdate.StageReady(2))) {
            toldTheLast.release();
          }
        }

        @Override
        public void close() {
          told.close();
        }
      };
    }, 100);
    // One event, so that all of it is there when the job begins.
    teller.put(book -> {
      for (int stage = 0; stage < 3; stage++) {
        book.stageReads(stage, input());
      }
    });
    teller.named("app-1");
    teller.start();
    assertTrue(toldTheLast.tryAcquire(PATIENCE_S, TimeUnit.SECONDS));
    assertEquals("one refusal is enough", 1, refused.get());
    // One that comes later: it might be that what has ended is in its way, so it is tried once
    // more.
    teller.put(book -> book.stageReads(3, input()));
    assertTrue(toldTheLast.tryAcquire(2, PATIENCE_S, TimeUnit.SECONDS));
    for (int i = 0; i < 4; i++) {
      int stage = i;
      teller.put(book -> book.taskStarted(stage, 0, "h"));
    }
    teller.close();
    assertEquals(3, refused.get());
    assertEquals(4, lines.size());
    Told last = lines.get(3);
    assertEquals(List.of(new JobUpdate.StageReady(0), new JobUpdate.StageReady(2)), last.all(JobUpdate.StageReady.class));
    assertEquals(List.of(new JobUpdate.TaskStarted(0, 0, "h"), new JobUpdate.TaskStarted(2, 0, "h")), last.all(JobUpdate.TaskStarted.class));
    assertTrue(lines.stream().allMatch(line -> line.closed));
  }

  @Test
  public void aFullQueueNeverBlocksAndAHungAgentDoesNotHoldUpTheEnd() throws InterruptedException {
    CountDownLatch hung = new CountDownLatch(1);
    CountDownLatch inside = new CountDownLatch(1);
    Teller teller = new Teller(new Book(1), name -> {
      inside.countDown();
      try {
        hung.await();
      } catch (InterruptedException e) {
        throw new IOException(e);
      }
      throw new IOException("at last");
    }, 4);
    teller.start();
    teller.named("app-1");
    assertTrue(inside.await(PATIENCE_S, TimeUnit.SECONDS));
    // Would never return if it waited for room.
    for (int i = 0; i < 1000; i++) {
      teller.put(book -> {});
    }
    // As would this.
    teller.close();
    hung.countDown();
  }

  @Test
  public void anEventThatFailsDoesNotEndTheThread() {
    Told told = new Told();
    Teller teller = new Teller(new Book(1), name -> told, 100);
    teller.start();
    teller.named("app-1");
    teller.put(book -> {
      throw new IllegalStateException("strange");
    });
    teller.put(book -> {
      throw TellerTest.<RuntimeException>undeclared(new TimeoutException("as Scala does"));
    });
    teller.put(book -> book.stageReads(0, input()));
    teller.close();
    assertEquals(1, told.all(JobUpdate.StageReady.class).size());
  }

  /**
   * Throws it, whatever the compiler thinks of that; declared to return so that the call can be
   * thrown.
   */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E undeclared(Throwable e) throws E {
    throw (E) e;
  }

  @Test
  public void aLineThatThrowsWhatNobodyExpectsIsFollowedByAnother() throws InterruptedException {
    AtomicInteger dials = new AtomicInteger();
    CountDownLatch again = new CountDownLatch(1);
    Told second = new Told();
    Teller teller = new Teller(new Book(1), name -> {
      if (dials.incrementAndGet() == 1) {
        return new Teller.Line() {
          @Override
          public void tell(List<JobUpdate> updates) {
            throw TellerTest.<RuntimeException>undeclared(new TimeoutException("as Scala does"));
          }

          @Override
          public void close() {
            throw new IllegalStateException("closed already");
          }
        };
      }
      again.countDown();
      return second;
    }, 100);
    teller.start();
    teller.named("app-1");
    teller.put(book -> book.stageReads(0, input()));
    assertTrue(again.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.close();
    assertEquals(1, second.all(JobUpdate.StageReady.class).size());
    assertTrue(second.closed);
  }

  @Test
  public void anInterruptEndsTheThreadAndItsLine() throws InterruptedException {
    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch closed = new CountDownLatch(1);
    Teller teller = new Teller(new Book(1), name -> {
      begun.countDown();
      return new Teller.Line() {
        @Override
        public void tell(List<JobUpdate> updates) {}

        @Override
        public void close() {
          closed.countDown();
        }
      };
    }, 100);
    teller.start();
    teller.named("app-1");
    assertTrue(begun.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.put(book -> {
      throw TellerTest.<RuntimeException>undeclared(new InterruptedException());
    });
    assertTrue(closed.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.put(book -> {});
    teller.close();
  }

  @Test
  public void aLookIsTakenAlsoWithoutEvents() throws InterruptedException {
    CountDownLatch ended = new CountDownLatch(1);
    Teller teller = new Teller(new Book(1), name -> new Teller.Line() {
      @Override
      public void tell(List<JobUpdate> updates) {
        if (updates.contains(new JobUpdate.StageEnded(0))) {
          ended.countDown();
        }
      }

      @Override
      public void close() {}
    }, 100, book -> book.onlyRunning(Set.of()), 1);
    teller.start();
    teller.named("app-1");
    teller.put(book -> {
      book.jobStarted(0, List.of(0));
      book.stageReads(0, input());
    });
    assertTrue(ended.await(PATIENCE_S, TimeUnit.SECONDS));
    teller.close();
  }
}
