package io.forebay.spark;

import java.io.IOException;
import java.net.URI;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;

import io.forebay.hadoop.ForebayFileSystem;
import io.forebay.hadoop.ForebayLocalFileSystem;

/**
 * Puts Forebay's file system in the place of Hadoop's for {@code file:///}, so that paths stay as they are.
 *
 * <p>Why not {@code spark.hadoop.fs.file.impl}: Spark itself looks for the files of {@code spark.jars} by that scheme, before it has loaded the jar
 * that would have the class, and ends with a ClassNotFoundException. By the time a plug-in starts, the jar is there.
 */
final class FileScheme {
  private static final String IMPLEMENTATION = "fs.file.impl";
  private static final String FOREBAY = "fs.forebay.impl";

  private FileScheme() {}

  /** In the driver: for everything that takes its configuration from this one, tasks among it. A class named by the user stays. */
  static void takeOver(Configuration hadoop) {
    if (hadoop.get(IMPLEMENTATION) == null) {
      forget(hadoop);
      hadoop.set(IMPLEMENTATION, ForebayLocalFileSystem.class.getName());
    }
  }

  /** Names the class for {@code forebay:///}: Hadoop has looked for file systems before the jar of the plug-in was there, and would not find it. */
  static void name(Configuration hadoop) {
    if (hadoop.get(FOREBAY) == null) {
      hadoop.set(FOREBAY, ForebayFileSystem.class.getName());
    }
  }

  /** Hadoop keeps one file system for each scheme, whatever the configuration of who asks next says: what was made before has to go. */
  static void forget(Configuration hadoop) {
    try {
      // Whoever holds it may go on: it has nothing that a close would take away.
      FileSystem.get(URI.create("file:///"), hadoop).close();
    } catch (IOException e) {
      throw new IllegalStateException("the file system for file:/// cannot be replaced", e);
    }
  }
}
