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
public class ReporterTest {
  private static final long PATIENCE_S = 30;

  private static StageInput input() {
    return StageInput.of(List.of("/pfs/a"), List.of(List.of(new Part(0, 0, 10))), List.of("h"));
  }

  @Test
  public void allIsReportedInOrderAndTheLineClosed() throws InterruptedException {
    Reported reported = new Reported();
    CountDownLatch begun = new CountDownLatch(1);
    Reporter reporter = new Reporter(new JobState(1), name -> {
      assertEquals("app-1", name);
      begun.countDown();
      return reported;
    }, 100);
    reporter.start();
    reporter.named("app-1");
    assertTrue(begun.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.put(state -> state.stageReads(0, input()));
    reporter.put(state -> state.taskStarted(0, 0, "h"));
    reporter.put(state -> state.stageEnded(0));
    reporter.close();
    List<JobUpdate> all = reported.all();
    assertEquals(new JobUpdate.StageEnded(0), all.get(all.size() - 1));
    assertEquals(List.of(new JobUpdate.TaskStarted(0, 0, "h")), reported.all(JobUpdate.TaskStarted.class));
    assertTrue(reported.closed);
  }

  @Test
  public void anAgentThatComesLaterGetsEverything() throws InterruptedException {
    AtomicInteger dials = new AtomicInteger();
    CountDownLatch reached = new CountDownLatch(1);
    Reported reported = new Reported();
    Reporter reporter = new Reporter(new JobState(1), name -> {
      if (dials.incrementAndGet() < 3) {
        throw new IOException("nobody there");
      }
      reached.countDown();
      return reported;
    }, 100);
    reporter.start();
    reporter.named("app-1");
    reporter.put(state -> state.stageReads(0, input()));
    assertTrue(reached.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.close();
    assertEquals(List.of(new JobUpdate.StageReady(0)), reported.all(JobUpdate.StageReady.class));
  }

  @Test
  public void anAgentThatDiesIsFollowedByAnotherWhichHearsAllOfIt() throws InterruptedException {
    AtomicInteger dials = new AtomicInteger();
    CountDownLatch again = new CountDownLatch(1);
    Reported second = new Reported();
    Reporter reporter = new Reporter(new JobState(1), name -> {
      if (dials.incrementAndGet() == 1) {
        return new Reporter.Connection() {
          @Override
          public void report(List<JobUpdate> updates) throws IOException {
            throw new IOException("connection reset");
          }

          @Override
          public void close() {}
        };
      }
      again.countDown();
      return second;
    }, 100);
    reporter.start();
    reporter.named("app-1");
    reporter.put(state -> state.stageReads(0, input()));
    assertTrue(again.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.put(state -> state.taskStarted(0, 0, "h"));
    reporter.close();
    assertEquals(1, second.all(JobUpdate.StageReady.class).size());
    assertEquals(1, second.all(JobUpdate.TaskStarted.class).size());
  }

  @Test
  public void anAgentThatAnswersAndDoesNotListenIsTriedLessOften() throws InterruptedException {
    List<Long> dialledAtNanos = new CopyOnWriteArrayList<>();
    CountDownLatch dials = new CountDownLatch(3);
    Reporter reporter = new Reporter(new JobState(1), name -> {
      dialledAtNanos.add(System.nanoTime());
      dials.countDown();
      return new Reporter.Connection() {
        @Override
        public void report(List<JobUpdate> updates) throws IOException {
          throw new IOException("not now");
        }

        @Override
        public void close() {}
      };
    }, 100);
    reporter.start();
    reporter.named("app-1");
    assertTrue(dials.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.close();
    long pauseMs = TimeUnit.NANOSECONDS.toMillis(dialledAtNanos.get(2) - dialledAtNanos.get(1));
    assertTrue("twice the first pause, not " + pauseMs + " ms", pauseMs >= 1000);
  }

  @Test
  public void stagesThatTheAgentHasNoRoomForAreLeftOutAndTheOthersReported() throws InterruptedException {
    List<JobUpdate> tooLarge = List.of(new JobUpdate.StageReady(1), new JobUpdate.StageReady(3));
    AtomicInteger refused = new AtomicInteger();
    Semaphore reportedTheLast = new Semaphore(0);
    List<Reported> lines = new CopyOnWriteArrayList<>();
    Reporter reporter = new Reporter(new JobState(1), name -> {
      Reported reported = new Reported();
      lines.add(reported);
      return new Reporter.Connection() {
        @Override
        public void report(List<JobUpdate> updates) throws IOException {
          if (updates.stream().anyMatch(tooLarge::contains)) {
            refused.incrementAndGet();
            throw new ForebayException(ForebayException.ENOSPC, "too many files and splits in one analytics job");
          }
          reported.report(updates);
          if (updates.contains(new JobUpdate.StageReady(2))) {
            reportedTheLast.release();
          }
        }

        @Override
        public void close() {
          reported.close();
        }
      };
    }, 100);
    // One event, so that all of it is there when the job begins.
    reporter.put(state -> {
      for (int stage = 0; stage < 3; stage++) {
        state.stageReads(stage, input());
      }
    });
    reporter.named("app-1");
    reporter.start();
    assertTrue(reportedTheLast.tryAcquire(PATIENCE_S, TimeUnit.SECONDS));
    assertEquals("one refusal is enough", 1, refused.get());
    // One that comes later: it might be that what has ended is in its way, so it is tried once
    // more.
    reporter.put(state -> state.stageReads(3, input()));
    assertTrue(reportedTheLast.tryAcquire(2, PATIENCE_S, TimeUnit.SECONDS));
    for (int i = 0; i < 4; i++) {
      int stage = i;
      reporter.put(state -> state.taskStarted(stage, 0, "h"));
    }
    reporter.close();
    assertEquals(3, refused.get());
    assertEquals(4, lines.size());
    Reported last = lines.get(3);
    assertEquals(List.of(new JobUpdate.StageReady(0), new JobUpdate.StageReady(2)), last.all(JobUpdate.StageReady.class));
    assertEquals(List.of(new JobUpdate.TaskStarted(0, 0, "h"), new JobUpdate.TaskStarted(2, 0, "h")), last.all(JobUpdate.TaskStarted.class));
    assertTrue(lines.stream().allMatch(connection -> connection.closed));
  }

  @Test
  public void aFullQueueNeverBlocksAndAHungAgentDoesNotHoldUpTheEnd() throws InterruptedException {
    CountDownLatch hung = new CountDownLatch(1);
    CountDownLatch inside = new CountDownLatch(1);
    Reporter reporter = new Reporter(new JobState(1), name -> {
      inside.countDown();
      try {
        hung.await();
      } catch (InterruptedException e) {
        throw new IOException(e);
      }
      throw new IOException("at last");
    }, 4);
    reporter.start();
    reporter.named("app-1");
    assertTrue(inside.await(PATIENCE_S, TimeUnit.SECONDS));
    // Would never return if it waited for room.
    for (int i = 0; i < 1000; i++) {
      reporter.put(state -> {});
    }
    // As would this.
    reporter.close();
    hung.countDown();
  }

  @Test
  public void anEventThatFailsDoesNotEndTheThread() {
    Reported reported = new Reported();
    Reporter reporter = new Reporter(new JobState(1), name -> reported, 100);
    reporter.start();
    reporter.named("app-1");
    reporter.put(state -> {
      throw new IllegalStateException("strange");
    });
    reporter.put(state -> {
      throw ReporterTest.<RuntimeException>undeclared(new TimeoutException("as Scala does"));
    });
    reporter.put(state -> state.stageReads(0, input()));
    reporter.close();
    assertEquals(1, reported.all(JobUpdate.StageReady.class).size());
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
    Reported second = new Reported();
    Reporter reporter = new Reporter(new JobState(1), name -> {
      if (dials.incrementAndGet() == 1) {
        return new Reporter.Connection() {
          @Override
          public void report(List<JobUpdate> updates) {
            throw ReporterTest.<RuntimeException>undeclared(new TimeoutException("as Scala does"));
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
    reporter.start();
    reporter.named("app-1");
    reporter.put(state -> state.stageReads(0, input()));
    assertTrue(again.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.close();
    assertEquals(1, second.all(JobUpdate.StageReady.class).size());
    assertTrue(second.closed);
  }

  @Test
  public void anInterruptEndsTheThreadAndItsLine() throws InterruptedException {
    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch closed = new CountDownLatch(1);
    Reporter reporter = new Reporter(new JobState(1), name -> {
      begun.countDown();
      return new Reporter.Connection() {
        @Override
        public void report(List<JobUpdate> updates) {}

        @Override
        public void close() {
          closed.countDown();
        }
      };
    }, 100);
    reporter.start();
    reporter.named("app-1");
    assertTrue(begun.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.put(state -> {
      throw ReporterTest.<RuntimeException>undeclared(new InterruptedException());
    });
    assertTrue(closed.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.put(state -> {});
    reporter.close();
  }

  @Test
  public void aLookIsTakenAlsoWithoutEvents() throws InterruptedException {
    CountDownLatch ended = new CountDownLatch(1);
    Reporter reporter = new Reporter(new JobState(1), name -> new Reporter.Connection() {
      @Override
      public void report(List<JobUpdate> updates) {
        if (updates.contains(new JobUpdate.StageEnded(0))) {
          ended.countDown();
        }
      }

      @Override
      public void close() {}
    }, 100, state -> state.onlyRunning(Set.of()), 1);
    reporter.start();
    reporter.named("app-1");
    reporter.put(state -> {
      state.jobStarted(0, List.of(0));
      state.stageReads(0, input());
    });
    assertTrue(ended.await(PATIENCE_S, TimeUnit.SECONDS));
    reporter.close();
  }
}
