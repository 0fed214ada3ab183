//! The tables `[[mount]]`: what is served.

use super::table::{Entry, Key, default_of, keys, section};
use crate::units::parse_bytes;
use forebay_pfs::Revalidate;
use forebay_store::ring::PAGES_MAX;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Sizes of pages, each a power of two.
pub const PAGE_BYTES: RangeInclusive<u64> = 64 << 10..=64 << 20;

/// Unit of caching of columnar files. Adjacent pages are one read of the PFS. Each chunk of a
/// column takes on average one such page more than its bytes need; smaller pages cost memory and
/// time for each page.
pub const SMALL_PAGE_BYTES: u64 = 16 << 10;

/// Thirty years: longer than any file has been unchanged.
const MAP_REST_MAX_MS: i64 = 1_000_000_000_000;

/// A read of the PFS that would be longer becomes two.
const MERGE_GAP_MAX: u64 = 2 << 20;

section! {
    /// One PFS mount, validated.
    MountConfig, MOUNT {
        /// A name of your choice for the PFS. Cached files are stored under it, so the cache
        /// survives a remount.
        "mount.label" => label: String = "", parsed(label);
        /// Where the PFS is mounted.
        "mount.root" => root: PathBuf = "", dir();
        /// Refuse to start unless a file system is mounted on the root itself. Set it if the root
        /// is the mount point of the PFS, so that the agent never serves the empty directory below
        /// it. In any case, the agent stops serving a mount that was present at its start and is
        /// gone.
        "mount.require_mount" => require_mount: bool = "false", choice();
        /// Unit of caching, a power of two from 64KiB to 64MiB. 2 MiB is one huge page; smaller
        /// pages suit small random reads and make everything else more expensive.
        "mount.page_size" => page_bytes: u64 = r#""2MiB""#, power_of_two(PAGE_BYTES);
        /// Names of columnar files, with * and ?. Programs read parts of such files, so a miss
        /// fetches what is read in pages of 16 KiB, and nothing is read ahead that
        /// the reader has not earned by reading on. An empty list treats all files alike.
        "mount.small_page_files" => small_page_files: Vec<String> = r#"["*.parquet", "*.parq", "*.orc"]"#, names(plain_names);
        /// Parts of such a file that tasks will read, with at most this many bytes between them,
        /// are prefetched by one read of the PFS, and the bytes between them too: up to 2MiB.
        /// `auto` estimates it from the reads of the mount: the bytes that take as long as a read
        /// does beside its bytes, at most 128 KiB. 0 fetches nothing that is not reported.
        "mount.merge_gap" => merge_gap_bytes: Option<u64> = r#""auto""#, parsed(merge_gap);
        /// Unit of placement, a multiple of the page size: each extent has one owner. As large as
        /// the splits of Hadoop and Spark, so that a task's input is on one node.
        "mount.extent_size" => extent_bytes: u64 = r#""128MiB""#, bytes(1<<20..=1<<40);
        /// Simultaneous reads of the PFS. Eight streams of 1 MiB keep four to eight storage servers
        /// busy; more only wait at the PFS and disturb others. If each file is on one server, 16
        /// keep more servers busy, because several reads go to the same server by chance.
        "mount.fetch_threads" => fetch_threads: usize = "8", number(1..=256);
        /// Limit on bytes fetched ahead of a sequential reader; 0 turns read-ahead off. The window
        /// starts at 16 MiB, or at two pages if that is more, and doubles with progress up to this
        /// limit.
        "mount.read_ahead" => read_ahead_bytes: u64 = r#""64MiB""#, bytes(0..=u64::MAX);
        /// Limit on the cost of fetching pages that small random reads keep missing, in percent of
        /// the cost of the misses at the PFS; 0 never fetches them. The PFS serves small reads that
        /// miss; they may be slower by this share while the tier warms up.
        "mount.random_fill_percent" => random_fill_percent: u32 = "2", number(0..=100);
        /// force: ask the PFS for current attributes at every open, to notice changes by other
        /// nodes. as-stat: trust this node's attribute cache, which is cheaper if a round trip is
        /// expensive.
        "mount.revalidate" => revalidate: Revalidate = r#""force""#, choice();
        /// Two writes within this time may leave the same time stamps, so a file that changed more
        /// recently is not cached yet. 20 ms covers kernels that stamp by the clock tick. If both
        /// stamps are whole seconds, the time is at least 2 s. 0 trusts every stamp immediately.
        "mount.stamp_granularity_ms" => stamp_granularity_ns: i64 = "20", millis_ns(0..=60_000);
        /// How long a file must have been unchanged before it is cached, where writers cannot be
        /// excluded: on file systems that other nodes may write (network and FUSE file systems),
        /// and where the agent gets no lease (it is neither root nor the file's owner). Without a
        /// value: 3000, and 30000 on MooseFS, which stamps an overwrite in place only when it
        /// begins. If a write by another node takes longer than this without moving the stamps, the
        /// agent may cache a mixture of old and new bytes; `forebay doctor --pfs A --second B
        /// --long-write 256MiB` measures that, and the limits in docs/semantics.md say what to do.
        /// 0: only the granularity counts.
        "mount.settle_ms" => settle_ns: Option<i64> = "", some_millis_ns(0..=3_600_000);
        /// `forebay run` maps a file from the tier if it has been unchanged for this long, and for
        /// settle_ms. Such a mapping does not show later changes. A large value leaves all mappings
        /// to the PFS.
        "mount.map_rest_ms" => map_rest_ns: i64 = "60000", millis_ns(0..=MAP_REST_MAX_MS);
        /// measure: write a small file when the mount is first served and after each remount, and
        /// cache nothing unless writes move its time stamps. Where the agent may not write, the
        /// file system's type decides. trust: rely on the time stamps without a check. On a file
        /// system that does not move them (OrangeFS by pvfs2fuse), readers then get the old content
        /// of changed files until the files are evicted.
        "mount.stamps" => trusts_stamps: bool = r#""measure""#, parsed(trusts_stamps);
        /// Directory on this mount where the agent may write that small file (.forebay-probe-*,
        /// removed immediately). The mount's root unless given.
        "mount.probe_dir" => probe_dir: Option<PathBuf> = "", path();
        /// Keep the kernel's own copy of fetched bytes. Off, because nobody needs the same bytes in
        /// memory twice.
        "mount.keep_page_cache" => keep_page_cache: bool = "false", choice();
        /// Ask the PFS on which server each file of an analytics job lies, so that prefetches keep
        /// every server busy. Turn it off where the answer is wrong: GlusterFS with shards reports
        /// only the first shard.
        "mount.layout" => layout: bool = "true", choice();
    }
}

