package io.forebay.spark;

import java.util.AbstractList;
import java.util.Arrays;
import java.util.List;

import io.forebay.core.JobUpdate.Part;

/**
 * What each task of a stage reads, in arrays: a part takes 20 bytes. As objects in lists it would
 * take some 100, and the driver keeps the parts of all running stages.
 */
final class PackedSplits extends AbstractList<List<Part>> {
  /** Where the parts of each task begin; one more than there are tasks. */
  private final int[] first;

  private final int[] files;
  private final long[] offsets;
  private final long[] lengths;

  private PackedSplits(Builder built) {
    first = Arrays.copyOf(built.first, built.tasks + 1);
    files = Arrays.copyOf(built.files, built.parts);
    offsets = Arrays.copyOf(built.offsets, built.parts);
    lengths = Arrays.copyOf(built.lengths, built.parts);
  }

  static PackedSplits of(List<List<Part>> splits) {
    Builder builder = new Builder(splits.size());
    for (List<Part> split : splits) {
      split.forEach(part -> builder.add(part.file(), part.offset(), part.length()));
      builder.endTask();
    }
    return builder.build();
  }

  @Override
  public List<Part> get(int task) {
    Part[] parts = new Part[first[task + 1] - first[task]];
    for (int i = 0; i < parts.length; i++) {
      int at = first[task] + i;
      parts[i] = new Part(files[at], offsets[at], lengths[at]);
    }
    return List.of(parts);
  }

  @Override
  public int size() {
    return first.length - 1;
  }

  /** The number of parts of all tasks. */
  int parts() {
    return files.length;
  }

  /** Takes the parts of one task after the other. */
  static final class Builder {
    private static final int PARTS_MIN = 16;

    private final int[] first;
    private int tasks;
    private int parts;
    private int[] files = new int[PARTS_MIN];
    private long[] offsets = new long[PARTS_MIN];
    private long[] lengths = new long[PARTS_MIN];

    Builder(int tasksMax) {
      first = new int[tasksMax + 1];
    }

    void add(int file, long offset, long length) {
      if (parts == files.length) {
        files = Arrays.copyOf(files, 2 * parts);
        offsets = Arrays.copyOf(offsets, 2 * parts);
        lengths = Arrays.copyOf(lengths, 2 * parts);
      }
      files[parts] = file;
      offsets[parts] = offset;
      lengths[parts] = length;
      parts++;
    }

    void endTask() {
      tasks++;
      first[tasks] = parts;
    }

    int parts() {
      return parts;
    }

    PackedSplits build() {
      return new PackedSplits(this);
    }
  }
}
