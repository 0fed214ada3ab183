package io.forebay.spark;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import org.apache.parquet.column.statistics.Statistics;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.LogicalTypeAnnotation.DateLogicalTypeAnnotation;
import org.apache.parquet.schema.LogicalTypeAnnotation.IntLogicalTypeAnnotation;
import org.apache.parquet.schema.LogicalTypeAnnotation.StringLogicalTypeAnnotation;

/**
 * Which row groups of a Parquet file a scan with filters reads, by their statistics.
 *
 * <p>In doubt a row group is read: what is reported and not read costs bytes, and what is read and
 * not reported is fetched when it is read. So only comparisons of plain integers, floating point
 * numbers, dates and strings are looked at, and no dictionary.
 */
final class RowGroups {
  /** Days since 1970; before 1900 calendars differ between writers. */
  private static final long DATE_MIN = -25_567;

  private RowGroups() {}

  /** Whether rows of the group may satisfy all {@code filters}. */
  static boolean mayMatch(BlockMetaData group, List<Object> filters) {
    Set<String> names = new HashSet<>();
    filters.forEach(filter -> names.addAll(columns(filter)));
    Map<String, Statistics<?>> statistics = new HashMap<>();
    for (ColumnChunkMetaData chunk : names.isEmpty() ? List.<ColumnChunkMetaData>of() : group.getColumns()) {
      String[] path = chunk.getPath().toArray();
      String name = path[0].toLowerCase(Locale.ROOT);
      if (path.length == 1 && names.contains(name) && chunk.getStatistics() != null) {
        statistics.putIfAbsent(name, chunk.getStatistics());
      }
    }
    return filters.stream().allMatch(filter -> mayMatch(filter, statistics));
  }

  /** The columns that a filter names, in lower case; empty if it does not say. */
  static List<String> columns(Object filter) {
    try {
      String[] names = (String[]) Scala.call(filter, "references");
      return Arrays.stream(names).map(name -> name.toLowerCase(Locale.ROOT)).distinct().toList();
    } catch (ReflectiveOperationException | RuntimeException e) {
      return List.of();
    }
  }

  /**
   * Whether rows of which these statistics are known may satisfy a filter.
   *
   * @param statistics by the name of the column in lower case
   */
  static boolean mayMatch(Object filter, Map<String, Statistics<?>> statistics) {
    try {
      switch (filter.getClass().getSimpleName()) {
        case "And" -> {
          return mayMatch(Scala.call(filter, "left"), statistics) && mayMatch(Scala.call(filter, "right"), statistics);
        }
        case "Or" -> {
          return mayMatch(Scala.call(filter, "left"), statistics) || mayMatch(Scala.call(filter, "right"), statistics);
        }
        case "In" -> {
          Object[] values = (Object[]) Scala.call(filter, "values");
          Statistics<?> of = statistics.get(column(filter));
          return Arrays.stream(values).anyMatch(value -> compares(of, "EqualTo", value));
        }
        case "EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual" -> {
          return compares(statistics.get(column(filter)), filter.getClass().getSimpleName(), Scala.call(filter, "value"));
        }
        default -> {
          return true;
        }
      }
    } catch (ReflectiveOperationException | RuntimeException e) {
      return true;
    }
  }

  private static String column(Object filter) throws ReflectiveOperationException {
    return ((String) Scala.call(filter, "attribute")).toLowerCase(Locale.ROOT);
  }

  private static boolean compares(Statistics<?> statistics, String how, Object value) {
    if (statistics == null || !statistics.hasNonNullValue() || value == null) {
      return true;
    }
    LogicalTypeAnnotation type = statistics.type().getLogicalTypeAnnotation();
    Integer toLow = compare(statistics.genericGetMin(), value, type);
    Integer toHigh = compare(statistics.genericGetMax(), value, type);
    if (toLow == null || toHigh == null) {
      return true;
    }
    return switch (how) {
      case "GreaterThan" -> toHigh > 0;
      case "GreaterThanOrEqual" -> toHigh >= 0;
      case "LessThan" -> toLow < 0;
      case "LessThanOrEqual" -> toLow <= 0;
      default -> toLow <= 0 && toHigh >= 0;
    };
  }

  /** How a bound of a column's values compares to a filter's value; null if that is not known. */
  private static Integer compare(Object bound, Object value, LogicalTypeAnnotation type) {
    boolean plain = type == null || type instanceof IntLogicalTypeAnnotation number && number.isSigned();
    if (bound instanceof Binary text) {
      boolean strings = type instanceof StringLogicalTypeAnnotation && value instanceof String;
      return strings ? Arrays.compareUnsigned(text.getBytes(), ((String) value).getBytes(StandardCharsets.UTF_8)) : null;
    }
    if (bound instanceof Float || bound instanceof Double) {
      double left = ((Number) bound).doubleValue();
      boolean known = plain && (value instanceof Float || value instanceof Double);
      double right = known ? ((Number) value).doubleValue() : Double.NaN;
      return Double.isNaN(left) || Double.isNaN(right) ? null : new BigDecimal(left).compareTo(new BigDecimal(right));
    }
    if (!(bound instanceof Integer || bound instanceof Long)) {
      return null;
    }
    long left = ((Number) bound).longValue();
    if (plain && (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long)) {
      return Long.compare(left, ((Number) value).longValue());
    }
    if (type instanceof DateLogicalTypeAnnotation) {
      // Iceberg's are days.
      LocalDate date = value instanceof java.sql.Date old ? old.toLocalDate()
          : value instanceof LocalDate local ? local : value instanceof Integer days ? LocalDate.ofEpochDay(days) : null;
      boolean known = date != null && left >= DATE_MIN && date.toEpochDay() >= DATE_MIN;
      return known ? Long.compare(left, date.toEpochDay()) : null;
    }
    return null;
  }
}
