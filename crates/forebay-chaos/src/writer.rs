//! A writer: changes files of its own, one after the other, and logs each change before and
//! after. It begins by looking at what the process before it has left unfinished.

use crate::actor::{Actor, FILES, LARGE, usual_bytes};
use crate::changes::{Changes, errno_of};
use crate::content::decode;
use crate::record::{Found, How, Op, PathId, Record, Style, Way, now_ns, read_log};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Number of write ids that one process may use.
const WRITES: u32 = 1 << 16;

/// How long a file written through is left alone: a second write within the granularity of stamps
/// is a documented limit.
const THROUGH_REST_MS: u64 = 25;

/// Runs until the time is over.
pub fn run(actor: Actor) -> io::Result<()> {
    let next_write = actor.orders.process * WRITES + 1;
    let changes = Changes::new(actor.client());
    let mut writer = Writer { actor, changes, next_write, rests: BTreeMap::new() };
    writer.recover()?;
    if std::fs::metadata(&writer.actor.orders.log)?.len() > 0 {
        // The process before this one may have changed any of the files a moment ago.
        std::thread::sleep(Duration::from_millis(writer.actor.orders.gap_ms));
    }
    while !writer.actor.is_over() {
        let op = writer.choose()?;
        writer.perform(&op)?;
        let pause_ms = writer.actor.orders.pause_ms;
        writer.actor.pause_up_to(pause_ms);
    }
    Ok(())
}

struct Writer {
    actor: Actor,
    changes: Changes,
    next_write: u32,
    /// Until when a file is left alone.
    rests: BTreeMap<PathId, u64>,
}

#[derive(Clone, Copy)]
enum Wish {
    Rewrite(Way),
    Library(How),
    Overwrite(bool),
    Stalled,
    Mapped,
    Append,
    Truncate,
    Regrow,
    Punch,
    Away,
    Exchange,
    Link,
    Chmod,
    Touch,
}

const WISHES: &[(u64, Wish)] = &[
    (5, Wish::Rewrite(Way::InPlace)),
    (8, Wish::Rewrite(Way::Rename)),
    (5, Wish::Rewrite(Way::Unlink)),
    (8, Wish::Library(How::Through)),
    (3, Wish::Library(How::Bypass)),
    (12, Wish::Overwrite(false)),
    (12, Wish::Overwrite(true)),
    (6, Wish::Stalled),
    (5, Wish::Mapped),
    (6, Wish::Append),
    (5, Wish::Truncate),
    (5, Wish::Regrow),
    (5, Wish::Punch),
    (5, Wish::Away),
    (3, Wish::Exchange),
    (6, Wish::Link),
    (6, Wish::Chmod),
    (3, Wish::Touch),
];

impl Writer {
    fn recover(&mut self) -> io::Result<()> {
        let mut open = None;
        for record in read_log(&self.actor.orders.log)? {
            match record {
                Record::Begin { op, .. } => open = Some(op),
                Record::Done { .. } => open = None,
                Record::Observed { path, .. } => {
                    open = open.filter(|op: &Op| op.paths().last() != Some(&path));
                }
                _ => {}
            }
        }
        match open {
            Some(op) => self.observe(&op),
            None => Ok(()),
        }
    }

    /// Looks at what an interrupted change has left, and removes its remains.
    fn observe(&mut self, op: &Op) -> io::Result<()> {
        for path in op.paths() {
            let name = self.actor.path(path);
            self.changes.clear_away(&name)?;
            let found = match self.read_whole(&name) {
                Ok(bytes) => Some(Found { ino: std::fs::metadata(&name)?.ino(), parts: decode(&bytes, 0) }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    std::fs::write(&name, b"")?;
                    Some(Found { ino: std::fs::metadata(&name)?.ino(), parts: Vec::new() })
                }
                Err(e) => return Err(e),
            };
            self.actor.note(&Record::Observed { at: now_ns(), path, found })?;
        }
        Ok(())
    }

