//! Faults on demand: what is to go wrong, for which operations, on which files, how often.
//!
//! A specification is text, because it travels through an extended attribute and a command line:
//!
//! ```text
//! SPEC   := "none" | FAULT { ";" FAULT }
//! FAULT  := OP "=" EFFECT { "," "path=" GLOB | "," "count=" N } | "latency=" DURATION { "," ... }
//! OP     := read | write | open | meta | sync | all
//! EFFECT := an errno name such as EIO  |  hang[:DURATION]  |  delay:DURATION
//! ```
//!
//! `meta` is everything on names and attributes, `sync` is fsync and the flush of a close,
//! `latency=D` is short for `all=delay:D`. A hang without a duration lasts until the specification
//! is replaced. A glob without a slash is matched against the file's name, one with a slash against
//! its path below the mount; `*` and `?` as in a shell, `*` does not cross a slash. The first fault
//! that fails or hangs an operation wins, delays add up.
//!
//! The decision is pure: it neither waits nor touches a file, so tests assert exact decisions.

use crate::quantity::parse_duration_ns;

/// The classes of operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reading a file's bytes.
    Read,
    /// Writing a file's bytes.
    Write,
    /// Opening a file, creating included.
    Open,
    /// Anything on names and attributes.
    Meta,
    /// fsync, and the flush at close.
    Sync,
}

/// What happens to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It fails with this errno and is not carried out.
    Errno(i32),
    /// It is held for this many nanoseconds (`u64::MAX`: until cleared) and then carried out.
    Hang(u64),
    /// It is carried out and answered this many nanoseconds later.
    Delay(u64),
}

/// One fault as specified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The operations concerned; `None`: all.
    pub op: Option<Op>,
    /// What happens.
    pub effect: Effect,
    /// Only files that match; `None`: all.
    pub path: Option<Vec<u8>>,
    /// How often it still strikes; `None`: no limit.
    pub remaining: Option<u64>,
}

/// What is to happen to one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decision {
    /// Fail with this errno.
    pub errno: Option<i32>,
    /// How long to hold it before anything else.
    pub hang_ns: Option<u64>,
    /// How much later to answer.
    pub delay_ns: u64,
}

impl Decision {
    /// Whether anything was injected.
    pub fn is_fault(&self) -> bool {
        *self != Self::default()
    }
}

/// The faults in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultSet {
    faults: Vec<Fault>,
}

impl FaultSet {
    /// Parses a specification as the module describes it.
    ///
    /// # Errors
    /// A sentence that names the part that was not understood.
    pub fn parse(spec: &str) -> Result<Self, String> {
        if spec.trim().is_empty() || spec.trim() == "none" {
            return Ok(Self::default());
        }
        let faults = spec.split(';').map(parse_fault).collect::<Result<_, _>>()?;
        Ok(Self { faults })
    }

    /// Whether no fault can strike any more.
    pub fn is_empty(&self) -> bool {
        self.faults.iter().all(|fault| fault.remaining == Some(0))
    }

    /// What happens to `op` on `path` (relative to the mount); uses up counts.
    pub fn decide(&mut self, op: Op, path: &[u8]) -> Decision {
        let mut decision = Decision::default();
        for fault in &mut self.faults {
            let ended = decision.errno.is_some() || decision.hang_ns.is_some();
            if ended && !matches!(fault.effect, Effect::Delay(_)) || !fault.applies(op, path) {
                continue;
            }
            fault.remaining = fault.remaining.map(|n| n - 1);
            match fault.effect {
                Effect::Errno(errno) => decision.errno = Some(errno),
                Effect::Hang(ns) => decision.hang_ns = Some(ns),
                Effect::Delay(ns) => decision.delay_ns = decision.delay_ns.saturating_add(ns),
            }
        }
        decision
    }
}

