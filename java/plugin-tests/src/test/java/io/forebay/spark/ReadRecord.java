package io.forebay.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

import io.forebay.spark.Footers.Range;

/** The local file system; remembers the bytes that are read of files, except by the plug-in. */
public final class ReadRecord extends RawLocalFileSystem {
  private static final Map<String, List<Range>> READ = new HashMap<>();

  static void clear() {
    synchronized (READ) {
      READ.clear();
    }
  }

  /** A file by its directory and its own name: files of two partitions may have the same. */
  static String name(String path) {
    java.nio.file.Path file = java.nio.file.Path.of(path);
    return file.getParent().getFileName().resolve(file.getFileName()).toString();
  }

  /** The ranges that were read of each file, by its name. */
  static Map<String, List<Range>> byName() {
    synchronized (READ) {
      Map<String, List<Range>> merged = new TreeMap<>();
      READ.forEach((name, ranges) -> merged.put(name, Footers.merged(ranges)));
      return merged;
    }
  }

  @Override
  public FSDataInputStream open(Path path, int bufferBytes) throws IOException {
    return new FSDataInputStream(new Recorded(name(path.toUri().getPath()), super.open(path, bufferBytes)));
  }

  private static final class Recorded extends FSInputStream {
    private final String name;
    private final FSDataInputStream in;

    Recorded(String name, FSDataInputStream in) {
      this.name = name;
      this.in = in;
    }

    private int noted(long offset, int length) {
      if (length > 0 && !Thread.currentThread().getName().equals("forebay-footers")) {
        synchronized (READ) {
          READ.computeIfAbsent(name, n -> new ArrayList<>()).add(new Range(offset, length));
        }
      }
      return length;
    }

    @Override
    public synchronized int read() throws IOException {
      long offset = in.getPos();
      int read = in.read();
      noted(offset, read < 0 ? 0 : 1);
      return read;
    }

    @Override
    public synchronized int read(byte[] buffer, int offset, int length) throws IOException {
      long position = in.getPos();
      return noted(position, in.read(buffer, offset, length));
    }

    @Override
    public synchronized void seek(long offset) throws IOException {
      in.seek(offset);
    }

    @Override
    public synchronized long getPos() throws IOException {
      return in.getPos();
    }

    @Override
    public boolean seekToNewSource(long target) {
      return false;
    }

    @Override
    public void close() throws IOException {
      in.close();
    }
  }
}
