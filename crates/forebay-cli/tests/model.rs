//! The reference model: random operations on files behind a real agent, and the same on a plain
//! directory. Whatever is read must be what the plain directory holds; what an open file yields
//! must be what it held when it was opened, or ESTALE.
//!
//! A run is a seed. One that fails prints the command that repeats it and the operations that led
//! there. What a sequence does to the tier depends a little on time (a file changed a moment ago is
//! not cached yet), what it does to the files and what is asserted does not. A run in which no
//! cached byte was read, nothing was evicted or no agent was killed has shown nothing, and fails.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use forebay_client::{Client, File, ReadMode, WriteMode, WriteOptions};
use kit::{Node, Random};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Names are bytes; some that programs stumble over are among them.
const NAMES: [&[u8]; 7] = [b"a", b"b", b"c", b"with space", b"line\nbreak", b"not-utf8-\xff\xfe", b"-dash"];

/// The agent's page size here: small, so that files of several pages are cheap.
const PAGE_BYTES: u64 = 64 << 10;

/// Less than the agent's own buffers, room for a page or two, for a part of the files, for all of
/// them.
const CAPACITIES: [u64; 5] = [1 << 20, 25 << 20, 26 << 20, 28 << 20, 64 << 20];

/// Two changes of a file closer than this may leave the same stamps (`mount.stamp_granularity_ms`
/// is 20), and nothing could distinguish its contents: changes from outside wait as long.
const STAMP_GRANULARITY: Duration = Duration::from_millis(25);

/// What the tests draw.
trait Draws {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T;
    fn length(&mut self) -> u64;
    fn bytes(&mut self, len: u64) -> Vec<u8>;
}

impl Draws for Random {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Lengths around the edges of pages, and any other.
    fn length(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => 1,
            2 | 3 => (self.below(8) * PAGE_BYTES + self.below(3)).saturating_sub(1),
            _ => self.below(12 * PAGE_BYTES),
        }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize + 8);
        while (bytes.len() as u64) < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len as usize);
        bytes
    }
}

#[derive(Clone, Debug)]
enum Op {
    Create {
        name: usize,
        mode: WriteMode,
        len: u64,
        piece: u64,
    },
    Append {
        name: usize,
        mode: WriteMode,
        len: u64,
    },
    OverwriteOutside {
        name: usize,
        at: u64,
        len: u64,
    },
    TruncateOutside {
        name: usize,
        len: u64,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Unlink {
        name: usize,
    },
    Read {
        name: usize,
        mode: ReadMode,
        ranges: Vec<(u64, u64)>,
    },
    /// Opens a file to read from it later, whatever becomes of it.
    Hold {
        name: usize,
    },
    ReadHeld {
        nth: usize,
        at: u64,
        len: u64,
    },
    Load {
        name: usize,
    },
    Evict {
        name: usize,
    },
    EvictAll,
    Pin {
        name: usize,
        on: bool,
    },
    Capacity {
        bytes: u64,
    },
    Wait,
    KillAgent,
}

fn any_op(random: &mut Random) -> Op {
    let name = random.below(NAMES.len() as u64) as usize;
    let mode = random.pick(&[WriteMode::Bypass, WriteMode::Through, WriteMode::Through]);
    match random.below(100) {
        0..12 => {
            let piece = random.pick(&[1 << 20, 777, PAGE_BYTES, 100_000]);
            Op::Create { name, mode, len: random.length(), piece }
        }
        12..16 => Op::Append { name, mode, len: random.length() / 4 },
        16..21 => Op::OverwriteOutside { name, at: random.length(), len: random.length() / 4 },
        21..24 => Op::TruncateOutside { name, len: random.length() },
        24..28 => Op::Rename { from: name, to: random.below(NAMES.len() as u64) as usize },
        28..31 => Op::Unlink { name },
        31..61 => {
            let mode = random.pick(&[
                ReadMode::Cached,
                ReadMode::Cached,
                ReadMode::Cached,
                ReadMode::TierOnly,
                ReadMode::TierOnly,
                ReadMode::PfsOnly,
            ]);
            let whole = random.below(2) == 0;
            let some = (0..=random.below(6)).map(|_| (random.length(), random.length())).collect();
            Op::Read { name, mode, ranges: if whole { vec![(0, 1 << 20)] } else { some } }
        }
        61..67 => Op::Hold { name },
        67..79 => Op::ReadHeld { nth: random.below(8) as usize, at: random.length(), len: random.length() },
        79..84 => Op::Load { name },
        84..87 => Op::Evict { name },
        87 => Op::EvictAll,
        88..91 => Op::Pin { name, on: random.below(3) == 0 },
        91..93 => Op::Capacity { bytes: random.pick(&CAPACITIES) },
        93..98 => Op::Wait,
        _ => Op::KillAgent,
    }
}

/// An open file and what it held when it was opened.
struct Held {
    file: File,
    content: Vec<u8>,
    /// Changed or renamed since: ESTALE is allowed.
    touched: bool,
    name: usize,
}

#[derive(Debug, Default)]
struct Shown {
    tier_bytes: u64,
    evicted_bytes: u64,
    kills: u64,
    adopted_files: u64,
    stale: u64,
    held_reads: u64,
}

struct World {
    node: Node,
    clients: [Client; 2],
    random: Random,
    held: Vec<Held>,
    /// When each file was last changed.
    changed: BTreeMap<usize, Instant>,
    shown: Shown,
}

type Checked = Result<(), String>;

fn file_name(name: usize) -> &'static OsStr {
    OsStr::from_bytes(NAMES[name])
}

