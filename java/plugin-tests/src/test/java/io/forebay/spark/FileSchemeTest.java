package io.forebay.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.After;
import org.junit.Test;

import io.forebay.hadoop.ForebayLocalFileSystem;

/** The file system for file:/// while a process already has one. */
public class FileSchemeTest {
  private static final URI FILES = URI.create("file:///");

  @After
  public void forget() {
    FileScheme.forget(new Configuration());
  }

  @Test
  public void whoComesNextGetsForebays() throws IOException {
    Configuration conf = new Configuration();
    FileSystem before = FileSystem.get(FILES, conf);
    assertFalse(before instanceof ForebayLocalFileSystem);
    FileScheme.takeOver(conf);
    assertTrue(FileSystem.get(FILES, conf) instanceof ForebayLocalFileSystem);
    assertTrue("who has the other goes on", before.exists(new Path("/")));
  }

  @Test
  public void aClassThatTheUserNamesStays() throws IOException {
    Configuration conf = new Configuration();
    conf.set("fs.file.impl", LocalFileSystem.class.getName());
    FileScheme.takeOver(conf);
    assertEquals(LocalFileSystem.class, FileSystem.get(FILES, conf).getClass());
  }
}
