package io.forebay.core;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/**
 * What an analytics job reports, in the order in which it happened; the words are those of {@code
 * JobUpdate} in crates/forebay-wire.
 *
 * <p>The encoding is the one that crates/forebay-jni/src/job.rs reads: a byte that says which, then
 * big-endian numbers; text and paths are their UTF-8 bytes behind their number.
 */
public sealed interface JobUpdate {
  /** Writes this for the native side. */
  void encode(DataOutputStream out) throws IOException;

  /** Tasks at a time by host, all of them; reported again when executors come or go. */
  record Slots(Map<String, Integer> byHost) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(0);
      out.writeInt(byHost.size());
      for (Map.Entry<String, Integer> host : byHost.entrySet()) {
        text(out, host.getKey());
        out.writeInt(host.getValue());
      }
    }
  }

  /**
   * Files that splits name: numbered from 0 in the order they are reported, over the whole life of
   * the job.
   */
  record Files(List<String> paths) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(1);
      out.writeInt(paths.size());
      for (String path : paths) {
        text(out, path);
      }
    }
  }

  /** A part of a file, in bytes. */
  record Part(int file, long offset, long length) {}

  /**
   * What each of the tasks reads that follow those reported before, in order, and the host that
   * each will be sent to; empty if that is anybody's guess.
   */
  record Splits(int stage, List<List<Part>> splits, List<String> preferredNodes) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(2);
      out.writeInt(stage);
      out.writeInt(splits.size());
      for (int i = 0; i < splits.size(); i++) {
        List<Part> split = splits.get(i);
        out.writeInt(split.size());
        for (Part part : split) {
          out.writeInt(part.file());
          out.writeLong(part.offset());
          out.writeLong(part.length());
        }
        text(out, preferredNodes.get(i));
      }
    }
  }

  /** All splits of the stage have been reported. */
  record StageReady(int stage) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(3);
      out.writeInt(stage);
    }
  }

  /** A task runs on a host; {@code task} counts the stage's splits from 0. */
  record TaskStarted(int stage, int task, String host) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(4);
      out.writeInt(stage);
      out.writeInt(task);
      text(out, host);
    }
  }

  /** A task has ended; {@code ok}: its result stands. */
  record TaskEnded(int stage, int task, boolean ok, long runMs) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(5);
      out.writeInt(stage);
      out.writeInt(task);
      out.writeByte(ok ? 1 : 0);
      out.writeLong(runMs);
    }
  }

  /** No task of the stage will run any more. */
  record StageEnded(int stage) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(6);
      out.writeInt(stage);
    }
  }

  /** Its tasks ask before they read ({@link ForebayClient#taskMayRead}). */
  record TasksAsk() implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(7);
    }
  }

  /**
   * The partitions of a stage's tasks, in their order, if they are not 0, 1, 2 ... Reported before
   * the stage is ready.
   */
  record Partitions(int stage, List<Integer> byTask) implements JobUpdate {
    @Override
    public void encode(DataOutputStream out) throws IOException {
      out.writeByte(8);
      out.writeInt(stage);
      out.writeInt(byTask.size());
      for (int partition : byTask) {
        out.writeInt(partition);
      }
    }
  }

  private static void text(DataOutputStream out, String text) throws IOException {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    out.writeInt(bytes.length);
    out.write(bytes);
  }
}
