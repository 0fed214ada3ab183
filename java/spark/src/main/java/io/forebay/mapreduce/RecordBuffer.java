package io.forebay.mapreduce;

import java.io.IOException;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.io.DataInputBuffer;
import org.apache.hadoop.io.RawComparator;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.util.IndexedSortable;
import org.apache.hadoop.util.Progress;

/**
 * The records of a map task before they are sorted and written: serialized, each in one chunk, with
 * an index that is sorted in their place.
 *
 * <p>Chunks, and not one array of {@code mapreduce.task.io.sort.mb}: a task with little output
 * takes little memory, and one with much never has two copies while the buffer grows.
 */
final class RecordBuffer extends OutputStream implements IndexedSortable {
  private static final int CHUNK_BYTES_MAX = 1 << 20;
  /** Parts of the buffer that a chunk may be: what is allocated counts. */
  private static final int CHUNKS_MIN = 16;
  /** A power of two: an index is found by shifts. */
  private static final int BLOCK_BITS = 10;
  private static final int BLOCK_RECORDS = 1 << BLOCK_BITS;

  /** Numbers of a record in the index. */
  private static final int PARTITION = 0;
  private static final int CHUNK = 1;
  private static final int START = 2;
  private static final int KEY_BYTES = 3;
  private static final int VALUE_BYTES = 4;
  private static final int NUMBERS = 5;

  private final RawComparator<?> comparator;
  private final long bytesMax;
  private final int chunkBytes;
  private final List<byte[]> chunks = new ArrayList<>();
  private final List<int[]> index = new ArrayList<>();
  private final int[] swapped = new int[NUMBERS];
  private byte[] chunk;
  /** In the last chunk: where the next byte goes, and where the record begins that it is of. */
  private int at;
  private int start;
  private int records;
  private long bytes;

  /** @param bytesMax the buffer is full with */
  RecordBuffer(RawComparator<?> comparator, long bytesMax) {
    this.comparator = comparator;
    this.bytesMax = bytesMax;
    this.chunkBytes = (int) Math.min(CHUNK_BYTES_MAX, bytesMax / CHUNKS_MIN);
    clear();
  }

  /** Removes all records. */
  void clear() {
    chunks.clear();
    index.clear();
    records = 0;
    bytes = 0;
    start = 0;
    at = 0;
    addChunk(chunkBytes);
  }

  int records() {
    return records;
  }

  /** Memory that it takes. */
  long bytes() {
    return bytes;
  }

  boolean isFull() {
    return bytes > bytesMax;
  }

  private void addChunk(int length) {
    chunk = new byte[length];
    chunks.add(chunk);
    bytes += length;
  }

  // Serializers write the bytes of a record here.

  @Override
  public void write(int b) {
    makeRoom(1);
    chunk[at++] = (byte) b;
  }

  @Override
  public void write(byte[] array, int from, int length) {
    makeRoom(length);
    System.arraycopy(array, from, chunk, at, length);
    at += length;
  }

  /** A record that does not fit moves to a chunk of its own, which grows with it. */
  private void makeRoom(int length) {
    if (chunk.length - at >= length) {
      return;
    }
    byte[] full = chunk;
    int begun = at - start;
    if (start == 0) {
      bytes -= full.length;
      chunks.remove(chunks.size() - 1);
    }
    long wanted = (long) begun + length;
    if (wanted > Integer.MAX_VALUE - 8) {
      throw new IllegalArgumentException("a record of more than " + (Integer.MAX_VALUE - 8) + " bytes");
    }
    addChunk((int) Math.max(chunkBytes, Math.min(wanted * 3 / 2, Integer.MAX_VALUE - 8)));
    System.arraycopy(full, start, chunk, 0, begun);
    start = 0;
    at = begun;
  }

  /** Bytes of the record that is being written. */
  int written() {
    return at - start;
  }

  /** Drops what was written since the last record. */
  void abandon() {
    at = start;
  }

  /** Ends a record. */
  void add(int partition, int keyBytes) {
    int slot = (records & BLOCK_RECORDS - 1) * NUMBERS;
    if (slot == 0) {
      index.add(new int[BLOCK_RECORDS * NUMBERS]);
      bytes += (long) BLOCK_RECORDS * NUMBERS * Integer.BYTES;
    }
    int[] block = index.get(records >> BLOCK_BITS);
    block[slot + PARTITION] = partition;
    block[slot + CHUNK] = chunks.size() - 1;
    block[slot + START] = start;
    block[slot + KEY_BYTES] = keyBytes;
    block[slot + VALUE_BYTES] = at - start - keyBytes;
    start = at;
    records++;
  }

  private int number(int record, int which) {
    return index.get(record >> BLOCK_BITS)[(record & BLOCK_RECORDS - 1) * NUMBERS + which];
  }

  @Override
  public int compare(int a, int b) {
    int order = Integer.compare(number(a, PARTITION), number(b, PARTITION));
    return order != 0
        ? order
        : comparator.compare(chunks.get(number(a, CHUNK)), number(a, START), number(a, KEY_BYTES), chunks.get(number(b, CHUNK)),
            number(b, START), number(b, KEY_BYTES));
  }

  @Override
  public void swap(int a, int b) {
    int[] blockA = index.get(a >> BLOCK_BITS);
    int[] blockB = index.get(b >> BLOCK_BITS);
    int slotA = (a & BLOCK_RECORDS - 1) * NUMBERS;
    int slotB = (b & BLOCK_RECORDS - 1) * NUMBERS;
    System.arraycopy(blockA, slotA, swapped, 0, NUMBERS);
    System.arraycopy(blockB, slotB, blockA, slotA, NUMBERS);
    System.arraycopy(swapped, 0, blockB, slotB, NUMBERS);
  }

  /** The records of one partition, once they are sorted. */
  final class Sorted implements RawKeyValueIterator {
    private final DataInputBuffer key = new DataInputBuffer();
    private final DataInputBuffer value = new DataInputBuffer();
    private final int end;
    private int next;

    /** From record {@code first} on, which is the first that is not of an earlier partition. */
    Sorted(int first, int partition) {
      int after = first;
      while (after < records && number(after, PARTITION) == partition) {
        after++;
      }
      next = first;
      end = after;
    }

    /** One after its last. */
    int end() {
      return end;
    }

    @Override
    public boolean next() {
      if (next == end) {
        return false;
      }
      byte[] data = chunks.get(number(next, CHUNK));
      int from = number(next, START);
      int keyBytes = number(next, KEY_BYTES);
      key.reset(data, from, keyBytes);
      value.reset(data, from + keyBytes, number(next, VALUE_BYTES));
      next++;
      return true;
    }

    @Override
    public DataInputBuffer getKey() throws IOException {
      return key;
    }

    @Override
    public DataInputBuffer getValue() throws IOException {
      return value;
    }

    @Override
    public Progress getProgress() {
      return new Progress();
    }

    @Override
    public void close() {}
  }
}
