package io.forebay.workloads;

import java.util.ArrayList;
import java.util.List;

import org.apache.spark.Success$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.scheduler.TaskInfo;

/** When and where each task ran. Times are milliseconds since 1970. */
final class TaskLog extends SparkListener {
  private final List<String> stages = new ArrayList<>();
  private final List<String> tasks = new ArrayList<>();

  @Override
  public synchronized void onStageCompleted(SparkListenerStageCompleted event) {
    StageInfo stage = event.stageInfo();
    long began = stage.submissionTime().isDefined() ? (Long) stage.submissionTime().get() : 0;
    long ended = stage.completionTime().isDefined() ? (Long) stage.completionTime().get() : 0;
    stages.add(String.format("{\"stage\": %d, \"attempt\": %d, \"began_ms\": %d, \"ended_ms\": %d, \"failed\": %b}", stage.stageId(),
        stage.attemptNumber(), began, ended, stage.failureReason().isDefined()));
  }

  @Override
  public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
    TaskInfo task = event.taskInfo();
    long read = 0;
    long cpuMs = 0;
    if (event.taskMetrics() != null) {
      read = event.taskMetrics().inputMetrics().bytesRead();
      cpuMs = event.taskMetrics().executorCpuTime() / 1_000_000;
    }
    tasks.add(String.format(
        "{\"stage\": %d, \"task\": %d, \"host\": \"%s\", \"locality\": \"%s\", \"began_ms\": %d, \"ended_ms\": %d, \"cpu_ms\": %d, "
            + "\"read_bytes\": %d, \"ok\": %b}",
        event.stageId(), task.partitionId(), task.host(), task.taskLocality(), task.launchTime(), task.finishTime(), cpuMs, read,
        event.reason() == Success$.MODULE$));
  }

  synchronized String stagesJson() {
    return "[" + String.join(", ", stages) + "]";
  }

  synchronized String tasksJson() {
    return "[" + String.join(",\n", tasks) + "]";
  }
}
