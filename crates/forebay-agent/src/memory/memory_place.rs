//! Where memory may run short: the node itself, each control group around the agent, and those that
//! the operator names.
//!
//! What the kernel can take back immediately counts as free: clean pages of the page cache. Dirty
//! pages have to be written first, and a tmpfs and huge pages do not go at all, so they count as
//! used. The tier is a tmpfs, and therefore part of what is used.
//!
//! A place whose files cannot be opened, or do not hold numbers that can be, stays a place that
//! cannot be read: no law may mistake it for one with room. A group that the operator names may
//! come and go with its job, and sets no limit while it is gone.
//!
//! The files stay open and are read into the caller's buffer: a look costs some microseconds and
//! allocates nothing.

use super::limit::{Group, groups, named_group, root_group, total_bytes};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What the files of a place fit into.
pub const BUFFER_BYTES: usize = 8192;

/// Name of the place that is the node itself.
pub const NODE: &str = "node";

/// A place where memory may run short.
#[derive(Debug)]
pub struct Place {
    /// Name for display: `node`, or the group's directory.
    pub name: String,
    /// The group; `None`: the node.
    pub group: Option<Group>,
    /// The operator has named it: it comes and goes with its job.
    pub is_named: bool,
    /// Where the kernel watches thresholds of use for this place.
    pub threshold: Option<Group>,
    files: Files,
}

#[derive(Debug)]
enum Files {
    /// /proc/meminfo, and the use of the group of version 1 around all others.
    Node { meminfo: File, root: Option<File> },
    Group {
        limit: File,
        /// Where the kernel begins to slow the group down; version 2 only.
        high: Option<File>,
        usage: File,
        stat: File,
        /// A limit of this much or more does not count as a limit.
        node_bytes: u64,
    },
    /// They cannot be opened, and why.
    Missing(String),
    /// A named group that is not there.
    Absent,
}

/// What is in use in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The memory of the node, or the limit of the group.
    pub total_bytes: u64,
    /// What cannot be taken back immediately.
    pub used_bytes: u64,
    /// The part of that which is in a tmpfs. The tier's part of the use is at most this, though the
    /// tier may also have pages that other groups answer for, or that are swapped out.
    pub shared_bytes: u64,
    /// What a threshold of the kernel counts, and the most that can be: clean pages are among it.
    pub counted: Option<Counted>,
}

/// Use as the kernel counts it against thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Now.
    pub bytes: u64,
    /// At the most; nothing passes a threshold above this.
    pub most_bytes: u64,
}

/// The node, and the groups around this process. The groups need not have a limit: they may be
/// given one. Last come the groups that are called `named`, if they are not among those.
pub fn places(named: &[String]) -> Vec<Place> {
    let of_group = |group| Place::of(group, total_bytes());
    let mut places: Vec<_> = std::iter::once(node()).chain(groups().into_iter().map(of_group)).collect();
    for name in named {
        let found = |group| Place { is_named: true, ..of_group(group) };
        let place = named_group(name).map_or_else(|| Place::absent(name), found);
        if !places.iter().any(|other| other.name == place.name) {
            places.push(place);
        }
    }
    places
}

fn node() -> Place {
    let root = root_group();
    let usage = root.as_ref().and_then(|group| File::open(group.directory.join(group.usage_file())).ok());
    let files = match File::open("/proc/meminfo") {
        Ok(meminfo) => Files::Node { meminfo, root: usage },
        Err(e) => Files::Missing(format!("/proc/meminfo: {e}")),
    };
    Place { name: NODE.into(), group: None, is_named: false, threshold: root, files }
}

