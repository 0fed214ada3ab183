package io.forebay.spark;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.forebay.core.ForebayException;
import io.forebay.core.JobUpdate;

/**
 * The thread that reports: everything that may take time, or fail, happens on it, and on nothing of
 * Spark's.
 *
 * <p>What the listener hears goes into a bounded queue and is done here in that order; updates are
 * reported together, at most {@value #BATCH_MS} ms after the first of them. A full queue drops what
 * comes; an agent that is gone is tried again, and gets all of it again; a stage that names more
 * than an agent keeps is left out. Each is said once.
 */
final class Reporter implements AutoCloseable {
  /** Half of what a task of the shortest useful length takes, and far less than a wave. */
  static final long BATCH_MS = 50;

  /**
   * Events that may wait: some seconds of the busiest scheduler (tens of thousands of tasks a
   * second).
   */
  static final int QUEUE_MAX = 1 << 16;

  private static final long RETRY_MIN_MS = 500;
  private static final long RETRY_MAX_MS = 10_000;

  /** How often it is looked whether something has been missed. */
  static final long LOOK_MS = 60_000;

  /** How long the end of the application waits for the last updates. */
  private static final long CLOSE_MS = 2_000;

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  /** The way to the agent. */
  interface Connection extends AutoCloseable {
    void report(List<JobUpdate> updates) throws IOException;

    @Override
    void close();
  }

  /** Connects: begins the job. */
  interface Connector {
    Connection begin(String name) throws IOException;
  }

  private final JobState state;
  private final Connector connector;
  private final BlockingQueue<Consumer<JobState>> queue;
  private final Consumer<JobState> look;
  private final long lookMs;
  private final Thread thread;
  private volatile boolean closing;
  private volatile boolean ended;
  private volatile boolean dropped;
  private volatile String name;
  private boolean failureSaid;
  private boolean leftOutSaid;
  private Connection connection;
  private long retryMs = RETRY_MIN_MS;
  private long retryAtNanos = System.nanoTime();
  private long lookedAtNanos = System.nanoTime();

  Reporter(JobState state, Connector connector, int queueMax) {
    this(state, connector, queueMax, b -> { }, LOOK_MS);
  }

