//! A reader: opens files in every way there is, reads them all at once or over some time, and
//! writes down what it saw.
//!
//! It judges nothing: what a read may give depends on what others did meanwhile, which only their
//! logs show.

use crate::actor::{Actor, FILES, LARGE, place};
use crate::changes::errno_of;
use crate::content::decode;
use crate::record::{Got, HandleSeen, Kind, PathId, ReadSeen, Record};
use forebay_client::{Client, File, ReadMode};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Files held open over many other reads.
const HELD_MAX: usize = 12;

/// Size (eight pages) of the largest file that is not watched until a read misses, if it is wholly
/// in the tier at its open.
const UNWATCHED_BYTES: u64 = 8 * (64 << 10);

/// Most bytes of one read; files are read whole in pieces of this size.
const BUFFER_BYTES: u64 = 8 << 20;

/// Runs until the time is over.
pub fn run(actor: Actor) -> io::Result<()> {
    let client = actor.client();
    let mut reader = Reader { client, actor, held: Vec::new(), buffer: vec![0; BUFFER_BYTES as usize] };
    while !reader.actor.is_over() {
        reader.step()?;
    }
    while let Some(held) = reader.held.pop() {
        reader.finish(held)?;
    }
    Ok(())
}

enum Open {
    Library(File),
    Plain(std::fs::File),
}

struct Held {
    open: Open,
    seen: HandleSeen,
}

struct Reader {
    actor: Actor,
    client: Client,
    held: Vec<Held>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Deed {
    Whole,
    Ranges,
    Hold,
    ReadHeld,
    Map,
    Cat,
    Run,
    Appended,
}

const DEEDS: &[(u64, Deed)] = &[
    (300, Deed::Whole),
    (250, Deed::Ranges),
    (60, Deed::Hold),
    (250, Deed::ReadHeld),
    (40, Deed::Map),
    (2, Deed::Cat),
    (4, Deed::Run),
    (20, Deed::Appended),
];

const KINDS: &[(u64, Kind)] =
    &[(60, Kind::Cached), (20, Kind::TierOnly), (5, Kind::PfsOnly), (5, Kind::Plain), (40, Kind::Mount)];

impl Reader {
    fn step(&mut self) -> io::Result<()> {
        let path = self.any_path();
        match self.actor.random.weighted(DEEDS) {
            Deed::Whole => self.whole(path),
            Deed::Ranges => self.ranges(path),
            Deed::Hold => self.hold(path),
            Deed::ReadHeld => self.read_held(),
            Deed::Map => self.map(path),
            Deed::Cat => self.cat(path),
            Deed::Run => self.run(path),
            Deed::Appended => crate::appender::look(&mut self.actor, &self.client),
        }
    }

    /// Some files are read far more often than others; large ones seldom.
    fn any_path(&mut self) -> PathId {
        let (files, large) = (FILES, LARGE);
        let random = &mut self.actor.random;
        match random.below(200) {
            0 => files - large + random.below(u64::from(large)) as u32,
            1..80 => random.below(u64::from((files - large).min(12))) as u32,
            _ => random.below(u64::from(files - large)) as u32,
        }
    }

    fn open(&mut self, path: PathId, kind: Kind) -> io::Result<Option<Held>> {
        let kind = if kind == Kind::Mount && self.actor.orders.mount.is_none() { Kind::Plain } else { kind };
        let (dir, name) = match (kind, &self.actor.orders.mount) {
            (Kind::Mount, Some(mount)) => place(mount, path),
            _ => self.actor.place(path),
        };
        let relative = self.actor.random.percent(40);
        if relative {
            std::env::set_current_dir(&dir)?;
        }
        let name = if relative { name.into() } else { dir.join(name) };
        let begin = self.actor.begin()?;
        let open = match kind {
            Kind::Plain | Kind::Mount => std::fs::File::open(&name).map(Open::Plain),
            Kind::TierOnly => self.client.open_with(&name, ReadMode::TierOnly).map(Open::Library),
            Kind::PfsOnly => self.client.open_with(&name, ReadMode::PfsOnly).map(Open::Library),
            _ => self.client.open(&name).map(Open::Library),
        };
        let end = self.actor.end()?;
        let (tiered, opened) = match &open {
            Ok(Open::Library(file)) => (file.is_tiered(), file.size().map_err(|e| errno_of(&e))),
            Ok(Open::Plain(file)) => (false, file.metadata().map(|m| m.len()).map_err(|e| errno_of(&e))),
            Err(e) => (false, Err(errno_of(e))),
        };
        let whole = tiered
            && opened.is_ok_and(|size| size <= UNWATCHED_BYTES)
            && matches!(&open, Ok(Open::Library(file)) if opened == Ok(file.resident_bytes()));
        let moved = relative && self.actor.random.percent(50);
        if moved {
            std::env::set_current_dir(self.actor.orders.root.join("append"))?;
        }
        let node = self.actor.orders.node;
        let version = match &open {
            Ok(Open::Library(file)) => file.version().map_or_else(String::new, |v| v.to_string()),
            _ => String::new(),
        };
        let reads = Vec::new();
        let seen = HandleSeen { node, path, kind, tiered, whole, begin, end, opened, reads, moved, version };
        match open {
            Ok(open) => Ok(Some(Held { open, seen })),
            Err(_) => self.actor.note(&Record::Handle(seen)).map(|()| None),
        }
    }

