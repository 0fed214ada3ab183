package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.junit.Test;

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
    teller.put(book -> book.stageReads(0, input()));
    teller.close();
    assertEquals(1, told.all(JobUpdate.StageReady.class).size());
  }
}
