package io.forebay.hadoop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.AbstractFSContract;

/**
 * What Hadoop's contract tests need to know: the file system, where to write, and what is promised
 * (contract/forebay.xml, the same for both schemes).
 */
final class ForebayContract extends AbstractFSContract {
  private final String scheme;
  private FileSystem fs;

  /** For {@code forebay:///}. */
  static ForebayContract forebay(Configuration conf) {
    return new ForebayContract(conf, ForebayFileSystem.SCHEME);
  }

  /** For {@code file:///} below the mounts of the agent. */
  static ForebayContract file(Configuration conf) {
    return new ForebayContract(conf, "file");
  }

  private ForebayContract(Configuration conf, String scheme) {
    super(conf);
    this.scheme = scheme;
    addConfResource("contract/forebay.xml");
  }

  @Override
  public void init() throws IOException {
    super.init();
    Configuration conf = getConf();
    conf.set(ForebayConfig.SOCKET, TestAgent.shared().socket());
    conf.set("fs.file.impl", ForebayLocalFileSystem.class.getName());
    fs = FileSystem.newInstance(java.net.URI.create(scheme + ":///"), conf);
  }

  @Override
  public FileSystem getTestFileSystem() {
    return fs;
  }

  @Override
  public String getScheme() {
    return scheme;
  }

  @Override
  public Path getTestPath() {
    java.nio.file.Path directory = TestAgent.shared().root().resolve("contract-" + scheme);
    try {
      Files.createDirectories(directory, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwxr-xr-x")));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    return new Path(scheme, null, directory.toString());
  }
}