  /**
   * With a look that is taken on this thread every {@code lookMs}, whether or not there are events.
   */
  Reporter(JobState state, Connector connector, int queueMax, Consumer<JobState> look, long lookMs) {
    this.state = state;
    this.connector = connector;
    this.look = look;
    this.lookMs = lookMs;
    queue = new ArrayBlockingQueue<>(queueMax);
    thread = new Thread(this::run, "forebay-reporter");
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  /** The name of the job; nothing is reported before. */
  void named(String applicationId) {
    name = applicationId;
    // Wakes it, so that the first stage finds the way open.
    put(state -> {});
  }

  /** Has something done that ends its batch: it is reported before the next event is looked at. */
  void putLast(Consumer<JobState> event) {
    put(new Last(event));
  }

  /** An event that ends its batch. */
  private record Last(Consumer<JobState> event) implements Consumer<JobState> {
    @Override
    public void accept(JobState state) {
      event.accept(state);
    }
  }

  /** Has something done on this thread; never waits. */
  void put(Consumer<JobState> event) {
    if (ended) {
      // Nobody would take it, and it may hold a whole lineage.
      return;
    }
    if (!queue.offer(event) && !dropped) {
      dropped = true;
      LOG.warn("Forebay: more than {} events are waiting; some are dropped, which makes the prefetch of this application less effective", QUEUE_MAX);
    }
  }

  /** Reports what is left, and ends the job. Bounded in time. */
  @Override
  public void close() {
    closing = true;
    // Wakes it; with a full queue it is awake.
    queue.offer(b -> {});
    try {
      thread.join(CLOSE_MS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private void run() {
    try {
      while (!closing || !queue.isEmpty()) {
        round();
      }
    } catch (InterruptedException e) {
      // Nobody does that but a JVM that ends.
    } finally {
      ended = true;
      queue.clear();
      log();
      ScanHistory.Counts counts = state.counts();
      if (counts.reported() > 0) {
        LOG.info("Forebay: of {} bytes that were reported, tasks have not read {}; they have read {} bytes beside them", counts.reported(),
            counts.unread(), counts.beside());
      }
      hangUp();
    }
  }

  /** One batch. Whatever goes wrong in it, there is another after it. */
  private void round() throws InterruptedException {
    try {
      gather();
      if (!closing && System.nanoTime() - lookedAtNanos >= TimeUnit.MILLISECONDS.toNanos(lookMs)) {
        lookedAtNanos = System.nanoTime();
        enter(look);
      }
      log();
      flush();
    } catch (InterruptedException e) {
      throw e;
    } catch (Exception | LinkageError e) {
      failed("a report to the agent failed", e);
      // How much of it has been reported is not known: all again.
      hangUp();
      retryLater();
    }
  }

  private void log() {
    for (JobState.Note note : state.takeNotes()) {
      if (note.isNews()) {
        LOG.info("Forebay: {}", note.text());
      } else {
        LOG.debug("Forebay: {}", note.text());
      }
    }
  }

  /** Waits for an event, and then for others that come soon after. */
  private void gather() throws InterruptedException {
    // Wakes also without an event, since the agent may be there again.
    Consumer<JobState> event = queue.poll(RETRY_MIN_MS, TimeUnit.MILLISECONDS);
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(BATCH_MS);
    while (event != null) {
      enter(event);
      // An event may take longer than a batch, and then ends it.
      long leftNs = until - System.nanoTime();
      boolean ends = event instanceof Last || leftNs <= 0;
      event = ends ? null : closing ? queue.poll() : queue.poll(leftNs, TimeUnit.NANOSECONDS);
    }
  }

  private void enter(Consumer<JobState> event) {
    try {
      event.accept(state);
    } catch (Exception | LinkageError | StackOverflowError e) {
      // Not only RuntimeException: Scala throws what it likes without a word, and a lineage may be
      // deep.
      if (e instanceof InterruptedException) {
        // Seen at the next wait.
        Thread.currentThread().interrupt();
        return;
      }
      failed("an event could not be followed", e);
    }
  }

  private void flush() {
    if (name == null) {
      return;
    }
    if (connection == null) {
      if (System.nanoTime() - retryAtNanos >= 0) {
        begin();
      }
      return;
    }
    List<JobUpdate> updates = state.take();
    if (!updates.isEmpty()) {
      report(updates);
    }
  }

  /** Reports all that is so, stage by stage, to learn of a refusal whose it is. */
  private void begin() {
    int stage = JobState.NO_STAGE;
    try {
      connection = connector.begin(name);
      for (Map.Entry<Integer, List<JobUpdate>> some : state.again().entrySet()) {
        stage = some.getKey();
        connection.report(some.getValue());
      }
      // Not before: a report opens every file, and an agent that answers may still refuse all of
      // it.
      retryMs = RETRY_MIN_MS;
    } catch (IOException | RuntimeException | LinkageError e) {
      if (stage != JobState.NO_STAGE && isTooMuch(e)) {
        leaveOut(stage, e);
        // One stage less is reported the next time, so this comes to an end.
        retryMs = RETRY_MIN_MS;
      } else {
        failed(connection == null ? "there is no agent to report to" : "the agent does not listen", e);
      }
      // Also after a refusal: the agent has a part of the stage, and its numbers of files are not
      // ours any more.
      hangUp();
      retryLater();
    }
  }

  private void report(List<JobUpdate> updates) {
    try {
      connection.report(updates);
    } catch (IOException | RuntimeException | LinkageError e) {
      if (isTooMuch(e)) {
        // There, files count until the job ends. It begins again without those of ended stages;
        // then it shows whether one is too large.
        LOG.debug("Forebay: the agent has no room for more of this job, which begins again", e);
      } else {
        failed("the agent does not listen", e);
      }
      hangUp();
      retryLater();
    }
  }

  private static boolean isTooMuch(Throwable e) {
    return e instanceof ForebayException refused && refused.errno() == ForebayException.ENOSPC;
  }

  private void leaveOut(int stage, Throwable why) {
    state.leaveOut(stage);
    if (!leftOutSaid) {
      leftOutSaid = true;
      LOG.warn("Forebay: the agent has no room for the report of stage {}; this stage, and others like it, run without prefetch: {}",
          stage, why.toString());
    } else {
      LOG.debug("Forebay: no room for stage {}", stage, why);
    }
  }

  private void retryLater() {
    retryAtNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(retryMs);
    retryMs = Math.min(2 * retryMs, RETRY_MAX_MS);
    // Reported again from the state when there is somebody; not kept twice meanwhile.
    state.take();
  }

  private void hangUp() {
    Connection old = connection;
    connection = null;
    if (old != null) {
      try {
        old.close();
      } catch (RuntimeException | LinkageError e) {
        LOG.debug("Forebay: the end of the job could not be reported", e);
      }
    }
  }

  private void failed(String what, Throwable why) {
    if (!failureSaid) {
      failureSaid = true;
      LOG.warn("Forebay: {}; the application continues, without prefetch if this persists: {}", what, why.toString());
    } else {
      LOG.debug("Forebay: {}", what, why);
    }
  }
}
