package io.forebay.spark;

import java.lang.reflect.Field;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.types.StructType;

/**
 * What a scan of SQL reads of its files: the columns, and the filters by which it leaves row groups
 * out.
 *
 * <p>The columns are those of the scan's RDD: in V1 its {@code readSchema}, in V2 that of its
 * reader factory, which names the filters too. The filters of V1 are in the physical plan of the
 * running SQL execution; a scan is found there by the RDD that it has made. Only what has been
 * computed is looked at: to compute a lazy value here could wait for a broadcast.
 *
 * @param columns that it reads
 * @param ids field IDs of the columns at the root, for files that have them, such as Iceberg's;
 *     empty if columns are identified by name
 * @param filters of {@code org.apache.spark.sql.sources}, all of which hold
 * @param footersAlone it computes its result from the footers
 * @param format that it reads, whatever its files are called; null if their names say it
 */
record Scan(Columns columns, Set<Integer> ids, List<Object> filters, boolean footersAlone, Footers.Format format) {
  private static final String SCAN_V1 = "org.apache.spark.sql.execution.datasources.FileScanRDD";
  private static final String SCAN_V2 = "org.apache.spark.sql.execution.datasources.v2.DataSourceRDD";

  private static final Set<String> SCANS = Set.of("FileSourceScanExec", "BatchScanExec");

  private static final Set<String> LIMITS = Set.of("CollectLimitExec", "LocalLimitExec", "GlobalLimitExec");

  /** Plan nodes that read as many rows as they return. */
  private static final Set<String> ROW_BY_ROW =
      Set.of("ProjectExec", "ColumnarToRowExec", "WholeStageCodegenExec", "InputAdapter", "AdaptiveSparkPlanExec");

  /** Classes of Spark's by which a scan reads columnar files, and those that others derive. */
  private static final Map<String, Footers.Format> FORMATS = Map.of("ParquetFileFormat", Footers.Format.PARQUET, "OrcFileFormat", Footers.Format.ORC,
      "ParquetPartitionReaderFactory", Footers.Format.PARQUET, "OrcPartitionReaderFactory", Footers.Format.ORC);

  /** Nodes of a plan that are looked at. */
  private static final int NODES_MAX = 100_000;

  /**
   * The facts about a scan that the physical plan contains.
   *
   * @param filters those that a V1 scan pushes down
   * @param rowsMax a task reads no row group beyond this many rows
   * @param format that a V1 scan reads; null if it is not columnar
   */
  record Planned(List<Object> filters, long rowsMax, Footers.Format format) {}

  /** A scan that reads rows. */
  Scan(Columns columns, Set<Integer> ids, List<Object> filters) {
    this(columns, ids, filters, false, null);
  }

  /** A scan whose columns are identified by name. */
  Scan(Columns columns, List<Object> filters) {
    this(columns, Set.of(), filters);
  }

  /** Whether it reads a column of Parquet: its path, and the number of its root if that has one. */
  boolean reads(String[] path, Integer id) {
    return id == null || ids.isEmpty() ? columns.read(path) : ids.contains(id);
  }

  /**
   * The scan that makes this RDD; null if it is none, or one whose columns are not known.
   *
   * @param planned of the running execution, as of {@link #planned}
   */
  static Scan of(RDD<?> rdd, Map<Integer, Planned> planned) {
    try {
      switch (rdd.getClass().getName()) {
        case SCAN_V1 -> {
          Planned plan = planned.get(rdd.id());
          Columns columns = columns(Scala.call(rdd, "readSchema"));
          return plan == null ? new Scan(columns, List.of()) : new Scan(columns, Set.of(), plan.filters(), false, plan.format());
        }
        case SCAN_V2 -> {
          Object factory = field(rdd, "partitionReaderFactory");
          if (factory == null || !Scala.has(factory, "readDataSchema")) {
            return null;
          }
          if (Scala.has(factory, "aggregation") && !Scala.list(Scala.call(factory, "aggregation")).isEmpty()) {
            // A count, minimum or maximum from the statistics of the files.
            return new Scan(Columns.NONE, Set.of(), List.of(), true, format(factory));
          }
          List<Object> filters = Scala.has(factory, "filters") ? Arrays.asList((Object[]) Scala.call(factory, "filters")) : List.of();
          return new Scan(columns(Scala.call(factory, "readDataSchema")), Set.of(), filters, false, format(factory));
        }
        default -> {
          return null;
        }
      }
    } catch (ReflectiveOperationException | RuntimeException e) {
      return null;
    }
  }

