package io.forebay.spark;

import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.forebay.core.NativeLibrary;
import io.forebay.hadoop.ForebayConfig;

/**
 * What {@code spark.plugins} names. The driver's half does the work; the executors' only sees to it
 * that the file systems are there as in the driver.
 *
 * <p>Whatever fails here is said once in the log and costs the prefetch, never the application.
 */
public final class ForebayPlugin implements SparkPlugin {
  /** Planner of this application's prefetch; empty for the coordinator's default. */
  public static final String PLANNER = "spark.forebay.planner";

  /**
   * Whether paths that begin with {@code file:///}, or with no scheme, are read through Forebay
   * where they are on the PFS; true unless said.
   */
  public static final String FILE_PATHS = "spark.forebay.file-paths";

  /**
   * Whether tasks wait for their input where the planner delays it for an I/O phase of an HPC job;
   * true unless said.
   */
  public static final String TASKS_WAIT = "spark.forebay.tasks-wait";

  /**
   * The planner that plans nothing: tasks read the PFS themselves, wherever a core is free, and
   * nothing is cached.
   */
  static final String NAIVE = "naive-bb";

  private static final String ICEBERG_LOCALITY = "spark.sql.iceberg.locality.enabled";

  /** Name of the driver among Spark's executors. */
  private static final String DRIVER = "driver";

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
    /** Null if tasks do not ask. */
    private TaskGate gate;

    @Override
    public void init(PluginContext context, Map<String, String> fromDriver) {
      Configuration hadoop = SparkHadoopUtil.get().newConfiguration(context.conf());
      try {
        // A local master has this in the driver's process, which has its file systems already.
        if (!context.executorID().equals(DRIVER)) {
          // Unpacks and links the native library too, and not when the first task opens its file.
          FileScheme.follow(hadoop, fromDriver);
        }
        if (fromDriver.containsKey(TaskGate.ASKS)) {
          gate = new TaskGate(context.conf(), hadoop);
        }
      } catch (Exception | LinkageError e) {
        LOG.warn("Forebay: this executor reads the PFS itself: {}", e.toString());
        backToHadoops();
      }
    }

    @Override
    public void onTaskStart() {
      if (gate != null) {
        gate.pass();
      }
    }

    @Override
    public void shutdown() {
      if (gate != null) {
        gate.close();
      }
    }
  }

  /**
   * After a failure, which must not cost more than the prefetch: what has been put in the place of
   * Hadoop's own goes again.
   */
  private static void backToHadoops() {
    try {
      FileScheme.back();
    } catch (RuntimeException | LinkageError e) {
      LOG.warn("Forebay: the original file systems could not be restored: {}", e.toString());
    }
  }

  static final class Driver implements DriverPlugin {
    private Reporter reporter;
    /**
     * Whether it was we who named the class for {@code file:///}; the user's is not ours to take
     * back.
     */
    private boolean tookOver;

    @Override
    public Map<String, String> init(SparkContext context, PluginContext plugin) {
      Configuration hadoop = context.hadoopConfiguration();
      try {
        // Before anything can fail: paths of this scheme are read and written, past the tier, also
        // where there is no native library.
        FileScheme.name(hadoop);
        if (NativeLibrary.failure() != null) {
          throw new IllegalStateException("the native library cannot be loaded: " + NativeLibrary.failure());
        }
        start(context, hadoop);
        Map<String, String> settings = FileScheme.settings(hadoop);
        if (reporter != null && TaskGate.asks(context.conf(), context.conf().get(PLANNER, ""))) {
          settings.put(TaskGate.ASKS, "true");
        }
        return settings;
      } catch (Exception | LinkageError e) {
        LOG.warn("Forebay: the plug-in does not work with this installation; the application continues without prefetch: {}", e.toString());
        undo(hadoop);
        // Executors stay as they are, too: what has failed here would fail there.
        return Map.of();
      }
    }

    private void undo(Configuration hadoop) {
      if (tookOver) {
        FileScheme.giveBack(hadoop);
        tookOver = false;
      }
      if (reporter != null) {
        reporter.close();
        reporter = null;
      }
      backToHadoops();
    }

    private void start(SparkContext context, Configuration hadoop) {
      SparkConf conf = context.conf();
      String planner = conf.get(PLANNER, "");
      boolean filePaths = conf.getBoolean(FILE_PATHS, true);
      if (filePaths) {
        tookOver = FileScheme.takeOver(hadoop);
      }
      settle(hadoop, planner);
      locateIceberg(conf, hadoop);
      FileScheme.fill(hadoop);
      if (!isReported(hadoop, planner)) {
        LOG.info("Forebay: with {} = {} tasks read past the tier, so nothing is prefetched for this application", ForebayConfig.READ_MODE,
            hadoop.getTrimmed(ForebayConfig.READ_MODE));
        return;
      }
      JobState state = new JobState(conf.getInt("spark.task.cpus", 1), TaskGate.asks(conf, planner));
      AgentConnector connector = new AgentConnector(new ForebayConfig(hadoop).client(), planner);
      reporter = new Reporter(state, connector, Reporter.QUEUE_MAX, b -> JobListener.look(context, b), Reporter.LOOK_MS);
      reporter.start();
      // A queue of its own on the bus: whatever happens to this listener, Spark's own hear
      // everything.
      context.listenerBus().addToQueue(new JobListener(context, reporter, FileScheme.ours(hadoop, filePaths)), "forebay");
    }

    /**
     * Whether this application is reported to the coordinator: not if the tasks pass by what is
     * fetched. The baseline is, for who looks at its progress.
     */
    static boolean isReported(Configuration hadoop, String planner) {
      String mode = hadoop.getTrimmed(ForebayConfig.READ_MODE, "");
      return planner.equals(NAIVE) || !(mode.equals("bypass") || mode.equals("pfs"));
    }

    /**
     * Chooses, of what the user has not, how this application's files are read and where its tasks
     * go. Goes with every stage to the executors.
     */
    static void settle(Configuration hadoop, String planner) {
      if (planner.equals(NAIVE)) {
        hadoop.setIfUnset(ForebayConfig.READ_MODE, "bypass");
        // Nothing is prefetched, so preferred nodes would only change the order in which files are
        // read, and with that which servers of the PFS rest.
        hadoop.setIfUnset(ForebayConfig.LOCALITY, "false");
      }
      // The coordinator learns where each task will run, so that node can fetch its input.
      hadoop.setIfUnset(ForebayConfig.LOCATIONS, "balanced");
    }

    /** By default, Iceberg asks only HDFS for locations. */
    static void locateIceberg(SparkConf conf, Configuration hadoop) {
      if (hadoop.getBoolean(ForebayConfig.LOCALITY, true)) {
        conf.setIfMissing(ICEBERG_LOCALITY, "true");
      }
    }

    @Override
    public void shutdown() {
      if (reporter != null) {
        reporter.close();
      }
      try {
        FileScheme.leave();
      } catch (RuntimeException | LinkageError e) {
        LOG.debug("Forebay: the file systems stay as they are", e);
      }
    }
  }
}
