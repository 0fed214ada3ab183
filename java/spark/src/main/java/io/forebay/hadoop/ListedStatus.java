package io.forebay.hadoop;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * The status of a file that remembers its inode number, so that its place can be told without
 * another look at the file.
 */
final class ListedStatus extends FileStatus {
  private static final long serialVersionUID = 1L;

  /** Not told to others: 0 there, and they ask by the path. */
  private final transient long inode;

  ListedStatus(Names.Attributes a, long blockBytes, Path path) {
    super(a.isDirectory() ? 0 : a.size(), a.isDirectory(), 1, blockBytes, a.modifiedMs(), a.accessedMs(), new FsPermission((short) a.permissions()),
        a.owner(), a.group(), path);
    inode = a.inode();
  }

  long inode() {
    return inode;
  }
}
