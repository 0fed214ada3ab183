package io.forebay.spark.shuffle;

import org.apache.spark.SortShuffleSuite;
import org.apache.spark.SparkConf;
import org.apache.spark.shuffle.ShuffleDependencySuite;

/**
 * Spark's own suites with the settings of the process. Those suites read no defaults, so that their
 * results do not depend on who runs them.
 */
final class TierSuites {
  private TierSuites() {}

  private static void configure(SparkConf conf) {
    System.getProperties().stringPropertyNames().stream().filter(key -> key.startsWith("spark."))
        .forEach(key -> conf.set(key, System.getProperty(key)));
  }

  /** With all tests of {@code ShuffleSuite}. */
  public static final class Sort extends SortShuffleSuite {
    @Override
    public void beforeAll() {
      super.beforeAll();
      configure(conf());
    }
  }

  public static final class Dependency extends ShuffleDependencySuite {
    @Override
    public void beforeAll() {
      super.beforeAll();
      configure(conf());
    }
  }
}
