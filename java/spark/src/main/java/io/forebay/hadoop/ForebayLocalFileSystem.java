package io.forebay.hadoop;

import io.forebay.core.ForebayClient;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local file system, except that what is on the PFS goes through Forebay: with {@code
 * fs.file.impl} set to this class, a job whose paths are {@code file:///pfs/...} gains without an
 * edit.
 *
 * <p>Paths below {@value ForebayConfig#ROOTS} (or below the mounts that the agent serves) are
 * {@link ForebayFileSystem}'s, under their {@code file:} names; all others are LocalFileSystem's
 * own, with its checksum files. Below the roots there are no checksum files: none are written or
 * verified, none are shown, and one that another job has left goes when its file changes. A PFS has
 * checksums of its own, and a second small file beside each would cost its metadata servers more
 * than it gains.
 *
 * <p>Each method here asks only whose the path is. A rename or a copy from one side to the other is
 * a copy of bytes.
 */
public class ForebayLocalFileSystem extends LocalFileSystem {
  private final ForebayFileSystem pfs = ForebayFileSystem.withoutChecksumFiles();
  private List<String> roots;

  /** Called by Hadoop, which then calls {@link #initialize}. */
  public ForebayLocalFileSystem() {}

  @Override
  public void initialize(URI name, Configuration conf) throws IOException {
    super.initialize(name, conf);
    pfs.initialize(name, conf);
    roots = new ForebayConfig(conf).roots();
  }

  /** The path, qualified, if it is on the PFS; else null. */
  private Path onPfs(Path path) throws IOException {
    Path qualified = makeQualified(path);
    String local = qualified.toUri().getPath();
    if (roots != null) {
      return roots.stream().anyMatch(root -> Locations.isBelow(local, root)) ? qualified : null;
    }
    for (ForebayClient.Mount mount : pfs.locations().mounts()) {
      if (Locations.isBelow(local, mount.root())) {
        return qualified;
      }
    }
    return null;
  }

  /** The path of the operating system. */
  private String local(Path path) {
    return makeQualified(path).toUri().getPath();
  }

  // ---- contents ----

  @Override
  public FSDataInputStream open(Path path, int bufferBytes) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.open(path, bufferBytes) : pfs.open(mine, bufferBytes);
  }

  @Override
  public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int bufferBytes, short replication,
      long blockBytes, Progressable progress) throws IOException {
    if (overwrite) {
      SameFile.refuseOverwrite(local(path));
    }
    Path mine = onPfs(path);
    return mine == null
        ? super.create(path, permission, overwrite, bufferBytes, replication, blockBytes, progress)
        : pfs.create(mine, permission, overwrite, bufferBytes, replication, blockBytes, progress);
  }

  @Override
  public FSDataOutputStream create(Path path, FsPermission permission, EnumSet<CreateFlag> flags, int bufferBytes, short replication,
      long blockBytes, Progressable progress, Options.ChecksumOpt checksum) throws IOException {
    if (flags.contains(CreateFlag.OVERWRITE)) {
      SameFile.refuseOverwrite(local(path));
    }
    Path mine = onPfs(path);
    return mine == null
        ? super.create(path, permission, flags, bufferBytes, replication, blockBytes, progress, checksum)
        : pfs.create(mine, permission, flags, bufferBytes, replication, blockBytes, progress, checksum);
  }

  @Override
  public FSDataOutputStream createNonRecursive(Path path, FsPermission permission, EnumSet<CreateFlag> flags, int bufferBytes,
      short replication, long blockBytes, Progressable progress) throws IOException {
    Path mine = onPfs(path);
    return mine == null
        ? super.createNonRecursive(path, permission, flags, bufferBytes, replication, blockBytes, progress)
        : pfs.createNonRecursive(mine, permission, flags, bufferBytes, replication, blockBytes, progress);
  }

  @Override
  @SuppressWarnings("deprecation")
  public FSDataOutputStream createNonRecursive(Path path, FsPermission permission, boolean overwrite, int bufferBytes, short replication,
      long blockBytes, Progressable progress) throws IOException {
    EnumSet<CreateFlag> flags = overwrite ? EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE) : EnumSet.of(CreateFlag.CREATE);
    Path mine = onPfs(path);
    return mine == null
        ? super.createNonRecursive(path, permission, overwrite, bufferBytes, replication, blockBytes, progress)
        : pfs.createNonRecursive(mine, permission, flags, bufferBytes, replication, blockBytes, progress);
  }

  @Override
  public FSDataOutputStream append(Path path, int bufferBytes, Progressable progress) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.append(path, bufferBytes, progress) : pfs.append(mine, bufferBytes, progress);
  }

  @Override
  public boolean truncate(Path path, long newLength) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.truncate(path, newLength) : pfs.truncate(mine, newLength);
  }

  @Override
  public void copyFromLocalFile(boolean deleteSource, Path source, Path target) throws IOException {
    SameFile.refuseCopy(local(source), local(target));
    super.copyFromLocalFile(deleteSource, source, target);
  }

  @Override
  public void copyFromLocalFile(boolean deleteSource, boolean overwrite, Path source, Path target) throws IOException {
    SameFile.refuseCopy(local(source), local(target));
    super.copyFromLocalFile(deleteSource, overwrite, source, target);
  }

  @Override
  public void copyFromLocalFile(boolean deleteSource, boolean overwrite, Path[] sources, Path target) throws IOException {
    for (Path source : sources) {
      SameFile.refuseCopy(local(source), local(target));
    }
    super.copyFromLocalFile(deleteSource, overwrite, sources, target);
  }

  @Override
  public void copyToLocalFile(boolean deleteSource, Path source, Path target) throws IOException {
    SameFile.refuseCopy(local(source), local(target));
    super.copyToLocalFile(deleteSource, source, target);
  }

  /**
   * What FileContext calls: as any other creation, where FilterFileSystem hands it to the raw file
   * system, past Forebay and past checksum files.
   */
  @Override
  @SuppressWarnings("deprecation")
  protected FSDataOutputStream primitiveCreate(Path path, FsPermission permission, EnumSet<CreateFlag> flags, int bufferBytes, short replication,
      long blockBytes, Progressable progress, Options.ChecksumOpt checksum) throws IOException {
    Path mine = onPfs(path);
    if (mine != null) {
      return pfs.primitiveCreate(mine, permission, flags, bufferBytes, replication, blockBytes, progress, checksum);
    }
    boolean there = exists(path);
    CreateFlag.validate(path, there, flags);
    return there && flags.contains(CreateFlag.APPEND)
        ? append(path, bufferBytes, progress)
        : create(path, permission, flags.contains(CreateFlag.OVERWRITE), bufferBytes, replication, blockBytes, progress);
  }

  // ---- names ----

  @Override
  @SuppressWarnings("deprecation")
  protected boolean primitiveMkdir(Path path, FsPermission permission) throws IOException {
    return mkdirs(path, permission);
  }

  @Override
  public boolean rename(Path source, Path target) throws IOException {
    Path mySource = onPfs(source);
    Path myTarget = onPfs(target);
    if (mySource != null && myTarget != null) {
      return pfs.rename(mySource, myTarget);
    }
    if (mySource == null && myTarget == null) {
      return super.rename(source, target);
    }
    return copyAndDelete(source, target);
  }

  private void refuseCopyToMemory(Path source, Path target) throws IOException {
    if (onPfs(target) != null) {
      pfs.refuseCopyToMemory(local(source), local(target));
    }
  }

  /** From one side to the other: each side keeps or drops its checksum files as it always does. */
  private boolean copyAndDelete(Path source, Path target) throws IOException {
    FileStatus what;
    try {
      what = getFileStatus(source);
    } catch (FileNotFoundException e) {
      return false;
    }
    Path to = target;
    if (exists(target)) {
      if (!getFileStatus(target).isDirectory()) {
        return false;
      }
      to = new Path(target, source.getName());
      if (exists(to)) {
        return false;
      }
    }
    refuseCopyToMemory(source, to);
    return ForebayFileSystem.copyAndDelete(this, what.getPath(), makeQualified(to));
  }

  @Override
  @SuppressWarnings("deprecation")
  protected void rename(Path source, Path target, Options.Rename... options) throws IOException {
    Path mySource = onPfs(source);
    Path myTarget = onPfs(target);
    if (mySource != null && myTarget != null) {
      pfs.rename(mySource, myTarget, options);
      return;
    }
    String from = local(source);
    String to = local(target);
    boolean overwrite = Arrays.asList(options).contains(Options.Rename.OVERWRITE);
    if (from.equals(to) || Names.isSameFile(from, to)) {
      // Said here, as the default would remove the target first, which is the source.
      throw new FileAlreadyExistsException(from + ": renamed to itself");
    }
    if (mySource == null && myTarget == null) {
      boolean directory = Names.isDirectory(from);
      super.rename(source, target, options);
      // It is the raw file system's rename: the checksum file has stayed where it was, and what
      // there is at the target is of another file.
      pfs.moveChecksum(from, to, directory);
    } else {
      copyInPlaceOf(source, target, overwrite);
    }
  }

  /**
   * As {@link #copyAndDelete}, for FileContext: with exceptions instead of false, and in place of
   * what is there if that is allowed.
   */
  private void copyInPlaceOf(Path source, Path target, boolean overwrite) throws IOException {
    FileStatus what = getFileStatus(source);
    refuseCopyToMemory(source, target);
    if (exists(target)) {
      if (!overwrite) {
        throw new FileAlreadyExistsException(target + " exists already");
      }
      if (getFileStatus(target).isDirectory() != what.isDirectory()) {
        throw new IOException(source + ": a file cannot replace a directory, nor a directory a file: " + target);
      }
      if (what.isDirectory() && listStatus(target).length > 0) {
        throw new PathIsNotEmptyDirectoryException(local(target));
      }
      replaceByCopy(what.getPath(), makeQualified(target));
    } else if (!copyAndDelete(source, target)) {
      throw notRenamed(source, target);
    }
  }

  private static IOException notRenamed(Path source, Path target) {
    return new IOException(source + " cannot be renamed to " + target + ": the target exists, or its parent directory does not");
  }

  /**
   * Copies beside the target, which stays until all has arrived and is then replaced in one step.
   * The source goes last.
   */
  private void replaceByCopy(Path source, Path target) throws IOException {
    String to = local(target);
    // Of no more letters than a name may have, whatever the target's.
    Path beside = new Path("file", null, to.substring(0, to.lastIndexOf('/') + 1) + ".forebay-" + UUID.randomUUID());
    boolean targetOnPfs = onPfs(target) != null;
    if (targetOnPfs != (onPfs(beside) != null)) {
      throw new IOException(source + " cannot be renamed to " + target + ": the target is the root of the PFS");
    }
    if (targetOnPfs) {
      pfs.refuseMemoryOnly(to, "replaced by a rename");
    }
    try {
      if (!ForebayFileSystem.copy(this, source, beside)) {
        throw notRenamed(source, target);
      }
      // Of either side: these are the operating system's names, and LocalFileSystem would remove
      // the target first. The checksum file comes along.
      pfs.rename(beside, target, Options.Rename.OVERWRITE);
    } catch (IOException | RuntimeException e) {
      try {
        delete(beside, true);
      } catch (IOException other) {
        e.addSuppressed(other);
      }
      throw e;
    }
    if (!delete(source, true)) {
      throw new IOException(source + ": was copied to " + target + ", but could not be removed");
    }
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.delete(path, recursive) : pfs.delete(mine, recursive);
  }

  @Override
  public boolean mkdirs(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.mkdirs(path) : pfs.mkdirs(mine);
  }

  @Override
  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.mkdirs(path, permission) : pfs.mkdirs(mine, permission);
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.getFileStatus(path) : pfs.getFileStatus(mine);
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.listStatus(path) : pfs.listStatus(mine);
  }

  @Override
  public RemoteIterator<FileStatus> listStatusIterator(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.listStatusIterator(path) : pfs.listStatusIterator(mine);
  }

  @Override
  public RemoteIterator<LocatedFileStatus> listLocatedStatus(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.listLocatedStatus(path) : pfs.listLocatedStatus(mine);
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.getFileLinkStatus(path) : pfs.getFileLinkStatus(mine);
  }

  @Override
  public void setWorkingDirectory(Path directory) {
    super.setWorkingDirectory(directory);
    pfs.setWorkingDirectory(directory);
  }

  // ---- attributes ----

  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    Path mine = onPfs(path);
    if (mine == null) {
      super.setPermission(path, permission);
    } else {
      pfs.setPermission(mine, permission);
    }
  }

  @Override
  public void setOwner(Path path, String owner, String group) throws IOException {
    Path mine = onPfs(path);
    if (mine == null) {
      super.setOwner(path, owner, group);
    } else {
      pfs.setOwner(mine, owner, group);
    }
  }

  @Override
  public void setTimes(Path path, long modifiedMs, long accessedMs) throws IOException {
    Path mine = onPfs(path);
    if (mine == null) {
      super.setTimes(path, modifiedMs, accessedMs);
    } else {
      pfs.setTimes(mine, modifiedMs, accessedMs);
    }
  }

  @Override
  public boolean setReplication(Path path, short replication) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.setReplication(path, replication) : pfs.setReplication(mine, replication);
  }

  @Override
  public void access(Path path, FsAction wanted) throws IOException {
    Path mine = onPfs(path);
    if (mine == null) {
      super.access(path, wanted);
    } else {
      pfs.access(mine, wanted);
    }
  }

  @Override
  public FsStatus getStatus(Path path) throws IOException {
    Path mine = path == null ? null : onPfs(path);
    return mine == null ? super.getStatus(path) : pfs.getStatus(mine);
  }

  @Override
  public void setXAttr(Path path, String name, byte[] value, EnumSet<XAttrSetFlag> flags) throws IOException {
    Path mine = onPfs(path);
    if (mine == null) {
      super.setXAttr(path, name, value, flags);
    } else {
      pfs.setXAttr(mine, name, value, flags);
    }
  }

  @Override
  public byte[] getXAttr(Path path, String name) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.getXAttr(path, name) : pfs.getXAttr(mine, name);
  }

  @Override
  public Map<String, byte[]> getXAttrs(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.getXAttrs(path) : pfs.getXAttrs(mine);
  }

  @Override
  public Map<String, byte[]> getXAttrs(Path path, List<String> names) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.getXAttrs(path, names) : pfs.getXAttrs(mine, names);
  }

  @Override
  public List<String> listXAttrs(Path path) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.listXAttrs(path) : pfs.listXAttrs(mine);
  }

  @Override
  public void removeXAttr(Path path, String name) throws IOException {
    Path mine = onPfs(path);
    if (mine == null) {
      super.removeXAttr(path, name);
    } else {
      pfs.removeXAttr(mine, name);
    }
  }

  // ---- where, and what can be done ----

  @Override
  public long getDefaultBlockSize(Path path) {
    try {
      Path mine = onPfs(path);
      return mine == null ? super.getDefaultBlockSize(path) : pfs.getDefaultBlockSize(mine);
    } catch (IOException e) {
      return super.getDefaultBlockSize(path);
    }
  }

  @Override
  public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) throws IOException {
    Path mine = file == null ? null : onPfs(file.getPath());
    return mine == null ? super.getFileBlockLocations(file, start, length) : pfs.getFileBlockLocations(file, start, length);
  }

  @Override
  public BlockLocation[] getFileBlockLocations(Path path, long start, long length) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.getFileBlockLocations(path, start, length) : pfs.getFileBlockLocations(mine, start, length);
  }

  @Override
  public boolean hasPathCapability(Path path, String capability) throws IOException {
    Path mine = onPfs(path);
    return mine == null ? super.hasPathCapability(path, capability) : pfs.hasPathCapability(mine, capability);
  }

  @Override
  public void close() throws IOException {
    try {
      super.close();
    } finally {
      pfs.close();
    }
  }
}
