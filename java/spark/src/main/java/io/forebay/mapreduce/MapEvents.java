package io.forebay.mapreduce;

import io.forebay.core.FetchedBlocks;
import io.forebay.core.ForebayException;
import io.forebay.core.ForebayShuffles;
import io.forebay.core.ForebayShuffles.Block;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.MapOutputFile;
import org.apache.hadoop.mapred.MapTaskCompletionEventsUpdate;
import org.apache.hadoop.mapred.RawKeyValueIterator;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.mapred.ShuffleConsumerPlugin;
import org.apache.hadoop.mapred.TaskAttemptID;
import org.apache.hadoop.mapred.TaskCompletionEvent;
import org.apache.hadoop.mapred.TaskCompletionEvent.Status;
import org.apache.hadoop.mapred.TaskUmbilicalProtocol;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.task.reduce.MapHost;
import org.apache.hadoop.mapreduce.task.reduce.MapOutput;
import org.apache.hadoop.mapreduce.task.reduce.MergeManager;
import org.apache.hadoop.mapreduce.task.reduce.ShuffleClientMetrics;

/**
 * The ends of map tasks, as Hadoop's own shuffle learns of them: outputs in the tier are kept from
 * it.
 *
 * <p>Hadoop's shuffle asks the job's master for them through this class. An output that is in the
 * tier is remembered here; any other is passed on, and Hadoop fetches it from its node manager. A
 * lost one is neither here nor there: Hadoop's fetch fails, and it reports that, so that the map
 * task runs again. Once all outputs are known, Hadoop hears that no more come of those in the
 * tier, as it is of map tasks that may fail.
 *
 * <p>Hadoop asks in one thread. Threads that end copies look at what was found and copied only,
 * and never wait for a node that is asked.
 *
 * <p>Each output counts once, however often its map task ran: Hadoop may not finish a copy of one
 * that has come to the tier meanwhile, and the tier is not asked for one that Hadoop has copied.
 */
final class MapEvents<K, V> implements InvocationHandler {
  /** Bytes of each segment that are fetched when it is looked for: all of a tiny one. */
  private static final int HEAD_BYTES = 4 << 10;
  /** How often a node is asked that does not answer, each time with the agent's deadline. */
  private static final int LOOKS = 3;

  /** An output in the tier. */
  record Found(TaskAttemptID attempt, List<String> nodes, long length, byte[] head) {}

  private final ShuffleConsumerPlugin.Context<K, V> context;
  private final ForebayShuffles shuffles;
  private final boolean hasCopies;
  private final int reducer;
  private final int maps;
  private final Map<TaskAttemptID, MapOutputFile> localFiles;
  /** As Hadoop's shuffle sees them. */
  private final List<TaskCompletionEvent> given = new ArrayList<>();
  /** Events of the master's that were seen. */
  private int seen;
  private final Map<Integer, TaskAttemptID> passedOn = new HashMap<>();
  /** By number of the map task; with `this` locked, as {@code copied}. */
  private final Map<Integer, Found> found = new LinkedHashMap<>();
  private final Set<Integer> copied = new TreeSet<>();
  /** Of the found ones, those that Hadoop does not wait for any more: they are not taken back. */
  private final Set<Integer> reported = new TreeSet<>();
  private final Map<String, List<String>> nodes = new HashMap<>();

  MapEvents(ShuffleConsumerPlugin.Context<K, V> context, ForebayShuffles shuffles) {
    this.context = context;
    this.shuffles = shuffles;
    hasCopies = JobOutputs.copies(context.getJobConf()) > 1;
    reducer = context.getReduceId().getTaskID().getId();
    maps = context.getJobConf().getNumMapTasks();
    Map<TaskAttemptID, MapOutputFile> files = context.getLocalMapFiles();
    localFiles = files == null ? null : new LinkedHashMap<>(files);
    if (files != null) {
      List<TaskAttemptID> attempts = List.copyOf(files.keySet());
      look(attempts, List.of(shuffles.node()));
      inTier().forEach(output -> localFiles.remove(output.attempt));
      localFiles.keySet().forEach(attempt -> passedOn.put(attempt.getTaskID().getId(), attempt));
      reportIfAllAreKnown();
    }
  }

