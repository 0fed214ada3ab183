package io.forebay.core;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.List;

/**
 * An analytics job at the agent: it ends when this is closed, or when the process does. Made by
 * {@link ForebayClient#beginJob}.
 */
public final class ForebayJob implements AutoCloseable {
  private final long handle;

  ForebayJob(long handle) {
    this.handle = handle;
  }

  /**
   * Reports what has happened; waits for the agent. Fails if the agent is gone, and with {@link
   * ForebayException#ENOSPC} if it has no room for more of this job, of which it then may have a
   * part: the job is over for it, begin another.
   */
  public void report(List<? extends JobUpdate> updates) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    for (JobUpdate update : updates) {
      update.encode(out);
    }
    Native.jobReport(handle, bytes.toByteArray());
  }

  @Override
  public void close() {
    Native.jobEnd(handle);
  }
}
