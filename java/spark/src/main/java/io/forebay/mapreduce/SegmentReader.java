package io.forebay.mapreduce;

import io.forebay.core.FetchedBlocks;
import io.forebay.core.ForebayShuffles;
import io.forebay.core.ForebayShuffles.Block;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Reads the segments of a reduce task out of the tier of the nodes that have them, a window at a
 * time: while one window of a segment is merged, a thread fetches the next one. Nothing is kept on
 * this node but two windows of each segment, and nothing is written to a disk.
 */
final class SegmentReader implements AutoCloseable {
  private static final int WINDOW_BYTES_MIN = 4 << 10;
  private static final int WINDOW_BYTES_MAX = 1 << 20;
  /** Bytes of one request: they take room in this node's tier until they are read. */
  private static final long REQUEST_BYTES_MAX = 8 << 20;
  /** A window is at most as late as the agent's answer, which has a deadline of its own. */
  private static final long LOOK_MS = 1000;

  private final ForebayShuffles shuffles;
  private final int reducer;
  private final int windowBytes;
  private final LinkedBlockingQueue<Segment> wanted = new LinkedBlockingQueue<>();
  /** The task's, without which nobody reads. */
  private final Thread reader = Thread.currentThread();
  private final Thread thread = new Thread(this::run, "forebay-read");
  private volatile boolean isClosed;

  /** @param bufferBytes of all windows together, of so many segments */
  SegmentReader(ForebayShuffles shuffles, int reducer, long bufferBytes, int segments) {
    this.shuffles = shuffles;
    this.reducer = reducer;
    long each = bufferBytes / 2 / Math.max(1, segments);
    windowBytes = (int) Math.max(WINDOW_BYTES_MIN, Math.min(WINDOW_BYTES_MAX, each));
    thread.setDaemon(true);
    thread.start();
  }

  /** A segment, whose first window is being fetched from now on. */
  InputStream open(MapEvents.Found output) {
    Segment segment = new Segment(output);
    segment.order();
    return segment;
  }

  @Override
  public void close() {
    isClosed = true;
    thread.interrupt();
  }

  private void run() {
    while (!isClosed && reader.isAlive()) {
      try {
        Segment first = wanted.poll(LOOK_MS, TimeUnit.MILLISECONDS);
        if (first != null) {
          List<Segment> all = new ArrayList<>(List.of(first));
          wanted.drainTo(all);
          Map<List<String>, List<Segment>> byNodes = new LinkedHashMap<>();
          all.forEach(segment -> byNodes.computeIfAbsent(segment.output.nodes(), at -> new ArrayList<>()).add(segment));
          byNodes.values().forEach(this::fetchAll);
        }
      } catch (InterruptedException e) {
        return;
      }
    }
  }

  private void fetchAll(List<Segment> segments) {
    int most = (int) Math.max(1, Math.min(ForebayShuffles.BLOCKS_MAX, REQUEST_BYTES_MAX / windowBytes));
    for (int from = 0; from < segments.size(); from += most) {
      fetch(segments.subList(from, Math.min(segments.size(), from + most)));
    }
  }

  private void fetch(List<Segment> segments) {
    List<Block> blocks = segments.stream()
        .map(segment -> MapEvents.block(segment.output.attempt(), reducer, segment.ordered, windowBytes)).toList();
    List<byte[]> windows = new ArrayList<>();
    try (FetchedBlocks fetched = shuffles.fetch(segments.get(0).output.nodes(), blocks)) {
      for (int i = 0; i < segments.size(); i++) {
        windows.add(MapEvents.bytesOf(fetched, i, blocks.get(i), segments.get(i).output.length()));
      }
    } catch (IOException | RuntimeException e) {
      if (segments.size() > 1) {
        // Their second copies may be on different nodes.
        segments.forEach(segment -> fetch(List.of(segment)));
      } else {
        Segment segment = segments.get(0);
        segment.deliver(null, new IOException("the output of " + segment.output.attempt() + " is lost: " + e, e));
      }
      return;
    }
    for (int i = 0; i < segments.size(); i++) {
      segments.get(i).deliver(windows.get(i), null);
    }
  }

  private final class Segment extends InputStream {
    private final MapEvents.Found output;
    private byte[] window;
    private int at;
    /** Offset after the windows that have come; that of the next one, if it was asked for. */
    private volatile long ordered;
    private boolean isOrdered;
    private byte[] next;
    private IOException failure;

    Segment(MapEvents.Found output) {
      this.output = output;
      window = output.head();
      ordered = window.length;
    }

    private synchronized void order() {
      if (ordered < output.length() && !isOrdered && next == null) {
        isOrdered = true;
        wanted.add(this);
      }
    }

    private synchronized void deliver(byte[] bytes, IOException failed) {
      if (isOrdered) {
        isOrdered = false;
        next = bytes;
        failure = failed;
        ordered += bytes == null ? 0 : bytes.length;
        notifyAll();
      }
    }

    /** False at its end. */
    private synchronized boolean turn() throws IOException {
      order();
      while (isOrdered) {
        if (!thread.isAlive()) {
          throw new IOException("the reduce task has ended");
        }
        try {
          wait(LOOK_MS);
        } catch (InterruptedException e) {
          throw (IOException) new InterruptedIOException().initCause(e);
        }
      }
      if (failure != null) {
        throw failure;
      }
      if (next == null) {
        return false;
      }
      window = next;
      next = null;
      at = 0;
      order();
      return true;
    }

    @Override
    public int read() throws IOException {
      return at < window.length || turn() ? window[at++] & 0xff : -1;
    }

    @Override
    public int read(byte[] array, int start, int length) throws IOException {
      if (length == 0) {
        return 0;
      }
      if (at == window.length && !turn()) {
        return -1;
      }
      int read = Math.min(length, window.length - at);
      System.arraycopy(window, at, array, start, read);
      at += read;
      return read;
    }
  }
}
