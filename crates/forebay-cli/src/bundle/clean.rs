//! Replaces names of files and users by pseudonyms.
//!
//! A name has the same pseudonym in all parts, and in all bundles of one node. What follows from a
//! slash on is treated as a path, up to a sign that ends it in messages; in doubt one more word is
//! replaced. A field of the log or of an object that holds names is replaced whole.

use forebay_client::Client;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Paths of the system that say nothing about users.
const KEPT: [&str; 8] =
    ["/proc/", "/sys/", "/dev/", "/run/forebay", "/etc/forebay", "/var/log/forebay", "/usr/", "/metrics"];

/// Fields with names of files.
const FIELDS: [&str; 8] = ["path", "paths", "file", "directory", "dir", "selector", "marker", "tree"];

/// Fields with secrets: their values are left out.
const SECRETS: [&str; 5] = ["token", "password", "secret", "private_key", "key_pem"];

/// What ends a path within a message.
const ENDS: [&str; 10] = [": ", "; ", ", ", " (", "\"", "'", "`", "\n", "]", ")"];

/// Users with lower numbers belong to the system.
const FIRST_USER: u32 = 1000;

/// Replaces the names in the parts of a bundle.
pub struct Cleaner {
    /// Keeps others from finding names by trying them.
    machine: String,
    /// Names that are known, the longest first.
    names: Vec<String>,
    users: Vec<String>,
    /// Roots of the mounts, with their labels.
    roots: Vec<(String, String)>,
}

impl Cleaner {
    /// Collects the names that the agent knows, and the users of this machine.
    pub fn new(client: &Client) -> Self {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut names = BTreeSet::new();
        // Without an agent there are none.
        for path in client.admin().list().unwrap_or_default().into_iter().map(|file| lossy(&file.path)) {
            names.insert(path);
        }
        for path in client.dirty_files().unwrap_or_default().into_iter().map(|file| lossy(&file.path)) {
            names.insert(path);
        }
        let own = |path: &String| path.rsplit('/').next().filter(|name| name.len() >= 3).map(str::to_owned);
        let parts: Vec<String> = names.iter().filter_map(own).collect();
        names.extend(parts);
        let mounts = client.admin().status().map(|status| status.mounts).unwrap_or_default();
        let roots = mounts.iter().map(|mount| (lossy(&mount.root), mount.label.clone())).collect();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let variable = |name| std::env::var(name).ok();
        let me = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(variable);
        Cleaner::of(&machine, names.into_iter().collect(), users_of(&passwd).chain(me).collect(), roots)
    }

    fn of(machine: &str, mut names: Vec<String>, users: Vec<String>, roots: Vec<(String, String)>) -> Self {
        names.retain(|name| !name.is_empty() && !roots.iter().any(|(root, _)| root == name));
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let users = users.into_iter().filter(|user| user.len() >= 2 && user != "root").collect();
        Cleaner { machine: machine.to_owned(), names, users, roots }
    }

    fn pseudonym(&self, kind: &str, name: &str) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.machine, name).hash(&mut hasher);
        format!("{kind}-{:08x}", hasher.finish() as u32)
    }

    /// A part without names: an object value by value, and text line by line.
    pub fn clean(&self, part: &str) -> String {
        match serde_json::from_str::<serde_json::Value>(part) {
            Ok(mut value) if !value.is_string() && !value.is_number() => {
                self.clean_value(&mut value, "");
                serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
            }
            _ => part.lines().map(|line| self.clean_fields(line) + "\n").collect(),
        }
    }

    fn clean_value(&self, value: &mut serde_json::Value, field: &str) {
        match value {
            serde_json::Value::String(text) if SECRETS.contains(&field) && !text.is_empty() => {
                *text = "(removed)".into();
            }
            serde_json::Value::String(text) if FIELDS.contains(&field) && !text.is_empty() => {
                *text = self.path(text);
            }
            serde_json::Value::String(text) => *text = self.clean_text(text),
            // Bytes of a path that need not be UTF-8.
            serde_json::Value::Array(all) if FIELDS.contains(&field) && all.iter().all(|v| v.is_u64()) => {
                let bytes: Vec<u8> = all.iter().filter_map(|v| v.as_u64()?.try_into().ok()).collect();
                *value = self.path(&String::from_utf8_lossy(&bytes)).into();
            }
            serde_json::Value::Array(all) => all.iter_mut().for_each(|one| self.clean_value(one, field)),
            serde_json::Value::Object(fields) => {
                let names: Vec<String> = fields.keys().cloned().collect();
                for name in names {
                    if let Some(mut of) = fields.remove(&name) {
                        self.clean_value(&mut of, &name);
                        fields.insert(self.clean_text(&name), of);
                    }
                }
            }
            _ => {}
        }
    }

    /// A line of the log, whose fields are `name=value`.
    fn clean_fields(&self, line: &str) -> String {
        let mut out = String::new();
        let mut rest = line;
        let field = |rest: &str| {
            let at = |name: &&str| Some((rest.find(&format!(" {name}="))? + 1, name.len() + 1));
            FIELDS.iter().chain(&SECRETS).filter_map(at).min()
        };
        while let Some((at, len)) = field(rest) {
            let (before, value) = rest.split_at(at + len);
            out += &self.clean_text(before);
            let end = match value.strip_prefix('"') {
                Some(quoted) => quoted_end(quoted) + 1,
                None => value.find(' ').unwrap_or(value.len()),
            };
            out += &self.pseudonym("path", value[..end].trim_matches('"'));
            rest = &value[end..];
        }
        out + &self.clean_text(rest)
    }

    fn clean_text(&self, text: &str) -> String {
        if text.contains("PRIVATE KEY") {
            return "(removed)".into();
        }
        let mut text = text.to_owned();
        for name in &self.names {
            // Whole words only: a file may be called `bytes`.
            if text.contains(name.as_str()) {
                text = replace_word(&text, name, &self.pseudonym("path", name));
            }
        }
        let mut text = self.clean_paths(&text);
        for user in &self.users {
            text = replace_word(&text, user, &self.pseudonym("user", user));
        }
        text
    }

    /// Replaces each path in a message.
    fn clean_paths(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = path_start(rest) {
            let (before, path) = rest.split_at(at);
            out += before;
            let end = ENDS.iter().filter_map(|end| path.find(end)).min().unwrap_or(path.len());
            out += &self.path(&path[..end]);
            rest = &path[end..];
        }
        out + rest
    }

    fn path(&self, path: &str) -> String {
        if KEPT.iter().any(|kept| path.starts_with(kept)) {
            return path.to_owned();
        }
        let below = |(root, _): &&(String, String)| {
            path.strip_prefix(root.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self.roots.iter().find(below) {
            Some((root, label)) if path == root => format!("(root of {label})"),
            Some((_, label)) => format!("{label}:{}", self.pseudonym("path", path)),
            None => self.pseudonym("path", path),
        }
    }
}

/// Accounts of people.
fn users_of(passwd: &str) -> impl Iterator<Item = String> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?);
        let uid: u32 = uid.parse().ok()?;
        (FIRST_USER..65_534).contains(&uid).then(|| name.to_owned())
    })
}

