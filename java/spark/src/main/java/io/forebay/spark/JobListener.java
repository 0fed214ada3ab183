package io.forebay.spark;

import java.net.URI;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.function.Predicate;

import org.apache.spark.SparkContext;
import org.apache.spark.Success$;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.DAGScheduler;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationStart;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.scheduler.StageInfo;

import scala.Option;

/**
 * What Spark says, for the reporter's thread. Nothing is worked out here, nothing waits, and what
 * goes wrong is said by the reporter.
 *
 * <p>The stages of a job are all known when it starts, the later ones too; so their input is
 * reported then, and the first wave of a stage may be in memory when it begins. The driver's table
 * of stages is read from another thread than the scheduler's: a look may miss a stage while the
 * table grows, so there is a second one when the stage is submitted.
 */
final class JobListener extends SparkListener {
  private final SparkContext context;
  private final Reporter reporter;
  private final Predicate<URI> ours;

  /** A listener that reports what is read of paths that are {@code ours}. */
  JobListener(SparkContext context, Reporter reporter, Predicate<URI> ours) {
    this.context = context;
    this.reporter = reporter;
    this.ours = ours;
  }

  /**
   * For the reporter, now and then: the bus drops events when it has too many, and a job whose end
   * was dropped would keep its stages for ever.
   */
  static void look(SparkContext context, JobState state) {
    Set<Integer> running = new HashSet<>();
    for (int job : context.statusTracker().getActiveJobIds()) {
      running.add(job);
    }
    state.onlyRunning(running);
  }

  @Override
  public void onApplicationStart(SparkListenerApplicationStart event) {
    reporter.named(event.appId().isDefined() ? event.appId().get() : event.appName());
  }

  @Override
  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    String host = event.executorInfo().executorHost();
    int cores = event.executorInfo().totalCores();
    reporter.put(state -> state.executorAdded(event.executorId(), host, cores));
  }

  @Override
  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    reporter.put(state -> state.executorRemoved(event.executorId()));
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    List<Integer> ids = stagesOf(event);
    // Looked up here, as a short job is over before the reporter comes to it. Spark names the
    // stages in no order; their numbers are the order in which they run.
    List<Stage> stages = ids.stream().sorted().map(this::stage).filter(Objects::nonNull).toList();
    StageInput.Source source = source(event.properties());
    reporter.put(state -> state.jobStarted(event.jobId(), ids));
    // One event each: a stage is reported before the input of the next one is looked up, which may
    // read the footers of thousands of files.
    stages.forEach(stage -> reporter.putLast(state -> read(state, stage, source)));
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    reporter.put(state -> state.jobEnded(event.jobId()));
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    StageInfo info = event.stageInfo();
    if (info.attemptNumber() == 0) {
      Stage stage = stage(info.stageId());
      if (stage != null) {
        StageInput.Source source = source(event.properties());
        reporter.putLast(state -> {
          read(state, stage, source);
          state.stageReadsNothing(info.stageId());
        });
      }
    }
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    StageInfo info = event.stageInfo();
    // After a failure there may be another attempt; if there is none, the job ends.
    if (info.failureReason().isEmpty()) {
      reporter.put(state -> state.stageEnded(info.stageId()));
    }
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    int stage = event.stageId();
    int partition = event.taskInfo().partitionId();
    String host = event.taskInfo().host();
    reporter.put(state -> state.taskStarted(stage, partition, host));
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    int stage = event.stageId();
    int partition = event.taskInfo().partitionId();
    boolean ok = event.reason() == Success$.MODULE$;
    long runMs = event.taskInfo().duration();
    // A task that failed may have none.
    TaskMetrics metrics = event.taskMetrics();
    long readBytes = metrics == null ? 0 : metrics.inputMetrics().bytesRead();
    reporter.put(state -> state.taskEnded(stage, partition, ok, runMs, readBytes));
  }

  private static List<Integer> stagesOf(SparkListenerJobStart event) {
    try {
      List<Integer> stages = new ArrayList<>();
      for (Object stage : Scala.list(Scala.call(event, "stageIds"))) {
        stages.add((Integer) stage);
      }
      return stages;
    } catch (ReflectiveOperationException e) {
      throw unknownSpark(e);
    }
  }

  /** By what the input of a job of these properties is found; its execution may end meanwhile. */
  private StageInput.Source source(Properties properties) {
    String execution = properties == null ? null : properties.getProperty("spark.sql.execution.id");
    return new StageInput.Source(ours, Scan.planned(execution), context.hadoopConfiguration());
  }

  private static void read(JobState state, Stage stage, StageInput.Source source) {
    if (state.knowsStage(stage.id())) {
      return;
    }
    try {
      StageInput input = StageInput.of(stage, source);
      if (input != null) {
        state.stageReads(stage.id(), input);
      }
    } catch (StageInput.TooLarge e) {
      state.runsWithoutPrefetch(stage.id(), e.getMessage());
    } catch (ReflectiveOperationException e) {
      throw unknownSpark(e);
    }
  }

  /** Null if there is none of that number, any more or yet. */
  private Stage stage(int id) {
    DAGScheduler scheduler = context.dagScheduler();
    if (scheduler == null) {
      // The application has ended; this event was still in the queue.
      return null;
    }
    Option<Stage> stage = scheduler.stageIdToStage().get(id);
    return stage.isDefined() ? stage.get() : null;
  }

  private static IllegalStateException unknownSpark(ReflectiveOperationException e) {
    return new IllegalStateException("this version of Spark differs internally from the known ones (3.5 to 4.3)", e);
  }
}
