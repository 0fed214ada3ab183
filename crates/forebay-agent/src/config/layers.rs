//! The layers of the configuration: files first, then the environment. What comes later wins, key
//! by key.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The file of a configuration directory, and its directory of further ones.
const FILE: &str = "forebay.toml";
const FURTHER: &str = "conf.d";

/// The tables that the environment can name keys of.
const TABLES: [&str; 7] = ["agent", "tier", "memory", "metrics", "console", "cluster", "ship"];

/// One layer: TOML text, and where it comes from.
#[derive(Debug)]
pub struct Layer {
    /// The file, or the variable.
    pub origin: String,
    /// What it says.
    pub text: String,
    /// It is a variable with one key.
    pub is_variable: bool,
}

/// A key that a layer gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Label of its mount; empty for other tables.
    pub mount: String,
    /// Table and key.
    pub key: String,
    /// The value as TOML.
    pub value: String,
    /// The variable, or file and line.
    pub origin: String,
}

/// The keys that differ between two configurations, but for `live`, which take effect immediately.
pub fn waiting(before: &[Given], now: &[Given], live: &[&str]) -> Vec<String> {
    let only_in =
        |these: &[Given], those: &[Given]| -> Vec<String> {
            let has = |one: &Given| {
                those.iter().any(|other| {
                    (&other.mount, &other.key, &other.value) == (&one.mount, &one.key, &one.value)
                })
            };
            let new = these.iter().filter(|one| !live.contains(&one.key.as_str()) && !has(one));
            new.map(|one| {
                if one.mount.is_empty() { one.key.clone() } else { format!("{} of {}", one.key, one.mount) }
            })
            .collect()
        };
    let mut keys = only_in(now, before);
    keys.extend(only_in(before, now));
    keys.sort();
    keys.dedup();
    keys
}

/// Where this user's configuration is if none is named: `/etc/forebay` for root, else
/// `$XDG_CONFIG_HOME/forebay` or `~/.config/forebay`.
pub fn standard_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/etc/forebay"));
    }
    let set = |name: &str| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(dir.join("forebay"))
}

/// The files at `path`: a file, or a directory with `forebay.toml` and `conf.d/*.toml`, which
/// follow in the order of their names. Without a `path` those of the standard directory, if there
/// are any.
///
/// # Errors
/// One cannot be read, or a named directory has none.
pub fn files(path: Option<&Path>) -> Result<Vec<Layer>, String> {
    let standard = standard_dir();
    let (dir, is_named) = match path {
        Some(path) if path.is_dir() => (path, true),
        Some(path) => return Ok(vec![read(path)?]),
        None => match &standard {
            Some(dir) => (dir.as_path(), false),
            None => return Ok(Vec::new()),
        },
    };
    // One that is not named and cannot be searched is somebody else's: `sudo -u` keeps $HOME.
    let is_none = |e: &io::Error| match e.kind() {
        io::ErrorKind::NotFound => true,
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => !is_named,
        _ => false,
    };
    let further = dir.join(FURTHER);
    let mut paths = Vec::new();
    match std::fs::read_dir(&further) {
        Ok(entries) => {
            for entry in entries {
                paths.push(entry.map_err(|e| cannot_read(&further, &e))?.path());
            }
        }
        Err(e) if is_none(&e) => {}
        Err(e) => return Err(cannot_read(&further, &e)),
    }
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml") && !is_hidden(path));
    paths.sort();
    let first = dir.join(FILE);
    match first.symlink_metadata() {
        Ok(_) => paths.insert(0, first),
        Err(e) if !is_none(&e) => return Err(cannot_read(&first, &e)),
        Err(_) if is_named && paths.is_empty() => {
            return Err(format!("{}: it has neither {FILE} nor files in {FURTHER}", dir.display()));
        }
        Err(_) => {}
    }
    paths.iter().map(|path| read(path)).collect()
}

