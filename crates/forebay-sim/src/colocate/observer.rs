//! What planners hear of HPC jobs, and the board that observes those whose phases are predicted.
//!
//! A phase that begins is reported when it begins, whatever is known of the future. For jobs whose
//! phases are predicted the product decides what planners hear: the board of an agent
//! ([`forebay_policy::phases`]) learns lengths and periods from what the phases have moved. Nodes
//! obey planners immediately here, so the board's brake has nothing to add and is not modelled.

use forebay_model::rng::Rng;
use forebay_policy::machine::Nanos;
use forebay_policy::phases::bursts::Burst;
use forebay_policy::phases::{Action, Board, Config, Declared, Event};
use forebay_policy::stage::event::HpcUpdate;

use crate::colocate::HpcSpec;
use crate::colocate::knowledge::Knowledge;
use crate::driver::{Driver, Record};
use crate::queue::Agenda;

/// Name of the board in a trace.
pub const PHASES: &str = "phases";

/// Interval in ns at which a phase whose job is predicted reports its progress. Agents do so more
/// often; the board ends long phases that report nothing for 2 s.
pub const REPORT_NS: u64 = 1_000_000_000;

/// The board repeats its report to other nodes after a third of it. Here it has no other nodes.
const LEASE_NS: u64 = 3_600_000_000_000;

/// Number of the first stream of random numbers of earlier runs; those of jobs have lower ones.
pub const EARLIER: u64 = 1 << 32;

/// The board of the jobs whose phases are predicted.
pub struct Observer {
    board: Driver<Board>,
    /// Bytes that have been read from the file system, as last reported to the board.
    read_bytes: u64,
}

/// Reports to planners, each with the number of its job.
pub type Updates = Vec<(usize, HpcUpdate)>;

impl Observer {
    /// An observer that has observed nothing.
    pub fn new() -> Self {
        Observer { board: Driver::new(PHASES, board()), read_bytes: 0 }
    }

    /// Reports an event to the board.
    pub fn handle(&mut self, now: Nanos, event: Event, record: &Record<'_>) -> Updates {
        updates(self.board.handle(now, event, record))
    }

    /// Reports to the board what was read beside phases since the last time, given all that was
    /// ever read.
    pub fn read(&mut self, now: Nanos, read_bytes: u64, record: &Record<'_>) -> Updates {
        let bytes = read_bytes.saturating_sub(self.read_bytes);
        self.read_bytes += bytes;
        if bytes > 0 { self.handle(now, Event::Beside { bytes }, record) } else { Vec::new() }
    }

    /// As [`Driver::wake`].
    pub fn wake(&mut self, now: Nanos, record: &Record<'_>) -> Updates {
        updates(self.board.wake(now, record))
    }

    /// As [`Driver::arm`].
    pub fn arm<E>(&mut self, queue: &mut impl Agenda<E>, event: E) {
        self.board.arm(queue, event);
    }
}

impl Default for Observer {
    fn default() -> Self {
        Self::new()
    }
}

/// A board that knows nothing.
pub fn board() -> Board {
    Board::new(Config { lease_ns: LEASE_NS, ..Config::default() })
}

fn updates(actions: Vec<Action>) -> Updates {
    let reports = actions.into_iter().filter_map(|action| match action {
        Action::Report(job, reports) => Some((job as usize, reports.into())),
        Action::Brake(_) | Action::Spread | Action::CutOff { .. } => None,
    });
    reports.collect()
}

/// Job `h` joins the board: each job is of a user of its own. Each phase of an earlier run took
/// what it takes `alone`, and moved as many bytes, by its I/O time in the setup.
pub fn opens(h: usize, spec: &HpcSpec, rng: &mut Rng, alone: impl Fn(u64) -> (u64, u64)) -> Event {
    let count = if let Knowledge::Predicted { earlier } = spec.knowledge { earlier } else { 0 };
    let mut ended = Nanos(0);
    let mut earlier = |number: u32| {
        let start = spec.arrivals.next(ended, number, spec.compute_ns, rng);
        let (alone_ns, bytes) = alone(spec.io_of(number));
        ended = start + alone_ns;
        Burst { start_ns: start.0, end_ns: ended.0, bytes }
    };
    let declared = Declared {
        name: spec.name.clone(),
        user: h as u32,
        // Rounded down, except where rounding is the only difference.
        allowance_permille: (spec.allowance * 1000.0 + 1e-6) as u32,
        weight: spec.processes,
        earlier: (0..count).map(&mut earlier).collect(),
        ..Declared::default()
    };
    Event::Opens(h as u64, declared)
}

/// What planners hear of the phases to come. `alone_ns` returns what a phase takes alone, by its
/// I/O time in the setup.
impl HpcSpec {
    /// When the job begins, and its first phase `in_ns` later; nothing if phases are predicted.
    pub fn joins(&self, in_ns: u64, alone_ns: impl Fn(u64) -> u64) -> Option<HpcUpdate> {
        let (io_ns, first_in_ns) = match self.knowledge {
            Knowledge::Predicted { .. } => return None,
            // What a profile would say, not what was drawn.
            Knowledge::Declared => (self.io_ns, if self.io_first { 0 } else { self.compute_ns }),
            Knowledge::True => (self.io_of(0), in_ns),
        };
        Some(HpcUpdate::Joins {
            io_ns: alone_ns(io_ns),
            compute_ns: self.compute_ns,
            phases: self.phases,
            allowance: self.allowance,
            weight: self.processes,
            first_in_ns,
        })
    }

    /// Phase `begun` (from 0) is to begin in `in_ns`; nothing unless that is known.
    pub fn expects(&self, begun: u32, in_ns: u64, alone_ns: impl Fn(u64) -> u64) -> Option<HpcUpdate> {
        let (compute_ns, phases) = (self.compute_ns, self.phases - begun);
        let io_ns = alone_ns(self.io_of(begun));
        let is_known = self.knowledge == Knowledge::True;
        is_known.then_some(HpcUpdate::Expects { in_ns, io_ns, compute_ns, phases })
    }
}
