package io.forebay.core;

import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;

/**
 * Bytes of the tier in this program's memory, read-only.
 *
 * <p>It ends with {@link #close}, after which no buffer of it may be touched: as with any explicit
 * unmapping the JVM would crash. Who cannot be sure leaves it open: it ends by itself when neither
 * it nor any buffer made from its buffer can be reached.
 */
public final class Mapping implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  private final ByteBuffer buffer;
  private final Cleaner.Cleanable end;

  Mapping(long handle) throws ForebayException {
    ByteBuffer whole;
    try {
      whole = Native.mapped(handle);
    } catch (ForebayException | RuntimeException | Error e) {
      Native.unmap(handle);
      throw e;
    }
    // Every slice and duplicate of a direct buffer refers to the first one, so this is the one to
    // watch.
    end = CLEANER.register(whole, () -> Native.unmap(handle));
    buffer = whole.asReadOnlyBuffer();
  }

  /** All of it. */
  public ByteBuffer buffer() {
    return buffer.duplicate();
  }

  @Override
  public void close() {
    end.clean();
  }
}