impl World {
    fn new(seed: u64) -> World {
        let node = Node::start(&["--capacity", "64MiB", "--page-size", "64KiB"]);
        std::fs::create_dir(node.dir().join("plain")).unwrap();
        let clients = [node.client(), node.client()];
        let (changed, shown) = (BTreeMap::new(), Shown::default());
        World { node, clients, random: Random(seed), held: Vec::new(), changed, shown }
    }

    fn tiered(&self, name: usize) -> PathBuf {
        self.node.pfs().join(file_name(name))
    }

    fn plain(&self, name: usize) -> PathBuf {
        self.node.dir().join("plain").join(file_name(name))
    }

    /// Either client: the other does not know what the first did.
    fn client(&mut self) -> Client {
        self.clients[self.random.below(2) as usize].clone()
    }

    /// Waits before a change from outside, so that its stamps differ from those of the last one.
    fn wait_for_stamps(&self, name: usize) {
        if let Some(changed) = self.changed.get(&name) {
            std::thread::sleep(STAMP_GRANULARITY.saturating_sub(changed.elapsed()));
        }
    }

    fn touched(&mut self, name: usize) {
        self.changed.insert(name, Instant::now());
        self.held.iter_mut().filter(|h| h.name == name).for_each(|h| h.touched = true);
    }

    /// Does the same to both files; both must succeed, or both fail with the same kind of error.
    fn both(&self, name: usize, what: impl Fn(PathBuf) -> io::Result<()>) -> Result<bool, String> {
        let (tiered, plain) = (what(self.tiered(name)), what(self.plain(name)));
        match (&tiered, &plain) {
            (Ok(()), Ok(())) => Ok(true),
            (Err(a), Err(b)) if a.kind() == b.kind() => Ok(false),
            _ => Err(format!("the PFS says {tiered:?}, the plain directory {plain:?}")),
        }
    }

    fn apply(&mut self, op: &Op) -> Checked {
        match op {
            Op::Create { name, mode, len, piece } => self.create(*name, *mode, *len, *piece),
            Op::Append { name, mode, len } => self.append(*name, *mode, *len),
            Op::OverwriteOutside { name, at, len } => {
                let bytes = self.random.bytes(*len);
                self.outside(*name, |path| {
                    std::fs::File::options().write(true).open(path)?.write_all_at(&bytes, *at)
                })
            }
            Op::TruncateOutside { name, len } => {
                self.outside(*name, |path| std::fs::File::options().write(true).open(path)?.set_len(*len))
            }
            Op::Unlink { name } => self.outside(*name, std::fs::remove_file),
            Op::Rename { from, to } => self.rename(*from, *to),
            Op::Read { name, mode, ranges } => self.read(*name, *mode, ranges),
            Op::Hold { name } => self.hold(*name),
            Op::ReadHeld { nth, at, len } => self.read_held(*nth, *at, *len),
            Op::Load { name } => self.load(*name),
            _ => self.administer(op),
        }
    }

    fn create(&mut self, name: usize, mode: WriteMode, len: u64, piece: u64) -> Checked {
        self.wait_for_stamps(name);
        let bytes = self.random.bytes(len);
        let written = self.client().create(self.tiered(name), mode).and_then(|mut writer| {
            bytes.chunks(piece as usize).try_for_each(|part| writer.write_all(part))?;
            writer.close()
        });
        written.map_err(|e| format!("create: {e}"))?;
        std::fs::write(self.plain(name), &bytes).map_err(|e| e.to_string())?;
        self.touched(name);
        Ok(())
    }