  /** What Hadoop's shuffle gets for its context. */
  ShuffleConsumerPlugin.Context<K, V> filtered() {
    ShuffleConsumerPlugin.Context<K, V> c = context;
    TaskUmbilicalProtocol umbilical = (TaskUmbilicalProtocol) Proxy.newProxyInstance(TaskUmbilicalProtocol.class.getClassLoader(),
        new Class<?>[] {TaskUmbilicalProtocol.class}, this);
    JobConf job = new JobConf(c.getJobConf());
    // The master hears of each failed fetch: outputs that are lost with an agent fail at once and
    // always, and Hadoop would report every tenth time.
    job.setInt(MRJobConfig.SHUFFLE_FETCH_FAILURES, 1);
    return new ShuffleConsumerPlugin.Context<>(c.getReduceId(), job, c.getLocalFS(), umbilical, c.getLocalDirAllocator(), c.getReporter(),
        c.getCodec(), c.getCombinerClass(), c.getCombineCollector(), c.getSpilledRecordsCounter(), c.getReduceCombineInputCounter(),
        c.getShuffledMapsCounter(), c.getReduceShuffleBytes(), c.getFailedShuffleCounter(), c.getMergedMapOutputsCounter(), c.getStatus(),
        c.getCopyPhase(), c.getMergePhase(), c.getReduceTask(), c.getMapOutputFile(), localFiles);
  }

  /** The outputs in the tier, all of them once Hadoop's shuffle has ended. */
  synchronized List<Found> inTier() {
    return List.copyOf(found.values());
  }

