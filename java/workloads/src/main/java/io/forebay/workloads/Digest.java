package io.forebay.workloads;

import java.io.Serializable;

/**
 * What is compared between two runs: how many records came out, how many went in, and a sum over
 * the records, which does not depend on the order in which tasks end.
 */
public record Digest(long records, long total, long sum) implements Serializable {
  static final Digest NOTHING = new Digest(0, 0, 0);

  static Digest of(String record, long count) {
    // Mixed, so that an exchange of two counts changes the sum.
    long mixed = (record.hashCode() * 0x9E3779B97F4A7C15L) ^ (count * 0xC2B2AE3D27D4EB4FL);
    return new Digest(1, count, mixed * mixed);
  }

  Digest plus(Digest other) {
    return new Digest(records + other.records, total + other.total, sum + other.sum);
  }

  String json() {
    return String.format("{\"records\": %d, \"total\": %d, \"sum\": %d}", records, total, sum);
  }
}
