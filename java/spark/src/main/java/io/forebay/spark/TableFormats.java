package io.forebay.spark;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Or;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The ranges that tasks read of tables whose format has its own partition objects: Iceberg's tasks
 * with their delete files.
 *
 * <p>It uses reflection: the jar is not compiled against Iceberg, and the user provides the
 * version. If its classes differ from the known ones, the log says so once, and scans are read
 * without a plan.
 */
final class TableFormats {
  private static final String ICEBERG = "org.apache.iceberg.spark.source.SparkInputPartition";

  /** Columns of Iceberg's position delete files, from its specification. */
  private static final Scan POSITIONS = new Scan(Columns.named(Set.of("file_path", "pos")), Set.of(Integer.MAX_VALUE - 101, Integer.MAX_VALUE - 102), List.of());

  private static final Logger LOG = LoggerFactory.getLogger("io.forebay.spark");
  private static final AtomicBoolean SAID = new AtomicBoolean();

  /** Iceberg's schemas of the scans of one walk, by their text: one has many partitions. */
  private final Map<String, Scan> schemas = new HashMap<>();
  private final Map<Object, List<Object>> residuals = new IdentityHashMap<>();

  /** Whether the input of a V2 data source is Iceberg's; if so, its ranges are passed on. */
  boolean iceberg(Object input, InputRanges.Sink sink) {
    if (!input.getClass().getName().equals(ICEBERG)) {
      return false;
    }
    try {
      Scan expected = expected(input);
      for (Object task : (Collection<?>) Scala.call(Scala.call(input, "taskGroup"), "tasks")) {
        // A metadata task contains its rows, or reads small files that the driver has just read.
        if (Scala.has(task, "start") && !(Boolean) Scala.call(task, "isDataTask")) {
          task(task, expected, sink);
        }
      }
    } catch (ReflectiveOperationException | RuntimeException e) {
      differs(e);
    }
    return true;
  }

  private Scan expected(Object partition) throws ReflectiveOperationException {
    // The name changed in 1.11.
    String method = Scala.has(partition, "projection") ? "projection" : "expectedSchema";
    Object text = Scan.field(partition, method.equals("projection") ? "projectionString" : "expectedSchemaString");
    Scan known = text == null ? null : schemas.get(text);
    if (known == null) {
      Set<String> names = new HashSet<>();
      Set<Integer> ids = new HashSet<>();
      for (Object field : (List<?>) Scala.call(Scala.call(partition, method), "columns")) {
        names.add((String) Scala.call(field, "name"));
        ids.add((Integer) Scala.call(field, "fieldId"));
      }
      known = new Scan(Columns.named(names), ids, List.of());
      schemas.put((String) text, known);
    }
    return known;
  }

  private void task(Object task, Scan expected, InputRanges.Sink sink) throws ReflectiveOperationException {
    Set<Integer> ids = expected.ids();
    List<Object> deletes = Scala.has(task, "deletes") ? new ArrayList<>((List<?>) Scala.call(task, "deletes")) : List.of();
    for (Object delete : deletes) {
      if (Scala.call(delete, "equalityFieldIds") instanceof List<?> fields && !fields.isEmpty()) {
        // Data and delete files are both read for the columns that identify deleted rows.
        Set<Integer> more = new HashSet<>(ids);
        fields.forEach(field -> more.add((Integer) field));
        ids = more;
      }
    }
    Scan scan = new Scan(expected.columns(), ids, residual(task));
    sink.range(path(Scala.call(task, "file")), (Long) Scala.call(task, "start"), (Long) Scala.call(task, "length"), scan);
    for (Object delete : deletes) {
      delete(delete, sink);
    }
  }

  private static void delete(Object delete, InputRanges.Sink sink) throws ReflectiveOperationException {
    Object offset = Scala.has(delete, "contentOffset") ? Scala.call(delete, "contentOffset") : null;
    if (offset != null) {
      // A deletion vector, in a file that holds several.
      sink.range(path(delete), (Long) offset, (Long) Scala.call(delete, "contentSizeInBytes"), null);
      return;
    }
    Scan scan = POSITIONS;
    if (Scala.call(delete, "equalityFieldIds") instanceof List<?> fields && !fields.isEmpty()) {
      Set<Integer> ids = new HashSet<>();
      fields.forEach(field -> ids.add((Integer) field));
      scan = new Scan(Columns.NONE, ids, List.of());
    }
    sink.range(path(delete), 0, (Long) Scala.call(delete, "fileSizeInBytes"), scan);
  }

  private static Path path(Object file) throws ReflectiveOperationException {
    // Before 1.7 it is the path alone, as a CharSequence.
    return new Path(Scala.call(file, Scala.has(file, "location") ? "location" : "path").toString());
  }

  /** The part of the query's filter that remains for the rows of a file. */
  private List<Object> residual(Object task) throws ReflectiveOperationException {
    Object expression = Scala.call(task, "residual");
    if (expression == null) {
      return List.of();
    }
    List<Object> known = residuals.get(expression);
    if (known == null) {
      Filter filter = filter(expression);
      known = filter == null ? List.of() : List.of(filter);
      residuals.put(expression, known);
    }
    return known;
  }

  /** An expression of Iceberg's as one of Spark's; null if it may be true of any row. */
  private static Filter filter(Object expression) throws ReflectiveOperationException {
    String how = Scala.call(expression, "op").toString();
    if (how.equals("AND") || how.equals("OR")) {
      Filter left = filter(Scala.call(expression, "left"));
      Filter right = filter(Scala.call(expression, "right"));
      if (left == null || right == null) {
        return how.equals("OR") ? null : left == null ? right : left;
      }
      return how.equals("OR") ? new Or(left, right) : new And(left, right);
    }
    if (!Scala.has(expression, "term") || !Scala.has(Scala.call(expression, "term"), "name")) {
      return null;
    }
    String name = (String) Scala.call(Scala.call(expression, "term"), "name");
    if (how.equals("IN")) {
      return Scala.has(expression, "literals") ? in(name, (List<?>) Scala.call(expression, "literals")) : null;
    }
    if (!Set.of("EQ", "LT", "LT_EQ", "GT", "GT_EQ").contains(how)) {
      return null;
    }
    Object value = value(Scala.call(expression, "literal"));
    return switch (how) {
      case "EQ" -> new EqualTo(name, value);
      case "LT" -> new LessThan(name, value);
      case "LT_EQ" -> new LessThanOrEqual(name, value);
      case "GT" -> new GreaterThan(name, value);
      default -> new GreaterThanOrEqual(name, value);
    };
  }

  private static Filter in(String name, List<?> literals) throws ReflectiveOperationException {
    Object[] values = new Object[literals.size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = value(literals.get(i));
    }
    return new In(name, values);
  }

  private static Object value(Object literal) throws ReflectiveOperationException {
    Object value = Scala.call(literal, "value");
    return value instanceof CharSequence ? value.toString() : value;
  }

  private static void differs(Throwable e) {
    if (!SAID.getAndSet(true)) {
      LOG.info("Forebay: this version of Iceberg differs from the known ones ({}); its files are read without a plan, and only what is read is fetched", e.toString());
    }
  }
}
