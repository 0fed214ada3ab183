/**
 * Spark's shuffle through the tier. {@link io.forebay.spark.shuffle.ForebayShuffleManager} is what
 * {@code spark.shuffle.manager} names. Spark's own writers and readers do all the work on records;
 * here is only where the bytes go ({@code TierShuffleIO}, {@code TierMapOutputWriter}) and where
 * they come from ({@code TierBlockClient}, {@code TierBuffer}).
 */
package io.forebay.spark.shuffle;
