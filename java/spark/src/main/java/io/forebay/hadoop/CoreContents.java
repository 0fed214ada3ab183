package io.forebay.hadoop;

import io.forebay.core.ClientOptions;
import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayFile;
import io.forebay.core.ForebayWriter;
import io.forebay.core.Mapping;
import io.forebay.core.Preferred;
import io.forebay.core.ReadMode;
import io.forebay.core.WriteMode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Contents through the client core. */
final class CoreContents implements Contents {
  private static final Logger LOG = LoggerFactory.getLogger(CoreContents.class);

  /**
   * File systems come and go with their users; a session with the agent is worth keeping, and one
   * will do for all that want the same.
   */
  private static final Map<ClientOptions, ForebayClient> CLIENTS = new HashMap<>();

  private final ForebayClient client;
  private final ReadMode readMode;
  private final WriteMode writeMode;

  CoreContents(ClientOptions options, ReadMode readMode, WriteMode writeMode) throws IOException {
    client = client(options);
    this.readMode = readMode;
    this.writeMode = writeMode;
  }

  private static ForebayClient client(ClientOptions options) throws IOException {
    synchronized (CLIENTS) {
      ForebayClient client = CLIENTS.get(options);
      if (client == null) {
        client = new ForebayClient(options);
        CLIENTS.put(options, client);
      }
      return client;
    }
  }

  @Override
  public Reader open(String path) throws IOException {
    // Native code writes names as UTF-8 whatever the locale: a file that cannot be looked at is not
    // to be opened or made either.
    Names.path(path);
    return new CoreReader(client.open(path, readMode));
  }

  @Override
  public Writer create(String path, boolean exclusive, boolean append, int permissions) throws IOException {
    Names.path(path);
    // Appending is to the PFS: what is there already need not be in the tier, and in memory-only
    // files there is no appending.
    WriteMode mode = append && writeMode == WriteMode.MEMORY_ONLY ? WriteMode.BYPASS : writeMode;
    return new CoreWriter(client.create(path, mode, exclusive, append, permissions), mode != WriteMode.MEMORY_ONLY);
  }

  @Override
  public List<ForebayClient.Mount> mounts() throws IOException {
    return client.mounts();
  }

  @Override
  public List<ForebayClient.Location> locate(String path, long offset, long length, Preferred preferred) {
    return hint(() -> client.locate(path, offset, length, preferred));
  }

  @Override
  public List<ForebayClient.Location> locateListed(ForebayClient.Mount mount, String path, long inode, long size, long offset, long length,
      Preferred preferred) {
    String below = path.substring(mount.root().length()).replaceFirst("^/+", "");
    return hint(() -> client.locateListed(mount.label(), below, inode, size, offset, length, preferred));
  }

  /** A question to the agent about places. */
  private interface Question {
    List<ForebayClient.Location> ask() throws IOException;
  }

  private static List<ForebayClient.Location> hint(Question question) {
    try {
      return question.ask();
    } catch (IOException e) {
      // A hint and nothing more: without it the scheduler does as with any shared file system.
      LOG.debug("no locations", e);
      return null;
    }
  }

  @Override
  public Map<String, Long> memoryOnly() throws IOException {
    return client.memoryOnlyFiles();
  }

  @Override
  public void removeMemoryOnly(String path) throws IOException {
    client.remove(path);
  }

  private record CoreReader(ForebayFile file) implements Reader {
    @Override
    public long size() throws IOException {
      return file.size();
    }

    @Override
    public int read(long offset, byte[] array, int start, int length) throws IOException {
      return file.read(offset, array, start, length);
    }

    @Override
    public int read(long offset, ByteBuffer target) throws IOException {
      return file.read(offset, target);
    }

    @Override
    public int readResident(long offset, ByteBuffer target) throws IOException {
      return file.readResident(offset, target);
    }

    @Override
    public Mapping map(long offset, int length) throws IOException {
      return file.map(offset, length);
    }

    @Override
    public void close() {
      file.close();
    }
  }

  private record CoreWriter(ForebayWriter writer, boolean isOnPfs) implements Writer {
    @Override
    public void write(byte[] array, int start, int length) throws IOException {
      writer.write(array, start, length);
    }

    @Override
    public void flush() throws IOException {
      writer.flush();
    }

    @Override
    public void sync() throws IOException {
      writer.sync();
    }

    @Override
    public void close() throws IOException {
      writer.close();
    }
  }
}
