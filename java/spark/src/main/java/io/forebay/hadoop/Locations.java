package io.forebay.hadoop;

/** Where the extents of files are. */
final class Locations {
  /** Unit of placement: 128 MiB. */
  static final long EXTENT_BYTES = 128L << 20;

  private Locations() {}
}