impl Place {
    /// A control group on a node with `node_bytes` of memory.
    pub fn of(group: Group, node_bytes: u64) -> Self {
        let open = |name: &str| {
            let path = group.directory.join(name);
            File::open(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        let files = || {
            Ok::<_, String>(Files::Group {
                limit: open(group.limit_file())?,
                usage: open(group.usage_file())?,
                stat: open("memory.stat")?,
                high: open("memory.high").ok().filter(|_| group.version == 2),
                node_bytes,
            })
        };
        let files = files().unwrap_or_else(Files::Missing);
        let threshold = Some(group.clone()).filter(reports_thresholds);
        let name = group.directory.display().to_string();
        Place { name, group: Some(group), is_named: false, threshold, files }
    }

    /// A group that the operator has named and that is not there.
    pub fn absent(name: &str) -> Self {
        Place { name: name.to_owned(), group: None, is_named: true, threshold: None, files: Files::Absent }
    }

    /// Whether its group no longer exists.
    pub fn has_ended(&self) -> bool {
        self.group.as_ref().is_some_and(|group| !group.directory.exists())
    }

    /// Whether it is a named group that is not there.
    pub fn is_absent(&self) -> bool {
        matches!(self.files, Files::Absent)
    }

    /// Whether its files could not be opened.
    pub fn is_missing(&self) -> bool {
        matches!(self.files, Files::Missing(_))
    }

    /// What is in use; `None` if the place has no limit.
    ///
    /// # Errors
    /// What cannot be read or understood.
    pub fn look(&self, buffer: &mut [u8; BUFFER_BYTES]) -> Result<Option<Use>, String> {
        let failed = |what: &str| format!("{what} of {} cannot be understood", self.name);
        match &self.files {
            Files::Missing(why) => Err(why.clone()),
            Files::Absent => Ok(None),
            Files::Node { meminfo, root } => {
                let text = read(meminfo, buffer).map_err(|e| format!("/proc/meminfo: {e}"))?;
                let (mut found, free_bytes) =
                    of_meminfo(text, total_bytes()).ok_or_else(|| failed("/proc/meminfo"))?;
                let bytes = root.as_ref().and_then(|root| read(root, buffer).ok()?.trim().parse().ok());
                found.counted =
                    bytes.map(|bytes| Counted { bytes, most_bytes: u64::saturating_add(bytes, free_bytes) });
                Ok(Some(found))
            }
            Files::Group { limit, high, usage, stat, node_bytes } => {
                let number = |file, buffer: &mut _| -> Result<Option<u64>, String> {
                    let text = read(file, buffer).map_err(|e| format!("{}: {e}", self.name))?.trim();
                    match text {
                        "max" => Ok(None),
                        text => text.parse().map(Some).map_err(|_| failed(text)),
                    }
                };
                let high = high.as_ref().map(|high| number(high, buffer)).transpose()?.flatten();
                let limit = number(limit, buffer)?.into_iter().chain(high).min();
                // Version 1 has a number for "no limit".
                let Some(total_bytes) = limit.filter(|limit| limit < node_bytes) else { return Ok(None) };
                let usage = number(usage, buffer)?.ok_or_else(|| failed("memory use"))?;
                let text = read(stat, buffer).map_err(|e| format!("{}: {e}", self.name))?;
                let (clean, shared_bytes) = of_stat(text).ok_or_else(|| failed("memory.stat"))?;
                let counted = Counted { bytes: usage, most_bytes: total_bytes };
                Ok(Some(Use {
                    total_bytes,
                    used_bytes: usage.saturating_sub(clean),
                    shared_bytes,
                    counted: self.threshold.is_some().then_some(counted),
                }))
            }
        }
    }
}

/// Whether the kernel reports when use of the group passes a threshold.
fn reports_thresholds(group: &Group) -> bool {
    group.version == 1 && group.directory.join("cgroup.event_control").exists()
}

fn read<'a>(file: &File, buffer: &'a mut [u8; BUFFER_BYTES]) -> std::io::Result<&'a str> {
    let len = file.read_at(buffer, 0)?;
    std::str::from_utf8(&buffer[..len]).map_err(|_| std::io::ErrorKind::InvalidData.into())
}

/// Parses /proc/meminfo. `None` for what is not a number, and for impossible numbers: more memory
/// than the `physical_bytes`, or more of it available than exists. Also returns the bytes that
/// nothing uses.
fn of_meminfo(text: &str, physical_bytes: u64) -> Option<(Use, u64)> {
    let (mut total, mut available, mut unwritten, mut shared) = (None, None, 0, u64::MAX);
    let mut empty = 0;
    for line in text.lines() {
        let (key, rest) = line.split_once(':')?;
        let kib = || rest.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024);
        match key {
            "MemTotal" => total = kib(),
            "MemAvailable" => available = kib(),
            "MemFree" => empty = kib()?,
            "Dirty" | "Writeback" => unwritten += kib()?,
            "Shmem" => shared = kib()?,
            _ => {}
        }
    }
    let total_bytes = total.filter(|total| (1..=physical_bytes).contains(total))?;
    let free = available.filter(|free| *free <= total_bytes)?.saturating_sub(unwritten);
    let found = Use { total_bytes, used_bytes: total_bytes - free, shared_bytes: shared, counted: None };
    Some((found, empty))
}

