//! Scenario files: a cluster, its jobs, the policies and a seed, as TOML.
//!
//! A scenario of kind `colocation` puts HPC jobs beside Big Data jobs whose waves are prefetched. The reference of all keys
//! is `docs/simulator.md`. Reading is strict, and an override such as `hpc.0.allowance_percent=15` is read as if it stood
//! in the file, so it is checked in the same way.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::colocate::Setup;
use crate::error::{Error, Result};

mod colocation;
pub mod reader;

/// A scenario that was read and checked.
#[derive(Clone, Debug)]
pub enum Scenario {
    /// HPC jobs beside Big Data jobs.
    Colocation(Box<Setup>),
}

/// A scenario file, not yet checked.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is not TOML.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::io("read the scenario", path))?;
        File::parse(path, &text)
    }

    /// From `text`, as if it stood at `path`.
    ///
    /// # Errors
    /// If it is not TOML.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let table = text.parse::<Table>().map_err(|e| {
            let line = e.span().map_or(1, |s| 1 + text[..s.start].matches('\n').count());
            Error::Trace { file: path.into(), line, problem: format!("not TOML: {}", e.message()) }
        })?;
        Ok(File { path: path.into(), table })
    }

    /// Sets `key` (dotted; a number is an index into a list) to `value`, which is read as TOML, or else as text.
    ///
    /// # Errors
    /// If the key leads nowhere.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let value = format!("v = {value}")
            .parse::<Table>()
            .ok()
            .and_then(|mut t| t.remove("v"))
            .unwrap_or_else(|| Value::String(value.into()));
        let parts: Vec<&str> = key.split('.').collect();
        let missing = || Error::Scenario {
            file: self.path.clone(),
            key: key.into(),
            value: value.to_string(),
            allowed: "the key leads to nothing in this file".into(),
        };
        let (last, parents) = parts.split_last().ok_or_else(missing)?;
        let missing_error = missing();
        let mut at = &mut self.table;
        let mut parents = parents.iter().peekable();
        while let Some(part) = parents.next() {
            at = match at.entry(*part).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(table) => table,
                Value::Array(list) => {
                    let index = parents.next().and_then(|i| i.parse::<usize>().ok());
                    match index.and_then(|i| list.get_mut(i)) {
                        Some(Value::Table(table)) => table,
                        _ => return Err(missing_error),
                    }
                }
                _ => return Err(missing_error),
            };
        }
        at.insert((*last).into(), value);
        Ok(())
    }

    /// Checks everything.
    ///
    /// # Errors
    /// One line that names file, key, value and what is allowed.
    pub fn scenario(&self) -> Result<Scenario> {
        let root = reader::Section::root(&self.path, &self.table);
        root.choice("kind", &["colocation"], Some("colocation"))?;
        Ok(Scenario::Colocation(Box::new(colocation::read(&root)?)))
    }
}
