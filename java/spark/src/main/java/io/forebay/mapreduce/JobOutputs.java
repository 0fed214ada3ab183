package io.forebay.mapreduce;

import io.forebay.core.ForebayClient;
import io.forebay.core.ForebayShuffles;
import io.forebay.hadoop.ForebayConfig;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.ipc.RPC;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.Task;
import org.apache.hadoop.mapred.TaskUmbilicalProtocol;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A job's map outputs in the tier, as its tasks find them without a word of the job's client.
 *
 * <p>The secret of the job's shuffle, which only its tasks and YARN have, and the job's ID name the
 * job at the agents. The job lives as long as its master listens for its tasks. A job of
 * LocalJobRunner lives in this JVM, as long as its thread.
 */
final class JobOutputs {
  /** Nodes that have an output when its task ends: 1 or 2. */
  static final String COPIES = "mapreduce.forebay.shuffle.copies";

  /** The shuffle of all of a job's outputs, and that of what a map task has not merged yet. */
  static final int OUTPUTS = 0;
  static final int SPILLS = 1;

  static final Logger LOG = LoggerFactory.getLogger("io.forebay.mapreduce");

  private static final Map<Thread, ForebayShuffles> LOCAL = new HashMap<>();

  private JobOutputs() {}

  /** The number of a task's output: attempts differ in it. */
  static long number(TaskAttemptID attempt) {
    return (long) attempt.getId() << Integer.SIZE | attempt.getTaskID().getId();
  }

  static int copies(JobConf conf) {
    int copies = conf.getInt(COPIES, 1);
    if (copies < 1 || copies > 2) {
      throw new IllegalArgumentException(COPIES + " = " + copies + ": map outputs can be on 1 node or on 2");
    }
    return copies;
  }

  /** For a map task. */
  static ForebayShuffles join(JobConf conf, Task task) throws IOException {
    try {
      // What Hadoop gives to a reduce task's plug-in, and to that of a map task not.
      Field umbilical = Task.class.getDeclaredField("umbilical");
      umbilical.setAccessible(true);
      return join(conf, task, (TaskUmbilicalProtocol) umbilical.get(task));
    } catch (ReflectiveOperationException e) {
      throw new IOException("this version of Hadoop has no Task.umbilical: unset mapreduce.job.map.output.collector.class", e);
    }
  }

  /** The job's outputs; null, and a line in the log, if the job uses Hadoop's own shuffle here. */
  static ForebayShuffles join(JobConf conf, Task task, TaskUmbilicalProtocol umbilical) {
    try {
      copies(conf);
      if (conf.getBoolean(MRJobConfig.MR_ENCRYPTED_INTERMEDIATE_DATA, MRJobConfig.DEFAULT_MR_ENCRYPTED_INTERMEDIATE_DATA)) {
        throw new IOException(MRJobConfig.MR_ENCRYPTED_INTERMEDIATE_DATA + " = true encrypts files, which the tier has none of");
      }
      ForebayShuffles joined = umbilical instanceof Thread job ? ofLocal(conf, job) : ofMaster(conf, task, umbilical);
      if (task.isMapTask()) {
        checkIsFound(joined);
      }
      LOG.info("Forebay: {} uses the tier of node {}", task.getTaskID(), joined.node());
      return joined;
    } catch (IOException | LinkageError e) {
      LOG.warn("Forebay: {} uses Hadoop's own shuffle: {}", task.getTaskID(), e.toString());
      return null;
    }
  }

  /** Reduce tasks know a map task's node manager only, and look for the agent of its host. */
  private static void checkIsFound(ForebayShuffles joined) throws IOException {
    String host = System.getenv(ApplicationConstants.Environment.NM_HOST.name());
    if (host != null && !joined.nodesAt(names(host), false).contains(joined.node())) {
      throw new IOException("no address of node " + joined.node() + " is one of its node manager, " + host);
    }
  }

  /** A host's name and addresses. */
  static List<String> names(String host) {
    List<String> names = new ArrayList<>(List.of(host));
    try {
      for (InetAddress address : InetAddress.getAllByName(host)) {
        names.add(address.getHostAddress());
      }
    } catch (UnknownHostException e) {
      LOG.debug("Forebay: the addresses of {}", host, e);
    }
    return names;
  }

  private static ForebayClient client(JobConf conf) throws IOException {
    return new ForebayClient(new ForebayConfig(conf).client());
  }

  private static ForebayShuffles ofMaster(JobConf conf, Task task, TaskUmbilicalProtocol umbilical) throws IOException {
    if (!Proxy.isProxyClass(umbilical.getClass()) || task.getShuffleSecret() == null) {
      throw new IOException("tasks that run in the job's master (mapreduce.job.ubertask.enable) do not shuffle through the tier");
    }
    InetSocketAddress master = RPC.getServerAddress(umbilical);
    List<String> hosts = master.getAddress() == null
        ? List.of(master.getHostName())
        : List.of(master.getHostName(), master.getAddress().getHostAddress());
    try (ForebayClient client = client(conf)) {
      return client.joinJob(token(task), hosts, master.getPort());
    }
  }

  /** Of the secret, which it does not reveal, and of the job: several may have one secret. */
  private static String token(Task task) throws IOException {
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      digest.update("forebay shuffle".getBytes(StandardCharsets.UTF_8));
      digest.update(task.getJobID().toString().getBytes(StandardCharsets.UTF_8));
      return HexFormat.of().formatHex(Arrays.copyOf(digest.digest(task.getShuffleSecret().getEncoded()), 16));
    } catch (GeneralSecurityException e) {
      throw new IOException(e);
    }
  }

  private static ForebayShuffles ofLocal(JobConf conf, Thread job) throws IOException {
    synchronized (LOCAL) {
      ForebayShuffles known = LOCAL.get(job);
      if (known != null) {
        return known;
      }
      ForebayShuffles begun;
      try (ForebayClient client = client(conf)) {
        begun = client.beginShuffles();
      }
      begun.setLives(OUTPUTS, true);
      begun.setLives(SPILLS, true);
      LOCAL.put(job, begun);
      Thread end = new Thread(() -> endWith(job), "forebay-job-end");
      end.setDaemon(true);
      end.start();
      return begun;
    }
  }

  private static void endWith(Thread job) {
    while (job.isAlive()) {
      try {
        job.join();
      } catch (InterruptedException e) {
        LOG.debug("Forebay: waits on for the end of a job", e);
      }
    }
    synchronized (LOCAL) {
      LOCAL.remove(job).close();
    }
  }
}
