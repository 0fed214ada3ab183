package io.forebay.hadoop;

import io.forebay.core.ForebayException;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.security.AccessControlException;

/** Errors of the operating system as the exceptions that Hadoop's users catch. */
final class Errors {
  private Errors() {}

  /**
   * The exception for {@code e}, which happened at {@code path}; itself if Hadoop has no special
   * one.
   */
  static IOException translate(IOException e, String path) {
    if (e instanceof ForebayException forebay) {
      return because(e, byNumber(forebay.errno(), path, e.getMessage()));
    }
    if (e instanceof NoSuchFileException) {
      return because(e, new FileNotFoundException(path + ": No such file or directory"));
    }
    if (e instanceof AccessDeniedException) {
      return because(e, new AccessControlException(path + ": Permission denied"));
    }
    if (e instanceof java.nio.file.FileAlreadyExistsException) {
      return because(e, new FileAlreadyExistsException(path + " exists already"));
    }
    if (e instanceof DirectoryNotEmptyException) {
      return because(e, new PathIsNotEmptyDirectoryException(path));
    }
    if (e instanceof NotDirectoryException) {
      return because(e, new ParentNotDirectoryException(path + " is not a directory"));
    }
    if (e instanceof FileSystemException system && system.getReason() != null) {
      // The JDK reports what it has no class for in the words of the C library.
      return because(e, switch (system.getReason()) {
        case "Not a directory" -> byNumber(ForebayException.ENOTDIR, path, path + ": " + system.getReason());
        case "Operation not permitted" -> byNumber(ForebayException.EPERM, path, path + ": " + system.getReason());
        case "Is a directory" -> byNumber(ForebayException.EISDIR, path, path + ": " + system.getReason());
        default -> null;
      });
    }
    return e;
  }

  private static IOException byNumber(int errno, String path, String message) {
    return switch (errno) {
      case ForebayException.ENOENT -> new FileNotFoundException(message);
      case ForebayException.EACCES, ForebayException.EPERM -> new AccessControlException(message);
      case ForebayException.EEXIST -> new FileAlreadyExistsException(message);
      case ForebayException.ENOTDIR -> new ParentNotDirectoryException(message);
      // As HDFS says of a directory where a file is meant.
      case ForebayException.EISDIR -> new FileNotFoundException(path + " is a directory");
      case ForebayException.ENOTEMPTY -> new PathIsNotEmptyDirectoryException(path);
      default -> null;
    };
  }

  private static IOException because(IOException cause, IOException e) {
    if (e == null) {
      return cause;
    }
    e.initCause(cause);
    return e;
  }

  /** An end of file that is an error. */
  static EOFException endOfFile(String path, long position) {
    return new EOFException(path + ": the file ends before byte " + position);
  }
}
