package io.forebay.mapreduce;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.io.DataInputBuffer;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.util.Progress;

/**
 * Merges in a thread of its own, one buffer ahead of the reduce function: while that takes records
 * out of one buffer, the other is filled.
 */
final class MergeAhead implements RawKeyValueIterator {
  private static final int BUFFER_BYTES = 1 << 20;
  private static final long LOOK_MS = 1000;

  /** Records, each with the lengths of key and value before it. */
  private static final class Batch {
    private final DataOutputBuffer bytes = new DataOutputBuffer();
    private IOException failure;
    private boolean isLast;
  }

  private final RawKeyValueIterator merged;
  private final BlockingQueue<Batch> full = new ArrayBlockingQueue<>(2);
  private final BlockingQueue<Batch> empty = new ArrayBlockingQueue<>(2);
  private final Thread reducer = Thread.currentThread();
  private final Thread thread = new Thread(this::run, "forebay-merge");
  private final DataInputBuffer in = new DataInputBuffer();
  private final DataInputBuffer key = new DataInputBuffer();
  private final DataInputBuffer value = new DataInputBuffer();
  private Batch batch;

  MergeAhead(RawKeyValueIterator merged) {
    this.merged = merged;
    empty.add(new Batch());
    empty.add(new Batch());
    thread.setDaemon(true);
    thread.start();
  }

  private void run() {
    Batch filling = null;
    try {
      boolean isLast = false;
      while (!isLast) {
        filling = take(empty, reducer);
        if (filling == null) {
          return;
        }
        filling.bytes.reset();
        isLast = !fill(filling);
        filling.isLast = isLast;
        full.put(filling);
      }
    } catch (IOException | RuntimeException | Error e) {
      filling.failure = new IOException("the map outputs cannot be merged: " + e, e);
      full.add(filling);
    } catch (InterruptedException e) {
      JobOutputs.LOG.debug("Forebay: a merge ends before its last record", e);
    }
  }

  /** False if that were the last records. */
  private boolean fill(Batch filling) throws IOException {
    while (filling.bytes.getLength() < BUFFER_BYTES) {
      if (!merged.next()) {
        return false;
      }
      DataInputBuffer nextKey = merged.getKey();
      DataInputBuffer nextValue = merged.getValue();
      int keyBytes = nextKey.getLength() - nextKey.getPosition();
      int valueBytes = nextValue.getLength() - nextValue.getPosition();
      filling.bytes.writeInt(keyBytes);
      filling.bytes.writeInt(valueBytes);
      filling.bytes.write(nextKey.getData(), nextKey.getPosition(), keyBytes);
      filling.bytes.write(nextValue.getData(), nextValue.getPosition(), valueBytes);
    }
    return true;
  }

  /** The next batch; null if the other side has ended. */
  private static Batch take(BlockingQueue<Batch> from, Thread other) throws InterruptedException {
    Batch next = null;
    while (next == null && other.isAlive()) {
      next = from.poll(LOOK_MS, TimeUnit.MILLISECONDS);
    }
    return next == null ? from.poll() : next;
  }

  @Override
  public boolean next() throws IOException {
    while (batch == null || in.getPosition() == batch.bytes.getLength()) {
      if (batch != null && batch.isLast) {
        return false;
      }
      turn();
    }
    int keyBytes = in.readInt();
    int valueBytes = in.readInt();
    int at = in.getPosition();
    key.reset(batch.bytes.getData(), at, keyBytes);
    value.reset(batch.bytes.getData(), at + keyBytes, valueBytes);
    in.reset(batch.bytes.getData(), at + keyBytes + valueBytes, batch.bytes.getLength() - at - keyBytes - valueBytes);
    return true;
  }

  private void turn() throws IOException {
    if (batch != null) {
      empty.add(batch);
    }
    try {
      batch = take(full, thread);
    } catch (InterruptedException e) {
      throw (IOException) new InterruptedIOException().initCause(e);
    }
    if (batch == null) {
      throw new IOException("the merge was closed");
    }
    if (batch.failure != null) {
      throw batch.failure;
    }
    in.reset(batch.bytes.getData(), 0, batch.bytes.getLength());
  }

  @Override
  public DataInputBuffer getKey() {
    return key;
  }

  @Override
  public DataInputBuffer getValue() {
    return value;
  }

  @Override
  public Progress getProgress() {
    return merged.getProgress();
  }

  @Override
  public void close() throws IOException {
    thread.interrupt();
    try {
      thread.join();
    } catch (InterruptedException e) {
      throw (IOException) new InterruptedIOException().initCause(e);
    }
    merged.close();
  }
}
