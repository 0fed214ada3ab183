package io.forebay.hadoop;

import java.io.IOException;
import java.lang.ref.WeakReference;
import org.apache.hadoop.fs.PathIOException;

/**
 * Refuses copies of a file onto itself, by any of its names, before the target is opened: that
 * would empty the source.
 *
 * <p>Most copies are methods of the file system, which sees source and target. Hadoop's static ones
 * ({@code FileUtil.copy}, {@code FileContext.util().copy}, {@code hadoop fs -cp -d}) open the
 * source and create the target in one thread, with nothing between. So a thread that has opened a
 * file, has read nothing of it and now overwrites it, copies it onto itself.
 */
final class SameFile {
  private record Opened(String file, WeakReference<ForebayInputStream> stream) {}

  private static final ThreadLocal<Opened> LAST = new ThreadLocal<>();

  private SameFile() {}

  /** This thread has opened a file for reading. */
  static void opened(String file, ForebayInputStream stream) {
    LAST.set(new Opened(file, new WeakReference<>(stream)));
  }

  /** Before this thread overwrites a file. */
  static void refuseOverwrite(String target) throws IOException {
    Opened last = LAST.get();
    ForebayInputStream stream = last == null ? null : last.stream.get();
    if (stream != null && stream.isOpenAndUnread() && Names.isSameFile(last.file, target)) {
      throw refused(last.file, target, "are the same file");
    }
  }

  /** Before a copy of a file or a directory to a name, or into a directory of that name. */
  static void refuseCopy(String source, String target) throws IOException {
    String name = source.substring(source.lastIndexOf('/') + 1);
    if (Names.isSameFile(source, target) || Names.isDirectory(target) && Names.isSameFile(source, target + "/" + name)) {
      throw refused(source, target, "are the same file");
    }
    if (Names.isDirectory(source) && Names.isBelow(target, source)) {
      throw refused(source, target, "is a subdirectory of itself");
    }
  }

  /** In the words of Hadoop's own commands. */
  private static IOException refused(String source, String target, String why) {
    PathIOException e = new PathIOException(source, why);
    e.setOperation("copy");
    e.setTargetPath(target);
    return e;
  }
}
