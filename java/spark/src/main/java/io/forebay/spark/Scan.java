package io.forebay.spark;

import java.lang.reflect.Field;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

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
 * @param filters of {@code org.apache.spark.sql.sources}, all of which hold
 */
record Scan(Columns columns, List<Object> filters) {
  private static final String SCAN_V1 = "org.apache.spark.sql.execution.datasources.FileScanRDD";
  private static final String SCAN_V2 = "org.apache.spark.sql.execution.datasources.v2.DataSourceRDD";

  /** Reads nothing. */
  static final Scan NONE = new Scan(Columns.NONE, List.of());

  /** Nodes of a plan that are looked at. */
  private static final int NODES_MAX = 100_000;

  /** What either of two scans of one file reads. */
  Scan with(Scan other) {
    return equals(other) ? this : new Scan(columns.with(other.columns), List.of());
  }

  /**
   * The scan that makes this RDD; null if it is none, or one whose columns are not known.
   *
   * @param filtersV1 of the running execution, as of {@link #filters}
   */
  static Scan of(RDD<?> rdd, Map<Integer, List<Object>> filtersV1) {
    try {
      switch (rdd.getClass().getName()) {
        case SCAN_V1 -> {
          return new Scan(columns(Scala.call(rdd, "readSchema")), filtersV1.getOrDefault(rdd.id(), List.of()));
        }
        case SCAN_V2 -> {
          Object factory = field(rdd, "partitionReaderFactory");
          if (factory == null || !Scala.has(factory, "readDataSchema")) {
            return null;
          }
          List<Object> filters = Scala.has(factory, "filters") ? Arrays.asList((Object[]) Scala.call(factory, "filters")) : List.of();
          return new Scan(columns(Scala.call(factory, "readDataSchema")), filters);
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

  /**
   * The filters that the scans of an SQL execution push down, by the number of the RDD; empty if it
   * is not running here, or its plan is of a kind that is not known.
   */
  static Map<Integer, List<Object>> filters(String executionId) {
    Map<Integer, List<Object>> found = new HashMap<>();
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
      // Then more is told than is read, which costs bytes and no result.
      return found;
    }
    return found;
  }

  private static void collect(Object root, Map<Integer, List<Object>> found) throws ReflectiveOperationException {
    Deque<Object> open = new ArrayDeque<>();
    open.push(root);
    for (int nodes = 0; !open.isEmpty() && nodes < NODES_MAX; nodes++) {
      Object plan = open.pop();
      String name = plan.getClass().getSimpleName();
      if (name.equals("FileSourceScanExec")) {
        if (field(plan, "inputRDD") instanceof RDD<?> rdd) {
          found.put(rdd.id(), Scala.list(Scala.call(plan, "pushedDownFilters")));
        }
      } else if (name.equals("AdaptiveSparkPlanExec")) {
        open.push(Scala.call(plan, "executedPlan"));
      } else if (name.endsWith("QueryStageExec")) {
        open.push(Scala.call(plan, "plan"));
      }
      Scala.list(Scala.call(plan, "children")).forEach(open::push);
      Scala.list(Scala.call(plan, "subqueries")).forEach(open::push);
    }
  }

  /** The value of a field as it is; null if it has not been computed. */
  private static Object field(Object target, String name) throws ReflectiveOperationException {
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