  private static Columns columns(Object schema) {
    return Columns.of((StructType) schema);
  }

  private static Footers.Format format(Object reader) {
    for (Class<?> type = reader.getClass(); type != null; type = type.getSuperclass()) {
      Footers.Format format = FORMATS.get(type.getSimpleName());
      if (format != null) {
        return format;
      }
    }
    return null;
  }

  /** The columnar format of an RDD of Hadoop's input formats; null if it has none. */
  static Footers.Format ofInputFormat(RDD<?> rdd) {
    try {
      Object type = rdd.getClass().getName().equals("org.apache.spark.rdd.HadoopRDD") ? field(rdd, "inputFormatClass") : null;
      String name = type instanceof Class<?> known ? known.getName() : "";
      return name.equals("org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat") ? Footers.Format.PARQUET
          : name.equals("org.apache.hadoop.hive.ql.io.orc.OrcInputFormat") ? Footers.Format.ORC : null;
    } catch (ReflectiveOperationException | RuntimeException e) {
      return null;
    }
  }

  /**
   * The scans of an SQL execution, by the number of the RDD; empty if it is not running here, or
   * its plan is of a kind that is not known.
   */
  static Map<Integer, Planned> planned(String executionId) {
    Map<Integer, Planned> found = new HashMap<>();
    if (executionId == null) {
      return found;
    }
    try {
      Class<?> executions = Class.forName("org.apache.spark.sql.execution.SQLExecution");
      Object execution = executions.getMethod("getQueryExecution", long.class).invoke(null, Long.parseLong(executionId));
      if (execution != null) {
        collect(Scala.call(execution, "executedPlan"), found);
      }
    } catch (ReflectiveOperationException | RuntimeException | LinkageError e) {
      // Then more is reported than is read, which costs bytes and no result.
      return found;
    }
    return found;
  }

  /** A plan node, and the most rows that the nodes above it take from one of its partitions. */
  private record Below(Object plan, long rowsMax) {}

  private static void collect(Object root, Map<Integer, Planned> found) throws ReflectiveOperationException {
    Deque<Below> open = new ArrayDeque<>();
    open.push(new Below(root, Long.MAX_VALUE));
    for (int nodes = 0; !open.isEmpty() && nodes < NODES_MAX; nodes++) {
      Below node = open.pop();
      Object plan = node.plan();
      String name = plan.getClass().getSimpleName();
      if (SCANS.contains(name) && field(plan, "inputRDD") instanceof RDD<?> rdd) {
        boolean ofFiles = name.equals("FileSourceScanExec");
        List<Object> filters = ofFiles ? Scala.list(Scala.call(plan, "pushedDownFilters")) : List.of();
        Object relation = ofFiles && Scala.has(plan, "relation") ? Scala.call(plan, "relation") : null;
        Footers.Format format = relation == null ? null : format(Scala.call(relation, "fileFormat"));
        found.put(rdd.id(), new Planned(filters, node.rowsMax(), format));
      }
      long rows = rowsMax(plan, name, node.rowsMax());
      if (name.equals("AdaptiveSparkPlanExec")) {
        open.push(new Below(Scala.call(plan, "executedPlan"), rows));
      } else if (name.endsWith("QueryStageExec")) {
        open.push(new Below(Scala.call(plan, "plan"), rows));
      }
      Scala.list(Scala.call(plan, "children")).forEach(child -> open.push(new Below(child, rows)));
      Scala.list(Scala.call(plan, "subqueries")).forEach(query -> open.push(new Below(query, Long.MAX_VALUE)));
    }
  }

  /** The most rows that a node takes from one partition of its child. */
  private static long rowsMax(Object plan, String name, long ofIt) throws ReflectiveOperationException {
    if (LIMITS.contains(name)) {
      int limit = (Integer) Scala.call(plan, "limit");
      return limit < 0 ? ofIt : Math.min(ofIt, limit);
    }
    return ROW_BY_ROW.contains(name) ? ofIt : Long.MAX_VALUE;
  }

  /** The value of a field as it is; null if it has not been computed. */
  static Object field(Object target, String name) throws ReflectiveOperationException {
    for (Class<?> type = target.getClass(); type != null; type = type.getSuperclass()) {
      for (Field field : type.getDeclaredFields()) {
        // Scala adds the name of the class to some.
        if (field.getName().equals(name) || field.getName().endsWith("$$" + name)) {
          field.setAccessible(true);
          return field.get(target);
        }
      }
    }
    return null;
  }
}
