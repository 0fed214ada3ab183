package io.forebay.spark;

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.URI;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.forebay.hadoop.ForebayConfig;
import io.forebay.hadoop.ForebayFileSystem;
import io.forebay.hadoop.ForebayFs;
import io.forebay.hadoop.ForebayLocalFileSystem;
import io.forebay.hadoop.ForebayLocalFs;

/**
 * Puts Forebay's file system in the place of Hadoop's for {@code file:///}, so that paths stay as
 * they are, and makes both of Forebay's, that for {@code forebay:///} too, with the settings of
 * this application.
 *
 * <p>Why not {@code spark.hadoop.fs.file.impl}: Spark itself looks for the files of {@code
 * spark.jars} by that scheme, before it has loaded the jar that would have the class, and ends with
 * a ClassNotFoundException. By the time a plug-in starts, the jar is there.
 *
 * <p>Why they are made here and not when the first path is opened: Hadoop keeps one file system for
 * each scheme as long as the process lives, whatever the configuration of who asks next says.
 * Whoever asked first, with a configuration or a class loader that knows nothing of Forebay, would
 * decide for all; and a second application in this process would go on with the settings of the
 * first.
 */
final class FileScheme {
  static final URI FILES = URI.create("file:///");
  static final URI FOREBAY = URI.create(ForebayFileSystem.SCHEME + ":///");

  /**
   * What the names of Forebay's own settings begin with; that of the class for {@code forebay:///}
   * among them.
   */
  private static final String SETTINGS = "fs.forebay.";

  private static final String FILES_CLASS = "fs.file.impl";
  private static final String FOREBAY_CLASS = "fs.forebay.impl";

  /**
   * The same for FileContext, by which Delta Lake and Spark's streaming commit. Hadoop does not
   * find these by itself.
   */
  private static final String FILES_CONTEXT = "fs.AbstractFileSystem.file.impl";

  private static final String FOREBAY_CONTEXT = "fs.AbstractFileSystem.forebay.impl";

  /** As Hadoop's core-default.xml has it; unset would be no file system at all. */
  private static final String HADOOPS_FILES_CONTEXT = "org.apache.hadoop.fs.local.LocalFs";

  /** How often somebody else may be faster than we are. Once is rare. */
  private static final int TRIES = 10;

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  private FileScheme() {}

  /**
   * Names the classes for {@code file:///}, for everything that takes its configuration from this
   * one, tasks among it. A class named by the user stays.
   *
   * @return whether none was named
   */
  static boolean takeOver(Configuration hadoop) {
    boolean unset = hadoop.get(FILES_CLASS) == null;
    hadoop.setIfUnset(FILES_CLASS, ForebayLocalFileSystem.class.getName());
    if (unset && HADOOPS_FILES_CONTEXT.equals(hadoop.getTrimmed(FILES_CONTEXT, HADOOPS_FILES_CONTEXT))) {
      hadoop.set(FILES_CONTEXT, ForebayLocalFs.class.getName());
    }
    return unset;
  }

  /**
   * Undoes {@link #takeOver}, for who has named the class by it: tasks would make a file system of
   * it on every node.
   */
  static void giveBack(Configuration hadoop) {
    hadoop.unset(FILES_CLASS);
    if (names(hadoop, FILES_CONTEXT, ForebayLocalFs.class)) {
      hadoop.set(FILES_CONTEXT, HADOOPS_FILES_CONTEXT);
    }
  }

  /**
   * Names the classes for {@code forebay:///}: Hadoop has looked for file systems before the jar of
   * the plug-in was there, and would not find it.
   */
  static void name(Configuration hadoop) {
    hadoop.setIfUnset(FOREBAY_CLASS, ForebayFileSystem.class.getName());
    hadoop.setIfUnset(FOREBAY_CONTEXT, ForebayFs.class.getName());
  }

  /**
   * Makes, of those file systems that are Forebay's in this configuration, the ones that everybody
   * in this process gets from here on.
   */
  static void fill(Configuration hadoop) {
    Configuration ours = withOurClasses(hadoop);
    boolean forebay = names(hadoop, FOREBAY_CLASS, ForebayFileSystem.class);
    boolean files = names(hadoop, FILES_CLASS, ForebayLocalFileSystem.class);
    if (forebay || files) {
      // Before anything is closed: what is refused later would leave this process without one.
      new ForebayConfig(ours).check();
    }
    if (forebay) {
      replace(FOREBAY, ours);
    }
    if (files) {
      replace(FILES, ours);
    } else if (get(FILES, hadoop) instanceof ForebayLocalFileSystem) {
      // Of an application before this one.
      forget(FILES, hadoop);
    }
  }

  /**
   * At the end of an application: who comes next in this process finds nothing of it. What is not
   * Forebay's stays, as others hold it.
   */
  static void leave() {
    Configuration next = withOurClasses(new Configuration());
    name(next);
    if (get(FILES, next) instanceof ForebayLocalFileSystem) {
      forget(FILES, next);
    }
    if (get(FOREBAY, next) instanceof ForebayFileSystem) {
      forget(FOREBAY, next);
    }
  }

  /**
   * After a failure. {@code file:///} is made at once, as Hadoop has it: a task's configuration may
   * name our class still, and would make it again.
   */
  static void back() {
    try {
      leave();
    } finally {
      get(FILES, withOurClasses(new Configuration()));
    }
  }

