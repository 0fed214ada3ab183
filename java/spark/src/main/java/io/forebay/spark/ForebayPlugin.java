package io.forebay.spark;

import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.forebay.hadoop.ForebayConfig;

/**
 * What {@code spark.plugins} names. All of it is on the driver: executors read through the Hadoop file system and need to know nothing.
 *
 * <p>Whatever fails here is said once in the driver's log and costs the prefetch, never the application.
 */
public final class ForebayPlugin implements SparkPlugin {
  /** Planner of this application's prefetch; empty for the coordinator's default. */
  public static final String PLANNER = "spark.forebay.planner";

  /** The planner that plans nothing: tasks read the PFS themselves, and nothing is cached. */
  static final String NAIVE = "naive-bb";

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  @Override
  public DriverPlugin driverPlugin() {
    return new Driver();
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return null;
  }

  private static final class Driver implements DriverPlugin {
    private Teller teller;

    @Override
    public Map<String, String> init(SparkContext context, PluginContext plugin) {
      try {
        start(context);
      } catch (RuntimeException | LinkageError e) {
        LOG.warn("Forebay: the plug-in does not work with this installation; the application runs on without prefetch: {}", e.toString());
      }
      return Map.of();
    }

    private void start(SparkContext context) {
      SparkConf conf = context.conf();
      String planner = conf.get(PLANNER, "");
      Configuration hadoop = context.hadoopConfiguration();
      if (planner.equals(NAIVE) && hadoop.get(ForebayConfig.READ_MODE) == null) {
        // Goes with every stage to the executors.
        hadoop.set(ForebayConfig.READ_MODE, "bypass");
      }
      Book book = new Book(conf.getInt("spark.task.cpus", 1));
      teller = new Teller(book, new AgentDial(new ForebayConfig(hadoop).client(), planner), Teller.QUEUE_MAX);
      teller.start();
      // A queue of its own on the bus: whatever happens to this listener, Spark's own hear everything.
      context.listenerBus().addToQueue(new JobListener(context, teller), "forebay");
    }

    @Override
    public void shutdown() {
      if (teller != null) {
        teller.close();
      }
    }
  }
}
