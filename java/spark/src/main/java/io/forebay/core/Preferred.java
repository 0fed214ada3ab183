package io.forebay.core;

/** Which node a location names. The native library knows these by their numbers. */
public enum Preferred {
  /** The node that keeps the extent. */
  OWNER,
  /** The owner or the next of its ranking, so that all nodes are named equally often. */
  BALANCED,
  /** The host of the storage server that holds the block, or as {@link #BALANCED}. */
  STORAGE
}
