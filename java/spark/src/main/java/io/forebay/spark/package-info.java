/**
 * The Spark plug-in: reports to the coordinator what each stage will read, and how far it is, so
 * that the next wave's input is in memory before its tasks start. Enabled by {@code
 * spark.plugins=io.forebay.spark.ForebayPlugin}.
 *
 * <p>An event goes this way: Spark's listener bus → {@link io.forebay.spark.JobListener} (puts it
 * in a bounded queue) → {@link io.forebay.spark.Reporter} (one thread; batches) → {@link
 * io.forebay.spark.JobState} (what has been reported, and what is to be) → the native client core.
 * The input of a stage is read from its RDDs by {@link io.forebay.spark.StageInput}.
 *
 * <p>One jar serves Spark 3.5 (Scala 2.12) and 4 (Scala 2.13): {@code scala.collection.Seq} is
 * another class in each as a result, so no method that returns one is called but by reflection
 * ({@link io.forebay.spark.Scala}).
 */
package io.forebay.spark;
