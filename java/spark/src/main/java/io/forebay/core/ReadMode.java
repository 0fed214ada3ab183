package io.forebay.core;

/** Where the bytes of a read may come from. The order is that of crates/forebay-jni/src/read.rs. */
public enum ReadMode {
  /** From the tier if they are there, else from the PFS, cached on the way. */
  CACHED,
  /** From the tier only; what is missing is an error (ENODATA). */
  TIER_ONLY,
  /** From the PFS only, not cached. */
  PFS_ONLY
}
