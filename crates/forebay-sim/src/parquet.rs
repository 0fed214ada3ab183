//! Records as Parquet files, for programs that want types and read single columns.
//!
//! The cells are those of the CSV, so that both say the same; empty ones are null. Pages are not
//! compressed: records of simulations are small, and compression would cost more crates.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result as Parquet};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use crate::error::{Error, Result};
use crate::table::{ColumnType, record_type};

/// Rows that are in memory twice while they are written.
const ROWS_PER_GROUP: usize = 1 << 20;

/// Writes a table to `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, what: &'static str, columns: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let file = fs::File::create(path).map_err(Error::io(what, path))?;
    rows_to(file, columns, rows).map_err(|e| Error::io(what, path)(io_error(e)))
}

/// An error of the file as it was, for its words.
fn io_error(e: ParquetError) -> std::io::Error {
    match e {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(io) => *io,
            Err(other) => std::io::Error::other(other),
        },
        e => std::io::Error::other(e),
    }
}

fn rows_to(file: fs::File, columns: &[&str], rows: &[Vec<String>]) -> Parquet<()> {
    let properties = WriterProperties::builder().set_created_by("forebay sim".into()).build();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema(columns)?), Arc::new(properties))?;
    for rows in rows.chunks(ROWS_PER_GROUP) {
        let mut group = writer.next_row_group()?;
        for c in 0..columns.len() {
            let Some(column) = group.next_column()? else { break };
            cells(column, rows.iter().map(|row| row[c].as_str()))?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

fn schema(columns: &[&str]) -> Parquet<Type> {
    let field = |name: &&str| {
        let (physical, logical) = match record_type(name) {
            ColumnType::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnType::Whole => (Physical::INT64, None),
            ColumnType::Number => (Physical::DOUBLE, None),
        };
        let field = Type::primitive_type_builder(name, physical).with_logical_type(logical);
        field.with_repetition(Repetition::OPTIONAL).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Parquet<Vec<_>>>()?;
    Type::group_type_builder("records").with_fields(fields).build()
}

/// Writes the cells of a column; an empty one is null.
fn cells<'a>(
    mut column: SerializedColumnWriter<'_>,
    cells: impl Iterator<Item = &'a str> + Clone,
) -> Parquet<()> {
    let levels: Vec<i16> = cells.clone().map(|cell| i16::from(!cell.is_empty())).collect();
    let known = cells.filter(|cell| !cell.is_empty());
    let levels = Some(levels.as_slice());
    match column.untyped() {
        ColumnWriter::ByteArrayColumnWriter(to) => {
            let values: Vec<ByteArray> = known.map(ByteArray::from).collect();
            to.write_batch(&values, levels, None)?;
        }
        ColumnWriter::Int64ColumnWriter(to) => {
            to.write_batch(&numbers::<i64>(known)?, levels, None)?;
        }
        ColumnWriter::DoubleColumnWriter(to) => {
            to.write_batch(&numbers::<f64>(known)?, levels, None)?;
        }
        _ => unreachable!("the schema has three types"),
    }
    column.close()
}

fn numbers<'a, N: std::str::FromStr>(cells: impl Iterator<Item = &'a str>) -> Parquet<Vec<N>> {
    let number = |cell: &str| {
        cell.parse().map_err(|_| ParquetError::General(format!("{cell} is not of its column's type")))
    };
    cells.map(number).collect()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    fn row(cells: [&str; 4]) -> Vec<String> {
        cells.map(String::from).to_vec()
    }

    #[test]
    fn cells_are_read_back_with_their_types() {
        let path = std::env::temp_dir().join(format!("forebay-records-{}.parquet", std::process::id()));
        let rows = [row(["12", "0", "90000.000000001", ""]), row(["b, \"c\"", "7", "0.5", "3"])];
        write(&path, "write the records to", &["job", "step", "due_s", "attempts"], &rows).expect("written");
        let file = fs::File::open(&path).expect("it was written");
        let reader = SerializedFileReader::new(file).expect("Parquet");
        let read: Vec<Vec<Field>> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("a row").get_column_iter().map(|(_, field)| field.clone()).collect())
            .collect();
        fs::remove_file(&path).expect("it was written");
        let text = |t: &str| Field::Str(t.into());
        assert_eq!(read[0], [text("12"), Field::Long(0), Field::Double(90000.000000001), Field::Null]);
        assert_eq!(read[1], [text("b, \"c\""), Field::Long(7), Field::Double(0.5), Field::Long(3)]);
    }

    #[test]
    fn a_refusal_names_the_file_and_why() {
        let path = Path::new("/nowhere/r.parquet");
        let error = write(path, "write the records to", &["job"], &[]).expect_err("no such directory");
        let text = error.to_string();
        assert!(text.starts_with("cannot write the records to /nowhere/r.parquet: No such file"), "{text}");
    }
}
