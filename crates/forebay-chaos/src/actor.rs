//! What all actors have in common: where the files are, when to end, the log, and the beat by which
//! a hang is seen.

use crate::random::Random;
use crate::record::{Log, PathId, Record, now_ns};
use forebay_client::{Client, ClientConfig};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a call of the library waits for an agent: short, since agents are stopped on purpose.
const CLIENT_DEADLINE: Duration = Duration::from_millis(1500);

/// Files of a run: small enough for a tmpfs of logs, and enough that hot and cold differ.
pub const FILES: u32 = 64;

/// Number of files, the last ones, that are large.
pub const LARGE: u32 = 2;
const LARGE_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    Writer,
    Appender,
    Reader,
    Check,
    Setup,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Writer => "writer",
            Role::Appender => "appender",
            Role::Reader => "reader",
            Role::Check => "check",
            Role::Setup => "setup",
        })
    }
}

/// The orders of an actor, which it finds in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub role: Role,
    /// Directory of the files.
    pub root: PathBuf,
    /// Where the node has mounted that directory by `forebay mount`, if it has.
    pub mount: Option<PathBuf>,
    /// The agent's socket.
    pub socket: PathBuf,
    pub seed: u64,
    /// Number of this actor among the actors of its role.
    pub slot: u32,
    /// How many actors of its role there are.
    pub slots: u32,
    /// Number of this process among all of the run: it draws numbers of its own.
    pub process: u32,
    pub node: u32,
    pub log: PathBuf,
    pub beat: PathBuf,
    /// When to end, by the monotonic clock.
    pub until_ns: u64,
    /// The program under test.
    pub forebay: PathBuf,
    /// The round's number, which names the appended files.
    pub round: u32,
    /// Longest pause of a writer between two changes.
    pub pause_ms: u64,
    /// Shortest time between two changes of one file.
    pub gap_ms: u64,
    /// What the file system cannot do, such as punching holes or exchanging names.
    pub without: Vec<String>,
}

impl Orders {
    pub fn write(&self, file: &Path) -> io::Result<()> {
        std::fs::write(file, postcard::to_allocvec(self).map_err(io::Error::other)?)
    }
}

/// An actor's tools.
pub struct Actor {
    pub orders: Orders,
    pub random: Random,
    pub log: Log,
    beat: File,
}

impl Actor {
    /// Takes its orders from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a file that the orders name cannot be opened.
    pub fn new(file: &Path) -> io::Result<Self> {
        let orders: Orders = postcard::from_bytes(&std::fs::read(file)?).map_err(io::Error::other)?;
        let random = Random::new(orders.seed, &orders.role.to_string(), u64::from(orders.process));
        let beat = File::options().create(true).truncate(false).write(true).open(&orders.beat)?;
        let log = Log::open(&orders.log)?;
        Ok(Actor { random, log, beat, orders })
    }

    pub fn client(&self) -> Client {
        Client::new(ClientConfig {
            socket: Some(self.orders.socket.clone()),
            deadline: CLIENT_DEADLINE,
            quiet: true,
            ..ClientConfig::default()
        })
    }

    /// Directory of a file, and its name in it.
    pub fn place(&self, path: PathId) -> (PathBuf, String) {
        place(&self.orders.root, path)
    }

    pub fn path(&self, path: PathId) -> PathBuf {
        let (dir, name) = self.place(path);
        dir.join(name)
    }

    pub fn append_path(&self, file: u32) -> PathBuf {
        append_path(&self.orders.root, self.orders.round, file)
    }

    pub fn is_over(&self) -> bool {
        now_ns() >= self.orders.until_ns
    }

    pub fn can(&self, what: &str) -> bool {
        !self.orders.without.iter().any(|w| w == what)
    }

    /// Notes the beginning of something that must not take for ever.
    pub fn begin(&self) -> io::Result<u64> {
        let now = now_ns();
        self.beat.write_all_at(&now.to_le_bytes(), 0)?;
        Ok(now)
    }

    /// Notes that it has ended.
    pub fn end(&self) -> io::Result<u64> {
        self.beat.write_all_at(&0u64.to_le_bytes(), 0)?;
        Ok(now_ns())
    }

    pub fn note(&mut self, record: &Record) -> io::Result<()> {
        self.log.add(record)
    }

    pub fn pause_up_to(&mut self, ms: u64) {
        let micros = self.random.below(ms * 1000);
        std::thread::sleep(Duration::from_micros(micros));
    }
}

/// Directory of a file, and its name in it.
pub fn place(root: &Path, path: PathId) -> (PathBuf, String) {
    (root.join(format!("d{}", path % 2)), format!("f{path}"))
}

pub fn append_path(root: &Path, round: u32, file: u32) -> PathBuf {
    root.join("append").join(format!("r{round}-{file}"))
}

/// Sizes are around this, by file: many small ones, some of a few pages, few large ones.
pub fn usual_bytes(path: PathId) -> u64 {
    match path {
        _ if path >= FILES - LARGE => LARGE_BYTES,
        _ if path % 6 == 5 => 3 << 20,
        _ => 200 << 10,
    }
}

/// Returns when what the actor with this beat is doing began; 0 if it is doing nothing.
pub fn beat_of(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b))
}