impl Fault {
    fn applies(&self, op: Op, path: &[u8]) -> bool {
        self.op.is_none_or(|own| own == op)
            && self.remaining != Some(0)
            && self.path.as_ref().is_none_or(|pattern| path_matches(pattern, path))
    }
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    let mut parts = text.split(',').map(str::trim);
    let head = parts.next().unwrap_or_default();
    let (key, value) = head
        .split_once('=')
        .ok_or_else(|| format!("fault `{head}` has no `=`; write for example read=EIO, or none"))?;
    let op = match key {
        "read" => Some(Op::Read),
        "write" => Some(Op::Write),
        "open" => Some(Op::Open),
        "meta" => Some(Op::Meta),
        "sync" => Some(Op::Sync),
        "all" | "latency" => None,
        _ => {
            return Err(format!("`{key}` in `{head}` is not read, write, open, meta, sync, all or latency"));
        }
    };
    let effect =
        if key == "latency" { Effect::Delay(parse_duration_ns(value)?) } else { parse_effect(value)? };
    let mut fault = Fault { op, effect, path: None, remaining: None };
    for part in parts {
        match part.split_once('=') {
            Some(("path", glob)) if !glob.is_empty() => fault.path = Some(glob.as_bytes().to_vec()),
            Some(("count", n)) => {
                fault.remaining = Some(n.parse().map_err(|_| format!("count `{n}` is not a whole number"))?);
            }
            _ => return Err(format!("`{part}` in `{text}` is neither path=GLOB nor count=N")),
        }
    }
    Ok(fault)
}

fn parse_effect(text: &str) -> Result<Effect, String> {
    if text == "hang" {
        return Ok(Effect::Hang(u64::MAX));
    }
    if let Some(duration) = text.strip_prefix("hang:") {
        return Ok(Effect::Hang(parse_duration_ns(duration)?));
    }
    if let Some(duration) = text.strip_prefix("delay:") {
        return Ok(Effect::Delay(parse_duration_ns(duration)?));
    }
    match ERRNOS.iter().find(|(name, _)| *name == text) {
        Some((_, errno)) => Ok(Effect::Errno(*errno)),
        None => {
            let names: Vec<_> = ERRNOS.iter().map(|(name, _)| *name).collect();
            Err(format!(
                "`{text}` is neither hang[:DURATION], delay:DURATION nor one of {}",
                names.join(", ")
            ))
        }
    }
}

/// Errors that a file system may return; programs would treat others as their own mistake.
const ERRNOS: &[(&str, i32)] = &[
    ("EIO", libc::EIO),
    ("ENOSPC", libc::ENOSPC),
    ("EDQUOT", libc::EDQUOT),
    ("EROFS", libc::EROFS),
    ("EACCES", libc::EACCES),
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("ESTALE", libc::ESTALE),
    ("EINTR", libc::EINTR),
    ("EAGAIN", libc::EAGAIN),
    ("EBUSY", libc::EBUSY),
    ("EFBIG", libc::EFBIG),
    ("ENOMEM", libc::ENOMEM),
    ("EMFILE", libc::EMFILE),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ENOTCONN", libc::ENOTCONN),
];

fn path_matches(pattern: &[u8], path: &[u8]) -> bool {
    if pattern.contains(&b'/') {
        return glob_matches(pattern.strip_prefix(b"/").unwrap_or(pattern), path);
    }
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    glob_matches(pattern, name)
}

