//! What actors write down, each in a log of its own: one `write` per record, so that a killed actor
//! leaves whole records.
//!
//! A writer says what it will do before it begins and that it is done after the last system call
//! has returned; a reader says when it opened, when each read began and ended, and what it saw. All
//! times are of the monotonic clock, which all processes of a machine share. The oracle works from
//! these logs alone.

use crate::content::{Part, State, WriteId};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Number of a file's name.
pub type PathId = u32;

/// How a writer's bytes reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// With `open` and `write`, in chunks of this many bytes.
    Plain(u32),
    /// Through the library, write-through.
    Through,
    /// Through the library, bypass.
    Bypass,
}

/// How a range is overwritten in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Style {
    /// `pwrite` in chunks of this many bytes.
    Chunks(u32),
    /// One `write` whose source is held back in its middle for this many milliseconds.
    Stalled(u32),
    /// Stores to a shared mapping, and then a new mtime or none.
    Mapped { touch: bool },
}

/// How a file gets a wholly new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Truncated to nothing and written again.
    InPlace,
    /// Written next to it and renamed over it.
    Rename,
    /// Unlinked and created again.
    Unlink,
}

/// One change of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    Rewrite { path: PathId, write: WriteId, size: u64, how: How, way: Way },
    Overwrite { path: PathId, write: WriteId, start: u64, end: u64, style: Style, keep_mtime: bool },
    Append { path: PathId, write: WriteId, start: u64, end: u64, how: How },
    Truncate { path: PathId, size: u64 },
    Regrow { path: PathId, low: u64, high: u64 },
    Punch { path: PathId, start: u64, end: u64 },
    Away { path: PathId, stay_ms: u32 },
    Exchange { path: PathId, other: PathId },
    Link { path: PathId },
    Chmod { path: PathId },
    Touch { path: PathId },
}

impl Op {
    pub fn paths(&self) -> Vec<PathId> {
        match self {
            Op::Rewrite { path, .. }
            | Op::Overwrite { path, .. }
            | Op::Append { path, .. }
            | Op::Truncate { path, .. }
            | Op::Regrow { path, .. }
            | Op::Punch { path, .. }
            | Op::Away { path, .. }
            | Op::Link { path }
            | Op::Chmod { path }
            | Op::Touch { path } => vec![*path],
            Op::Exchange { path, other } => vec![*path, *other],
        }
    }

    /// The name of the change in the table of what was done.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Rewrite { how: How::Through, .. } => "written through",
            Op::Rewrite { how: How::Bypass, .. } => "written by the library, bypass",
            Op::Rewrite { way: Way::InPlace, .. } => "cut and rewritten",
            Op::Rewrite { way: Way::Rename, .. } => "replaced by rename",
            Op::Rewrite { way: Way::Unlink, .. } => "unlinked and created",
            Op::Overwrite { style: Style::Stalled(_), .. } => "long single writes",
            Op::Overwrite { style: Style::Mapped { .. }, .. } => "written through mmap",
            Op::Overwrite { keep_mtime: true, .. } => "overwritten, mtime set back",
            Op::Overwrite { .. } => "overwritten",
            Op::Append { .. } => "appended",
            Op::Truncate { .. } => "truncated",
            Op::Regrow { .. } => "truncated and regrown",
            Op::Punch { .. } => "punched",
            Op::Away { .. } => "renamed away and back",
            Op::Exchange { .. } => "exchanged",
            Op::Link { .. } => "linked and unlinked",
            Op::Chmod { .. } => "chmod there and back",
            Op::Touch { .. } => "touched",
        }
    }

    /// The contents the file passes through, the last being what is left; none if the content
    /// stays.
    pub fn states(&self, before: &State) -> Vec<State> {
        let mut state = before.clone();
        match self {
            Op::Rewrite { write, size, .. } => {
                let mut new = State::default();
                new.put(0, *size, *write);
                return vec![State::default(), new];
            }
            Op::Overwrite { write, start, end, .. } | Op::Append { write, start, end, .. } => {
                state.put(*start, *end, *write);
            }
            Op::Truncate { size, .. } => state.truncate(*size),
            Op::Regrow { low, high, .. } => {
                let mut cut = state.clone();
                cut.truncate(*low);
                let mut regrown = cut.clone();
                regrown.truncate(*high);
                return vec![cut, regrown];
            }
            Op::Punch { start, end, .. } => state.punch(*start, *end),
            Op::Touch { .. } => {}
            Op::Away { .. } | Op::Exchange { .. } | Op::Link { .. } | Op::Chmod { .. } => return Vec::new(),
        }
        vec![state]
    }
}

