package io.forebay.hadoop;

import java.util.function.ToLongFunction;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * The status of a file that remembers its inode number, so that its place can be found without
 * another look at the file.
 */
final class ListedStatus extends FileStatus {
  private static final long serialVersionUID = 1L;

  /** Not sent to others: 0 there, and they ask by the path. */
  private final transient long inode;

  /** Knows the block size of this file; null if all files of its mount have the same. */
  private final transient ToLongFunction<ListedStatus> blockBytes;

  ListedStatus(Names.Attributes a, long usualBlockBytes, Path path, ToLongFunction<ListedStatus> blockBytes) {
    super(a.isDirectory() ? 0 : a.size(), a.isDirectory(), 1, usualBlockBytes, a.modifiedMs(), a.accessedMs(), new FsPermission((short) a.permissions()),
        a.owner(), a.group(), path);
    inode = a.inode();
    this.blockBytes = blockBytes;
  }

  /** Asked for when it is needed: the PFS may have to be asked for each file. */
  @Override
  public long getBlockSize() {
    return blockBytes == null || isDirectory() ? super.getBlockSize() : blockBytes.applyAsLong(this);
  }

  long inode() {
    return inode;
  }
}
