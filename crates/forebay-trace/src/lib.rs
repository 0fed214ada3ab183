//! Writes and reads the record of a run: the events of every machine, its actions, and their
//! effects.
//!
//! A trace has one JSON object in each line, so the usual tools can split, search and compare it.
//! The first line is the header: schema, version, kind of scenario, and everything that is needed
//! to build the same machines again. In the other lines `seq` counts lines, and `t_ns` is the
//! virtual (or, live, the monotonic) time:
//!
//! | key | meaning |
//! | --- | --- |
//! | `who`, `event` | machine `who` received `event`; `"deadline"` if only its timer expired |
//! | `who`, `action`, `cause` | it decided `action` in response to the event with `seq` = `cause` |
//! | `who`, `note` | the driver reports what no machine decided, such as the end of a phase |
//!
//! A run writes the same bytes every time: keys have a fixed order, numbers their shortest exact
//! form, and no line depends on the computer.

pub mod log_control;
pub mod log_files;

use std::io::{self, Write};

use forebay_policy::machine::Nanos;
use serde::Serialize;

/// Name of the format, in every header.
pub const SCHEMA: &str = "forebay.trace";
/// Version of the format; raised when a reader of the old one could misread a new trace.
pub const VERSION: u32 = 4;

/// Kind of a record of a live coordinator, and the name of its stage machine.
pub const STAGES: &str = "stages";

/// Kind of a record of a node's memory controller, and the name of its machine.
pub const LAWS: &str = "laws";

/// Kind of a record of what an agent fetches, and the name of its node machine.
pub const NODE: &str = "node";

/// Kind of a record of access to shared servers, and the name of its access machine.
pub const ACCESS: &str = "access";

/// First line of a trace. `setup` is what is needed to build the machines again.
#[derive(Serialize)]
struct Header<'a, S> {
    schema: &'static str,
    version: u32,
    kind: &'a str,
    setup: &'a S,
}

#[derive(Serialize)]
struct Line<'a, T> {
    seq: u64,
    t_ns: u64,
    who: &'a str,
    #[serde(flatten)]
    what: What<'a, T>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum What<'a, T> {
    Event { event: &'a T },
    Action { action: &'a T, cause: u64 },
    Note { note: &'a T },
}

/// Where the record goes, or nowhere.
pub struct Trace {
    out: Option<Box<dyn Write + Send>>,
    seq: u64,
    /// The line that is being written.
    line: Vec<u8>,
    bytes: u64,
    /// The first failure to write; reported once, at the end, rather than at every line.
    failure: Option<io::Error>,
}

impl Trace {
    /// A trace that records nothing, at the price of a branch.
    pub fn off() -> Self {
        Trace { out: None, seq: 0, line: Vec::new(), bytes: 0, failure: None }
    }

    /// A trace into `out`, starting with a header that holds the kind of the scenario and its
    /// `setup`.
    pub fn to(out: Box<dyn Write + Send>, kind: &str, setup: &impl Serialize) -> Self {
        let mut trace = Trace { out: Some(out), ..Trace::off() };
        trace.write(&Header { schema: SCHEMA, version: VERSION, kind, setup });
        trace
    }

    /// Returns whether anything is recorded; lets callers skip work that only a trace would see.
    pub fn is_on(&self) -> bool {
        self.out.is_some()
    }

    /// Records that machine `who` receives `event`; returns the line's number, the `cause` of what
    /// it then decides.
    pub fn event(&mut self, now: Nanos, who: &str, event: &impl Serialize) -> u64 {
        self.line(now, who, What::Event { event })
    }

    /// Records a decision of machine `who` upon the event with number `cause`.
    pub fn action(&mut self, now: Nanos, who: &str, cause: u64, action: &impl Serialize) -> u64 {
        self.line(now, who, What::Action { action, cause })
    }

    /// Records something that happened without a decision.
    pub fn note(&mut self, now: Nanos, who: &str, note: &impl Serialize) -> u64 {
        self.line(now, who, What::Note { note })
    }

    /// Returns the number of bytes recorded up to now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Passes on what was recorded. Fails from the first failure to write on: later lines are not
    /// recorded, since a record with a gap cannot be replayed.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(failure) = &self.failure {
            return Err(io::Error::new(failure.kind(), failure.to_string()));
        }
        self.out.as_mut().map_or(Ok(()), |out| out.flush())
    }

    /// Flushes, and reports the first failure to write, if there was one.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()
    }

    fn line<T: Serialize>(&mut self, now: Nanos, who: &str, what: What<'_, T>) -> u64 {
        self.seq += 1;
        if self.out.is_some() {
            self.write(&Line { seq: self.seq, t_ns: now.0, who, what });
        }
        self.seq
    }

    fn write(&mut self, value: &impl Serialize) {
        let Some(out) = self.out.as_mut() else { return };
        if self.failure.is_some() {
            return;
        }
        self.line.clear();
        let written = serde_json::to_writer(&mut self.line, value).map_err(io::Error::from);
        self.line.push(b'\n');
        self.bytes += self.line.len() as u64;
        if let Err(e) = written.and_then(|()| out.write_all(&self.line)) {
            self.failure = Some(e);
        }
    }
}

/// A buffer that can be read after the trace that writes to it is gone; for tests and for
/// `compare`.
#[derive(Clone, Default)]
pub struct SharedBuffer(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl SharedBuffer {
    /// Returns what was written up to now.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().map(|b| b.clone()).unwrap_or_default()
    }
}

impl Write for SharedBuffer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut bytes =
            self.0.lock().map_err(|_| io::Error::other("a writer of the trace buffer panicked"))?;
        bytes.extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_exactly_these() {
        let buffer = SharedBuffer::default();
        let mut t = Trace::to(Box::new(buffer.clone()), "kind", &"setup");
        let cause = t.event(Nanos(5), "planner/0", &("wave", 1));
        t.action(Nanos(5), "planner/0", cause, &("start", 0.5));
        t.note(Nanos(6), "pfs", &"idle");
        t.finish().expect("a buffer can be written");
        let want = concat!(
            "{\"schema\":\"forebay.trace\",\"version\":4,\"kind\":\"kind\",\"setup\":\"setup\"}\n",
            "{\"seq\":1,\"t_ns\":5,\"who\":\"planner/0\",\"event\":[\"wave\",1]}\n",
            "{\"seq\":2,\"t_ns\":5,\"who\":\"planner/0\",\"action\":[\"start\",0.5],\"cause\":1}\n",
            "{\"seq\":3,\"t_ns\":6,\"who\":\"pfs\",\"note\":\"idle\"}\n",
        );
        assert_eq!(String::from_utf8(buffer.bytes()).expect("JSON is UTF-8"), want);
    }

    #[test]
    fn a_full_disk_is_reported_once_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut t = Trace::to(Box::new(Full), "kind", &0);
        t.note(Nanos(0), "x", &1);
        assert_eq!(t.finish().map_err(|e| e.kind()), Err(io::ErrorKind::StorageFull));
    }
}
