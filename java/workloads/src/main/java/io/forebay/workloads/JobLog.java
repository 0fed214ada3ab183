package io.forebay.workloads;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;

/** When each of Spark's jobs began and ended. */
final class JobLog extends SparkListener {
  private final Map<Integer, Long> began = new HashMap<>();
  private final List<long[]> jobs = new ArrayList<>();

  @Override
  public synchronized void onJobStart(SparkListenerJobStart event) {
    began.put(event.jobId(), event.time());
  }

  @Override
  public synchronized void onJobEnd(SparkListenerJobEnd event) {
    jobs.add(new long[] {began.remove(event.jobId()), event.time()});
  }

  /** Pairs of times, of jobs that began at this time or later and have ended. */
  synchronized String json(long since) {
    List<String> pairs = jobs.stream().filter(job -> job[0] >= since).map(job -> "[" + job[0] + ", " + job[1] + "]").toList();
    return "[" + String.join(", ", pairs) + "]";
  }
}