  /** Calls of the master. */
  @Override
  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    if (method.getName().equals("getMapCompletionEvents")) {
      return events((int) arguments[1], (int) arguments[2]);
    }
    try {
      return method.invoke(context.getUmbilical(), arguments);
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  private MapTaskCompletionEventsUpdate events(int from, int most) throws IOException {
    if (localFiles == null) {
      poll(most);
    }
    List<TaskCompletionEvent> some = given.subList(from, Math.min(given.size(), from + most));
    return new MapTaskCompletionEventsUpdate(some.toArray(TaskCompletionEvent.EMPTY_ARRAY), false);
  }

  private void poll(int most) throws IOException {
    List<TaskCompletionEvent> news = new ArrayList<>();
    TaskCompletionEvent[] some;
    do {
      TaskAttemptID reduce = (TaskAttemptID) context.getReduceId();
      MapTaskCompletionEventsUpdate update = context.getUmbilical().getMapCompletionEvents(reduce.getJobID(), seen, most, reduce);
      some = update.getMapTaskCompletionEvents();
      if (update.shouldReset()) {
        // Of masters before YARN. The task's next attempt begins with the first event.
        throw new IllegalStateException("the job's master has begun anew");
      }
      seen += some.length;
      news.addAll(List.of(some));
    } while (some.length == most);
    resolve(news);
    reportIfAllAreKnown();
  }

  private void resolve(List<TaskCompletionEvent> news) {
    // What ended well and was lost later is not looked for.
    Map<TaskAttemptID, TaskCompletionEvent> ended = new LinkedHashMap<>();
    for (TaskCompletionEvent event : news) {
      TaskAttemptID attempt = event.getTaskAttemptId();
      int map = attempt.getTaskID().getId();
      switch (event.getTaskStatus()) {
        case SUCCEEDED -> ended.put(attempt, event);
        case FAILED, KILLED, OBSOLETE -> {
          ended.remove(attempt);
          if (!reported.contains(map) && forgot(map, attempt)) {
            JobOutputs.LOG.debug("Forebay: {} is lost before it was read", attempt);
          } else if (passedOn.remove(map, attempt)) {
            given.add(event);
          }
        }
        case TIPFAILED -> {
          passedOn.put(map, attempt);
          given.add(event);
        }
      }
    }
    Map<List<String>, List<TaskAttemptID>> byNodes = new LinkedHashMap<>();
    ended.values().stream().filter(event -> !isCopied(event.getTaskAttemptId().getTaskID().getId()))
        .forEach(event -> byNodes.computeIfAbsent(nodesOf(event), at -> new ArrayList<>()).add(event.getTaskAttemptId()));
    byNodes.forEach((at, attempts) -> look(attempts, at));
    ended.forEach((attempt, event) -> {
      int map = attempt.getTaskID().getId();
      if (!isFound(map)) {
        passedOn.put(map, attempt);
        given.add(event);
      }
    });
  }

  private synchronized boolean forgot(int map, TaskAttemptID attempt) {
    Found output = found.get(map);
    return output != null && output.attempt.equals(attempt) && found.remove(map) != null;
  }

  private synchronized boolean isFound(int map) {
    return found.containsKey(map);
  }

  private synchronized boolean isCopied(int map) {
    return copied.contains(map);
  }

  /** False if Hadoop has copied an output of this map task meanwhile. */
  private synchronized boolean isNew(int map, Found output) {
    if (!copied.contains(map)) {
      found.put(map, output);
    }
    return !copied.contains(map);
  }

  /** The nodes that may have an output; none if Forebay does not know the host. */
  private List<String> nodesOf(TaskCompletionEvent event) {
    String host = URI.create(event.getTaskTrackerHttp()).getHost();
    List<String> known = nodes.getOrDefault(host, List.of());
    if (known.isEmpty()) {
      try {
        known = shuffles.nodesAt(JobOutputs.names(host), hasCopies);
        nodes.put(host, known);
      } catch (ForebayException e) {
        JobOutputs.LOG.warn("Forebay: the nodes of {}: {}", host, e.toString());
      }
    }
    return known;
  }

  private void look(List<TaskAttemptID> attempts, List<String> at) {
    for (int from = 0; from < attempts.size() && !at.isEmpty(); from += ForebayShuffles.BLOCKS_MAX) {
      List<TaskAttemptID> some = attempts.subList(from, Math.min(attempts.size(), from + ForebayShuffles.BLOCKS_MAX));
      if (!lookForAll(some, at) && some.size() > 1) {
        some.forEach(attempt -> lookForAll(List.of(attempt), at));
      }
    }
  }

  /** False if one of them is not there, or no node answers for long. */
  private boolean lookForAll(List<TaskAttemptID> attempts, List<String> at) {
    for (int tries = 1;; tries++) {
      try {
        return findAll(attempts, at);
      } catch (IOException e) {
        boolean isLost = tries == LOOKS || e instanceof ForebayException f && f.errno() == ForebayException.ENOENT;
        JobOutputs.LOG.info("Forebay: {}: {}", isLost ? "not in the tier" : "looks again", e.toString());
        if (isLost) {
          return false;
        }
      }
    }
  }

  private boolean findAll(List<TaskAttemptID> attempts, List<String> at) throws IOException {
    List<Block> blocks = attempts.stream().map(attempt -> block(attempt, reducer, 0, HEAD_BYTES)).toList();
    try (FetchedBlocks fetched = shuffles.fetch(at, blocks)) {
      for (int i = 0; i < attempts.size(); i++) {
        byte[] head = bytesOf(fetched, i, blocks.get(i), -1);
        int map = attempts.get(i).getTaskID().getId();
        if (isNew(map, new Found(attempts.get(i), at, fetched.total(i), head))) {
          passedOn.remove(map);
        }
      }
      return true;
    }
  }

  static Block block(TaskAttemptID attempt, int reducer, long from, long most) {
    return new Block(JobOutputs.OUTPUTS, JobOutputs.number(attempt), reducer, reducer + 1, from, most);
  }

  /** A fetched block; an error if it is not as long as it must be. {@code length}: if known. */
  static byte[] bytesOf(FetchedBlocks fetched, int number, Block block, long length) throws IOException {
    long total = fetched.total(number);
    int wanted = (int) Math.min(block.most(), total - block.from());
    if (fetched.size(number) != wanted || length >= 0 && total != length) {
      throw new IOException(fetched.size(number) + " bytes instead of " + wanted + " of a segment of " + total + " bytes");
    }
    byte[] bytes = new byte[wanted];
    for (int at = 0; at < wanted;) {
      int read = fetched.read(number, at, bytes, at, wanted - at);
      if (read <= 0) {
        throw new IOException("a segment of a map output ends too early");
      }
      at += read;
    }
    return bytes;
  }

  /** If no map task is missing, Hadoop need not wait for those in the tier. */
  private void reportIfAllAreKnown() {
    List<Found> outputs = inTier();
    if (outputs.size() + passedOn.size() < maps) {
      return;
    }
    for (Found output : outputs) {
      int map = output.attempt.getTaskID().getId();
      if (reported.add(map)) {
        given.add(new TaskCompletionEvent(0, output.attempt, map, true, Status.TIPFAILED, ""));
      }
    }
  }

  /** Hadoop's manager, asked before each copy counts. */
  MergeManager<K, V> watched(MergeManager<K, V> manager) {
    return new MergeManager<>() {
      @Override
      public void waitForResource() throws InterruptedException {
        manager.waitForResource();
      }

      @Override
      public MapOutput<K, V> reserve(org.apache.hadoop.mapreduce.TaskAttemptID map, long bytes, int fetcher) throws IOException {
        MapOutput<K, V> output = manager.reserve(map, bytes, fetcher);
        return output == null ? null : new Watched(output);
      }

      @Override
      public RawKeyValueIterator close() throws Throwable {
        return manager.close();
      }
    };
  }

  private final class Watched extends MapOutput<K, V> {
    private final MapOutput<K, V> output;

    Watched(MapOutput<K, V> output) {
      super(output.getMapId(), output.getSize(), output.isPrimaryMapOutput());
      this.output = output;
    }

    @Override
    public void shuffle(MapHost host, InputStream input, long compressed, long raw, ShuffleClientMetrics metrics, Reporter reporter) throws IOException {
      output.shuffle(host, input, compressed, raw, metrics, reporter);
    }

    @Override
    public void commit() throws IOException {
      synchronized (MapEvents.this) {
        int map = getMapId().getTaskID().getId();
        if (found.containsKey(map)) {
          throw new IOException(getMapId() + " ran again meanwhile, and its output is in the tier");
        }
        output.commit();
        copied.add(map);
      }
    }

    @Override
    public void abort() {
      output.abort();
    }

    @Override
    public String getDescription() {
      return output.getDescription();
    }
  }
}