fn label(name: &str) -> Result<String, String> {
    match name {
        "scratch" => Err("scratch is taken by memory-only files".to_owned()),
        _ if name.contains(['/', ':', '\0', '\n']) => {
            Err(format!("{name:?} must be a plain name without slash, colon or line break"))
        }
        _ => Ok(name.to_owned()),
    }
}

fn plain_names(names: Vec<String>) -> Result<Vec<String>, String> {
    match names.iter().find(|name| name.is_empty() || name.contains('/')) {
        Some(bad) => Err(format!("it names {bad:?}: give names of files, without directories")),
        None => Ok(names),
    }
}

fn merge_gap(text: &str) -> Result<Option<u64>, String> {
    if text == "auto" {
        return Ok(None);
    }
    match parse_bytes(text)? {
        bytes if bytes <= MERGE_GAP_MAX => Ok(Some(bytes)),
        _ => Err(format!("{text:?} must be \"auto\", or at most 2MiB")),
    }
}

fn trusts_stamps(text: &str) -> Result<bool, String> {
    match text {
        "measure" => Ok(false),
        "trust" => Ok(true),
        _ => Err(format!("{text:?}: write \"measure\" or \"trust\"")),
    }
}

impl MountConfig {
    /// The defaults for a PFS mounted on `root`.
    pub fn new(label: &str, root: &Path) -> Self {
        MountConfig { label: label.to_owned(), root: root.to_owned(), ..Self::defaults() }
    }

    /// Checks what concerns more than one key.
    pub(super) fn validate(&self) -> Result<(), String> {
        let (label, root) = (&self.label, &self.root);
        let refuse = |what: String| Err(format!("mount {label:?}: {what}"));
        if label.is_empty() {
            return refuse("it needs a label".to_owned());
        }
        if !root.is_absolute() {
            return refuse(format!("root = {root:?} must be an absolute path"));
        }
        if !self.extent_bytes.is_multiple_of(self.page_bytes) {
            return refuse(format!(
                "extent_size = {} must be a multiple of page_size = {}",
                self.extent_bytes, self.page_bytes
            ));
        }
        match self.probe_dir.as_ref().filter(|dir| !dir.starts_with(root)) {
            Some(dir) => refuse(format!("probe_dir = {dir:?} must be below root = {root:?}")),
            None => Ok(()),
        }
    }

    /// Unit of caching of the file at `path`, of `size` bytes, in bytes. All members of a cluster
    /// come to the same answer, as only these count: an owner refuses pages of another size.
    pub fn page_bytes_of(&self, path: &[u8], size: u64) -> u64 {
        // A copy cannot number more small pages than this.
        if size.div_ceil(SMALL_PAGE_BYTES) >= PAGES_MAX {
            return self.page_bytes;
        }
        // What the kernel adds to the name of a file that was removed while it is open.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let is_small = self.small_page_files.iter().any(|pattern| matches(pattern.as_bytes(), name));
        if is_small { SMALL_PAGE_BYTES } else { self.page_bytes }
    }
}

/// Whether `name` is what `pattern` stands for: `*` for any bytes, `?` for one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Where the last `*` is, and up to where in the name it reaches so far.
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((of, reach)) = star else { return false };
                star = Some((of, reach + 1));
                at = of + 1;
                in_name = reach + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columnar_files_have_small_pages_by_their_name_alone() {
        let mut mount = MountConfig::new("a", Path::new("/b"));
        let small = |mount: &MountConfig, name: &str| {
            mount.page_bytes_of(name.as_bytes(), 1 << 20) == SMALL_PAGE_BYTES
        };
        for name in ["/b/t/part-0.snappy.parquet", "x.orc", "/b/x.parquet (deleted)", ".parquet"] {
            assert!(small(&mount, name), "{name}");
        }
        for name in ["/b/t.parquet/part-0.csv", "x.parquet.crc", "parquet", "", "/b/x.ORC"] {
            assert!(!small(&mount, name), "{name}");
        }
        let bytes_of = |size| mount.page_bytes_of(b"x.parquet", size);
        assert_eq!([bytes_of((256 << 30) - (16 << 10)), bytes_of(256 << 30)], [16 << 10, 2 << 20]);
        mount.small_page_files = vec!["0*_?".into()];
        assert!(small(&mount, "/b/000000_0") && small(&mount, "0_1"));
        assert!(!small(&mount, "000000_") && !small(&mount, "x.parquet"));
        mount.small_page_files = vec!["**a*b".into()];
        assert!(small(&mount, "aab") && small(&mount, "xaybzb") && !small(&mount, "xaybz"));
    }
}
