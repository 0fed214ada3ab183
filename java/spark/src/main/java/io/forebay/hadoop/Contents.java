package io.forebay.hadoop;

import io.forebay.core.ForebayClient;
import io.forebay.core.Mapping;
import io.forebay.core.Preferred;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;

/**
 * How file contents are reached. Paths are absolute ones of the operating system. Errors are those
 * of the layer below: see {@link Errors}.
 */
interface Contents {
  /** A file open for reading at any position, by any thread. */
  interface Reader extends Closeable {
    /** Length in bytes. */
    long size() throws IOException;

    /** Fills the array; fewer bytes only at the end of the file. */
    int read(long offset, byte[] array, int start, int length) throws IOException;

    /** Fills the buffer and moves its position; fewer bytes only at the end of the file. */
    int read(long offset, ByteBuffer target) throws IOException;

    /** As {@code read}, if that takes no waiting; -1 otherwise. */
    default int readResident(long offset, ByteBuffer target) throws IOException {
      return -1;
    }

    /** The bytes without a copy; null if that cannot be had. */
    default Mapping map(long offset, int length) throws IOException {
      return null;
    }
  }

  /** A file open for writing at its end. */
  interface Writer extends Closeable {
    void write(byte[] array, int start, int length) throws IOException;

    /** What was written is visible to others. */
    void flush() throws IOException;

    /** What was written is durable. */
    void sync() throws IOException;

    /** Whether flush and sync promise anything. */
    boolean isOnPfs();
  }

  Reader open(String path) throws IOException;

  /**
   * Opens for writing; {@code permissions} are those of a new file, before the umask of the
   * process.
   */
  Writer create(String path, boolean exclusive, boolean append, int permissions) throws IOException;

  /** What the agent serves; nothing if there is no agent. */
  List<ForebayClient.Mount> mounts() throws IOException;

  /**
   * Where a range of a file is kept, or where tasks that read it should run; null if nobody knows.
   */
  List<ForebayClient.Location> locate(String path, long offset, long length, Preferred preferred);

  /**
   * As {@link #locate}, for a file on a mount whose inode number and length are known: without a
   * look at the file, unless its layout is needed.
   */
  List<ForebayClient.Location> locateListed(ForebayClient.Mount mount, String path, long inode, long size, long offset, long length,
      Preferred preferred);

  /** Path and length of the memory-only files of this job, which the PFS does not know. */
  Map<String, Long> memoryOnly() throws IOException;

  /** Removes a memory-only file. */
  void removeMemoryOnly(String path) throws IOException;
}
