package io.forebay.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import io.forebay.core.ForebayException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.util.Map;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.security.AccessControlException;
import org.junit.Test;

/**
 * Errors of the operating system, by number and by the JDK's classes, are those that Hadoop's users
 * catch.
 */
public class ErrorsTest {
  private static void assertTranslated(IOException from, Class<? extends IOException> to) {
    IOException e = Errors.translate(from, "/pfs/a");
    assertEquals(from.toString(), to, e.getClass());
    assertSame(from, e.getCause());
    assertTrue(e.getMessage(), e.getMessage().contains("/pfs/a"));
  }

  @Test
  public void numbers() {
    Map.of(ForebayException.ENOENT, FileNotFoundException.class, ForebayException.EACCES, AccessControlException.class,
        ForebayException.EPERM, AccessControlException.class, ForebayException.EEXIST, FileAlreadyExistsException.class,
        ForebayException.ENOTDIR, ParentNotDirectoryException.class, ForebayException.EISDIR, FileNotFoundException.class,
        ForebayException.ENOTEMPTY, PathIsNotEmptyDirectoryException.class)
        .forEach((errno, kind) -> assertTranslated(new ForebayException(errno, "/pfs/a: why"), kind));
  }

  @Test
  public void classesOfTheJdk() {
    assertTranslated(new NoSuchFileException("/pfs/a"), FileNotFoundException.class);
    assertTranslated(new AccessDeniedException("/pfs/a"), AccessControlException.class);
    assertTranslated(new java.nio.file.FileAlreadyExistsException("/pfs/a"), FileAlreadyExistsException.class);
    assertTranslated(new DirectoryNotEmptyException("/pfs/a"), PathIsNotEmptyDirectoryException.class);
    assertTranslated(new FileSystemException("/pfs/a", null, "Not a directory"), ParentNotDirectoryException.class);
    assertTranslated(new FileSystemException("/pfs/a", null, "Operation not permitted"), AccessControlException.class);
  }

  @Test
  public void whatHadoopHasNoClassForStaysWhatItIs() {
    IOException stale = new ForebayException(ForebayException.ESTALE, "/pfs/a: changed");
    assertSame(stale, Errors.translate(stale, "/pfs/a"));
    IOException full = new FileSystemException("/pfs/a", null, "No space left on device");
    assertSame(full, Errors.translate(full, "/pfs/a"));
  }
}