    /// Reads once; returns false if the read failed.
    fn read(&mut self, held: &mut Held, offset: u64, wanted: u64) -> io::Result<bool> {
        let buffer = &mut self.buffer[..wanted.min(BUFFER_BYTES) as usize];
        let begin = self.actor.begin()?;
        let read = match &held.open {
            Open::Library(file) => file.read_at(buffer, offset),
            Open::Plain(file) => read_plain(file, buffer, offset),
        };
        let end = self.actor.end()?;
        let len = read.as_ref().map_or(0, |n| *n as u64);
        let goes_on = read.is_ok();
        let got = match read {
            Ok(n) => Got::Bytes(decode(&buffer[..n], offset)),
            Err(e) => Got::Error(errno_of(&e)),
        };
        let wanted = buffer.len() as u64;
        held.seen.reads.push(ReadSeen { begin, end, offset, wanted, len, got });
        Ok(goes_on)
    }

    fn finish(&mut self, held: Held) -> io::Result<()> {
        self.actor.note(&Record::Handle(held.seen))
    }

    fn any_kind(&mut self) -> Kind {
        self.actor.random.weighted(KINDS)
    }

    fn whole(&mut self, path: PathId) -> io::Result<()> {
        let kind = self.any_kind();
        let Some(mut held) = self.open(path, kind)? else { return Ok(()) };
        // Including a little beyond the end.
        let size = held.seen.opened.unwrap_or(0) + 8;
        let piece = self.actor.random.pick(&[64 << 10, 1 << 20, BUFFER_BYTES, 100_001]);
        let piece = piece.max(size / 64);
        let mut at = 0;
        while at < size && self.read(&mut held, at, piece.min(size - at))? {
            at += piece;
        }
        self.finish(held)
    }

    fn any_range(&mut self, held: &Held) -> (u64, u64) {
        let size = held.seen.opened.unwrap_or(0);
        let random = &mut self.actor.random;
        let offset = random.below(size + 1);
        let offset = if random.percent(60) { offset & !0xfff } else { offset };
        (offset, random.pick(&[1, 512, 4096, 4096, 4096, 16_384, 70_000]))
    }

