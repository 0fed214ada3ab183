package io.forebay.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;

/**
 * {@link ForebayLocalFileSystem} for users of FileContext: {@code
 * fs.AbstractFileSystem.file.impl=io.forebay.hadoop.ForebayLocalFs}.
 */
public class ForebayLocalFs extends ForebayFs {
  /** Called by FileContext. */
  public ForebayLocalFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new ForebayLocalFileSystem(), conf, "file");
  }
}
