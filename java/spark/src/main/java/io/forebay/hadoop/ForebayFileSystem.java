package io.forebay.hadoop;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayException;
import io.forebay.core.NativeLibrary;
import io.forebay.core.Preferred;
import io.forebay.core.ReadMode;
import io.forebay.core.WriteMode;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileUtil;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.impl.PathCapabilitiesSupport;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.Progressable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The PFS as a Hadoop file system: {@code forebay:///pfs/dir/file} is the file {@code
 * /pfs/dir/file}.
 *
 * <p>What HDFS does is done wherever the two could differ (what a rename returns, which exception
 * is thrown), because that is what jobs were written against. What a mounted PFS cannot do
 * (block-level concat, snapshots, Hadoop's ACLs, delegation tokens) is not offered, and {@link
 * #hasPathCapability} says so. Whoever the process runs as is who reads and writes: there is no
 * second permission system.
 */
public class ForebayFileSystem extends FileSystem {
  /** The scheme. */
  public static final String SCHEME = "forebay";

  private static final Logger LOG = LoggerFactory.getLogger(ForebayFileSystem.class);
  private static final AtomicBoolean WARNED = new AtomicBoolean();
  private static final String USER_ATTRIBUTE = "user.";

  private final Names names = new Names();
  private URI uri = URI.create(SCHEME + ":///");
  private Path workingDirectory;
  private Contents contents;
  private Locations locations;
  private WriteMode writeMode;
  private int mapWindowBytes;
  private boolean locality;
  private boolean memoryOnly;
  /** Checksum files are not shown, as LocalFileSystem does not show them. */
  private boolean checksumsHidden;

  /** Called by Hadoop, which then calls {@link #initialize}. */
  public ForebayFileSystem() {}

  /** For paths that stay those of the local file system. */
  static ForebayFileSystem withoutChecksumFiles() {
    ForebayFileSystem fs = new ForebayFileSystem();
    fs.checksumsHidden = true;
    return fs;
  }

  @Override
  public void initialize(URI name, Configuration conf) throws IOException {
    if (name.getAuthority() != null) {
      throw new IOException(name + ": such a path has no host; write " + name.getScheme() + ":///path/on/the/pfs");
    }
    super.initialize(name, conf);
    setConf(conf);
    uri = URI.create(name.getScheme() + ":///");
    workingDirectory = makeQualified(new Path(System.getProperty("user.dir")));
    Names.warnOfLocale();
    // All of it now: what is not understood is refused before a file is touched, and not when the
    // first one is opened.
    ForebayConfig config = new ForebayConfig(conf);
    ClientOptions options = config.client();
    ReadMode readMode = config.readMode();
    Preferred preferred = config.preferred();
    writeMode = config.writeMode();
    mapWindowBytes = config.mapWindowBytes();
    locality = config.locality();
    contents = contents(options, readMode, writeMode);
    locations = new Locations(contents, preferred);
    boolean inJob = System.getenv("FOREBAY_JOB") != null && readMode == ReadMode.CACHED;
    memoryOnly = (writeMode == WriteMode.MEMORY_ONLY || inJob) && contents instanceof CoreContents;
  }

  private static Contents contents(ClientOptions options, ReadMode readMode, WriteMode writeMode) throws IOException {
    Throwable failure = NativeLibrary.failure();
    if (failure == null) {
      return new CoreContents(options, readMode, writeMode);
    }
    if (writeMode == WriteMode.MEMORY_ONLY) {
      throw new IOException(ForebayConfig.WRITE_MODE + " = \"memory\" needs Forebay's native library, which cannot be loaded: " + failure, failure);
    }
    if (!WARNED.getAndSet(true)) {
      LOG.warn("Forebay's native library cannot be loaded; the file system is read and written directly, without the tier. Name the library "
          + "by -D{}=FILE if it is elsewhere", NativeLibrary.PROPERTY, failure);
    }
    return new PlainContents();
  }

  @Override
  public String getScheme() {
    return uri.getScheme();
  }

  @Override
  public URI getUri() {
    return uri;
  }

  @Override
  public String getCanonicalServiceName() {
    // No tokens to be fetched for it.
    return null;
  }

  @Override
  public Path getWorkingDirectory() {
    return workingDirectory;
  }

  @Override
  public void setWorkingDirectory(Path directory) {
    workingDirectory = makeQualified(directory);
  }

  @Override
  public Path getHomeDirectory() {
    return makeQualified(new Path(System.getProperty("user.home")));
  }

  Locations locations() {
    return locations;
  }

  /** The path of the operating system. */
  private String local(Path path) {
    checkPath(path);
    Path absolute = path.isAbsolute() ? path : new Path(workingDirectory, path);
    return absolute.toUri().getPath();
  }

  private Map<String, Long> memoryOnlyFiles() {
    if (!memoryOnly) {
      return Map.of();
    }
    try {
      return contents.memoryOnly();
    } catch (IOException e) {
      // There is no agent to have any.
      return Map.of();
    }
  }

  // ---- contents ----

  /** Length of an open file, without a question to the PFS; -1 if the stream is not Forebay's. */
  public static long lengthOf(FSDataInputStream in) {
    return in.getWrappedStream() instanceof ForebayInputStream ours ? ours.length() : -1;
  }

  @Override
  public FSDataInputStream open(Path path, int bufferBytes) throws IOException {
    String file = local(path);
    statistics.incrementReadOps(1);
    try {
      Contents.Reader reader = contents.open(file);
      ForebayInputStream stream = ForebayInputStream.on(file, reader, statistics, bufferBytes, mapWindowBytes);
      SameFile.opened(file, stream);
      return new FSDataInputStream(stream);
    } catch (IOException e) {
      throw Errors.translate(e, file);
    }
  }

  @Override
  public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int bufferBytes, short replication,
      long blockBytes, Progressable progress) throws IOException {
    return create(path, masked(permission), overwrite, true, bufferBytes);
  }

  @Override
  public FSDataOutputStream createNonRecursive(Path path, FsPermission permission, EnumSet<CreateFlag> flags, int bufferBytes,
      short replication, long blockBytes, Progressable progress) throws IOException {
    if (flags.contains(CreateFlag.APPEND) && names.attributesOrNull(local(path)) != null) {
      return append(path, bufferBytes, progress);
    }
    return create(path, masked(permission), flags.contains(CreateFlag.OVERWRITE), false, bufferBytes);
  }

  /**
   * What FileContext calls: its own umask is off these permissions already, and may be less than
   * the configuration's.
   */
  @Override
  @SuppressWarnings("deprecation")
  protected FSDataOutputStream primitiveCreate(Path path, FsPermission absolute, EnumSet<CreateFlag> flags, int bufferBytes, short replication,
      long blockBytes, Progressable progress, Options.ChecksumOpt checksum) throws IOException {
    boolean there = exists(path);
    CreateFlag.validate(path, there, flags);
    return there && flags.contains(CreateFlag.APPEND)
        ? append(path, bufferBytes, progress)
        : create(path, absolute.toShort(), flags.contains(CreateFlag.OVERWRITE), true, bufferBytes);
  }

  /**
   * Bits of a new file, less the configuration's umask: also from permissions that the caller has
   * named, as HDFS and the local file system do.
   */
  private int masked(FsPermission permission) {
    FsPermission wanted = permission == null ? FsPermission.getFileDefault() : permission;
    return wanted.applyUMask(FsPermission.getUMask(getConf())).toShort();
  }

  private FSDataOutputStream create(Path path, int mode, boolean overwrite, boolean makeParents, int bufferBytes) throws IOException {
    String file = local(path);
    if (overwrite) {
      SameFile.refuseOverwrite(file);
    }
    statistics.incrementWriteOps(1);
    try {
      return stream(file, contents.create(file, !overwrite, false, mode), 0, bufferBytes);
    } catch (IOException first) {
      IOException e = Errors.translate(first, file);
      Path parent = path.getParent();
      boolean parentMissing = e instanceof FileNotFoundException && parent != null && names.attributesOrNull(local(parent)) == null;
      if (!makeParents || !parentMissing) {
        throw isDirectory(file) ? exists(file + " is a directory") : e;
      }
      mkdirs(parent);
    }
    try {
      return stream(file, contents.create(file, !overwrite, false, mode), 0, bufferBytes);
    } catch (IOException e) {
      throw Errors.translate(e, file);
    }
  }

  private FSDataOutputStream stream(String file, Contents.Writer writer, long length, int bufferBytes) throws IOException {
    if (writer.isOnPfs()) {
      dropChecksum(file);
    }
    return new FSDataOutputStream(new ForebayOutputStream(file, writer, bufferBytes), statistics, length);
  }

  @Override
  public FSDataOutputStream append(Path path, int bufferBytes, Progressable progress) throws IOException {
    String file = local(path);
    FileStatus status = getFileStatus(path);
    if (status.isDirectory()) {
      throw new FileNotFoundException(file + " is a directory");
    }
    statistics.incrementWriteOps(1);
    try {
      return stream(file, contents.create(file, false, true, FsPermission.getFileDefault().toShort()), status.getLen(), bufferBytes);
    } catch (IOException e) {
      throw Errors.translate(e, file);
    }
  }

  @Override
  public boolean truncate(Path path, long newLength) throws IOException {
    String file = local(path);
    if (getFileStatus(path).isDirectory()) {
      throw new FileNotFoundException(file + " is a directory");
    }
    statistics.incrementWriteOps(1);
    run(file, () -> names.truncate(file, newLength));
    dropChecksum(file);
    return true;
  }

  @Override
  public void copyFromLocalFile(boolean deleteSource, boolean overwrite, Path source, Path target) throws IOException {
    SameFile.refuseCopy(ofLocalFileSystem(source), local(target));
    super.copyFromLocalFile(deleteSource, overwrite, source, target);
  }

  @Override
  public void copyFromLocalFile(boolean deleteSource, boolean overwrite, Path[] sources, Path target) throws IOException {
    for (Path source : sources) {
      SameFile.refuseCopy(ofLocalFileSystem(source), local(target));
    }
    super.copyFromLocalFile(deleteSource, overwrite, sources, target);
  }

  @Override
  public void copyToLocalFile(boolean deleteSource, Path source, Path target, boolean raw) throws IOException {
    SameFile.refuseCopy(local(source), ofLocalFileSystem(target));
    super.copyToLocalFile(deleteSource, source, target, raw);
  }

  private String ofLocalFileSystem(Path path) throws IOException {
    return getLocal(getConf()).pathToFile(path).getPath();
  }

  // ---- names ----

  /** Work on names, its errors as Hadoop's. */
  private interface Work {
    void run() throws IOException;
  }

  private static void run(String path, Work work) throws IOException {
    try {
      work.run();
    } catch (IOException e) {
      throw Errors.translate(e, path);
    }
  }

  private static FileAlreadyExistsException exists(String message) {
    return new FileAlreadyExistsException(message);
  }

  private boolean isDirectory(String file) throws IOException {
    Names.Attributes attributes = names.attributesOrNull(file);
    return attributes != null && attributes.isDirectory();
  }

  private FileStatus status(Path path, Names.Attributes a) {
    return new ListedStatus(a, getDefaultBlockSize(path), path, locality && locations.blocksDiffer() ? this::blockBytes : null);
  }

  private FileStatus memoryOnlyStatus(Path path, long length) {
    // It has no attributes; whoever can see it is its owner.
    return new FileStatus(length, false, 1, getDefaultBlockSize(path), 0, 0, new FsPermission((short) 0600),
        System.getProperty("user.name"), "", path);
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    String file = local(path);
    Path qualified = makeQualified(path);
    statistics.incrementReadOps(1);
    Long length = memoryOnlyFiles().get(file);
    if (length != null) {
      return memoryOnlyStatus(qualified, length);
    }
    Names.Attributes attributes;
    try {
      attributes = names.attributesOrNull(file);
    } catch (IOException e) {
      throw Errors.translate(e, file);
    }
    if (attributes == null) {
      throw new FileNotFoundException(file + ": No such file or directory");
    }
    return status(qualified, attributes);
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    FileStatus status = listed(path);
    if (status != null && !status.isDirectory()) {
      return new FileStatus[] {status};
    }
    Path directory = makeQualified(path);
    String local = local(path);
    Map<String, FileStatus> entries = new TreeMap<>();
    if (status != null) {
      run(local, () -> {
        for (String name : names.list(local)) {
          Names.Attributes attributes = isHidden(name) ? null : names.attributesOrNull(local.equals("/") ? "/" + name : local + "/" + name);
          // Gone since it was listed, or a link to nowhere.
          if (attributes != null) {
            entries.put(name, status(child(directory, name), attributes));
          }
        }
      });
    }
    memoryOnlyFiles().forEach((file, length) -> {
      int slash = file.lastIndexOf('/');
      if (file.substring(0, Math.max(1, slash)).equals(local)) {
        String name = file.substring(slash + 1);
        entries.put(name, memoryOnlyStatus(child(directory, name), length));
      }
    });
    return entries.values().toArray(FileStatus[]::new);
  }

  /** The status of what is listed; null for a directory that only memory-only files stand for. */
  private FileStatus listed(Path path) throws IOException {
    try {
      return getFileStatus(path);
    } catch (FileNotFoundException e) {
      String below = local(path) + "/";
      if (memoryOnlyFiles().keySet().stream().anyMatch(file -> file.startsWith(below))) {
        return null;
      }
      throw e;
    }
  }

  /**
   * A path below another, of a name that may have a colon in it, which Path's own constructor takes
   * for a scheme.
   */
  private static Path child(Path directory, String name) {
    String parent = directory.toUri().getPath();
    return new Path(directory.toUri().getScheme(), null, parent.endsWith("/") ? parent + name : parent + "/" + name);
  }

  @Override
  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    String directory = local(path);
    FsPermission wanted = permission == null ? FsPermission.getDirDefault() : permission;
    statistics.incrementWriteOps(1);
    run(directory, () -> names.makeDirectories(directory, wanted.applyUMask(FsPermission.getUMask(getConf())).toShort()));
    return true;
  }

  @Override
  public boolean rename(Path source, Path target) throws IOException {
    String from = local(source);
    String to = local(target);
    refuseMemoryOnly(from, "renamed");
    statistics.incrementWriteOps(1);
    Names.Attributes what = names.attributesOrNull(from);
    if (what == null || from.equals("/")) {
      LOG.debug("rename of {}: it does not exist", from);
      return false;
    }
    if (isDirectory(to)) {
      to = (to.equals("/") ? "" : to) + from.substring(from.lastIndexOf('/'));
    }
    if (from.equals(to)) {
      return !what.isDirectory();
    }
    if (to.startsWith(from + "/")) {
      LOG.debug("rename of {} to {}: below itself", from, to);
      return false;
    }
    return renameTo(from, to, what.isDirectory());
  }

  private boolean renameTo(String from, String to, boolean directory) throws IOException {
    try {
      names.rename(from, to, false);
    } catch (IOException first) {
      if (isAcrossDevices(first)) {
        return renameAcrossDevices(from, to);
      }
      IOException e = Errors.translate(first, to);
      // There is something of that name, or nothing to put it into: as HDFS says it.
      if (e instanceof FileAlreadyExistsException || e instanceof PathIsNotEmptyDirectoryException || e instanceof FileNotFoundException) {
        LOG.debug("rename of {} to {}", from, to, e);
        return false;
      }
      throw e;
    }
    moveChecksum(from, to, directory);
    return true;
  }

  /**
   * Before a rename that is a copy: it would take the file that lasts and leave one that does not.
   */
  void refuseCopyToMemory(String from, String to) throws IOException {
    if (writeMode == WriteMode.MEMORY_ONLY) {
      throw new IOException(from + ": " + to + " is on another file system, and a copy there would be in memory only: " + ForebayConfig.WRITE_MODE
          + " = \"memory\"");
    }
  }

  private boolean renameAcrossDevices(String from, String to) throws IOException {
    refuseCopyToMemory(from, to);
    return copyAndDelete(this, new Path(from), new Path(to));
  }

  /**
   * A rename that the operating system does not do, by copying. As with any rename nothing is
   * replaced and no directory is made above the target: false then. The source goes when all of it
   * has arrived, so that a copy that fails has cost nothing.
   */
  static boolean copyAndDelete(FileSystem fs, Path source, Path target) throws IOException {
    return copy(fs, source, target) && fs.delete(source, true);
  }

  /** The first half of {@link #copyAndDelete}. */
  static boolean copy(FileSystem fs, Path source, Path target) throws IOException {
    String from = source.toUri().getPath();
    String to = target.toUri().getPath();
    Path parent = target.getParent();
    if (Names.isThere(to) || Names.isBelow(to, from) || parent == null || !Names.isDirectory(parent.toUri().getPath())) {
      LOG.debug("rename of {} to {}: there is something of that name, or no directory to put it into, or it is below itself", from, to);
      return false;
    }
    java.nio.file.Path lost = Names.isDirectory(from) ? Names.notCopied(from) : null;
    if (lost != null) {
      throw new IOException(from + " cannot be renamed to " + to + ": the rename needs a copy to another file system or another part of "
          + "file://, and " + lost + " is neither a plain file nor a directory, or its name is not valid text");
    }
    return FileUtil.copy(fs, source, fs, target, false, false, fs.getConf());
  }

  private static boolean isAcrossDevices(IOException e) {
    return e instanceof ForebayException forebay && forebay.errno() == ForebayException.EXDEV
        || e instanceof java.nio.file.AtomicMoveNotSupportedException;
  }

  /**
   * Renames as FileContext does: with Rename.OVERWRITE in one step, and with exceptions instead of
   * false.
   */
  @Override
  @SuppressWarnings("deprecation")
  public void rename(Path source, Path target, Options.Rename... options) throws IOException {
    String from = local(source);
    String to = local(target);
    boolean overwrite = Arrays.asList(options).contains(Options.Rename.OVERWRITE);
    refuseMemoryOnly(from, "renamed");
    FileStatus what = getFileStatus(source);
    if (from.equals(to) || Names.isSameFile(from, to)) {
      throw exists(from + ": renamed to itself: " + to);
    }
    Names.Attributes there = names.attributesOrNull(to);
    if (there != null && !overwrite) {
      throw exists(to + " exists already");
    }
    if (there != null && there.isDirectory() != what.isDirectory()) {
      throw new IOException(from + ": a file cannot replace a directory, nor a directory a file: " + to);
    }
    Path parent = target.getParent();
    if (parent != null && !getFileStatus(parent).isDirectory()) {
      throw new ParentNotDirectoryException(local(parent) + " is not a directory");
    }
    statistics.incrementWriteOps(1);
    run(to, () -> names.rename(from, to, overwrite));
    moveChecksum(from, to, what.isDirectory());
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    String file = local(path);
    statistics.incrementWriteOps(1);
    boolean deleted = deleteMemoryOnly(file, recursive);
    Names.Attributes attributes = names.attributesOrNull(file);
    if (attributes == null && !names.isLink(file)) {
      return deleted;
    }
    if (file.equals("/")) {
      // The contract asks for false where the root cannot go; nothing below it is touched.
      return false;
    }
    try {
      if (!names.delete(file, recursive)) {
        return false;
      }
    } catch (NoSuchFileException e) {
      // By another, meanwhile.
      return deleted;
    } catch (IOException e) {
      throw Errors.translate(e, file);
    }
    if (attributes == null || !attributes.isDirectory()) {
      dropChecksum(file);
    }
    return true;
  }

  private boolean deleteMemoryOnly(String file, boolean recursive) throws IOException {
    List<String> mine = new ArrayList<>();
    for (String known : memoryOnlyFiles().keySet()) {
      if (known.equals(file) || recursive && known.startsWith(file + "/")) {
        mine.add(known);
      }
    }
    for (String known : mine) {
      contents.removeMemoryOnly(known);
    }
    return !mine.isEmpty();
  }

  void refuseMemoryOnly(String file, String what) throws IOException {
    if (memoryOnlyFiles().containsKey(file)) {
      throw new IOException(file + " is a memory-only file and cannot be " + what + "; copy it instead");
    }
  }

  // ---- attributes ----

  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    String file = local(path);
    statistics.incrementWriteOps(1);
    run(file, () -> names.setPermissions(file, permission.toShort()));
  }

  @Override
  public void setOwner(Path path, String owner, String group) throws IOException {
    String file = local(path);
    statistics.incrementWriteOps(1);
    run(file, () -> names.setOwner(file, owner, group));
  }

  @Override
  public void setTimes(Path path, long modifiedMs, long accessedMs) throws IOException {
    String file = local(path);
    statistics.incrementWriteOps(1);
    run(file, () -> names.setTimes(file, modifiedMs, accessedMs));
  }

  @Override
  public void access(Path path, FsAction wanted) throws IOException {
    String file = local(path);
    boolean may =
        names.mayAccess(file, wanted.implies(FsAction.READ), wanted.implies(FsAction.WRITE), wanted.implies(FsAction.EXECUTE));
    if (!may) {
      throw new AccessControlException(file + ": Permission denied: " + wanted + " for " + System.getProperty("user.name"));
    }
  }

  /** Name of an attribute as the operating system's calls without their prefix know it. */
  private static String attribute(String name) {
    if (!name.toLowerCase(Locale.ROOT).startsWith(USER_ATTRIBUTE)) {
      throw new UnsupportedOperationException("attribute " + name + ": only attributes of the user namespace are supported, such as user.name");
    }
    return name.substring(USER_ATTRIBUTE.length());
  }

  @Override
  public void setXAttr(Path path, String name, byte[] value, EnumSet<XAttrSetFlag> flags) throws IOException {
    String file = local(path);
    String attribute = attribute(name);
    run(file, () -> {
      boolean there = names.extendedNames(file).contains(attribute);
      XAttrSetFlag.validate(name, there, flags);
      names.setExtended(file, attribute, value == null ? new byte[0] : value);
    });
  }

  @Override
  public byte[] getXAttr(Path path, String name) throws IOException {
    String file = local(path);
    try {
      return names.extendedValue(file, attribute(name));
    } catch (IOException e) {
      throw Errors.translate(e, file);
    }
  }

  @Override
  public Map<String, byte[]> getXAttrs(Path path) throws IOException {
    String file = local(path);
    Map<String, byte[]> all = new TreeMap<>();
    run(file, () -> names.extendedAll(file).forEach((name, value) -> all.put(USER_ATTRIBUTE + name, value)));
    return all;
  }

  @Override
  public Map<String, byte[]> getXAttrs(Path path, List<String> wanted) throws IOException {
    Map<String, byte[]> found = getXAttrs(path);
    found.keySet().retainAll(wanted);
    return found;
  }

  @Override
  public List<String> listXAttrs(Path path) throws IOException {
    return new ArrayList<>(getXAttrs(path).keySet());
  }

  @Override
  public void removeXAttr(Path path, String name) throws IOException {
    String file = local(path);
    run(file, () -> names.removeExtended(file, attribute(name)));
  }

  @Override
  public FsStatus getStatus(Path path) throws IOException {
    File file = new File(path == null ? "/" : local(path));
    return new FsStatus(file.getTotalSpace(), file.getTotalSpace() - file.getFreeSpace(), file.getUsableSpace());
  }

  // ---- where ----

  /** The unit of placement: a split of this size is on one node. */
  @Override
  public long getDefaultBlockSize(Path path) {
    return locations.extentBytes(local(path));
  }

  private long blockBytes(ListedStatus file) {
    return locations.blockBytes(local(file.getPath()), file);
  }

  @Override
  @SuppressWarnings("deprecation")
  public long getDefaultBlockSize() {
    return getDefaultBlockSize(workingDirectory);
  }

  @Override
  @SuppressWarnings("deprecation")
  public short getDefaultReplication() {
    return 1;
  }

  @Override
  public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) throws IOException {
    boolean some = file != null && !file.isDirectory() && start >= 0 && start < file.getLen() && length > 0;
    BlockLocation[] known = some && locality ? locations.of(local(file.getPath()), file, start, length) : null;
    return known != null ? known : super.getFileBlockLocations(file, start, length);
  }

  @Override
  public boolean hasPathCapability(Path path, String capability) throws IOException {
    return switch (PathCapabilitiesSupport.validatePathCapabilityArgs(makeQualified(path), capability)) {
      case CommonPathCapabilities.FS_APPEND, CommonPathCapabilities.FS_PERMISSIONS, CommonPathCapabilities.FS_TRUNCATE,
          CommonPathCapabilities.FS_XATTRS -> true;
      default -> super.hasPathCapability(path, capability);
    };
  }

  // ---- checksum files, which LocalFileSystem keeps beside its own ----

  /*
   * A file that was written through file:// without Forebay has a checksum file `.NAME.crc` beside
   * it. If the file is changed here and that one stays, the next reader without Forebay hears
   * that the file is corrupt. So it goes when its file changes, and moves with it.
   */

  private static String checksum(String file) {
    int slash = file.lastIndexOf('/');
    return file.substring(0, slash + 1) + "." + file.substring(slash + 1) + ".crc";
  }

  private boolean isHidden(String name) {
    return checksumsHidden && name.startsWith(".") && name.endsWith(".crc");
  }

  private void dropChecksum(String file) {
    try {
      names.deleteIfExists(checksum(file));
    } catch (IOException e) {
      LOG.debug("checksum file of {}", file, e);
    }
  }

  /**
   * After a rename: the checksum file follows, and if there is none that of what was replaced goes.
   */
  void moveChecksum(String from, String to, boolean directory) {
    if (directory) {
      return;
    }
    try {
      names.rename(checksum(from), checksum(to), true);
    } catch (NoSuchFileException e) {
      dropChecksum(to);
    } catch (IOException e) {
      dropChecksum(to);
      dropChecksum(from);
    }
  }
}
