//! A slow parallel file system, in user space, over a directory.
//!
//! It stands in for `n` storage servers with a bandwidth each, behind one client mount. The data
//! are the files of the backing directory, byte for byte and inode for inode; what this file system
//! adds is *time* (a striped rate model and a latency), *knowledge* (the stripe layout as an
//! extended attribute, counters) and *trouble* (faults that are switched on and off).
//!
//! ```text
//!  kernel --/dev/fuse--> fs.rs            one method per request, no logic
//!                          |- data.rs     read, write, sync: their cost, when they are answered
//!                          |- meta.rs     names and attributes
//!                          '- control.rs  xattrs: layout, counters, faults, rate
//!        decide:  stripe.rs  rate.rs  fault.rs      pure, no clock
//!        do:      backing.rs nodes.rs handles.rs timer.rs stats.rs
//!        around:  mount.rs (mount, unmount, kernel tuning)  serve.rs (the process)
//!                 remote.rs (talk to a mount)
//! ```
//!
//! Why not throttle a loop device or a network link: those cannot report the layout, inject EIO
//! into one file, count who read what, or start in 50 ms on any machine with `/dev/fuse`; and the
//! page cache hides them. Why not sleep in the request threads: eight streams with read-ahead have
//! hundreds of requests pending.

mod backing;
mod control;
mod data;
pub mod fault;
mod fs;
mod handles;
mod meta;
mod mount;
mod nodes;
pub mod rate;
pub mod remote;
mod serve;
mod state;
pub mod stats;
pub mod stripe;
mod timer;

use std::path::PathBuf;

pub use control::Layout;
pub use mount::Mounted;
pub use serve::serve;
pub use stats::Stats;

use stripe::Striping;

/// The extended attribute of a file that holds its layout; see [`Layout`].
pub const LAYOUT_XATTR: &str = "user.forebay.layout";
/// On the root, write: the faults to inject, see [`fault`].
pub const FAULT_XATTR: &str = "user.slowfs.fault";
/// On the root, read: the counters as JSON, see [`Stats`].
pub const STATS_XATTR: &str = "user.slowfs.stats";
/// On the root, write anything: counters to zero.
pub const RESET_XATTR: &str = "user.slowfs.reset";
/// On the root, read and write: the rate of each server, such as `50MB/s`.
pub const RATE_XATTR: &str = "user.slowfs.rate";

/// The type that `/proc/self/mountinfo` shows for our mounts.
pub const FS_TYPE: &str = "fuse.forebay-slowfs";

/// What the time stamps of files show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Stamps {
    /// The moment of the last change.
    #[default]
    Exact,
    /// Its second.
    Seconds,
    /// The moment of the last write, in mtime alone: ctime never moves.
    Mtime,
    /// Nothing: they never move, as on OrangeFS by pvfs2fuse.
    Still,
}

impl Stamps {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Stamps::Exact => "exact",
            Stamps::Seconds => "seconds",
            Stamps::Mtime => "mtime",
            Stamps::Still => "still",
        }
    }
}

/// What to mount where, and how slow it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the files really are.
    pub backing: PathBuf,
    /// Where the slow file system appears.
    pub mount: PathBuf,
    /// Number of storage servers.
    pub servers: usize,
    /// Bandwidth of each server, reads and writes together; `None`: no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// Unit of striping.
    pub stripe_bytes: u64,
    /// Added to each metadata operation and to each read and write.
    pub latency_ns: u64,
    /// How far the kernel reads ahead of a sequential reader; `None`: four stripes per server, at
    /// least 4 MiB.
    pub read_ahead_bytes: Option<u64>,
    /// How long the kernel may trust attributes and names without asking.
    pub attr_ttl_ns: u64,
    /// What time stamps show.
    pub stamps: Stamps,
    /// Other users than the one who mounted may enter.
    pub allow_other: bool,
    /// No page cache: each read of a program reaches the servers, with the size it requested.
    pub direct_io: bool,
}

impl Config {
    /// Four servers of 50 MB/s, stripes of 1 MiB, 0.2 ms.
    pub fn new(backing: impl Into<PathBuf>, mount: impl Into<PathBuf>) -> Self {
        Self {
            backing: backing.into(),
            mount: mount.into(),
            servers: 4,
            rate_bytes_per_s: Some(50_000_000),
            stripe_bytes: 1 << 20,
            latency_ns: 200_000,
            read_ahead_bytes: None,
            attr_ttl_ns: 0,
            stamps: Stamps::Exact,
            allow_other: false,
            direct_io: false,
        }
    }

    fn striping(&self) -> Result<Striping, String> {
        Striping::new(self.servers, self.stripe_bytes)
    }

    /// Two stripes per server keep all servers busy while the next ones are being requested.
    fn window_bytes(&self) -> u64 {
        self.stripe_bytes.saturating_mul(2 * self.servers as u64)
    }

    fn read_ahead_or_default(&self) -> u64 {
        // A reader on a busy machine may be late by the time of one window; two windows are
        // pending, each of twice what keeps the servers busy.
        let window_bytes = self.window_bytes().saturating_mul(2);
        // Above 64 MiB, the read-ahead of a few files would fill a small machine's memory with what
        // nobody requested.
        self.read_ahead_bytes.unwrap_or_else(|| window_bytes.clamp(4 << 20, 64 << 20))
    }

    /// How much one open file may have written that the servers do not have yet.
    fn write_behind_bytes(&self) -> u64 {
        self.window_bytes().min(64 << 20)
    }
}
