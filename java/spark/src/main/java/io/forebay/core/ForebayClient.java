package io.forebay.core;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A program's access to Forebay: one session with the agent of this node, connected when first
 * needed, shared by threads.
 *
 * <p>Reading and writing never depend on the agent: without one, the PFS is read and written
 * itself. Only what is about the tier fails then.
 */
public final class ForebayClient implements AutoCloseable {
  /** A mount that the agent serves. */
  public record Mount(String label, String root, long pageBytes, long extentBytes) {}

  /**
   * Where a part of a file is, or will be fetched: nodes by the names that schedulers know, best
   * first.
   */
  public record Location(long offset, long length, List<String> hosts) {}

  private final long handle;

  /**
   * A client. Throws if the native library cannot be loaded: ask {@link NativeLibrary#failure}
   * first.
   */
  public ForebayClient(ClientOptions options) throws IOException {
    if (NativeLibrary.failure() != null) {
      throw new IOException("Forebay's native library cannot be loaded: " + NativeLibrary.failure(), NativeLibrary.failure());
    }
    byte[] socket = options.socket() == null ? null : bytes(options.socket());
    handle = Native.clientNew(socket, options.deadlineMs(), options.readAheadBytes(), options.trustedUid(), options.quiet());
  }

  static byte[] bytes(String path) {
    return path.getBytes(StandardCharsets.UTF_8);
  }

  /** Opens a file for reading. */
  public ForebayFile open(String path, ReadMode mode) throws ForebayException {
    return new ForebayFile(Native.open(handle, bytes(path), mode.ordinal()));
  }

  /**
   * Opens a file for writing: a new one, or what is there is cut off, or with {@code append} kept.
   *
   * @param exclusive fail with EEXIST if there is one
   * @param permissions bits of a new file, before the umask of the process
   */
  public ForebayWriter create(String path, WriteMode mode, boolean exclusive, boolean append, int permissions) throws ForebayException {
    return new ForebayWriter(Native.create(handle, bytes(path), mode.ordinal(), exclusive, append, permissions));
  }

  /** The mounts that the agent serves; none without an agent. */
  public List<Mount> mounts() throws IOException {
    List<Mount> mounts = new ArrayList<>();
    DataInputStream answer = decode(Native.mounts(handle));
    for (int left = answer.readInt(); left > 0; left--) {
      mounts.add(new Mount(text(answer), text(answer), answer.readLong(), answer.readLong()));
    }
    return mounts;
  }

  /**
   * Where {@code length} bytes from {@code offset} of a file are kept, extent by extent; what is
   * beyond its end is left out. The hosts are empty while there is no coordinator. Fails without an
   * agent, and for a file that it does not serve.
   *
   * @param preferred who owns it, or where tasks that read it should run; blocks of {@link
   * Preferred#STORAGE} are long stripes, else extents
   */
  public List<Location> locate(String path, long offset, long length, Preferred preferred) throws IOException {
    return locations(Native.locate(handle, bytes(path), offset, length, preferred.ordinal()));
  }

  /**
   * As {@link #locate}, for a file on a mount of that label whose inode number and length are known
   * from a listing: the file is not touched, so this is cheap for ten thousand files. With {@link
   * Preferred#STORAGE} the PFS is asked once for each file, by its path below the root of the
   * mount.
   */
  public List<Location> locateListed(String mountLabel, String below, long inode, long size, long offset, long length, Preferred preferred)
      throws IOException {
    return locations(Native.locateListed(handle, bytes(mountLabel), bytes(below), inode, size, offset, length, preferred.ordinal()));
  }

  private static List<Location> locations(byte[] encoded) throws IOException {
    List<Location> parts = new ArrayList<>();
    DataInputStream answer = decode(encoded);
    for (int left = answer.readInt(); left > 0; left--) {
      long at = answer.readLong();
      long bytes = answer.readLong();
      List<String> hosts = new ArrayList<>();
      for (int more = answer.readInt(); more > 0; more--) {
        hosts.add(text(answer));
      }
      parts.add(new Location(at, bytes, hosts));
    }
    return parts;
  }