    fn append(&mut self, name: usize, mode: WriteMode, len: u64) -> Checked {
        self.wait_for_stamps(name);
        let bytes = self.random.bytes(len);
        let options = WriteOptions { mode, append: true, ..WriteOptions::default() };
        let written = self.client().create_with(self.tiered(name), options).and_then(|mut writer| {
            writer.write_all(&bytes)?;
            writer.close()
        });
        written.map_err(|e| format!("append: {e}"))?;
        let plain = std::fs::File::options().append(true).create(true).open(self.plain(name));
        plain.and_then(|mut file| file.write_all(&bytes)).map_err(|e| e.to_string())?;
        self.touched(name);
        Ok(())
    }

    fn outside(&mut self, name: usize, what: impl Fn(PathBuf) -> io::Result<()>) -> Checked {
        self.wait_for_stamps(name);
        if self.both(name, what)? {
            self.touched(name);
        }
        Ok(())
    }

    fn rename(&mut self, from: usize, to: usize) -> Checked {
        let (tiered, plain) = (self.tiered(to), self.plain(to));
        let on_pfs = self.node.pfs();
        let moved = self.both(from, |path| {
            let target = if path.starts_with(&on_pfs) { &tiered } else { &plain };
            std::fs::rename(path, target)
        })?;
        if moved {
            self.touched(from);
            self.touched(to);
        }
        Ok(())
    }

    /// What the plain file holds; `None` if there is none.
    fn expected(&self, name: usize) -> Option<Vec<u8>> {
        std::fs::read(self.plain(name)).ok()
    }

    fn open(&mut self, name: usize, mode: ReadMode) -> Result<Option<(File, Vec<u8>)>, String> {
        let (expected, path) = (self.expected(name), self.tiered(name));
        match (self.client().open_with(path, mode), expected) {
            (Ok(file), Some(content)) => Ok(Some((file, content))),
            (Err(e), None) if e.kind() == ErrorKind::NotFound => Ok(None),
            (result, expected) => {
                Err(format!("open: {result:?}, and the plain file has {:?} bytes", expected.map(|c| c.len())))
            }
        }
    }

    fn read(&mut self, name: usize, mode: ReadMode, ranges: &[(u64, u64)]) -> Checked {
        let Some((file, content)) = self.open(name, mode)? else { return Ok(()) };
        let size = file.size().map_err(|e| format!("size: {e}"))?;
        if size != content.len() as u64 {
            return Err(format!("its size is {size}, should be {}", content.len()));
        }
        for (at, len) in ranges {
            match compare(&file, &content, *at, *len) {
                Ok(bytes) if mode == ReadMode::TierOnly => self.shown.tier_bytes += bytes,
                Ok(_) => {}
                Err(Wrong::Refused(e)) if mode == ReadMode::TierOnly && e.to_string().contains("load it") => {
                }
                Err(wrong) => return Err(format!("read of {len} at {at}: {wrong:?}")),
            }
        }
        Ok(())
    }

    fn hold(&mut self, name: usize) -> Checked {
        if let Some((file, content)) = self.open(name, ReadMode::Cached)?
            && file.is_tiered()
        {
            if self.held.len() == 8 {
                self.held.remove(0);
            }
            self.held.push(Held { file, content, touched: false, name });
        }
        Ok(())
    }

    fn read_held(&mut self, nth: usize, at: u64, len: u64) -> Checked {
        let Some(held) = self.held.get(nth) else { return Ok(()) };
        self.shown.held_reads += 1;
        match compare(&held.file, &held.content, at, len) {
            Ok(_) => Ok(()),
            Err(Wrong::Refused(e)) if held.touched && e.kind() == ErrorKind::StaleNetworkFileHandle => {
                self.shown.stale += 1;
                Ok(())
            }
            Err(wrong) => Err(format!("{} open since before: {wrong:?}", held.file.path().display())),
        }
    }

    fn load(&mut self, name: usize) -> Checked {
        let path = self.tiered(name);
        let loaded = self.client().load(0).and_then(|mut load| {
            load.add(&path)?;
            load.flush()?;
            while !load.poll(Duration::from_secs(10))?.idle {}
            Ok(load.failures().to_vec())
        });
        // A file may be refused for want of room or because it is racily clean; the load as a whole
        // may not fail.
        loaded.map(drop).map_err(|e| format!("load: {e}"))
    }