    fn read_whole(&self, name: &Path) -> io::Result<Vec<u8>> {
        let flags = if self.actor.can("cached-look") { 0 } else { libc::O_DIRECT };
        let mut bytes = Vec::new();
        File::options().read(true).custom_flags(flags).open(name)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn perform(&mut self, op: &Op) -> io::Result<()> {
        let at = self.actor.begin()?;
        self.actor.note(&Record::Begin { at, op: op.clone() })?;
        let done = self.changes.perform(&self.actor, op);
        let at = self.actor.end()?;
        match done {
            Ok(()) => {
                let ino = |path| Ok(std::fs::metadata(self.actor.path(path))?.ino());
                let inos = op.paths().into_iter().map(ino).collect::<io::Result<_>>()?;
                self.actor.note(&Record::Done { at, inos })?;
            }
            Err(e) => {
                self.actor.note(&Record::Failed { at, errno: errno_of(&e) })?;
                self.observe(op)?;
            }
        }
        let through = matches!(op, Op::Rewrite { how: How::Through, .. });
        let rest_ms = self.actor.orders.gap_ms.max(if through { THROUGH_REST_MS } else { 0 });
        for path in op.paths().into_iter().filter(|_| rest_ms > 0) {
            self.rests.insert(path, now_ns() + rest_ms * 1_000_000);
        }
        Ok(())
    }

    fn choose(&mut self) -> io::Result<Op> {
        let path = self.any_path();
        let size = std::fs::metadata(self.actor.path(path))?.len();
        let usual = usual_bytes(path);
        let random = &mut self.actor.random;
        let mut wish = random.weighted(WISHES);
        if usual > 16 << 20 {
            // Costs time and room: mostly the long single write that large files are here for.
            wish = if random.percent(70) { Wish::Overwrite(random.percent(50)) } else { wish };
        }
        Ok(self.op(wish, path, size, usual))
    }

    fn any_path(&mut self) -> PathId {
        let (slot, slots, files) = (self.actor.orders.slot, self.actor.orders.slots, FILES);
        let mine = (files - slot).div_ceil(slots);
        loop {
            let path = slot + slots * self.actor.random.below(u64::from(mine)) as u32;
            let is_large = path >= files - LARGE;
            if is_large && self.actor.random.percent(85) {
                continue;
            }
            if self.rests.get(&path).is_none_or(|until| *until <= now_ns()) {
                return path;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn write_id(&mut self) -> u32 {
        self.next_write += 1;
        self.next_write
    }

    fn op(&mut self, wish: Wish, path: PathId, size: u64, usual: u64) -> Op {
        let (write, lazy, cuts) = (self.write_id(), self.actor.can("lazy-mmap"), self.actor.can("truncate"));
        let maps = self.actor.can("mmap");
        let random = &mut self.actor.random;
        let (a, b) = (place_in(random, size), place_in(random, size));
        let (start, end) = (a.min(b), a.max(b).max(a.min(b) + 1));
        let new_size = any_size(random, usual);
        let chunk = random.pick(&[4096, 65_536, 1 << 20, 777, 1 << 30]);
        // In chunks of a few bytes a large write would take all day.
        let chunk = if end - start > 1 << 20 { chunk.max(1 << 20) } else { chunk };
        let whole = size > 0 && random.percent(30);
        let (start, end) = if whole { (0, size) } else { (start, end.min(size.max(start + 1))) };
        match wish {
            Wish::Rewrite(way) => {
                Op::Rewrite { path, write, size: new_size, how: How::Plain(chunk.max(65_536)), way }
            }
            Wish::Library(how) => {
                let way = random.pick(&[Way::InPlace, Way::InPlace, Way::Rename, Way::Unlink]);
                let way = if cuts { way } else { Way::Rename };
                Op::Rewrite { path, write, size: new_size, how, way }
            }
            Wish::Overwrite(keep_mtime) => {
                Op::Overwrite { path, write, start, end, style: Style::Chunks(chunk), keep_mtime }
            }
            Wish::Stalled if size >= 16 << 10 => {
                let style = Style::Stalled(random.between(120, 400) as u32);
                let (start, end) = if end - start < 16 << 10 { (0, size) } else { (start, end) };
                Op::Overwrite { path, write, start, end, style, keep_mtime: random.percent(20) }
            }
            Wish::Mapped if size > 0 && maps => {
                let (style, end) = (Style::Mapped { touch: !lazy || random.percent(30) }, end.min(size));
                Op::Overwrite { path, write, start, end, style, keep_mtime: false }
            }
            Wish::Append | Wish::Stalled | Wish::Mapped if size < 4 * usual => {
                let how = random.pick(&[How::Plain(4096), How::Plain(1 << 20), How::Bypass, How::Through]);
                let len = random.between(1, usual / 4);
                Op::Append { path, write, start: size, end: size + len, how }
            }
            Wish::Truncate | Wish::Append | Wish::Stalled | Wish::Mapped if cuts => {
                Op::Truncate { path, size: new_size }
            }
            Wish::Regrow if cuts => Op::Regrow { path, low: start, high: new_size.max(start) },
            Wish::Punch if self.actor.can("punch") => Op::Punch { path, start, end },
            Wish::Away => Op::Away { path, stay_ms: self.actor.random.between(0, 4) as u32 },
            Wish::Exchange if self.actor.can("exchange") => match self.any_path() {
                other if other != path => Op::Exchange { path, other },
                _ => Op::Chmod { path },
            },
            Wish::Link => Op::Link { path },
            Wish::Touch => Op::Touch { path },
            _ => Op::Chmod { path },
        }
    }
}

/// A place in a file: edges of blocks and pages, and any other.
fn place_in(random: &mut crate::random::Random, size: u64) -> u64 {
    let any = random.below(size + 1);
    match random.below(4) {
        0 => any & !0xfff,
        1 => any & !0xffff,
        2 => (any & !0xffff).saturating_sub(random.below(3)),
        _ => any,
    }
}

fn any_size(random: &mut crate::random::Random, usual: u64) -> u64 {
    match random.below(12) {
        0 => random.below(2),
        1 => (usual & !0xffff) + random.below(3),
        2 => usual & !0xffff,
        _ => random.between(usual / 2, usual * 3 / 2),
    }
}
