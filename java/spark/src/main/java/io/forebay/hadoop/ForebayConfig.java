package io.forebay.hadoop;

import io.forebay.core.ClientOptions;
import io.forebay.core.NativeLibrary;
import io.forebay.core.Preferred;
import io.forebay.core.ReadMode;
import io.forebay.core.WriteMode;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;

/**
 * The configuration, read once when a file system is made. What is not understood is refused with
 * the key in the message, never guessed. docs/hadoop.md has a row for each key, and a test that
 * compares.
 */
public final class ForebayConfig {
  /**
   * Where bytes come from: "cached" (the tier, else the PFS, cached on the way) or "bypass" (the
   * PFS only, for a baseline).
   */
  public static final String READ_MODE = "fs.forebay.read.mode";

  /**
   * Where bytes go: "through" (the PFS and the tier), "bypass" (the PFS only) or "memory" (this
   * node's memory, gone with the job).
   */
  public static final String WRITE_MODE = "fs.forebay.write.mode";

  /** The agent's socket; empty for the usual places, "none" for no agent. */
  public static final String SOCKET = "fs.forebay.socket";

  /**
   * How long a read waits for the agent before it reads the PFS itself, such as "10s" or "500ms";
   * empty for the client's default.
   */
  public static final String DEADLINE = "fs.forebay.deadline";

  /**
   * Most bytes that the agent is asked for ahead of a reader, such as "64m"; 0 for none, -1 as the
   * agent's configuration says.
   */
  public static final String READ_AHEAD = "fs.forebay.read-ahead";

  /** User whose agent is believed beside root's and one's own; -1 for nobody. */
  public static final String TRUSTED_UID = "fs.forebay.trusted-uid";

  /**
   * Most bytes of a file held mapped at a time by one stream that is read without a copy, up to
   * "1g"; 0 never maps.
   */
  public static final String MAP_WINDOW = "fs.forebay.map.window";

  /**
   * Whether block locations name the nodes that own the file's extents; with false they name
   * "localhost", as the local file system's do.
   */
  public static final String LOCALITY = "fs.forebay.locality";

  /**
   * Which node they name: "owner" (who keeps the extent), "balanced" (as many for each node; the
   * Spark plug-in's default) or "storage" (the storage server that holds it, if executors may run
   * there).
   */
  public static final String LOCATIONS = "fs.forebay.locations";

  /**
   * Directories, with commas, that {@link ForebayLocalFileSystem} takes over; empty for the mounts
   * that the agent serves.
   */
  public static final String ROOTS = "fs.forebay.roots";

  /** A buffer's length is a number of 31 bits. */
  private static final long MAP_WINDOW_MAX_BYTES = 1L << 30;

  private final Configuration conf;

  /** Reads from this; nothing is checked before it is asked for. */
  public ForebayConfig(Configuration conf) {
    this.conf = conf;
  }

  /**
   * Throws what a file system with this configuration would refuse to start with, for who must know
   * before there is one.
   */
  public void check() {
    client();
    readMode();
    preferred();
    mapWindowBytes();
    locality();
    roots();
    if (writeMode() == WriteMode.MEMORY_ONLY && NativeLibrary.failure() != null) {
      throw new IllegalStateException(WRITE_MODE + " = \"memory\" needs Forebay's native library, which cannot be loaded: " + NativeLibrary.failure());
    }
  }

  ReadMode readMode() {
    String mode = conf.getTrimmed(READ_MODE, "cached");
    return switch (mode) {
      case "cached", "tier" -> ReadMode.CACHED;
      case "bypass", "pfs" -> ReadMode.PFS_ONLY;
      default -> throw refused(READ_MODE, mode, "write cached or bypass");
    };
  }

  WriteMode writeMode() {
    String mode = conf.getTrimmed(WRITE_MODE, "through");
    return switch (mode) {
      case "through" -> WriteMode.THROUGH;
      case "bypass" -> WriteMode.BYPASS;
      case "memory" -> WriteMode.MEMORY_ONLY;
      default -> throw refused(WRITE_MODE, mode, "write through, bypass or memory");
    };
  }

  /** How the agent is found. */
  public ClientOptions client() {
    String socket = conf.getTrimmed(SOCKET, "");
    return new ClientOptions(socket.isEmpty() ? null : socket, deadlineMs(), bytes(READ_AHEAD, -1), trustedUid(), false);
  }

  private long deadlineMs() {
    String deadline = conf.getTrimmed(DEADLINE, "");
    if (deadline.isEmpty()) {
      return -1;
    }
    try {
      long ms = conf.getTimeDuration(DEADLINE, -1, TimeUnit.MILLISECONDS);
      if (ms > 0) {
        return ms;
      }
    } catch (NumberFormatException e) {
      // Refused as well.
    }
    throw refused(DEADLINE, deadline, "write a time of a millisecond or more, such as 500ms or 10s");
  }

  private long trustedUid() {
    String uid = conf.getTrimmed(TRUSTED_UID, "-1");
    try {
      long number = Long.parseLong(uid);
      // The highest number of 32 bits is nobody's.
      if (number >= -1 && number < 0xffff_ffffL) {
        return number;
      }
    } catch (NumberFormatException e) {
      // Refused as well.
    }
    throw refused(TRUSTED_UID, uid, "write the number of a user, or -1 for nobody");
  }

  int mapWindowBytes() {
    long bytes = bytes(MAP_WINDOW, 64 << 20);
    if (bytes < 0 || bytes > MAP_WINDOW_MAX_BYTES) {
      throw refused(MAP_WINDOW, conf.getTrimmed(MAP_WINDOW), "write a number of bytes up to 1g, such as 64m, or 0 to map nothing");
    }
    return (int) bytes;
  }

  boolean locality() {
    String locality = conf.getTrimmed(LOCALITY, "true");
    return switch (locality.toLowerCase(Locale.ROOT)) {
      case "true" -> true;
      case "false" -> false;
      default -> throw refused(LOCALITY, locality, "write true or false");
    };
  }

  Preferred preferred() {
    String locations = conf.getTrimmed(LOCATIONS, "owner");
    return switch (locations) {
      case "owner" -> Preferred.OWNER;
      case "balanced" -> Preferred.BALANCED;
      case "storage" -> Preferred.STORAGE;
      default -> throw refused(LOCATIONS, locations, "write owner, balanced or storage");
    };
  }

  /**
   * Configured roots as absolute paths without a slash at their end; null if the agent is to be
   * asked.
   */
  List<String> roots() {
    List<String> roots = new ArrayList<>();
    for (String root : conf.getTrimmedStrings(ROOTS)) {
      String path = root.replaceAll("/+$", "");
      if (!path.startsWith("/")) {
        throw refused(ROOTS, root, "write absolute directories below /");
      }
      roots.add(path);
    }
    return roots.isEmpty() ? null : roots;
  }

  private long bytes(String key, long otherwise) {
    try {
      return conf.getLongBytes(key, otherwise);
    } catch (IllegalArgumentException | IndexOutOfBoundsException e) {
      // The second is what Hadoop says to no number at all.
      throw refused(key, conf.getTrimmed(key), "write a number of bytes, such as 67108864 or 64m");
    }
  }

  private static IllegalArgumentException refused(String key, String value, String hint) {
    return new IllegalArgumentException(key + " = \"" + value + "\" is not valid: " + hint);
  }
}
