package io.forebay.spark;

import java.util.Collection;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The columns that a scan reads, as a tree of field names, because a scan may read only some fields
 * of a struct. Elements of arrays have no name and no level here; a map is read as a whole.
 *
 * @param fields by name in lower case, because case sensitivity is a setting and one column too
 *     many costs little; null if the whole column is read
 */
record Columns(Map<String, Columns> fields) {
  /** All of a column. */
  static final Columns WHOLE = new Columns(null);

  /** No column. */
  static final Columns NONE = new Columns(Map.of());

  /** Whole columns at the root. */
  static Columns named(Collection<String> names) {
    Map<String, Columns> fields = new TreeMap<>();
    names.forEach(name -> fields.put(name.toLowerCase(Locale.ROOT), WHOLE));
    return new Columns(fields);
  }

  /** The columns of a schema of Spark. */
  static Columns of(StructType schema) {
    Map<String, Columns> fields = new TreeMap<>();
    for (StructField field : schema.fields()) {
      DataType type = field.dataType();
      while (type instanceof ArrayType array) {
        type = array.elementType();
      }
      Columns inner = type instanceof StructType structure ? of(structure) : WHOLE;
      fields.merge(field.name().toLowerCase(Locale.ROOT), inner, Columns::with);
    }
    return new Columns(fields);
  }

  boolean isWhole() {
    return fields == null;
  }

  /** The columns that are read of a field; null if it is not read. */
  Columns field(String name) {
    return isWhole() ? WHOLE : fields.get(name.toLowerCase(Locale.ROOT));
  }

  /** The union of both. */
  Columns with(Columns other) {
    if (isWhole() || other.isWhole()) {
      return WHOLE;
    }
    Map<String, Columns> both = new TreeMap<>(fields);
    other.fields.forEach((name, columns) -> both.merge(name, columns, Columns::with));
    return new Columns(both);
  }

  /**
   * Whether a Parquet column is read. Levels of its path that stand for elements of arrays are
   * skipped.
   */
  boolean read(String[] path) {
    Columns read = field(path[0]);
    for (int level = 1; read != null && !read.isWhole() && level < path.length; level++) {
      Columns below = read.field(path[level]);
      read = below == null ? read : below;
    }
    return read != null && read.isWhole();
  }

  @Override
  public String toString() {
    return isWhole() ? "*" : fields.toString();
  }
}
