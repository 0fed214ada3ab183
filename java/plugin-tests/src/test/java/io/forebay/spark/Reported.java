package io.forebay.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

import io.forebay.core.JobUpdate;
import io.forebay.core.JobUpdate.Part;

/** An agent that only listens. */
final class Reported implements Reporter.Connection {
  private final List<JobUpdate> updates = new ArrayList<>();
  volatile boolean closed;

  @Override
  public synchronized void report(List<JobUpdate> some) {
    updates.addAll(some);
  }

  @Override
  public void close() {
    closed = true;
  }

  synchronized <T extends JobUpdate> List<T> all(Class<T> kind) {
    return updates.stream().filter(kind::isInstance).map(kind::cast).toList();
  }

  synchronized List<JobUpdate> all() {
    return new ArrayList<>(updates);
  }

  /** Files in the order of their numbers. */
  List<String> files() {
    return all(JobUpdate.Files.class).stream().flatMap(f -> f.paths().stream()).toList();
  }

  /** Splits by stage. */
  Map<Integer, List<List<Part>>> splits() {
    Map<Integer, List<List<Part>>> byStage = new TreeMap<>();
    for (JobUpdate.Splits some : all(JobUpdate.Splits.class)) {
      byStage.computeIfAbsent(some.stage(), s -> new ArrayList<>()).addAll(some.splits());
    }
    return byStage;
  }

  /** Every split that was reported, of any stage. */
  Stream<List<Part>> everySplit() {
    return splits().values().stream().flatMap(List::stream);
  }

  /** Bytes reported of each file, by the last part of its name. */
  Map<String, Long> bytesByName() {
    return bytesByName(everySplit());
  }

  /** As {@link #bytesByName()}, of the last stage alone. */
  Map<String, Long> bytesByNameOfLastStage() {
    Map<Integer, List<List<Part>>> splits = splits();
    return bytesByName(splits.get(splits.keySet().stream().max(Integer::compare).orElseThrow()).stream());
  }

  private Map<String, Long> bytesByName(Stream<List<Part>> splits) {
    List<String> files = files();
    Map<String, Long> bytes = new TreeMap<>();
    splits.flatMap(List::stream).forEach(part -> {
      String path = files.get(part.file());
      bytes.merge(path.substring(path.lastIndexOf('/') + 1), part.length(), Long::sum);
    });
    return bytes;
  }
}
