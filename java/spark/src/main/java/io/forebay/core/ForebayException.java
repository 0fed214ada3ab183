package io.forebay.core;

import java.io.IOException;

/** An error of the PFS or of the agent, with its number as in {@code errno.h}. */
public final class ForebayException extends IOException {
  private static final long serialVersionUID = 1L;

  /** Error numbers of Linux that programs distinguish. */
  public static final int EPERM = 1, ENOENT = 2, EBADF = 9, EACCES = 13, EEXIST = 17, EXDEV = 18, ENOTDIR = 20, EISDIR = 21, EINVAL = 22,
      ENOSPC = 28, ENOSYS = 38, ENOTEMPTY = 39, ENODATA = 61, ENOTSUP = 95, ENOTCONN = 107, ESTALE = 116;

  private final int errno;

  /** An error with that number. */
  public ForebayException(int errno, String message) {
    super(message);
    this.errno = errno;
  }

  /** The number, as in {@code errno.h}. */
  public int errno() {
    return errno;
  }
}
