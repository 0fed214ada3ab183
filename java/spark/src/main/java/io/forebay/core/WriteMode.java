package io.forebay.core;

/** Where written bytes go. The order is that of crates/forebay-jni/src/write.rs. */
public enum WriteMode {
  /** To the PFS, and to the tier beside it. */
  THROUGH,
  /** To the PFS only. */
  BYPASS,
  /** To this node's memory, for this job; gone with it. */
  MEMORY_ONLY
}
