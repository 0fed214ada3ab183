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

import io.forebay.core.NativeLibrary;
import io.forebay.hadoop.ForebayConfig;

/**
 * What {@code spark.plugins} names. The driver's half does the work; the executors' only sees to it that {@code file:///} is Forebay's there too.
 *
 * <p>Whatever fails here is said once in the log and costs the prefetch, never the application.
 */
public final class ForebayPlugin implements SparkPlugin {
  /** Planner of this application's prefetch; empty for the coordinator's default. */
  public static final String PLANNER = "spark.forebay.planner";

  /** Whether paths that begin with {@code file:///}, or with no scheme, are read through Forebay where they are on the PFS; true unless said. */
  public static final String FILE_PATHS = "spark.forebay.file-paths";

  /** The planner that plans nothing: tasks read the PFS themselves, wherever a core is free, and nothing is cached. */
  static final String NAIVE = "naive-bb";

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");

  @Override
  public DriverPlugin driverPlugin() {
    return new Driver();
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new Executor();
  }

  private static final class Executor implements ExecutorPlugin {
    @Override
    public void init(PluginContext context, Map<String, String> fromDriver) {
      try {
        if (Boolean.parseBoolean(fromDriver.get(FILE_PATHS))) {
          FileScheme.forget(new Configuration());
        }
        load();
      } catch (RuntimeException | LinkageError e) {
        LOG.warn("Forebay: this executor reads the PFS itself: {}", e.toString());
      }
    }
  }

  /** Unpacks and links the native library while the executor starts, and not when its first task opens its file. */
  private static void load() {
    Thread loader = new Thread(NativeLibrary::failure, "forebay-load");
    loader.setDaemon(true);
    loader.start();
  }

  static final class Driver implements DriverPlugin {
    private Teller teller;

    @Override
    public Map<String, String> init(SparkContext context, PluginContext plugin) {
      boolean filePaths = false;
      try {
        if (NativeLibrary.failure() != null) {
          throw new IllegalStateException("the native library cannot be loaded: " + NativeLibrary.failure());
        }
        filePaths = context.conf().getBoolean(FILE_PATHS, true);
        start(context, filePaths);
      } catch (RuntimeException | LinkageError e) {
        LOG.warn("Forebay: the plug-in does not work with this installation; the application runs on without prefetch: {}", e.toString());
      }
      return Map.of(FILE_PATHS, Boolean.toString(filePaths));
    }

    private void start(SparkContext context, boolean filePaths) {
      SparkConf conf = context.conf();
      String planner = conf.get(PLANNER, "");
      Configuration hadoop = context.hadoopConfiguration();
      FileScheme.name(hadoop);
      if (filePaths) {
        FileScheme.takeOver(hadoop);
      }
      settle(hadoop, planner);
      Book book = new Book(conf.getInt("spark.task.cpus", 1));
      teller = new Teller(book, new AgentDial(new ForebayConfig(hadoop).client(), planner), Teller.QUEUE_MAX);
      teller.start();
      // A queue of its own on the bus: whatever happens to this listener, Spark's own hear everything.
      context.listenerBus().addToQueue(new JobListener(context, teller), "forebay");
    }

    /**
     * Chooses, of what the user has not, how this application's files are read and where its tasks go. Goes with every stage to the executors.
     */
    static void settle(Configuration hadoop, String planner) {
      if (planner.equals(NAIVE)) {
        hadoop.setIfUnset(ForebayConfig.READ_MODE, "bypass");
        // Nothing is brought to a home, so homes would only change in which order files are read, and with that which servers of the PFS rest.
        hadoop.setIfUnset(ForebayConfig.LOCALITY, "false");
      }
      // The coordinator is told where each task will be sent, so its input can be brought there.
      hadoop.setIfUnset(ForebayConfig.LOCATIONS, "balanced");
    }

    @Override
    public void shutdown() {
      if (teller != null) {
        teller.close();
      }
    }
  }
}