/// Where the text that a quote has begun ends.
fn quoted_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Where a path begins: a slash that no word precedes, and that something follows.
fn path_start(text: &str) -> Option<usize> {
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let next = text[at + c.len_utf8()..].chars().next();
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '~');
        if c == '/' && !is_name(before) && before != '/' && before != ')' && next.is_some_and(is_name) {
            return Some(at);
        }
        before = c;
    }
    None
}

fn replace_word(text: &str, word: &str, by: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        out += before;
        out += if is_whole { by } else { word };
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaner() -> Cleaner {
        let roots = vec![("/pfs/scratch".to_owned(), "scratch".to_owned())];
        let names = vec!["/pfs/scratch/My Secret.dat".to_owned(), "My Secret.dat".to_owned()];
        Cleaner::of("machine", names, vec!["fred".into(), "root".into()], roots)
    }

    #[test]
    fn no_name_of_a_file_or_user_is_left() {
        let cleaner = cleaner();
        let log = "2026 WARN forebay_agent: cannot open /home/fred/x y.nc: No such file; fred waits\n\
                   INFO a: is not fetched path=\"dir/My Secret.dat\" why=changed file=plain.nc end\n\
                   INFO b: wrote My Secret.dat and /pfs/scratch/other.dat, good\n";
        let cleaned = cleaner.clean(log);
        for name in ["fred", "Secret", "plain.nc", "x y.nc", "other.dat", "/home"] {
            assert!(!cleaned.contains(name), "{name}: {cleaned}");
        }
        for kept in ["No such file", "why=changed", " end", "scratch:path-", "user-", ", good", "cannot open"]
        {
            assert!(cleaned.contains(kept), "{kept}: {cleaned}");
        }
        assert_eq!(cleaned, cleaner.clean(log), "stable");
        assert_ne!(cleaner.pseudonym("path", "a"), cleaner.pseudonym("path", "b"));
    }

    #[test]
    fn objects_are_cleaned_value_by_value() {
        let json = serde_json::json!({
            "mounts": [{ "label": "scratch", "root": "/pfs/scratch", "stamps": "follow writes" }],
            "path": [47, 112, 102, 115, 47, 97], "paths": ["relative.nc"], "token": "0123456789abcdef",
            "tier": "tmpfs at /run/forebay/tier", "rate": 5, "rates": [1, 2],
            "why": "written by fred", "/home/fred/a": 1,
        });
        let cleaned = cleaner().clean(&json.to_string());
        for name in ["fred", "relative", "0123456789", "/pfs", "/home"] {
            assert!(!cleaned.contains(name), "{name}: {cleaned}");
        }
        for kept in ["follow writes", "(root of scratch)", "/run/forebay/tier", "(removed)", "\"rate\": 5"] {
            assert!(cleaned.contains(kept), "{kept}: {cleaned}");
        }
    }

    #[test]
    fn people_are_found_among_accounts() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\nfred:x:1000:1000::/home/fred:/bin/sh\nnobody:x:65534:1::/:/x\n";
        assert_eq!(users_of(passwd).collect::<Vec<_>>(), ["fred"]);
        assert_eq!(replace_word("fred fredo fred-x (fred)", "fred", "u"), "u fredo fred-x (u)");
        for (text, at) in [("a/b", None), ("12 MB/s", None), ("at /x", Some(3)), ("http://x", None)] {
            assert_eq!(path_start(text), at, "{text}");
        }
    }
}
