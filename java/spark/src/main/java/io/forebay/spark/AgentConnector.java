package io.forebay.spark;

import java.io.IOException;
import java.util.List;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayJob;
import io.forebay.core.JobUpdate;

/** The way to the agent of the driver's node, by the native client core. */
final class AgentConnector implements Reporter.Connector {
  private final ClientOptions options;
  private final String planner;

  AgentConnector(ClientOptions options, String planner) {
    this.options = options;
    this.planner = planner;
  }

  @Override
  public Reporter.Connection begin(String name) throws IOException {
    ForebayClient client = new ForebayClient(options);
    try {
      return new AgentLine(client, client.beginJob(name, planner));
    } catch (Throwable e) {
      // Whatever it was: the client is the native library's, and nobody else would give it back.
      client.close();
      throw e;
    }
  }

  private record AgentLine(ForebayClient client, ForebayJob job) implements Reporter.Connection {
    @Override
    public void report(List<JobUpdate> updates) throws IOException {
      job.report(updates);
    }

    @Override
    public void close() {
      try {
        job.close();
      } finally {
        client.close();
      }
    }
  }
}
