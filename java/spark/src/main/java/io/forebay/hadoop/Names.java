package io.forebay.hadoop;

import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayException;
import io.forebay.core.NativeLibrary;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributeView;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.UserDefinedFileAttributeView;
import java.nio.file.attribute.UserPrincipalLookupService;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Names and attributes on the PFS, by the operating system's own calls. Paths are absolute ones of
 * the operating system.
 *
 * <p>Why not Hadoop's RawLocalFileSystem: without libhadoop it starts a process for the permissions
 * of each file, and its rename replaces a file that another job has made in the meantime. Here a
 * listing takes one call for each entry, and a rename that must not replace anything is one step
 * where the file system has it.
 */
final class Names {
  private static final Logger LOG = LoggerFactory.getLogger(Names.class);

  /** How the JVM writes names: as the locale has it that it was started in. */
  private static final String ENCODING = System.getProperty("sun.jnu.encoding", "unknown");

  private static final boolean UTF_8 = ENCODING.equalsIgnoreCase("UTF-8");

  private static final AtomicBoolean ENCODING_WARNED = new AtomicBoolean();
  private static final AtomicBoolean LEFT_OUT_WARNED = new AtomicBoolean();

  /** Walks over a tree that is deleted, if something appears in it behind each of them. */
  private static final int DELETE_WALKS = 5;

  /** Between the first walk and the second; twice that before the third, and so on. */
  private static final long DELETE_PAUSE_MS = 10;

  private static final String ATTRIBUTES = "unix:mode,ino,uid,gid,size,lastModifiedTime,lastAccessTime,isDirectory";

  /** Names of users and groups by number: a directory service may take milliseconds for each. */
  private final Map<Integer, String> users = new ConcurrentHashMap<>();
  private final Map<Integer, String> groups = new ConcurrentHashMap<>();

  /** What the PFS reports of a name. Times are milliseconds of the epoch. */
  record Attributes(boolean isDirectory, long size, long inode, int permissions, String owner, String group, long modifiedMs, long accessedMs) {}

  /**
   * Says once if the JVM writes names otherwise than native code does, which is as UTF-8: the two
   * would not mean the same file.
   */
  static void warnOfLocale() {
    if (!UTF_8 && !ENCODING_WARNED.getAndSet(true)) {
      LOG.warn("The JVM's locale writes file names as {} (sun.jnu.encoding) and not as UTF-8: files with other letters than ASCII in their names are "
          + "not found, and directories that have such are not listed. Start it with a UTF-8 locale, such as LC_ALL=C.UTF-8", ENCODING);
    }
  }

  /**
   * The name as the JDK has it. One that the locale cannot write is an IOException, and not the
   * JDK's unchecked one, which nobody expects of a file.
   */
  static Path path(String name) throws IOException {
    try {
      return Path.of(name);
    } catch (InvalidPathException e) {
      throw new IOException(name + ": the JVM cannot write this name as " + ENCODING + " (" + e.getReason()
          + "); names with other letters than ASCII need a UTF-8 locale, such as LC_ALL=C.UTF-8", e);
    }
  }

  /**
   * Whether a name that was read from a directory is the same one after it has been a String, as
   * which Hadoop has it.
   */
  private static boolean isText(Path name) {
    try {
      return Path.of(name.toString()).equals(name);
    } catch (InvalidPathException e) {
      return false;
    }
  }

  /** Whether there is something of that name, if only a link to nowhere. */
  static boolean isThere(String path) throws IOException {
    return Files.exists(path(path), LinkOption.NOFOLLOW_LINKS);
  }

  /** Whether it is a directory, links followed. */
  static boolean isDirectory(String path) throws IOException {
    return Files.isDirectory(path(path));
  }

  /** Whether two names lead to one file or directory, by links or by a mount of Forebay's too. */
  static boolean isSameFile(String a, String b) throws IOException {
    Path one = path(a);
    Path other = path(b);
    if (NativeLibrary.failure() == null) {
      return ForebayClient.sameFile(a, b);
    }
    return Files.exists(one) && Files.exists(other) && Files.isSameFile(one, other);
  }

  /** Whether a name, which need not be there, is below a directory, by any name of that. */
  static boolean isBelow(String path, String directory) throws IOException {
    Path above = path(path).getParent();
    while (above != null && !Files.exists(above)) {
      above = above.getParent();
    }
    for (above = above == null ? null : above.toRealPath(); above != null; above = above.getParent()) {
      if (isSameFile(above.toString(), directory)) {
        return true;
      }
    }
    return false;
  }

  /**
   * Something at or below that name which a copy by way of listings would lose, or by which it
   * would leave the tree: a link, a device, or a name that is no text. Null if there is none.
   */
  static Path notCopied(String path) throws IOException {
    try (Stream<Path> all = Files.walk(path(path))) {
      return all.filter(each -> !isText(each.getFileName())
          || !Files.isRegularFile(each, LinkOption.NOFOLLOW_LINKS) && !Files.isDirectory(each, LinkOption.NOFOLLOW_LINKS)).findFirst().orElse(null);
    } catch (UncheckedIOException e) {
      throw e.getCause();
    }
  }

