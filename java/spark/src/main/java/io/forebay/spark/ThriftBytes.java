package io.forebay.spark;

import java.io.IOException;

/**
 * Walks over a structure of Thrift's compact protocol in memory, without objects for what nobody
 * wants.
 *
 * <p>Reads are checked: bytes that are not of this protocol are an {@link IOException}, after no
 * more work than there are bytes.
 */
final class ThriftBytes {
  private static final int DOUBLE = 7;
  static final int BINARY = 8;
  static final int LIST = 9;
  private static final int SET = 10;
  private static final int MAP = 11;
  static final int STRUCT = 12;

  /** Structures and lists inside of each other; Parquet's have seven levels. */
  private static final int DEPTH_MAX = 32;

  /** From this size on, the size of a list follows its first byte. */
  private static final int LONG_LIST = 15;

  private final byte[] bytes;
  private final int end;

  /** The next byte. */
  private int at;

  /** The type of the field whose header was read last. */
  private int type;

  ThriftBytes(byte[] bytes, int end) {
    this.bytes = bytes;
    this.end = end;
  }

  int at() {
    return at;
  }

  int type() {
    return type;
  }

  private int next() throws IOException {
    if (at >= end) {
      throw new IOException("a footer that ends too early");
    }
    return bytes[at++];
  }

  long varint() throws IOException {
    long value = 0;
    for (int shift = 0; shift < Long.SIZE; shift += 7) {
      int some = next();
      value |= (long) (some & 0x7f) << shift;
      if (some >= 0) {
        return value;
      }
    }
    throw new IOException("a footer with a number of more than 64 bits");
  }

  /** A signed number of any width. */
  long number() throws IOException {
    long coded = varint();
    return coded >>> 1 ^ -(coded & 1);
  }

  /** A count of things or bytes that follow, each of which takes at least one byte. */
  private int count(long of) throws IOException {
    if (of < 0 || of > end - at) {
      throw new IOException("a footer with " + of + " bytes or elements, and " + (end - at) + " bytes left");
    }
    return (int) of;
  }

  /** Reads the header of the next field of a structure; 0 at its end. */
  int field(int last) throws IOException {
    int header = next();
    type = header & 0x0f;
    if (header == 0) {
      return 0;
    }
    int delta = header >>> 4 & 0x0f;
    return delta == 0 ? (int) number() : last + delta;
  }

  /** Reads the header of a list of {@code element}; returns the number of its elements. */
  int list(int element) throws IOException {
    int header = next();
    int size = header >>> 4 & 0x0f;
    int count = count(size == LONG_LIST ? varint() : size);
    if ((header & 0x0f) != element && count > 0) {
      throw new IOException("a footer with a list of another type");
    }
    return count;
  }

  /** Reads the length of a string or of bytes, which begin at {@link #at} then. */
  int binary() throws IOException {
    return count(varint());
  }

  /** Skips the bytes of a string. */
  void pass(int length) {
    at += length;
  }

  /** Skips the value of the field whose header was read last. */
  void skip() throws IOException {
    skip(type, false, 0);
  }

  /** Skips a structure. */
  void skipStruct() throws IOException {
    skip(STRUCT, false, 0);
  }

  private void skip(int of, boolean isElement, int depth) throws IOException {
    if (depth > DEPTH_MAX) {
      throw new IOException("a footer with more than " + DEPTH_MAX + " levels");
    }
    switch (of) {
      // A boolean: of a field, its type is the value.
      case 1, 2 -> at += count(isElement ? 1 : 0);
      case 3 -> at += count(1);
      case 4, 5, 6 -> varint();
      case DOUBLE -> at += count(Double.BYTES);
      case BINARY -> pass(binary());
      case LIST, SET -> {
        int header = next();
        int size = header >>> 4 & 0x0f;
        for (int left = count(size == LONG_LIST ? varint() : size); left > 0; left--) {
          skip(header & 0x0f, true, depth + 1);
        }
      }
      case MAP -> {
        int entries = count(varint());
        int types = entries > 0 ? next() : 0;
        for (int left = entries; left > 0; left--) {
          skip(types >>> 4 & 0x0f, true, depth + 1);
          skip(types & 0x0f, true, depth + 1);
        }
      }
      case STRUCT -> {
        int id = 0;
        while ((id = field(id)) != 0) {
          skip(type, false, depth + 1);
        }
      }
      default -> throw new IOException("a footer with a value of an unknown type, " + of);
    }
  }
}