/// How a reader read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The library, cached.
    Cached,
    /// The library, from the tier only.
    TierOnly,
    /// The library, from the PFS only.
    PfsOnly,
    /// `open` and `pread`, without Forebay.
    Plain,
    /// The tier mapped.
    Mapped,
    /// `forebay cat`.
    Cat,
    /// A plain program, on a mount of `forebay mount`.
    Mount,
    /// A plain program, under `forebay run`.
    Run,
}

/// What a read gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Got {
    Bytes(Vec<Part>),
    Error(i32),
}

/// One read of an open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadSeen {
    pub begin: u64,
    pub end: u64,
    pub offset: u64,
    pub wanted: u64,
    pub len: u64,
    pub got: Got,
}

/// An open file from its open to its close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleSeen {
    pub node: u32,
    pub path: PathId,
    pub kind: Kind,
    /// Whether an agent stood before the PFS.
    pub tiered: bool,
    /// Whether it was small, and all of it in the tier when it was opened.
    pub whole: bool,
    pub begin: u64,
    pub end: u64,
    /// The size reported, or the error of the open.
    pub opened: Result<u64, i32>,
    pub reads: Vec<ReadSeen>,
    /// Whether the reader changed its directory after it had opened by a relative path.
    pub moved: bool,
    /// The version that the library says it has opened.
    pub version: String,
}

/// What was found under a name when nobody else wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub ino: u64,
    pub parts: Vec<Part>,
}

/// One line of an actor's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    Begin {
        at: u64,
        op: Op,
    },
    /// It has been done; the inodes of its paths afterwards.
    Done {
        at: u64,
        inos: Vec<u64>,
    },
    /// It failed in its middle, with this error; what is left is observed next.
    Failed {
        at: u64,
        errno: i32,
    },
    /// What is left of a change that was interrupted.
    Observed {
        at: u64,
        path: PathId,
        found: Option<Found>,
    },
    Handle(HandleSeen),
    /// An appender is about to append this record, and has done so.
    AppendBegin {
        at: u64,
        file: u32,
        appender: u32,
        number: u32,
    },
    AppendDone {
        at: u64,
        file: u32,
        appender: u32,
        number: u32,
    },
    /// An appended file as a reader saw it: the records that were in it, by appender.
    AppendSeen {
        begin: u64,
        file: u32,
        node: u32,
        kind: Kind,
        tiered: bool,
        counts: Vec<(u32, u32)>,
        broken: Option<String>,
    },
}

/// An actor's log.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Log(File::options().create(true).append(true).open(path)?))
    }

    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        let body = postcard::to_allocvec(record).map_err(io::Error::other)?;
        let mut line = (body.len() as u32).to_le_bytes().to_vec();
        line.extend_from_slice(&body);
        self.0.write_all(&line)
    }
}

/// All whole records of a log; an actor that was killed may have left a part of one at the end.
pub fn read_log(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut rest = &bytes[..];
    let mut records = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*head) as usize;
        let Some((body, after)) = tail.split_at_checked(len) else { break };
        records.push(postcard::from_bytes(body).map_err(io::Error::other)?);
        rest = after;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_ends_in_mid_record_has_all_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(read_log(&path).unwrap(), []);
        let mut log = Log::open(&path).unwrap();
        let first = Record::Begin { at: 1, op: Op::Truncate { path: 3, size: 77 } };
        log.add(&first).unwrap();
        log.add(&Record::Done { at: 2, inos: vec![5] }).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read_log(&path).unwrap(), [first]);
    }

    #[test]
    fn a_change_passes_through_its_states() {
        let mut before = State::default();
        before.put(0, 100, 1);
        let sizes = |op: Op| op.states(&before).iter().map(State::size).collect::<Vec<_>>();
        assert_eq!(sizes(Op::Regrow { path: 0, low: 10, high: 200 }), [10, 200]);
        assert!(sizes(Op::Chmod { path: 0 }).is_empty());
        assert_eq!(sizes(Op::Append { path: 0, write: 2, start: 100, end: 150, how: How::Plain(10) }), [150]);
    }
}
