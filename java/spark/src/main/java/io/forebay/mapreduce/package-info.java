/**
 * MapReduce's shuffle through the tier: {@link io.forebay.mapreduce.TierMapOutputCollector} is what
 * {@code mapreduce.job.map.output.collector.class} names, and {@link
 * io.forebay.mapreduce.TierShuffle} what {@code mapreduce.job.reduce.shuffle.consumer.plugin.class}
 * does.
 *
 * <p>A map task sorts in {@code RecordBuffer} and writes through {@code OutputFile}. A reduce task
 * has Hadoop's own shuffle fetch what is not in the tier ({@code MapEvents} decides that), reads
 * what is there with {@code SegmentReader}, and merges ahead of the reduce function ({@code
 * MergeAhead}).
 */
package io.forebay.mapreduce;