    fn administer(&mut self, op: &Op) -> Checked {
        let client = self.client();
        let admin = client.admin();
        let exists = |name: &usize| self.plain(*name).exists();
        let failed = |e: io::Error| e.to_string();
        match op {
            Op::Evict { name } if exists(name) => match admin.evict(&self.tiered(*name)) {
                // Pinned.
                Err(e) if e.kind() == ErrorKind::Other => {}
                freed => self.shown.evicted_bytes += freed.map_err(failed)?,
            },
            Op::EvictAll => self.shown.evicted_bytes += admin.evict_all().map_err(failed)?,
            Op::Pin { name, on } if exists(name) => match admin.pin(&self.tiered(*name), *on) {
                // Too much for this capacity.
                Err(e) if *on && e.kind() == ErrorKind::StorageFull => {}
                pinned => pinned.map_err(failed)?,
            },
            Op::Capacity { bytes } => {
                self.shown.evicted_bytes += admin.set_capacity(*bytes).map_err(failed)?;
            }
            Op::Wait => std::thread::sleep(STAMP_GRANULARITY),
            Op::KillAgent => {
                self.node.kill_and_restart();
                self.shown.kills += 1;
                self.shown.adopted_files += self.node.counter("adopted_files_total");
            }
            _ => {}
        }
        Ok(())
    }

    /// In the end everything is read in every way, and the directories hold the same names.
    fn finish(&mut self) -> Checked {
        for name in 0..NAMES.len() {
            for mode in [ReadMode::TierOnly, ReadMode::Cached, ReadMode::PfsOnly] {
                self.read(name, mode, &[(0, 4 << 20)]).map_err(|e| format!("{name} {mode:?}: {e}"))?;
            }
        }
        let list = |dir: PathBuf| {
            let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let (pfs, plain) = (list(self.node.pfs()), list(self.node.dir().join("plain")));
        if pfs == plain { Ok(()) } else { Err(format!("names differ: {pfs:?} {plain:?}")) }
    }
}

#[derive(Debug)]
enum Wrong {
    #[allow(dead_code, reason = "printed")]
    Bytes {
        first_difference: usize,
        got: usize,
        should: usize,
    },
    Refused(io::Error),
}

/// Reads and compares; returns the bytes read.
fn compare(file: &File, content: &[u8], at: u64, len: u64) -> Result<u64, Wrong> {
    let mut buffer = vec![0xA5; len as usize];
    let n = file.read_at(&mut buffer, at).map_err(Wrong::Refused)?;
    let start = (at as usize).min(content.len());
    let should = &content[start..(start + len as usize).min(content.len())];
    if buffer[..n] == *should {
        return Ok(n as u64);
    }
    let first_difference = buffer[..n].iter().zip(should).take_while(|(a, b)| a == b).count();
    Err(Wrong::Bytes { first_difference, got: n, should: should.len() })
}

fn run(seed: u64, steps: u64) -> Shown {
    let again = format!(
        "FOREBAY_MODEL_SEED={seed} FOREBAY_MODEL_STEPS={steps} cargo test -p forebay-cli --test model -- --nocapture"
    );
    println!("{again}");
    let mut world = World::new(seed);
    let mut last = VecDeque::new();
    for step in 0..steps {
        let op = any_op(&mut world.random);
        last.push_back(format!("{step} {op:?}"));
        if last.len() > 25 {
            last.pop_front();
        }
        if let Err(why) = world.apply(&op) {
            let trace: Vec<_> = last.into_iter().collect();
            let log = world.node.last_log();
            panic!("{why}\nafter\n  {}\nagain: {again}\nthe agent's log:\n{log}", trace.join("\n  "));
        }
    }
    if let Err(why) = world.finish() {
        panic!("in the end: {why}\nagain: {again}");
    }
    println!("{:?}", world.shown);
    world.shown
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => default,
    }
}

#[test]
fn reads_are_what_a_plain_directory_would_give() {
    let seed = number("FOREBAY_MODEL_SEED", 20_260_701);
    let shown = run(seed, number("FOREBAY_MODEL_STEPS", 1200));
    assert!(shown.tier_bytes > 0, "no cached byte was ever read: {shown:?}");
    assert!(shown.evicted_bytes > 0, "nothing was evicted: {shown:?}");
    assert!(shown.kills > 0 && shown.adopted_files > 0, "no agent was killed and followed: {shown:?}");
    assert!(shown.held_reads > 0 && shown.stale > 0, "no file was changed under a reader: {shown:?}");
}