  /** Attributes of a name, links followed. */
  Attributes attributes(String path) throws IOException {
    Path file = path(path);
    Map<String, Object> found = Files.readAttributes(file, ATTRIBUTES);
    return new Attributes((Boolean) found.get("isDirectory"), (Long) found.get("size"), (Long) found.get("ino"),
        (Integer) found.get("mode") & 07777, name(users, file, "unix:owner", (Integer) found.get("uid")),
        name(groups, file, "unix:group", (Integer) found.get("gid")), ((FileTime) found.get("lastModifiedTime")).toMillis(),
        ((FileTime) found.get("lastAccessTime")).toMillis());
  }

  /** As {@link #attributes}; null if there is nothing of that name. */
  Attributes attributesOrNull(String path) throws IOException {
    try {
      return attributes(path);
    } catch (NoSuchFileException e) {
      return null;
    } catch (IOException e) {
      // Below a file there is nothing, which the operating system distinguishes and Hadoop does
      // not.
      if (Errors.translate(e, path) instanceof org.apache.hadoop.fs.ParentNotDirectoryException) {
        return null;
      }
      throw e;
    }
  }

  private static String name(Map<Integer, String> known, Path file, String attribute, int number) throws IOException {
    String name = known.get(number);
    if (name == null) {
      name = Files.getAttribute(file, attribute).toString();
      known.put(number, name);
    }
    return name;
  }

  /**
   * Names in a directory, in no order. One that is no text is left out, as no path could be made of
   * it; but in a JVM that does not write names as UTF-8 that may be any name with other letters
   * than ASCII, so there it is an error: a job would lose input and not know.
   */
  List<String> list(String directory) throws IOException {
    List<String> names = new ArrayList<>();
    try (DirectoryStream<Path> entries = Files.newDirectoryStream(path(directory))) {
      for (Path entry : entries) {
        Path name = entry.getFileName();
        if (isText(name)) {
          names.add(name.toString());
        } else if (!UTF_8) {
          throw new IOException(directory + ": cannot be listed, because the JVM cannot read the name " + name + " in it as " + ENCODING
              + "; names with other letters than ASCII need a UTF-8 locale, such as LC_ALL=C.UTF-8");
        } else if (!LEFT_OUT_WARNED.getAndSet(true)) {
          LOG.warn("{}: {} is omitted from the listing, and so are all later names that are not valid UTF-8, the JVM's encoding of "
              + "names", directory, name);
        }
      }
    } catch (java.nio.file.DirectoryIteratorException e) {
      throw e.getCause();
    }
    return names;
  }

  /** Makes a directory and what is missing above it; nothing to do if it is there. */
  void makeDirectories(String path, int permissions) throws IOException {
    Path directory = path(path);
    if (Files.isDirectory(directory)) {
      return;
    }
    if (directory.getParent() != null) {
      makeDirectories(directory.getParent().toString(), permissions);
    }
    try {
      Files.createDirectory(directory);
      // Not at birth, when the umask of the process would take bits away that Hadoop's has left.
      setPermissions(path, permissions);
    } catch (FileAlreadyExistsException e) {
      // By another, meanwhile: as good. Or it is no directory.
      if (!Files.isDirectory(directory)) {
        throw e;
      }
    }
  }

  /**
   * Renames; what is there of the new name is replaced, in one step, if that is allowed.
   * FileAlreadyExistsException if it is not.
   */
  void rename(String from, String to, boolean replace) throws IOException {
    if (replace) {
      Files.move(path(from), path(to), StandardCopyOption.ATOMIC_MOVE);
      return;
    }
    int errno = NativeLibrary.failure() == null ? ForebayClient.renameNew(from, to) : ForebayException.ENOSYS;
    switch (errno) {
      case 0 -> { }
      case ForebayException.EINVAL, ForebayException.ENOSYS, ForebayException.ENOTSUP -> {
        // Not in one step then: another may slip between the look and the rename.
        if (Files.exists(path(to), LinkOption.NOFOLLOW_LINKS)) {
          throw new FileAlreadyExistsException(to);
        }
        Files.move(path(from), path(to), StandardCopyOption.ATOMIC_MOVE);
      }
      default -> throw new ForebayException(errno, from + ": cannot be renamed to " + to + ": error number " + errno);
    }
  }

