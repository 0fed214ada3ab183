package io.forebay.spark;

import java.io.IOException;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.TaskContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.forebay.core.ForebayClient;
import io.forebay.hadoop.ForebayConfig;

/**
 * Where a task waits for its input before it reads. The coordinator delays a prefetch so that an
 * HPC job's I/O phase keeps its deadline; a task that read the same bytes itself would do the harm
 * that the delay avoids.
 *
 * <p>The coordinator decides, and bounds the wait. A task never waits for an agent that is not
 * there, and one that is killed stops to wait.
 */
final class TaskGate implements AutoCloseable {
  /** Among the settings that executors get from the driver: whether tasks ask. */
  static final String ASKS = "forebay.tasks-ask";

  /** Planners under which no task waits; the others mind I/O phases. */
  private static final Set<String> NEVER = Set.of(ForebayPlugin.NAIVE, "no-action");

  /** How long an agent that did not answer is not asked again. */
  private static final long LEAVE_ALONE_NS = TimeUnit.SECONDS.toNanos(10);

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  private final SparkConf conf;
  private final ForebayClient client;
  private volatile String application;
  private volatile boolean failed;
  private volatile long failedAtNanos;

  TaskGate(SparkConf conf, Configuration hadoop) throws IOException {
    this.conf = conf;
    client = new ForebayClient(new ForebayConfig(hadoop).client());
  }

  /** Whether tasks of an application with this planner ask; an empty one is the cluster's. */
  static boolean asks(SparkConf conf, String planner) {
    return conf.getBoolean(ForebayPlugin.TASKS_WAIT, true) && !NEVER.contains(planner);
  }

  /** The thread's task waits until it may read. */
  void pass() {
    TaskContext task = TaskContext.get();
    String application = application();
    if (task == null || application == null || failed && System.nanoTime() - failedAtNanos < LEAVE_ALONE_NS) {
      return;
    }
    try {
      while (!task.isInterrupted() && !client.taskMayRead(application, task.stageId(), task.partitionId())) {
        LOG.debug("Forebay: task {} of stage {} waits for its input", task.partitionId(), task.stageId());
      }
      failed = false;
    } catch (Exception | LinkageError e) {
      LOG.debug("Forebay: a task reads without asking", e);
      failedAtNanos = System.nanoTime();
      failed = true;
    }
  }

  /** Null until the application has an id: a local master makes executors before. */
  private String application() {
    if (application == null) {
      application = conf.get("spark.app.id", null);
    }
    return application;
  }

  @Override
  public void close() {
    client.close();
  }
}
