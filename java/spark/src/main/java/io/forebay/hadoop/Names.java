package io.forebay.hadoop;

import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayException;
import io.forebay.core.NativeLibrary;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
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

/**
 * Names and attributes on the PFS, by the operating system's own calls. Paths are absolute ones of the operating system.
 *
 * <p>Why not Hadoop's RawLocalFileSystem: without libhadoop it starts a process for the permissions of each file, and its rename replaces a
 * file that another job has made in the meantime. Here a listing takes one call for each entry, and a rename that must not replace anything
 * is one step where the file system has it.
 */
final class Names {
  private static final String ATTRIBUTES = "unix:mode,ino,uid,gid,size,lastModifiedTime,lastAccessTime,isDirectory";

  /** Names of users and groups by number: a directory service may take milliseconds for each. */
  private final Map<Integer, String> users = new ConcurrentHashMap<>();
  private final Map<Integer, String> groups = new ConcurrentHashMap<>();

  /** What the PFS tells of a name. Times are milliseconds of the epoch. */
  record Attributes(boolean isDirectory, long size, long inode, int permissions, String owner, String group, long modifiedMs, long accessedMs) {}

  /** Attributes of a name, links followed. */
  Attributes attributes(String path) throws IOException {
    Path file = Path.of(path);
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
      // Below a file there is nothing, which the operating system tells apart and Hadoop does not.
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

  /** Names in a directory, in no order. */
  List<String> list(String directory) throws IOException {
    List<String> names = new ArrayList<>();
    try (DirectoryStream<Path> entries = Files.newDirectoryStream(Path.of(directory))) {
      for (Path entry : entries) {
        names.add(entry.getFileName().toString());
      }
    } catch (java.nio.file.DirectoryIteratorException e) {
      throw e.getCause();
    }
    return names;
  }

  /** Makes a directory and what is missing above it; nothing to do if it is there. */
  void makeDirectories(String path, int permissions) throws IOException {
    Path directory = Path.of(path);
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

  /** Renames; what is there of the new name is replaced, in one step, if that is allowed. FileAlreadyExistsException if it is not. */
  void rename(String from, String to, boolean replace) throws IOException {
    if (replace) {
      Files.move(Path.of(from), Path.of(to), StandardCopyOption.ATOMIC_MOVE);
      return;
    }
    int errno = NativeLibrary.failure() == null ? ForebayClient.renameNew(from, to) : ForebayException.ENOSYS;
    switch (errno) {
      case 0 -> { }
      case ForebayException.EINVAL, ForebayException.ENOSYS, ForebayException.ENOTSUP -> {
        // Not in one step then: another may slip between the look and the rename.
        if (Files.exists(Path.of(to), LinkOption.NOFOLLOW_LINKS)) {
          throw new FileAlreadyExistsException(to);
        }
        Files.move(Path.of(from), Path.of(to), StandardCopyOption.ATOMIC_MOVE);
      }
      default -> throw new ForebayException(errno, from + ": cannot be renamed to " + to + ": error number " + errno);
    }
  }

  /** Removes a name; a directory with all below it if {@code recursive}. A link is removed and not followed. */
  void delete(String path, boolean recursive) throws IOException {
    Path start = Path.of(path);
    if (!recursive || !Files.isDirectory(start, LinkOption.NOFOLLOW_LINKS)) {
      Files.delete(start);
      return;
    }
    Files.walkFileTree(start, new SimpleFileVisitor<>() {
      @Override
      public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
        // Others may clear up the same directory.
        Files.deleteIfExists(file);
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
    return Files.deleteIfExists(Path.of(path));
  }

  boolean isLink(String path) {
    return Files.isSymbolicLink(Path.of(path));
  }

  void setPermissions(String path, int permissions) throws IOException {
    Files.setAttribute(Path.of(path), "unix:mode", permissions & 07777);
  }

  /** Names or numbers; null leaves as it is. */
  void setOwner(String path, String owner, String group) throws IOException {
    Path file = Path.of(path);
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
    Files.getFileAttributeView(Path.of(path), BasicFileAttributeView.class).setTimes(modified, accessed, null);
  }

  void truncate(String path, long bytes) throws IOException {
    try (FileChannel file = FileChannel.open(Path.of(path), StandardOpenOption.WRITE)) {
      if (bytes < 0 || bytes > file.size()) {
        throw new IllegalArgumentException(path + ": cannot be cut off at " + bytes + " of its " + file.size() + " bytes");
      }
      file.truncate(bytes);
    }
  }

  /** Whether this process may: as the kernel says, so access lists and capabilities count. */
  boolean mayAccess(String path, boolean read, boolean write, boolean execute) throws IOException {
    Path file = Path.of(path);
    if (!Files.exists(file)) {
      throw new FileNotFoundException(path + ": No such file or directory");
    }
    return (!read || Files.isReadable(file)) && (!write || Files.isWritable(file)) && (!execute || Files.isExecutable(file));
  }

  // ---- extended attributes of the user's name space ----

  private static UserDefinedFileAttributeView extended(String path) throws IOException {
    Path file = Path.of(path);
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