/// `*` and `?` over bytes (names need not be UTF-8); linear space, backtracks to the last star
/// only.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b'?') if text[t] != b'/' => (p, t) = (p + 1, t + 1),
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((star_p, star_t)) if text[star_t] != b'/' => {
                    star = Some((star_p, star_t + 1));
                    (p, t) = (star_p + 1, star_t + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decide(spec: &str, op: Op, path: &str) -> Decision {
        FaultSet::parse(spec).unwrap().decide(op, path.as_bytes())
    }

    #[test]
    fn the_examples_of_the_guide() {
        assert_eq!(decide("read=EIO", Op::Read, "a").errno, Some(libc::EIO));
        assert_eq!(decide("read=EIO", Op::Write, "a"), Decision::default());
        assert_eq!(decide("write=ENOSPC", Op::Write, "a").errno, Some(libc::ENOSPC));
        assert_eq!(decide("read=hang:30s", Op::Read, "a").hang_ns, Some(30_000_000_000));
        assert_eq!(decide("read=hang", Op::Read, "a").hang_ns, Some(u64::MAX));
        assert_eq!(decide("latency=50ms", Op::Meta, "a").delay_ns, 50_000_000);
        assert_eq!(decide("latency=50ms;read=delay:1ms", Op::Read, "a").delay_ns, 51_000_000);
        assert!(FaultSet::parse("none").unwrap().is_empty());
        assert!(FaultSet::parse("").unwrap().is_empty());
    }

    #[test]
    fn counts_are_used_up() {
        let mut faults = FaultSet::parse("read=EIO,count=2,path=*.bin").unwrap();
        assert!(!faults.decide(Op::Read, b"dir/a.txt").is_fault());
        assert!(faults.decide(Op::Read, b"dir/a.bin").is_fault());
        assert!(!faults.is_empty());
        assert!(faults.decide(Op::Read, b"b.bin").is_fault());
        assert!(!faults.decide(Op::Read, b"b.bin").is_fault());
        assert!(faults.is_empty());
    }

    #[test]
    fn the_first_failure_wins_and_the_second_keeps_its_count() {
        let mut faults = FaultSet::parse("read=EIO,count=1; read=ESTALE,count=1").unwrap();
        assert_eq!(faults.decide(Op::Read, b"a").errno, Some(libc::EIO));
        assert_eq!(faults.decide(Op::Read, b"a").errno, Some(libc::ESTALE));
        assert!(faults.is_empty());
    }

    #[test]
    fn paths() {
        assert!(path_matches(b"*.bin", b"x/y.bin"));
        assert!(path_matches(b"x/*.bin", b"x/y.bin"));
        assert!(path_matches(b"/x/?.bin", b"x/y.bin"));
        assert!(!path_matches(b"x/*.bin", b"x/z/y.bin"), "a star stays within its directory");
        assert!(!path_matches(b"*.bin", b"y.binary"));
        assert!(path_matches(b"*", b"\xff\xfe\n"));
    }

    #[test]
    fn nonsense_is_named() {
        for (spec, named) in [
            ("read", "no `=`"),
            ("reed=EIO", "`reed`"),
            ("read=EWHAT", "`EWHAT`"),
            ("read=hang:soon", "`soon`"),
            ("read=EIO,count=x", "`x`"),
            ("read=EIO,foo=1", "`foo=1`"),
            ("read=EIO;", "no `=`"),
        ] {
            let error = FaultSet::parse(spec).unwrap_err();
            assert!(error.contains(named), "{spec}: {error}");
        }
    }

    /// The obvious exponential matcher, as the reference.
    fn slow_glob(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.first(), text.first()) {
            (None, None) => true,
            (Some(b'*'), _) => {
                slow_glob(&pattern[1..], text)
                    || text.first().is_some_and(|&b| b != b'/' && slow_glob(pattern, &text[1..]))
            }
            (Some(b'?'), Some(&b)) => b != b'/' && slow_glob(&pattern[1..], &text[1..]),
            (Some(p), Some(t)) => p == t && slow_glob(&pattern[1..], &text[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn glob_agrees_with_the_obvious_one(pattern in "[ab/*?]{0,8}", text in "[ab/]{0,8}") {
            prop_assert_eq!(
                glob_matches(pattern.as_bytes(), text.as_bytes()), slow_glob(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn parsing_never_panics(spec in "\\PC{0,60}") {
            let _ = FaultSet::parse(&spec);
        }
    }
}
