package io.forebay.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;

/**
 * Many ranges of a file at once (Hadoop 3.3.5 and later).
 *
 * <p>Ranges that are in the tier are copied at once by the caller's thread: handing them to another
 * would take longer. The others are read by a few threads together, so that the waits for the agent
 * and the PFS overlap.
 *
 * <p>Spark 3.5 comes with Hadoop 3.3.4, which has no {@code FileRange}; so that one jar serves
 * both, its three methods are looked up by name when the first vectored read comes, which on 3.3.4
 * is never.
 */
final class VectoredRead {
  /** Enough to keep a few storage servers busy. */
  private static final int THREADS = 8;

  private static final ThreadPoolExecutor POOL = pool();
  private static final MethodHandle GET_OFFSET;
  private static final MethodHandle GET_LENGTH;
  private static final MethodHandle SET_DATA;

  static {
    try {
      Class<?> range = Class.forName("org.apache.hadoop.fs.FileRange");
      MethodHandles.Lookup lookup = MethodHandles.publicLookup();
      GET_OFFSET = lookup.findVirtual(range, "getOffset", MethodType.methodType(long.class)).asType(MethodType.methodType(long.class, Object.class));
      GET_LENGTH = lookup.findVirtual(range, "getLength", MethodType.methodType(int.class)).asType(MethodType.methodType(int.class, Object.class));
      SET_DATA = lookup.findVirtual(range, "setData", MethodType.methodType(void.class, CompletableFuture.class))
          .asType(MethodType.methodType(void.class, Object.class, CompletableFuture.class));
    } catch (ReflectiveOperationException e) {
      throw new ExceptionInInitializerError(e);
    }
  }

  private VectoredRead() {}

  private static ThreadPoolExecutor pool() {
    ThreadPoolExecutor pool = new ThreadPoolExecutor(THREADS, THREADS, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), work -> {
      Thread thread = new Thread(work, "forebay-vectored-read");
      thread.setDaemon(true);
      return thread;
    });
    pool.allowCoreThreadTimeOut(true);
    return pool;
  }

  /** A range with what is to become of it. */
  private record Range(long offset, int length, CompletableFuture<ByteBuffer> data) {}

  /**
   * Reads {@code ranges}, objects of FileRange, out of a file of {@code size} bytes into buffers of
   * {@code allocate}.
   */
  static void read(ForebayInputStream stream, long size, List<?> ranges, IntFunction<ByteBuffer> allocate) throws IOException {
    Objects.requireNonNull(ranges, "ranges");
    Objects.requireNonNull(allocate, "allocate");
    List<Range> all = new java.util.ArrayList<>(ranges.size());
    for (Object range : ranges) {
      all.add(checked(Objects.requireNonNull(range, "range"), size));
    }
    for (int i = 0; i < all.size(); i++) {
      setData(ranges.get(i), all.get(i).data());
    }
    for (Range range : all) {
      // Here, and not on the pool's threads: Spark asks what its task's thread has read.
      stream.count(range.length());
      start(stream, range, allocate);
    }
  }

  private static Range checked(Object range, long size) throws EOFException {
    long offset;
    int length;
    try {
      offset = (long) GET_OFFSET.invokeExact(range);
      length = (int) GET_LENGTH.invokeExact(range);
    } catch (Throwable e) {
      throw new IllegalArgumentException("not a FileRange: " + range, e);
    }
    if (length < 0) {
      throw new IllegalArgumentException("a range of " + length + " bytes");
    }
    if (offset < 0 || offset > size - length) {
      throw new EOFException(length + " bytes at " + offset + " are not within the file's " + size);
    }
    return new Range(offset, length, new CompletableFuture<>());
  }

  private static void setData(Object range, CompletableFuture<ByteBuffer> data) {
    try {
      SET_DATA.invokeExact(range, data);
    } catch (Throwable e) {
      throw new IllegalArgumentException("not a FileRange: " + range, e);
    }
  }

  private static void start(ForebayInputStream stream, Range range, IntFunction<ByteBuffer> allocate) {
    try {
      ByteBuffer target = allocate.apply(range.length());
      target.limit(target.position() + range.length());
      int start = target.position();
      if (stream.readResident(range.offset(), target) == range.length()) {
        range.data().complete(target.position(start));
        return;
      }
      POOL.execute(() -> finish(stream, range, target));
    } catch (IOException | RuntimeException | Error e) {
      range.data().completeExceptionally(e);
    }
  }

  private static void finish(ForebayInputStream stream, Range range, ByteBuffer target) {
    int start = target.position();
    try {
      stream.readFullyUncounted(range.offset(), target);
      range.data().complete(target.position(start));
    } catch (IOException | RuntimeException | Error e) {
      range.data().completeExceptionally(e);
    }
  }
}
