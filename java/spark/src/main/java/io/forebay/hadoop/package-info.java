/**
 * Hadoop's file systems on the client core: {@link io.forebay.hadoop.ForebayFileSystem} for {@code
 * forebay:///}, and {@link io.forebay.hadoop.ForebayLocalFileSystem} for jobs whose paths stay
 * {@code file:///}.
 *
 * <p>Names, attributes and permissions are those of the PFS and are asked of the operating system
 * ({@link io.forebay.hadoop.Names}), so there is no second namespace to go stale. File contents go
 * through {@link io.forebay.hadoop.Contents}: the client core, or the PFS itself where the native
 * library cannot be loaded.
 */
package io.forebay.hadoop;
