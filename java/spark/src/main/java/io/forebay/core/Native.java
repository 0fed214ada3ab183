package io.forebay.core;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * The native methods, in crates/forebay-jni. Handles are numbers out of a table on the other side,
 * so that a wrong or closed one is an exception; 0 is none. Paths are their bytes, since the JVM's
 * own strings reach native code in an encoding of their own.
 */
final class Native {
  private Native() {}

  /** Called by native code to raise its errors. */
  static void fail(int errno, byte[] message) throws ForebayException {
    throw new ForebayException(errno, new String(message, StandardCharsets.UTF_8));
  }

  static native long clientNew(byte[] socket, long deadlineMs, long readAheadBytes, long trustedUid, boolean quiet)
      throws ForebayException;

  static native void clientFree(long client);

  static native byte[] mounts(long client) throws ForebayException;

  static native byte[] counters(long client) throws ForebayException;

  static native byte[] locate(long client, byte[] path, long offset, long length, int preferred) throws ForebayException;

  static native byte[] locateListed(long client, byte[] mount, byte[] below, long inode, long size, long offset, long length, int preferred)
      throws ForebayException;

  static native long evict(long client, byte[] path) throws ForebayException;

  static native byte[] memoryOnlyFiles(long client) throws ForebayException;

  static native void remove(long client, byte[] path) throws ForebayException;

  static native int renameNew(byte[] from, byte[] to) throws ForebayException;

  static native boolean sameFile(byte[] a, byte[] b) throws ForebayException;

  static native long open(long client, byte[] path, int mode) throws ForebayException;

  static native void close(long file);

  static native long size(long file) throws ForebayException;

  static native long residentBytes(long file) throws ForebayException;

  static native int readDirect(long file, long offset, ByteBuffer buffer, int start, int length) throws ForebayException;

  static native int readArray(long file, long offset, byte[] array, int start, int length) throws ForebayException;

  static native int readResidentDirect(long file, long offset, ByteBuffer buffer, int start, int length) throws ForebayException;

  static native int readResidentArray(long file, long offset, byte[] array, int start, int length) throws ForebayException;

  static native long map(long file, long offset, long length) throws ForebayException;

  static native ByteBuffer mapped(long mapping) throws ForebayException;

  static native void unmap(long mapping);

  static native long create(long client, byte[] path, int mode, boolean exclusive, boolean append, int permissions)
      throws ForebayException;

  static native void write(long writer, byte[] array, int start, int length) throws ForebayException;

  static native void flush(long writer, boolean durable) throws ForebayException;

  static native void closeWriter(long writer) throws ForebayException;

  static native long jobBegin(long client, byte[] name, byte[] planner) throws ForebayException;

  static native void jobReport(long job, byte[] updates) throws ForebayException;

  static native void jobEnd(long job);

  static native long shuffleOpen(long client, byte[] token, byte[] origin) throws ForebayException;

  static native long shuffleJoinJob(long client, byte[] token, byte[] hosts, int port) throws ForebayException;

  static native byte[] shuffleNodesAt(long app, byte[] hosts, boolean withSecond) throws ForebayException;

  static native byte[] shuffleNames(long app) throws ForebayException;

  static native void shuffleLives(long app, int shuffle, boolean lives) throws ForebayException;

  static native void shuffleCheck(long app) throws ForebayException;

  static native void shuffleRemove(long app, int shuffle) throws ForebayException;

  static native void shuffleClose(long app);

  static native long outputCreate(long app, int shuffle, long map) throws ForebayException;

  static native void outputAppend(long output, byte[] array, int start, int length) throws ForebayException;

  static native int outputRead(long output, long offset, byte[] array, int length) throws ForebayException;

  static native void outputCommit(long output, byte[] lengths) throws ForebayException;

  static native byte[] outputCopy(long output) throws ForebayException;

  static native void outputClose(long output);

  static native long blocksFetch(long app, byte[] nodes, byte[] blocks) throws ForebayException;

  static native long blockSize(long blocks, int number) throws ForebayException;

  static native long blockTotal(long blocks, int number) throws ForebayException;

  static native int blockRead(long blocks, int number, long offset, byte[] array, int start, int length) throws ForebayException;

  static native void blocksClose(long blocks);

  static native boolean taskMayRead(long client, byte[] job, int stage, int partition) throws ForebayException;
}
