package io.forebay.hadoop;

import io.forebay.core.ForebayClient;
import io.forebay.core.Preferred;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Contents straight from the PFS, where there is no native library: what a job would get without
 * Forebay.
 */
final class PlainContents implements Contents {
  @Override
  public Reader open(String path) throws IOException {
    Path file = Names.path(path);
    if (Files.isDirectory(file)) {
      throw new FileSystemException(path, null, "Is a directory");
    }
    return new PlainReader(FileChannel.open(file, StandardOpenOption.READ));
  }

  @Override
  public Writer create(String path, boolean exclusive, boolean append, int permissions) throws IOException {
    Path file = Names.path(path);
    if (Files.isDirectory(file)) {
      throw new FileSystemException(path, null, "Is a directory");
    }
    Set<OpenOption> options = new HashSet<>(List.of(StandardOpenOption.WRITE));
    options.add(exclusive ? StandardOpenOption.CREATE_NEW : StandardOpenOption.CREATE);
    options.add(append ? StandardOpenOption.APPEND : StandardOpenOption.TRUNCATE_EXISTING);
    var mode = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString(new FsPermission((short) (permissions & 0777)).toString()));
    return new PlainWriter(FileChannel.open(file, options, mode));
  }

  @Override
  public List<ForebayClient.Mount> mounts() {
    return List.of();
  }

  @Override
  public List<ForebayClient.Location> locate(String path, long offset, long length, Preferred preferred) {
    return null;
  }

  @Override
  public List<ForebayClient.Location> locateListed(ForebayClient.Mount mount, String path, long inode, long size, long offset, long length,
      Preferred preferred) {
    return null;
  }

  @Override
  public Map<String, Long> memoryOnly() {
    return Map.of();
  }

  @Override
  public void removeMemoryOnly(String path) throws IOException {
    throw new IOException(path + ": memory-only files need Forebay's native library");
  }

  private record PlainReader(FileChannel channel) implements Reader {
    @Override
    public long size() throws IOException {
      return channel.size();
    }

    @Override
    public int read(long offset, byte[] array, int start, int length) throws IOException {
      return read(offset, ByteBuffer.wrap(array, start, length));
    }

    @Override
    public int read(long offset, ByteBuffer target) throws IOException {
      int done = 0;
      while (target.hasRemaining()) {
        int n = channel.read(target, offset + done);
        if (n < 0) {
          break;
        }
        done += n;
      }
      return done;
    }

    @Override
    public void close() throws IOException {
      channel.close();
    }
  }

  private record PlainWriter(FileChannel channel) implements Writer {
    @Override
    public void write(byte[] array, int start, int length) throws IOException {
      ByteBuffer source = ByteBuffer.wrap(array, start, length);
      while (source.hasRemaining()) {
        channel.write(source);
      }
    }

    @Override
    public void flush() {
      // Nothing is gathered here.
    }

    @Override
    public void sync() throws IOException {
      channel.force(true);
    }

    @Override
    public boolean isOnPfs() {
      return true;
    }

    @Override
    public void close() throws IOException {
      channel.close();
    }
  }
}
