//! What all actors have in common: where the files are, when to end, the log, and the beat by which
//! a hang is seen.

use crate::random::Random;
use crate::record::{Log, PathId, Record, now_ns};
use clap::Args;
use forebay_client::{Client, ClientConfig};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a call of the library waits for an agent: short, since agents are stopped on purpose.
const CLIENT_DEADLINE: Duration = Duration::from_millis(1500);

/// The orders of an actor.
#[derive(Clone, Debug, Args)]
pub struct ActorArgs {
    /// Directory of the files.
    #[arg(long)]
    pub root: PathBuf,
    /// Where the node has mounted that directory by `forebay mount`, if it has.
    #[arg(long)]
    pub mount: Option<PathBuf>,
    /// The agent's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// Number of files.
    #[arg(long)]
    pub files: u32,
    /// How many of them are large.
    #[arg(long)]
    pub large: u32,
    /// Size of the large ones.
    #[arg(long)]
    pub large_bytes: u64,
    #[arg(long)]
    pub seed: u64,
    /// Number of this actor among those of its role.
    #[arg(long)]
    pub slot: u32,
    /// How many actors of its role there are.
    #[arg(long)]
    pub slots: u32,
    /// Number of this process among all of the run: it draws numbers of its own.
    #[arg(long)]
    pub process: u32,
    #[arg(long)]
    pub node: u32,
    #[arg(long)]
    pub log: PathBuf,
    #[arg(long)]
    pub beat: PathBuf,
    /// Ends when the monotonic clock shows this.
    #[arg(long)]
    pub until_ns: u64,
    /// The program under test.
    #[arg(long)]
    pub forebay: PathBuf,
    /// Where appended files are, and the round, which names them.
    #[arg(long)]
    pub round: u32,
    /// Longest pause of a writer between two changes.
    #[arg(long)]
    pub pause_ms: u64,
    /// Shortest time between two changes of one file.
    #[arg(long)]
    pub gap_ms: u64,
    /// Punching holes, exchanging names: not every file system can.
    #[arg(long)]
    pub without: Vec<String>,
}

/// An actor's tools.
pub struct Actor {
    pub args: ActorArgs,
    pub random: Random,
    pub log: Log,
    beat: File,
}

impl Actor {
    pub fn new(args: ActorArgs, role: &str) -> io::Result<Self> {
        let random = Random::new(args.seed, role, u64::from(args.process));
        let beat = File::options().create(true).truncate(false).write(true).open(&args.beat)?;
        let log = Log::open(&args.log)?;
        Ok(Actor { random, log, beat, args })
    }

    pub fn client(&self) -> Client {
        Client::new(ClientConfig {
            socket: Some(self.args.socket.clone()),
            deadline: CLIENT_DEADLINE,
            quiet: true,
            ..ClientConfig::default()
        })
    }

    /// Directory of a file, and its name in it.
    pub fn place(&self, path: PathId) -> (PathBuf, String) {
        place(&self.args.root, path)
    }

    pub fn path(&self, path: PathId) -> PathBuf {
        let (dir, name) = self.place(path);
        dir.join(name)
    }

    pub fn append_path(&self, file: u32) -> PathBuf {
        append_path(&self.args.root, self.args.round, file)
    }

    /// Sizes are around this, by file: many small ones, some of a few pages, few large ones.
    pub fn usual_bytes(&self, path: PathId) -> u64 {
        usual_bytes(path, self.args.files, self.args.large, self.args.large_bytes)
    }

    pub fn is_over(&self) -> bool {
        now_ns() >= self.args.until_ns
    }

    pub fn can(&self, what: &str) -> bool {
        !self.args.without.iter().any(|w| w == what)
    }

    /// Something that must not take for ever begins.
    pub fn begin(&self) -> io::Result<u64> {
        let now = now_ns();
        self.beat.write_all_at(&now.to_le_bytes(), 0)?;
        Ok(now)
    }

    /// It has ended.
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

/// See [`Actor::usual_bytes`].
pub fn usual_bytes(path: PathId, files: u32, large: u32, large_bytes: u64) -> u64 {
    match path {
        _ if path >= files - large => large_bytes,
        _ if path % 6 == 5 => 3 << 20,
        _ => 200 << 10,
    }
}

/// When what the actor of this beat does now began; 0 if it does nothing.
pub fn beat_of(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b))
}