    /// Small reads, some time apart: with and without the tier, and over more than the time between
    /// two looks.
    fn ranges(&mut self, path: PathId) -> io::Result<()> {
        let kind = self.any_kind();
        let Some(mut held) = self.open(path, kind)? else { return Ok(()) };
        let pause_ms = self.actor.random.pick(&[0, 0, 0, 0, 0, 3, 30, 90]);
        for _ in 0..self.actor.random.between(1, 8) {
            let (offset, len) = self.any_range(&held);
            if !self.read(&mut held, offset, len)? {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
        self.finish(held)
    }

    fn hold(&mut self, path: PathId) -> io::Result<()> {
        if self.held.len() == HELD_MAX {
            let oldest = self.held.remove(0);
            self.finish(oldest)?;
        }
        let kind = self.any_kind();
        if let Some(held) = self.open(path, kind)? {
            self.held.push(held);
        }
        Ok(())
    }

    fn read_held(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let nth = self.actor.random.below(self.held.len() as u64) as usize;
        let mut held = self.held.swap_remove(nth);
        let (offset, len) = self.any_range(&held);
        match self.read(&mut held, offset, len)? && held.seen.reads.len() < 40 {
            true => self.held.push(held),
            false => self.finish(held)?,
        }
        Ok(())
    }

    /// Reads mapped bytes, which stay the same until they are unmapped.
    fn map(&mut self, path: PathId) -> io::Result<()> {
        let Some(mut held) = self.open(path, Kind::Cached)? else { return Ok(()) };
        let (offset, _) = self.any_range(&held);
        let len = self.actor.random.between(1, 300_000);
        let Open::Library(file) = &held.open else { return Ok(()) };
        let begin = self.actor.begin()?;
        let mapped = file.map(offset, len);
        let end = self.actor.end()?;
        held.seen.kind = Kind::Mapped;
        if let Some(range) = mapped {
            for pause_ms in [0, 20] {
                std::thread::sleep(Duration::from_millis(pause_ms));
                let got = Got::Bytes(decode(&range, offset));
                held.seen.reads.push(ReadSeen {
                    begin,
                    end,
                    offset,
                    wanted: len,
                    len: range.len() as u64,
                    got,
                });
            }
        }
        self.finish(held)
    }

    /// Runs another program, which knows nothing of Forebay.
    fn run(&mut self, path: PathId) -> io::Result<()> {
        let name = self.actor.path(path);
        let mut command = Command::new(&self.actor.orders.forebay);
        command.args(["run", "--quiet", "--", "dd", "bs=64K", "status=none"]);
        command.arg(format!("if={}", name.display())).env("FOREBAY_SOCKET", &self.actor.orders.socket);
        command.env("FOREBAY_DEADLINE_MS", "1500").stdin(Stdio::null()).current_dir("/");
        let begin = self.actor.begin()?;
        let out = command.output()?;
        let end = self.actor.end()?;
        let len = out.stdout.len() as u64;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let opened = match out.status.code() {
            Some(0) => Ok(0),
            _ if said.ends_with("No such file or directory\n") => Err(libc::ENOENT),
            _ => Err(libc::EIO),
        };
        let got = Got::Bytes(decode(&out.stdout, 0));
        let read = ReadSeen { begin, end, offset: 0, wanted: u64::MAX, len, got };
        let reads = opened.map_or(Vec::new(), |_| vec![read]);
        // For the report: what the program wrote to stderr, if it failed.
        let (node, kind, version) = (self.actor.orders.node, Kind::Run, said);
        let (tiered, whole, moved) = (true, false, false);
        let seen = HandleSeen { node, path, kind, tiered, whole, begin, end, opened, reads, moved, version };
        self.actor.note(&Record::Handle(seen))
    }

    fn cat(&mut self, path: PathId) -> io::Result<()> {
        let name = self.actor.path(path);
        let mut command = Command::new(&self.actor.orders.forebay);
        command.arg("cat").arg(&name).env("FOREBAY_SOCKET", &self.actor.orders.socket);
        command.env("FOREBAY_DEADLINE_MS", "1500").stdin(Stdio::null()).current_dir("/");
        let begin = self.actor.begin()?;
        let out = command.output()?;
        let end = self.actor.end()?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let len = out.stdout.len() as u64;
        let got = match (out.status.code(), said.contains("open it again"), said.contains("No such file")) {
            (Some(0), _, _) => Got::Bytes(decode(&out.stdout, 0)),
            (_, true, _) => Got::Error(libc::ESTALE),
            (_, _, true) => Got::Error(libc::ENOENT),
            _ => Got::Error(libc::EIO),
        };
        let opened = if got == Got::Error(libc::ENOENT) { Err(libc::ENOENT) } else { Ok(0) };
        let wanted = u64::MAX;
        let reads = match opened {
            Ok(_) => vec![ReadSeen { begin, end, offset: 0, wanted, len, got }],
            Err(_) => Vec::new(),
        };
        let node = self.actor.orders.node;
        // It says so, once, if the agent did not answer: from then on it read as any plain program.
        let tiered = !said.contains("reading the file system directly");
        // It may have been in the tier at the open.
        let (kind, whole, moved, version) = (Kind::Cat, true, false, String::new());
        let seen = HandleSeen { node, path, kind, tiered, whole, begin, end, opened, reads, moved, version };
        self.actor.note(&Record::Handle(seen))
    }
}

fn read_plain(file: &std::fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Reads every file once in each way, when nobody writes: exactly the last content must come, from
/// now on.
pub fn check(actor: Actor) -> io::Result<()> {
    let client = actor.client();
    let mut reader = Reader { client, actor, held: Vec::new(), buffer: vec![0; BUFFER_BYTES as usize] };
    crate::appender::check(&mut reader.actor, &reader.client)?;
    for path in 0..FILES {
        for kind in [Kind::TierOnly, Kind::Cached, Kind::Plain, Kind::Mount] {
            let Some(mut held) = reader.open(path, kind)? else { continue };
            let size = held.seen.opened.unwrap_or(0) + 8;
            let mut at = 0;
            // The part of it in the tier is read piece by piece; a missing piece is not an error
            // there.
            while at < size {
                let piece = if kind == Kind::TierOnly { 64 << 10 } else { BUFFER_BYTES };
                reader.read(&mut held, at, piece.min(size - at))?;
                at += piece;
            }
            reader.finish(held)?;
        }
    }
    Ok(())
}
