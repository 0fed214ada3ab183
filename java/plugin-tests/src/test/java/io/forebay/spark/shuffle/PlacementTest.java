package io.forebay.spark.shuffle;

import static org.junit.Assert.assertEquals;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.HashPartitioner;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.storage.BlockManagerId;
import org.junit.Test;
import scala.Option;
import scala.Tuple2;

/** Spark prefers to run reducers where most of their bytes are in the tier, by its own tracker. */
public class PlacementTest {
  private static final long MB = 1 << 20;

  /** Spark 4.1 has more parameters, which are numbers. */
  private static MapStatus status(BlockManagerId at, long[] sizes, long map) throws ReflectiveOperationException {
    Method apply = Arrays.stream(MapStatus.class.getMethods()).filter(method -> method.getName().equals("apply")).findAny().orElseThrow();
    List<Object> arguments = new ArrayList<>(List.of(at, sizes, map));
    while (arguments.size() < apply.getParameterCount()) {
      arguments.add(0L);
    }
    return (MapStatus) apply.invoke(null, arguments.toArray());
  }

  private static BlockManagerId tier(String node, String host) {
    return TierAddress.of(List.of(node, "other"), BlockManagerId.apply("1", host, 7337, Option.empty()));
  }

  @Test
  public void reducersPreferTheHostOfMostOfTheirBytes() throws Exception {
    SparkConf conf = new SparkConf().setMaster("local[1]").setAppName("placement").set("spark.ui.enabled", "false").set("spark.driver.host", "localhost");
    try (JavaSparkContext spark = new JavaSparkContext(conf)) {
      RDD<?> reduced = spark.parallelize(List.of(1, 2), 2).mapToPair(i -> new Tuple2<>(i, i)).partitionBy(new HashPartitioner(2)).rdd();
      ShuffleDependency<?, ?, ?> shuffle = (ShuffleDependency<?, ?, ?>) reduced.dependencies().head();
      MapOutputTrackerMaster tracker = (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
      tracker.registerShuffle(shuffle.shuffleId(), 2, 2);
      tracker.registerMapOutput(shuffle.shuffleId(), 0, status(tier("a", "host-a"), new long[] {90 * MB, 5 * MB}, 0));
      tracker.registerMapOutput(shuffle.shuffleId(), 1, status(tier("b", "host-b"), new long[] {4 * MB, 80 * MB}, 1));
      for (int reducer = 0; reducer < 2; reducer++) {
        List<String> hosts = List.of(reduced.preferredLocations(reduced.partitions()[reducer]).head());
        assertEquals(List.of(reducer == 0 ? "host-a" : "host-b"), hosts);
        assertEquals(1, reduced.preferredLocations(reduced.partitions()[reducer]).size());
      }
    }
  }
}