/// Clean pages of the page cache in a group, and pages in tmpfs, in bytes. Version 1 has the sums
/// over groups below as `total_*`.
fn of_stat(text: &str) -> Option<(u64, u64)> {
    let (mut cached, mut unwritten, mut shared, mut found) = (0u64, 0u64, u64::MAX, false);
    let is_v1 = text.lines().any(|line| line.starts_with("total_active_file "));
    for line in text.lines() {
        let (key, value) = line.split_once(' ')?;
        let key = if is_v1 { key.strip_prefix("total_").unwrap_or("") } else { key };
        match key {
            "active_file" | "inactive_file" => {
                found = true;
                cached += value.parse::<u64>().ok()?;
            }
            "dirty" | "writeback" | "file_dirty" | "file_writeback" => {
                unwritten += value.parse::<u64>().ok()?
            }
            "shmem" => shared = value.parse().ok()?,
            _ => {}
        }
    }
    found.then(|| (cached.saturating_sub(unwritten), shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_page_cache_is_free_and_dirty_pages_are_not() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nDirty: 50 kB\n\
                    Writeback: 10 kB\nShmem: 30 kB\n";
        let expected =
            Use { total_bytes: 1000 * 1024, used_bytes: 460 * 1024, shared_bytes: 30 * 1024, counted: None };
        assert_eq!(of_meminfo(text, 1000 * 1024), Some((expected, 100 * 1024)));
        let v2 = "anon 5\nactive_file 70\ninactive_file 30\nfile_dirty 20\nfile_writeback 1\nshmem 9\n";
        assert_eq!(of_stat(v2), Some((79, 9)));
        let v1 = "active_file 1\ndirty 1\ntotal_active_file 70\ntotal_inactive_file 30\ntotal_dirty 25\ntotal_writeback 0\n";
        assert_eq!(of_stat(v1), Some((75, u64::MAX)));
    }

    #[test]
    fn garbage_is_an_error_and_not_a_number() {
        for text in [
            "",
            "MemTotal: lots kB\n",
            "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
            "MemTotal: 10 kB\n",
            "MemTotal: 10 kB\nMemAvailable: 11 kB\n",
            "MemTotal: 10 kB\nMemAvailable: 1844674407370955 kB\n",
            "MemTotal: 11000 kB\nMemAvailable: 10000 kB\n",
            "no colon\n",
            "\u{0}",
        ] {
            assert_eq!(of_meminfo(text, 10_000 * 1024), None, "{text:?}");
        }
        for text in ["", "active_file many\n", "anon 5\n", "x"] {
            assert_eq!(of_stat(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_group_without_a_limit_is_no_place_and_one_that_is_given_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "900\n");
        write("memory.stat", "active_file 100\ninactive_file 0\nfile_dirty 40\nfile_writeback 0\n");
        let place = Place::of(Group { version: 2, directory: dir.path().to_owned() }, 2000);
        let mut buffer = [0; BUFFER_BYTES];
        assert_eq!(place.look(&mut buffer), Ok(None));
        write("memory.max", "9223372036854771712\n");
        assert_eq!(place.look(&mut buffer), Ok(None), "what version 1 says without a limit");
        write("memory.max", "1000\n");
        let used = Use { total_bytes: 1000, used_bytes: 840, shared_bytes: u64::MAX, counted: None };
        assert_eq!(place.look(&mut buffer), Ok(Some(used)));
        write("memory.current", "what\n");
        assert!(place.look(&mut buffer).unwrap_err().contains("what"));
    }

    #[test]
    fn a_group_whose_files_cannot_be_opened_stays_a_place_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.max"), "1000\n").unwrap();
        let place = Place::of(Group { version: 2, directory: dir.path().to_owned() }, 2000);
        let why = place.look(&mut [0; BUFFER_BYTES]).unwrap_err();
        assert!(place.is_missing() && why.contains("memory.current"), "{why}");
    }

    #[test]
    fn this_node_is_a_place() {
        let here = places(&["/no/such/group".into()]);
        let last = here.last().unwrap();
        assert!(last.is_absent() && last.look(&mut [0; BUFFER_BYTES]) == Ok(None));
        let mut buffer = [0; BUFFER_BYTES];
        let found = here[0].look(&mut buffer).unwrap().unwrap();
        assert!(here[0].name == "node" && found.used_bytes < found.total_bytes);
    }
}