  /**
   * Removes a name; a directory with all below it if {@code recursive}. A link is removed and not
   * followed.
   *
   * <p>Tasks that have not heard of their end go on making files, and NFS keeps those that somebody
   * has open under a name of its own (.nfsXXXX): what appears behind a walk is met by the next one.
   * False if each of them has left something.
   */
  boolean delete(String path, boolean recursive) throws IOException {
    Path start = path(path);
    if (!recursive || !Files.isDirectory(start, LinkOption.NOFOLLOW_LINKS)) {
      Files.delete(start);
      return true;
    }
    for (int walk = 1;; walk++) {
      try {
        deleteTree(start);
        return true;
      } catch (DirectoryNotEmptyException e) {
        if (walk == DELETE_WALKS) {
          LOG.warn("{}: not removed: after {} attempts {} is still not empty", path, walk, e.getFile());
          return false;
        }
      }
      try {
        Thread.sleep(DELETE_PAUSE_MS << (walk - 1));
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new InterruptedIOException(path + ": interrupted while it was removed");
      }
    }
  }

  private static void deleteTree(Path start) throws IOException {
    Files.walkFileTree(start, new SimpleFileVisitor<>() {
      @Override
      public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
        try {
          // Others may clear up the same directory.
          Files.deleteIfExists(file);
        } catch (FileSystemException e) {
          // What NFS keeps for somebody goes when it is closed; until then its directory is not
          // empty.
          if (!"Device or resource busy".equals(e.getReason())) {
            throw e;
          }
        }
        return FileVisitResult.CONTINUE;
      }

      @Override
      public FileVisitResult visitFileFailed(Path file, IOException e) throws IOException {
        if (e instanceof NoSuchFileException) {
          return FileVisitResult.CONTINUE;
        }
        throw e;
      }

      @Override
      public FileVisitResult postVisitDirectory(Path directory, IOException e) throws IOException {
        if (e != null) {
          throw e;
        }
        Files.deleteIfExists(directory);
        return FileVisitResult.CONTINUE;
      }
    });
  }

  boolean deleteIfExists(String path) throws IOException {
    return Files.deleteIfExists(path(path));
  }

  boolean isLink(String path) throws IOException {
    return Files.isSymbolicLink(path(path));
  }

  void setPermissions(String path, int permissions) throws IOException {
    Files.setAttribute(path(path), "unix:mode", permissions & 07777);
  }

  /** Names or numbers; null leaves as it is. */
  void setOwner(String path, String owner, String group) throws IOException {
    Path file = path(path);
    UserPrincipalLookupService names = file.getFileSystem().getUserPrincipalLookupService();
    PosixFileAttributeView view = Files.getFileAttributeView(file, PosixFileAttributeView.class);
    if (owner != null && !owner.isEmpty()) {
      view.setOwner(names.lookupPrincipalByName(owner));
    }
    if (group != null && !group.isEmpty()) {
      view.setGroup(names.lookupPrincipalByGroupName(group));
    }
  }

  /** Milliseconds of the epoch; -1 leaves as it is. */
  void setTimes(String path, long modifiedMs, long accessedMs) throws IOException {
    FileTime modified = modifiedMs < 0 ? null : FileTime.fromMillis(modifiedMs);
    FileTime accessed = accessedMs < 0 ? null : FileTime.fromMillis(accessedMs);
    Files.getFileAttributeView(path(path), BasicFileAttributeView.class).setTimes(modified, accessed, null);
  }

  void truncate(String path, long bytes) throws IOException {
    try (FileChannel file = FileChannel.open(path(path), StandardOpenOption.WRITE)) {
      if (bytes < 0 || bytes > file.size()) {
        throw new IllegalArgumentException(path + ": cannot be cut off at " + bytes + " of its " + file.size() + " bytes");
      }
      file.truncate(bytes);
    }
  }

  /** Whether this process may: as the kernel says, so access lists and capabilities count. */
  boolean mayAccess(String path, boolean read, boolean write, boolean execute) throws IOException {
    Path file = path(path);
    if (!Files.exists(file)) {
      throw new FileNotFoundException(path + ": No such file or directory");
    }
    return (!read || Files.isReadable(file)) && (!write || Files.isWritable(file)) && (!execute || Files.isExecutable(file));
  }

  // ---- extended attributes of the user's name space ----

  private static UserDefinedFileAttributeView extended(String path) throws IOException {
    Path file = path(path);
    if (!Files.exists(file)) {
      throw new NoSuchFileException(path);
    }
    return Files.getFileAttributeView(file, UserDefinedFileAttributeView.class);
  }

  List<String> extendedNames(String path) throws IOException {
    return extended(path).list();
  }

  byte[] extendedValue(String path, String name) throws IOException {
    UserDefinedFileAttributeView view = extended(path);
    ByteBuffer value = ByteBuffer.allocate(view.size(name));
    view.read(name, value);
    return value.array();
  }

  void setExtended(String path, String name, byte[] value) throws IOException {
    extended(path).write(name, ByteBuffer.wrap(value));
  }

  void removeExtended(String path, String name) throws IOException {
    extended(path).delete(name);
  }

  /** All of them, by name. */
  Map<String, byte[]> extendedAll(String path) throws IOException {
    Map<String, byte[]> all = new HashMap<>();
    for (String name : extendedNames(path)) {
      all.put(name, extendedValue(path, name));
    }
    return all;
  }
}
