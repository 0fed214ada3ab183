package io.forebay.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;

/**
 * {@link ForebayFileSystem} for users of FileContext: {@code
 * fs.AbstractFileSystem.forebay.impl=io.forebay.hadoop.ForebayFs}.
 */
public class ForebayFs extends DelegateToFileSystem {
  /** Called by FileContext. */
  public ForebayFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
    this(uri, new ForebayFileSystem(), conf, ForebayFileSystem.SCHEME);
  }

  ForebayFs(URI uri, FileSystem fs, Configuration conf, String scheme) throws IOException, URISyntaxException {
    super(uri, fs, conf, scheme, false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1;
  }

  /** In one step also where something is replaced; the default would delete that first. */
  @Override
  @SuppressWarnings("deprecation")
  public void renameInternal(Path source, Path target, boolean overwrite) throws IOException {
    Options.Rename how = overwrite ? Options.Rename.OVERWRITE : Options.Rename.NONE;
    if (fsImpl instanceof ForebayFileSystem forebay) {
      forebay.rename(source, target, how);
    } else {
      ((ForebayLocalFileSystem) fsImpl).rename(source, target, how);
    }
  }
}
