package io.forebay.workloads;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.deploy.SparkHadoopUtil;

/**
 * Reads all files of a directory again and again, one after the other, 1 MiB at a time. With a
 * skip, every other pass begins after one skip, so that passes of equal skips and requests
 * together read everything.
 */
final class Reading {
  private static final int REQUEST_BYTES = 1 << 20;
  private static final long STEP_NS = 250_000_000;

  private final long ends;
  private final int skip;
  private final byte[] buffer = new byte[REQUEST_BYTES];
  private final List<String> samples = new ArrayList<>();
  private long bytes;
  private long nextSample;

  private Reading(double seconds, int skip) {
    this.skip = skip;
    ends = System.nanoTime() + (long) (seconds * 1e9);
  }

  /** The report has lines of milliseconds since the epoch and bytes read so far. */
  static void run(String input, double seconds, java.nio.file.Path report, int skip) throws IOException {
    Path directory = new Path(input);
    FileSystem fileSystem = directory.getFileSystem(SparkHadoopUtil.get().newConfiguration(new SparkConf()));
    Reading reading = new Reading(seconds, skip);
    for (long pass = 0; !reading.isOver(); pass++) {
      for (FileStatus file : fileSystem.listStatus(directory)) {
        reading.read(fileSystem, file, pass % 2 * skip);
      }
    }
    Files.write(report, ("[" + String.join(",\n", reading.samples) + "]\n").getBytes(StandardCharsets.UTF_8));
  }

  private boolean isOver() {
    return System.nanoTime() >= ends;
  }

  private void read(FileSystem fileSystem, FileStatus file, long first) throws IOException {
    try (FSDataInputStream in = fileSystem.open(file.getPath())) {
      long next = first;
      while (next < file.getLen() && !isOver()) {
        if (next != in.getPos()) {
          in.seek(next);
        }
        int wanted = (int) Math.min(REQUEST_BYTES, file.getLen() - next);
        in.readFully(buffer, 0, wanted);
        bytes += wanted;
        sample();
        next += wanted + skip;
      }
    }
  }

  private void sample() {
    if (System.nanoTime() >= nextSample) {
      samples.add(String.format(Locale.ROOT, "[%d, %d]", System.currentTimeMillis(), bytes));
      nextSample = System.nanoTime() + STEP_NS;
    }
  }
}