  /**
   * What executors need to know to do as the driver does; values as they were written, as tasks get
   * them.
   */
  static Map<String, String> settings(Configuration hadoop) {
    Map<String, String> settings = new HashMap<>();
    for (Map.Entry<String, String> entry : hadoop) {
      String key = entry.getKey();
      // The umask as well: what is made with a node's own would have other permissions than the
      // user has asked for.
      if ((key.startsWith(SETTINGS) || key.equals(FsPermission.UMASK_LABEL)) && entry.getValue() != null) {
        settings.put(key, entry.getValue());
      }
    }
    // Another class is the user's own business.
    if (names(hadoop, FILES_CLASS, ForebayLocalFileSystem.class)) {
      settings.put(FILES_CLASS, ForebayLocalFileSystem.class.getName());
    }
    for (String context : List.of(FILES_CONTEXT, FOREBAY_CONTEXT)) {
      String named = hadoop.getTrimmed(context, "");
      if (named.equals(ForebayLocalFs.class.getName()) || named.equals(ForebayFs.class.getName())) {
        settings.put(context, named);
      }
    }
    return settings;
  }

  /** In an executor: as the driver has it. */
  static void follow(Configuration hadoop, Map<String, String> fromDriver) {
    fromDriver.forEach((key, value) -> {
      if (key.startsWith("fs.")) {
        hadoop.set(key, value);
      }
    });
    fill(hadoop);
  }

  /**
   * Which paths go through Forebay in this application; what is fetched for others nobody takes.
   *
   * @param filePaths whether {@code file:///} may be Forebay's at all
   */
  static Predicate<URI> ours(Configuration hadoop, boolean filePaths) {
    boolean files = filePaths && names(hadoop, FILES_CLASS, ForebayLocalFileSystem.class);
    // As ForebayConfig reads them; without any it is the agent that knows which paths are on the
    // PFS.
    List<String> roots = Arrays.stream(hadoop.getTrimmedStrings(ForebayConfig.ROOTS)).map(root -> root.replaceAll("/+$", "")).toList();
    return path -> {
      String scheme = path.getScheme();
      if (ForebayFileSystem.SCHEME.equals(scheme)) {
        return true;
      }
      // Other schemes are other systems, whose paths may happen to look like ours.
      boolean file = scheme == null || scheme.equals("file");
      return file && files && (roots.isEmpty() || roots.stream().anyMatch(root -> isBelow(path.getPath(), root)));
    };
  }

  private static boolean isBelow(String path, String root) {
    return path.equals(root) || path.startsWith(root + "/");
  }

  private static boolean names(Configuration hadoop, String key, Class<?> implementation) {
    return implementation.getName().equals(hadoop.getTrimmed(key));
  }

  /**
   * A copy whose classes are looked for where the plug-in is from: the thread's own class loader
   * need not know the jar.
   */
  private static Configuration withOurClasses(Configuration hadoop) {
    Configuration ours = new Configuration(hadoop);
    ours.setClassLoader(FileScheme.class.getClassLoader());
    return ours;
  }

  private static void replace(URI uri, Configuration hadoop) {
    for (int i = 0; i < TRIES; i++) {
      forget(uri, hadoop);
      if (get(uri, hadoop).getConf() == hadoop) {
        return;
      }
      // Somebody with another configuration has asked in between.
    }
    LOG.warn("Forebay: another part of this process has created the file system for {}; its settings apply", uri);
  }

  /**
   * Has Hadoop forget its file system for this scheme; whoever asks next gets a new one.
   *
   * @param next for what is kept over, see {@link #toDelete}
   */
  static void forget(URI uri, Configuration next) {
    FileSystem before = get(uri, next);
    Set<Path> kept = new LinkedHashSet<>();
    // Those of others who live as long as the process: a close would delete them now. Again, as
    // more may come while these are taken out.
    for (List<Path> paths = toDelete(before); !paths.isEmpty(); paths = toDelete(before)) {
      paths.forEach(before::cancelDeleteOnExit);
      kept.addAll(paths);
    }
    try {
      try {
        // Whoever holds it may go on: it has nothing else that a close would take away.
        before.close();
      } finally {
        for (Path path : kept) {
          get(uri, next).deleteOnExit(path);
        }
      }
    } catch (IOException e) {
      throw failed(uri, e);
    }
  }

  private static FileSystem get(URI uri, Configuration hadoop) {
    try {
      return FileSystem.get(uri, hadoop);
    } catch (IOException e) {
      throw failed(uri, e);
    }
  }

  private static IllegalStateException failed(URI uri, IOException e) {
    return new IllegalStateException("the file system for " + uri + " cannot be replaced: " + e.getMessage(), e);
  }

  /**
   * What it has promised to delete when the process ends; Hadoop does not say.
   *
   * @throws IllegalStateException if that cannot be found out: it must not be closed then, as that
   * would delete all of it now
   */
  private static List<Path> toDelete(FileSystem fs) {
    try {
      Field field = FileSystem.class.getDeclaredField("deleteOnExit");
      field.setAccessible(true);
      Set<?> paths = (Set<?>) field.get(fs);
      synchronized (paths) {
        return paths.stream().map(Path.class::cast).toList();
      }
    } catch (ReflectiveOperationException | RuntimeException e) {
      throw new IllegalStateException("this version of Hadoop differs internally from the known ones, so its file systems cannot be replaced: " + e, e);
    }
  }
}
