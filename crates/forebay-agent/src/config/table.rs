//! One table for the configuration: each key is defined once, with its field, type, default, check
//! and reason.
//!
//! `section!` makes of it the structure with its documentation, the defaults, the reader of the
//! file and the reference. The default is TOML text that the same check reads, so the check refuses
//! no default. An empty one is for keys that need not be given, and reads as `""`.

use crate::units::{Amount, parse_bytes};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One key of the reference: name, default as TOML, reason.
pub struct Key {
    /// Table and key.
    pub name: &'static str,
    /// Default, as written in TOML; empty where there is none.
    pub default: &'static str,
    /// What it does and why the default is what it is.
    pub reason: &'static str,
}

/// A key and what reads its value into a section.
pub struct Entry<S: 'static> {
    pub key: Key,
    pub set: fn(&mut S, &Value<'_>) -> Result<(), String>,
}

/// The keys of some fields of a structure, in a constant.
macro_rules! keys {
    ($keys:ident: $section:ty {
        $($(#[doc = $reason:literal])+ $key:literal => $field:ident = $default:literal, $read:ident($($limit:expr)?);)+
    }) => {
        pub(super) const $keys: &[Entry<$section>] = &[$(Entry {
            key: Key { name: $key, default: $default, reason: concat!($($reason),+) },
            set: |section, value| {
                section.$field = value.$read($($limit)?)?;
                Ok(())
            },
        }),+];
    };
}

/// A structure with one field for each key, and its keys in a constant. What follows `plus` is not
/// read from these keys.
macro_rules! section {
    ($(#[$about:meta])* $name:ident, $keys:ident {
        $($(#[doc = $reason:literal])+ $key:literal => $field:ident: $type:ty = $default:literal, $read:ident($($limit:expr)?);)+
        $(plus $(#[$of_more:meta])* $more:ident: $more_type:ty;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $reason])+ pub $field: $type,)+
            $($(#[$of_more])* pub $more: $more_type,)*
        }

        impl $name {
            fn defaults() -> Self {
                $name {
                    $($field: default_of($key, $default, |value| value.$read($($limit)?)),)+
                    $($more: Default::default(),)*
                }
            }
        }

        keys! { $keys: $name { $($(#[doc = $reason])+ $key => $field = $default, $read($($limit)?);)+ } }
    };
}

pub(super) use {keys, section};

/// What `read` makes of a default.
pub fn default_of<T>(key: &str, default: &str, read: impl FnOnce(&Value<'_>) -> Result<T, String>) -> T {
    let source = if default.is_empty() { "\"\"" } else { default };
    let value = DeValue::parse(source).map_err(|e| e.to_string());
    let read = value.and_then(|value| read(&Value { key, source, value: &value }));
    read.unwrap_or_else(|e| panic!("the default of {key}: {e}"))
}

/// Reads the keys of `table` into `section`; `name` is the table's, `text` the whole file.
///
/// # Errors
/// Names line, key, value and what is allowed.
pub fn read<S>(
    entries: &[Entry<S>],
    section: &mut S,
    (name, text): (&str, &str),
    table: &DeTable<'_>,
) -> Result<(), String> {
    for (key, value) in table {
        let full = format!("{name}.{}", key.get_ref());
        let read = match entries.iter().find(|entry| entry.key.name == full) {
            Some(entry) => (entry.set)(section, &Value { key: &full, source: &text[value.span()], value }),
            None => {
                let of_table = |entry: &Entry<S>| entry.key.name.strip_prefix(name)?.strip_prefix('.');
                let known: Vec<_> = entries.iter().filter_map(of_table).collect();
                Err(format!("there is no key {full}; the keys are {}", known.join(", ")))
            }
        };
        read.map_err(|e| at_line(text, key.span().start, &e))?;
    }
    Ok(())
}

/// An error with the line it is about.
pub fn at_line(text: &str, offset: usize, error: &str) -> String {
    format!("line {}: {error}", text[..offset].matches('\n').count() + 1)
}

/// A value as it was written, and the readers of all types of keys.
pub struct Value<'a> {
    key: &'a str,
    source: &'a str,
    value: &'a Spanned<DeValue<'a>>,
}

impl Value<'_> {
    fn refused(&self, allowed: impl Display) -> String {
        format!("{} = {} must be {allowed}", self.key, self.source)
    }

    fn get<T: for<'de> Deserialize<'de>>(&self, allowed: &str) -> Result<T, String> {
        T::deserialize(self.value.clone().into_deserializer()).map_err(|_| self.refused(allowed))
    }

    fn named(&self, error: String) -> String {
        format!("{}: {error}", self.key)
    }

    pub fn text(&self) -> Result<String, String> {
        self.get("a text in quotes")
    }

    /// `true` and `false`, or one of the names of an enumeration.
    pub fn choice<T: for<'de> Deserialize<'de>>(&self) -> Result<T, String> {
        let read = T::deserialize(self.value.clone().into_deserializer());
        read.map_err(|e| format!("{} = {}: {}", self.key, self.source, e.message()))
    }

    pub fn parsed<T>(&self, parse: fn(&str) -> Result<T, String>) -> Result<T, String> {
        parse(&self.text()?).map_err(|e| self.named(e))
    }

    pub fn names(
        &self,
        check: fn(Vec<String>) -> Result<Vec<String>, String>,
    ) -> Result<Vec<String>, String> {
        check(self.get("a list of texts in quotes")?).map_err(|e| self.named(e))
    }

    /// A text, or a list of texts; an empty text is an empty list.
    pub fn texts(&self) -> Result<Vec<String>, String> {
        let texts = match self.value.get_ref().as_str() {
            Some(text) => vec![text.to_owned()],
            None => self.get("a text in quotes, or a list of them")?,
        };
        Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }

    /// Texts of the form `NAME=NAME`.
    pub fn pairs(&self) -> Result<Vec<(String, String)>, String> {
        let pair = |text: String| {
            let (name, other) =
                text.split_once('=').filter(|(name, other)| !name.is_empty() && !other.is_empty())?;
            Some((name.to_owned(), other.to_owned()))
        };
        let pairs: Option<Vec<_>> = self.texts()?.into_iter().map(pair).collect();
        pairs.ok_or_else(|| self.refused("a list of texts such as \"OST0000=oss1\""))
    }

    pub fn dir(&self) -> Result<PathBuf, String> {
        self.text().map(PathBuf::from)
    }

    /// A path; `None` if it is empty.
    pub fn path(&self) -> Result<Option<PathBuf>, String> {
        Ok(Some(self.dir()?).filter(|path| !path.as_os_str().is_empty()))
    }

    /// An address; `None` if it is empty.
    pub fn address(&self) -> Result<Option<SocketAddr>, String> {
        match self.text()?.as_str() {
            "" => Ok(None),
            text => address(self.key, text).map(Some),
        }
    }

    pub fn number<T>(&self, range: RangeInclusive<T>) -> Result<T, String>
    where
        T: for<'de> Deserialize<'de> + PartialOrd + Display,
    {
        let allowed = format!("from {} to {}", range.start(), range.end());
        let number = self.get(&allowed)?;
        if range.contains(&number) { Ok(number) } else { Err(self.refused(allowed)) }
    }

    pub fn millis(&self, range: RangeInclusive<u64>) -> Result<Duration, String> {
        self.number(range).map(Duration::from_millis)
    }

    pub fn seconds(&self, range: RangeInclusive<u64>) -> Result<Duration, String> {
        self.number(range).map(Duration::from_secs)
    }

    /// Milliseconds, as nanoseconds.
    pub fn millis_ns(&self, range: RangeInclusive<i64>) -> Result<i64, String> {
        self.number(range).map(|ms| ms * 1_000_000)
    }

    /// As [`Value::millis_ns`]; `None` if the text is empty.
    pub fn some_millis_ns(&self, range: RangeInclusive<i64>) -> Result<Option<i64>, String> {
        if self.value.get_ref().as_str() == Some("") { Ok(None) } else { self.millis_ns(range).map(Some) }
    }

    pub fn amount(&self) -> Result<Amount, String> {
        Amount::parse(&self.get::<String>("a size in quotes, such as \"16GiB\" or \"25%\"")?)
            .map_err(|e| self.named(e))
    }

    /// A part of a whole, from a share in percent.
    pub fn share(&self, range: RangeInclusive<f64>) -> Result<f64, String> {
        match self.amount()? {
            Amount::Percent(percent) if range.contains(&percent) => Ok(percent / 100.0),
            _ => Err(self.refused(format!("a share from {}% to {}%", range.start(), range.end()))),
        }
    }

    pub fn bytes(&self, range: RangeInclusive<u64>) -> Result<u64, String> {
        let size: String = self.get("a size in quotes with its unit, such as \"64MiB\"")?;
        let bytes = parse_bytes(&size).map_err(|e| self.named(e))?;
        let (least, most) = (short(*range.start()), short(*range.end()));
        match range.contains(&bytes) {
            true => Ok(bytes),
            false if *range.end() == u64::MAX => Err(self.refused(format!("at least {least}"))),
            false => Err(self.refused(format!("from {least} to {most}"))),
        }
    }

    pub fn power_of_two(&self, range: RangeInclusive<u64>) -> Result<u64, String> {
        let allowed = format!("a power of two from {} to {}", short(*range.start()), short(*range.end()));
        let bytes = self.bytes(0..=u64::MAX)?;
        let fits = bytes.is_power_of_two() && range.contains(&bytes);
        if fits { Ok(bytes) } else { Err(self.refused(allowed)) }
    }
}

/// The address `text` of `key`.
///
/// # Errors
/// It is not an address.
pub fn address(key: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{key} = {text:?}: write IP:PORT, for example \"127.0.0.1:7850\""))
}

/// As one writes it in the file: `64KiB`.
fn short(bytes: u64) -> String {
    let units = ["", "KiB", "MiB", "GiB", "TiB"];
    let whole = (0..units.len()).rev().find(|i| bytes > 0 && bytes.is_multiple_of(1 << (10 * i)));
    let power = whole.unwrap_or(0);
    format!("{}{}", bytes >> (10 * power), units[power])
}