/// The variables that set keys: `FOREBAY_TIER_CAPACITY` is `tier.capacity`. A value is TOML, or a
/// text without quotes.
///
/// # Errors
/// One is not text.
pub fn variables(all: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<Layer>, String> {
    let mut layers = Vec::new();
    for (name, value) in all {
        let Some(name) = name.to_str() else { continue };
        let Some((table, key)) = name.strip_prefix("FOREBAY_").and_then(|rest| rest.split_once('_')) else {
            continue;
        };
        let (table, key) = (table.to_ascii_lowercase(), key.to_ascii_lowercase());
        if TABLES.contains(&table.as_str()) {
            let value = value.into_string().map_err(|_| format!("{name}: it is not valid text"))?;
            layers.push(Layer {
                origin: name.to_owned(),
                text: format!("[{table}]\n{key} = {value}"),
                is_variable: true,
            });
        }
    }
    layers.sort_by(|a, b| a.origin.cmp(&b.origin));
    Ok(layers)
}

impl Layer {
    /// As [`Layer::text`], with the value of a variable in quotes.
    pub fn quoted(&self) -> Option<String> {
        let (table, line) = self.text.split_once('\n').filter(|_| self.is_variable)?;
        let (key, value) = line.split_once(" = ")?;
        Some(format!("{table}\n{key} = {}", toml::Value::from(value)))
    }

    /// `error` with the place that it is about.
    pub fn error(&self, error: &str) -> String {
        let error = error.trim_end();
        let place = if self.is_variable { error.strip_prefix("line 2: ").unwrap_or(error) } else { error };
        format!("{}: {place}", self.origin)
    }

    /// The place of what is at `offset`.
    pub fn place(&self, offset: usize) -> String {
        match self.is_variable {
            true => self.origin.clone(),
            false => format!("{}:{}", self.origin, self.text[..offset].matches('\n').count() + 1),
        }
    }
}

fn read(path: &Path) -> Result<Layer, String> {
    let text = std::fs::read_to_string(path).map_err(|e| cannot_read(path, &e))?;
    Ok(Layer { origin: path.display().to_string(), text, is_variable: false })
}

fn cannot_read(path: &Path, e: &io::Error) -> String {
    format!("{}: cannot read: {e}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn layer(origin: &str, text: &str) -> Layer {
        Layer { origin: origin.into(), text: text.into(), is_variable: false }
    }

    const CAPACITY: &str = "TIER_CAPACITY";

    fn variable(name: &str, value: &str) -> Vec<Layer> {
        variables([(format!("FOREBAY_{name}").into(), value.into())].into_iter()).unwrap()
    }

    #[test]
    fn later_layers_win_key_by_key_and_mounts_are_known_by_label() {
        let mut layers = vec![
            layer(
                "a",
                "[tier]\ncapacity=\"1GiB\"\nlimit=\"2GiB\"\n[[mount]]\nlabel=\"x\"\nroot=\"/x\"\nfetch_threads=3",
            ),
            layer("b", "[[mount]]\nlabel=\"x\"\nfetch_threads=5\n[[mount]]\nlabel=\"y\"\nroot=\"/y\""),
        ];
        layers.extend(variable(CAPACITY, "512MiB"));
        let (config, given) = Config::of(&layers).unwrap();
        assert_eq!(config.sizes(1 << 40).unwrap(), (512 << 20, 2 << 30));
        let mounts: Vec<_> = config.mounts.iter().map(|mount| (&*mount.label, mount.fetch_threads)).collect();
        assert_eq!(mounts, [("x", 5), ("y", 8)]);
        let origin = |mount: &str, key: &str| {
            let one = given.iter().find(|one| (&*one.mount, &*one.key) == (mount, key));
            one.map(|one| one.origin.clone())
        };
        assert_eq!(origin("", "tier.capacity").unwrap(), format!("FOREBAY_{CAPACITY}"));
        assert_eq!(origin("", "tier.limit").unwrap(), "a:3");
        assert_eq!(origin("x", "mount.fetch_threads").unwrap(), "b:3");
        assert_eq!(origin("x", "mount.root").unwrap(), "a:6");
        assert_eq!(origin("", "agent.socket_mode"), None);
    }

    #[test]
    fn a_variable_is_toml_or_text_and_an_error_names_it() {
        let of = |name: &str, value: &str| Config::of(&variable(name, value));
        assert_eq!(of("AGENT_CONNECTIONS_MAX", "77").unwrap().0.connections_max, 77);
        assert_eq!(of("CLUSTER_NODE", "42").unwrap().0.cluster.node, "42");
        assert_eq!(of("MEMORY_WATCH", "[\"/a.slice\"]").unwrap().0.memory.watch, ["/a.slice"]);
        let refused = |name: &str, value: &str| of(name, value).unwrap_err();
        assert!(
            refused("AGENT_CONNECTIONS_MAX", "many")
                .ends_with("_MAX: agent.connections_max = \"many\" must be from 1 to 1000000")
        );
        assert!(
            refused("TIER_CAPACTY", "1GiB").contains("CAPACTY: there is no key tier.capacty; the keys are")
        );
        assert!(refused("TIER_CAPACITY", "1GiB\"\n[memory]\n").contains(CAPACITY));
        for other in ["SOCKET", "TRUST_AGENT", "JOB_NAME", "CONFIG"] {
            assert!(variable(other, "x").is_empty());
        }
    }
}