  /** The agent's counters; names carry units. Fails without an agent. */
  public Map<String, Long> counters() throws IOException {
    return numbers(Native.counters(handle));
  }

  /**
   * Path and length in bytes of this job's memory-only files. Fails if the agent does not answer.
   */
  public Map<String, Long> memoryOnlyFiles() throws IOException {
    return numbers(Native.memoryOnlyFiles(handle));
  }

  /**
   * Releases the memory of one file; returns the bytes. Fails without an agent, or if the file is
   * pinned.
   */
  public long evict(String path) throws ForebayException {
    return Native.evict(handle, bytes(path));
  }

  /** Removes the memory-only file of that path if this job has one, else the file on the PFS. */
  public void remove(String path) throws ForebayException {
    Native.remove(handle, bytes(path));
  }

  /**
   * Renames in one step of the file system, replacing nothing. Returns 0 or an error number: EEXIST
   * if there is something of that name, EINVAL or ENOSYS where the file system cannot do this.
   */
  public static int renameNew(String from, String to) throws ForebayException {
    return Native.renameNew(bytes(from), bytes(to));
  }

  /**
   * Whether two names lead to one file, links followed, also if one is a name on a mount of
   * Forebay's; false if one leads nowhere.
   */
  public static boolean sameFile(String a, String b) throws ForebayException {
    return Native.sameFile(bytes(a), bytes(b));
  }

  /**
   * Begins an analytics job, whose prefetch is planned by the coordinator. Fails without an agent.
   *
   * @param name for people: the application's id
   * @param planner empty for the cluster's default
   */
  public ForebayJob beginJob(String name, String planner) throws ForebayException {
    return new ForebayJob(Native.jobBegin(handle, bytes(name), bytes(planner)));
  }

  /**
   * Begins an application whose map outputs agents keep until this object is closed or this process
   * ends. Fails without an agent.
   */
  public ForebayShuffles beginShuffles() throws IOException {
    return joinShuffles("", "");
  }

  /** Takes part in an application that a driver has begun, by its token and origin. */
  public ForebayShuffles joinShuffles(String token, String origin) throws IOException {
    return named(Native.shuffleOpen(handle, bytes(token), bytes(origin)));
  }

  /**
   * Takes part in a job of MapReduce, whose map outputs agents keep as long as its master listens.
   * Fails without an agent here and on the master's node.
   *
   * @param token of the job; nobody else can guess it
   * @param hosts names and addresses of the master's node
   * @param port at which it listens
   */
  public ForebayShuffles joinJob(String token, List<String> hosts, int port) throws IOException {
    return named(Native.shuffleJoinJob(handle, bytes(token), bytes(String.join("\n", hosts)), port));
  }

  private static ForebayShuffles named(long app) throws IOException {
    DataInputStream names = decode(Native.shuffleNames(app));
    return new ForebayShuffles(app, text(names), text(names), text(names));
  }

  /**
   * Whether a task of the job of that name may read: where the coordinator delays its input for an
   * I/O phase, it waits for that. False after about a second: ask again. Fails without an agent;
   * the task goes on.
   */
  public boolean taskMayRead(String job, int stage, int partition) throws ForebayException {
    return Native.taskMayRead(handle, bytes(job), stage, partition);
  }

  /** Ends it; open files go on. */
  @Override
  public void close() {
    Native.clientFree(handle);
  }

  private static Map<String, Long> numbers(byte[] answer) {
    try {
      Map<String, Long> numbers = new LinkedHashMap<>();
      DataInputStream in = decode(answer);
      for (int left = in.readInt(); left > 0; left--) {
        numbers.put(text(in), in.readLong());
      }
      return numbers;
    } catch (IOException e) {
      throw new UncheckedIOException("the native library and these classes are of different versions", e);
    }
  }

  private static DataInputStream decode(byte[] answer) {
    return new DataInputStream(new ByteArrayInputStream(answer));
  }

  private static String text(DataInputStream in) throws IOException {
    return new String(in.readNBytes(in.readInt()), StandardCharsets.UTF_8);
  }
}
