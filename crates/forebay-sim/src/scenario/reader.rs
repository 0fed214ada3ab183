//! Reads TOML strictly: every key is requested by name, type and range, and a key that nothing
//! requests is an error.
//!
//! serde could fill structs from TOML, but its messages speak of types and columns; a person who
//! wrote `io_gb = -3` needs to see the file, the key, the value and what is allowed, in one line.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use toml::{Table, Value};

use crate::error::{Error, Result};

/// A table of the file, and the keys that were requested from it.
pub struct Section<'a> {
    file: &'a Path,
    /// Dotted path with indices, such as `hpc[1]`; empty for the whole file.
    path: String,
    table: &'a Table,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub fn root(file: &'a Path, table: &'a Table) -> Self {
        Section { file, path: String::new(), table, asked: RefCell::default() }
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }

    /// An error about `key`, with its current value.
    pub fn error(&self, key: &str, allowed: impl Into<String>) -> Error {
        let value = match self.table.get(key) {
            Some(Value::Table(_)) => "a table".into(),
            Some(Value::Array(list)) if list.iter().any(Value::is_table) => format!("{} tables", list.len()),
            Some(value) => value.to_string(),
            None => "(missing)".into(),
        };
        Error::Scenario { file: self.file.into(), key: self.key(key), value, allowed: allowed.into() }
    }

    /// Whether `key` exists.
    pub fn has(&self, key: &'static str) -> bool {
        self.get(key).is_some()
    }

    /// Whether `key` is a text.
    pub fn is_text(&self, key: &'static str) -> bool {
        self.get(key).is_some_and(Value::is_str)
    }

    /// A number from `min` to `max`; if it is missing, `default`, or an error without a default.
    pub fn number(&self, key: &'static str, min: f64, max: f64, default: Option<f64>) -> Result<f64> {
        let value = match self.get(key) {
            None => default,
            Some(Value::Integer(i)) => Some(*i as f64),
            Some(Value::Float(f)) => Some(*f),
            Some(_) => None,
        };
        match value {
            Some(v) if (min..=max).contains(&v) => Ok(v),
            _ => Err(self.error(key, format!("a number from {min} to {max} is needed"))),
        }
    }

    /// A number from `min` to `max`, if it exists.
    pub fn number_if(&self, key: &'static str, min: f64, max: f64) -> Result<Option<f64>> {
        self.has(key).then(|| self.number(key, min, max, None)).transpose()
    }

    /// A whole number from `min` to `max`.
    pub fn whole(&self, key: &'static str, min: u64, max: u64, default: Option<u64>) -> Result<u64> {
        let value = match self.get(key) {
            None => default,
            Some(Value::Integer(i)) => u64::try_from(*i).ok(),
            Some(_) => None,
        };
        match value {
            Some(v) if (min..=max).contains(&v) => Ok(v),
            _ => Err(self.error(key, format!("a whole number from {min} to {max} is needed"))),
        }
    }

    /// The path of a file whose name is relative to the scenario's directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.file.with_file_name(name)
    }

    /// true or false.
    pub fn flag(&self, key: &'static str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Boolean(b)) => Ok(*b),
            Some(_) => Err(self.error(key, "true or false is needed")),
        }
    }

    /// Any text that is not empty.
    pub fn text(&self, key: &'static str, default: Option<&str>) -> Result<String> {
        match (self.get(key), default) {
            (Some(Value::String(s)), _) if !s.is_empty() => Ok(s.clone()),
            (None, Some(default)) => Ok(default.into()),
            _ => Err(self.error(key, "a text is needed")),
        }
    }

    /// One of `choices`.
    pub fn choice(&self, key: &'static str, choices: &[&str], default: Option<&str>) -> Result<String> {
        let text = match (self.get(key), default) {
            (Some(Value::String(s)), _) => Some(s.as_str()),
            (None, default) => default,
            _ => None,
        };
        match text.filter(|t| choices.contains(t)) {
            Some(text) => Ok(text.into()),
            None => Err(self.error(key, format!("one of {} is needed", choices.join(", ")))),
        }
    }

    /// The key `policy`: the name of one of `policies`.
    pub fn policy<T>(&self, policies: &[(&str, T)], default: &str) -> Result<String> {
        let names: Vec<&str> = policies.iter().map(|p| p.0).collect();
        self.choice("policy", &names, Some(default))
    }

    /// A list of numbers from `min` to `max`.
    pub fn numbers(&self, key: &'static str, min: f64, max: f64) -> Result<Vec<f64>> {
        let numbers = self.get(key).and_then(Value::as_array).map(|list| {
            list.iter()
                .map(|v| v.as_float().or(v.as_integer().map(|i| i as f64)))
                .collect::<Option<Vec<f64>>>()
        });
        match numbers.flatten() {
            Some(n) if n.iter().all(|v| (min..=max).contains(v)) => Ok(n),
            _ => Err(self.error(key, format!("a list of numbers from {min} to {max} is needed"))),
        }
    }

    /// The same in ascending order.
    pub fn ascending(&self, key: &'static str, min: f64, max: f64) -> Result<Vec<f64>> {
        let sorted = self.numbers(key, min, max).ok().filter(|numbers| numbers.is_sorted());
        let needed = || format!("a list of numbers from {min} to {max} in ascending order is needed");
        sorted.ok_or_else(|| self.error(key, needed()))
    }

    /// A list of different whole numbers below `end` in ascending order, if it exists.
    pub fn members(&self, key: &'static str, end: u32) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let one = |v: &Value| v.as_integer().and_then(|i| u32::try_from(i).ok()).filter(|&i| i < end);
        let list: Option<Vec<u32>> = value.as_array().and_then(|list| list.iter().map(one).collect());
        match list {
            Some(l) if !l.is_empty() && l.windows(2).all(|w| w[0] < w[1]) => Ok(Some(l)),
            _ => Err(self.error(
                key,
                format!("a list of whole numbers from 0 to {} in ascending order is needed", end - 1),
            )),
        }
    }

    /// A list of lists of whole numbers below `end`, if it exists.
    pub fn members_of_lists(&self, key: &'static str, end: u32) -> Result<Option<Vec<Vec<u32>>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = |v: &Value| v.as_integer().and_then(|i| u32::try_from(i).ok()).filter(|i| *i < end);
        let list = |v: &Value| v.as_array()?.iter().map(number).collect::<Option<Vec<u32>>>();
        let lists = value.as_array().and_then(|lists| lists.iter().map(list).collect::<Option<Vec<_>>>());
        let needed = || format!("a list of lists of whole numbers from 0 to {} is needed", end - 1);
        lists.map(Some).ok_or_else(|| self.error(key, needed()))
    }

    /// A list of [count, value] pairs.
    pub fn points(&self, key: &'static str) -> Result<Option<Vec<(u16, f64)>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let pair = |v: &Value| {
            let pair = v.as_array().filter(|p| p.len() == 2)?;
            let count = u16::try_from(pair[0].as_integer()?).ok()?;
            Some((count, pair[1].as_float().or(pair[1].as_integer().map(|i| i as f64))?))
        };
        let points = value.as_array().and_then(|list| list.iter().map(pair).collect());
        points.map(Some).ok_or_else(|| self.error(key, "a list of [count, value] pairs is needed"))
    }

    /// A table within it, if it exists.
    pub fn section(&self, key: &'static str) -> Result<Option<Section<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Table(table)) => {
                Ok(Some(Section { file: self.file, path: self.key(key), table, asked: RefCell::default() }))
            }
            Some(_) => Err(self.error(key, format!("a table [{}] is needed", self.key(key)))),
        }
    }

    /// A table within it; an empty one if it is missing, so that its keys then have the same
    /// defaults.
    pub fn optional(&self, key: &'static str) -> Result<Section<'a>> {
        static EMPTY: LazyLock<Table> = LazyLock::new(Table::new);
        let empty =
            || Section { file: self.file, path: self.key(key), table: &EMPTY, asked: RefCell::default() };
        Ok(self.section(key)?.unwrap_or_else(empty))
    }

    /// A table that has to exist.
    pub fn need(&self, key: &'static str) -> Result<Section<'a>> {
        self.section(key)?.ok_or_else(|| self.error(key, format!("a table [{}] is needed", self.key(key))))
    }

    /// A list of tables, `[[key]]`; empty if it is missing.
    pub fn list(&self, key: &'static str) -> Result<Vec<Section<'a>>> {
        let problem = || self.error(key, format!("tables [[{}]] are needed", self.key(key)));
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(problem)?;
        let mut sections = Vec::new();
        for (i, value) in list.iter().enumerate() {
            let table = value.as_table().ok_or_else(problem)?;
            let path = format!("{}[{i}]", self.key(key));
            sections.push(Section { file: self.file, path, table, asked: RefCell::default() });
        }
        Ok(sections)
    }

    /// To be called when everything was requested: an error on the first key that nothing
    /// requested.
    ///
    /// # Errors
    /// Names the key, and the allowed ones.
    pub fn done(&self) -> Result<()> {
        let asked = self.asked.borrow();
        match self.table.keys().find(|k| !asked.contains(&k.as_str())) {
            None => Ok(()),
            Some(key) => Err(self.error(key, format!("unknown key; allowed are {}", asked.join(", ")))),
        }
    }

    /// Returns `value`, read from it, if nothing else is in it; see [`Section::done`].
    pub fn complete<T>(&self, value: T) -> Result<T> {
        self.done().map(|()| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(text: &str, read: impl Fn(&Section<'_>) -> Result<T>) -> String {
        let table: Table = text.parse().expect("TOML");
        let section = Section::root(Path::new("a.toml"), &table);
        read(&section).and_then(|_| section.done()).err().map_or("ok".into(), |e| e.to_string())
    }

    #[test]
    fn every_refusal_names_file_key_value_and_what_is_allowed() {
        let got = message("x = -3", |s| s.number("x", 0.0, 9.0, None));
        assert_eq!(got, "a.toml: x = -3: a number from 0 to 9 is needed");
        let got = message("y = 3", |s| s.number("x", 0.0, 9.0, Some(1.0)));
        assert_eq!(got, "a.toml: y = 3: unknown key; allowed are x");
        let got = message("", |s| s.number("x", 0.0, 9.0, None));
        assert_eq!(got, "a.toml: x = (missing): a number from 0 to 9 is needed");
        let got = message("x = nan", |s| s.number("x", 0.0, 9.0, None));
        assert_eq!(got, "a.toml: x = nan: a number from 0 to 9 is needed");
        let got = message("x = 1.5", |s| s.whole("x", 0, 9, None));
        assert_eq!(got, "a.toml: x = 1.5: a whole number from 0 to 9 is needed");
        let got = message("x = 'c'", |s| s.choice("x", &["a", "b"], None));
        assert_eq!(got, "a.toml: x = \"c\": one of a, b is needed");
        let got = message("[[t]]\nn = 1\n[[t]]\nn = 'a'", |s| {
            s.list("t")?.iter().try_for_each(|t| t.whole("n", 0, 9, None).map(|_| ()))
        });
        assert_eq!(got, "a.toml: t[1].n = \"a\": a whole number from 0 to 9 is needed");
        assert_eq!(message("x = 3", |s| s.number("x", 0.0, 9.0, None)), "ok");
    }
}
