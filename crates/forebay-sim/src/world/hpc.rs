//! I/O phases of HPC jobs on the file system.
//!
//! Each process has one piece in transit, and sends the next when that has arrived. Pieces go to
//! the servers in turn. So a phase with the servers to itself takes as long as they need for its
//! bytes, and beside others it waits in the servers' queues like all requests.

use forebay_model::rng::Rng;
use forebay_policy::drain;
use forebay_policy::machine::Nanos;
use forebay_policy::phases;
use forebay_policy::stage::event::{Event, HpcUpdate};

use super::{Happening, Setup, Together};
use crate::colocate::observer::{EARLIER, REPORT_NS, Updates, opens};
use crate::colocate::{HpcOutcome, HpcSpec, PhaseOutcome};
use crate::queue::EventQueue;

/// Number of the first stream of random numbers of HPC jobs; the other parts of the world have
/// lower ones.
const DRAWS: u64 = 1 << 40;

/// An HPC job.
pub struct Hpc {
    rng: Rng,
    begun: u32,
    phase: Option<Phase>,
    pub done: HpcOutcome,
}

/// A phase in progress.
struct Phase {
    outcome: PhaseOutcome,
    bytes: u64,
    sent: u64,
    there: u64,
    /// The server of the next piece, counted in turn.
    server: u64,
}

impl Hpc {
    /// A job that has not begun.
    pub fn new(setup: &Setup, number: usize) -> Self {
        let name = setup.hpc[number].name.clone();
        let rng = Rng::new(setup.seed).fork(DRAWS + number as u64);
        Hpc { rng, begun: 0, phase: None, done: HpcOutcome { name, phases: Vec::new() } }
    }
}

impl Together<'_> {
    /// How long a phase takes that has the servers to itself.
    fn alone_ns(&self, spec: &HpcSpec, bytes: u64) -> u64 {
        let piece_bytes = self.setup.cluster.write_bytes;
        let beside = u64::from(spec.processes).min(self.cluster.pfs.servers());
        let (pieces, rest) = (bytes / piece_bytes, bytes % piece_bytes);
        let rounds = pieces / beside;
        // In the last round, a whole piece takes longest, if there is one.
        let last_bytes = if pieces.is_multiple_of(beside) { rest } else { piece_bytes };
        let pfs = &self.cluster.pfs;
        rounds.saturating_mul(pfs.serve_ns(piece_bytes)).saturating_add(pfs.serve_ns(last_bytes))
    }

    fn report_hpc(&mut self, now: Nanos, h: usize, update: HpcUpdate, queue: &mut EventQueue<Happening>) {
        self.cluster.notify(now, Event::Hpc { hpc: h as u32, update }, queue);
    }

    /// Reports an event to the observer, and what that makes of it to the machine.
    fn observe(&mut self, now: Nanos, event: phases::Event, queue: &mut EventQueue<Happening>) {
        let updates = self.observer.handle(now, event, self.record);
        self.observed(now, updates, queue);
    }

    pub fn observed(&mut self, now: Nanos, updates: Updates, queue: &mut EventQueue<Happening>) {
        updates.into_iter().for_each(|(h, update)| self.report_hpc(now, h, update, queue));
        self.observer.arm(queue, Happening::ObserverWakes);
    }

    /// Reports to the observer what nodes have read beside phases since the last time.
    fn report_read(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        let updates = self.observer.read(now, self.cluster.read_bytes(), self.record);
        self.observed(now, updates, queue);
    }

    /// Reports to the observer how much of the phase of job `h` servers have.
    fn report_phase(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let Some(bytes) = self.hpc[h].phase.as_ref().map(|phase| phase.there) else { return };
        self.report_read(now, queue);
        self.observe(now, phases::Event::Progress { job: h as u64, bytes }, queue);
    }

    pub fn phase_reports(&mut self, now: Nanos, h: usize, number: u32, queue: &mut EventQueue<Happening>) {
        if self.hpc[h].begun == number && self.hpc[h].phase.is_some() {
            self.report_phase(now, h, queue);
            queue.after(REPORT_NS, Happening::PhaseReports(h, number));
        }
    }

    /// Reports to the drain whether any phase is in progress.
    fn hold_drain(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        let on = self.hpc.iter().any(|hpc| hpc.phase.is_some());
        if let Some(buffers) = &mut self.buffers {
            buffers.notify_drain(now, drain::Event::Hold { on, own: None }, queue);
        }
    }

    pub fn hpc_starts(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.hpc[h];
        let first = spec.arrivals.first(now, spec.io_first, spec.compute_ns, &mut self.hpc[h].rng);
        let alone = |io_ns: u64| {
            let bytes = self.setup.phase_bytes(io_ns);
            (self.alone_ns(spec, bytes), bytes)
        };
        let joins = spec.joins(first.saturating_since(now), |io_ns| alone(io_ns).0);
        let mut rng = Rng::new(self.setup.seed).fork(DRAWS + EARLIER + h as u64);
        let opens = joins.is_none().then(|| opens(h, spec, &mut rng, alone));
        queue.at(first, Happening::PhaseBegins(h));
        self.cluster.others_busy += spec.busy();
        joins.into_iter().for_each(|joins| self.report_hpc(now, h, joins, queue));
        opens.into_iter().for_each(|opens| self.observe(now, opens, queue));
    }

    pub fn phase_begins(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.hpc[h];
        let bytes = self.setup.phase_bytes(spec.io_of(self.hpc[h].begun));
        let alone_ns = self.alone_ns(spec, bytes);
        let deadline_ns = (now + (alone_ns as f64 * (1.0 + spec.allowance)) as u64).0;
        let outcome = PhaseOutcome { begin_ns: now.0, end_ns: now.0, alone_ns, deadline_ns };
        // Not all jobs begin with the same server.
        let server = h as u64;
        self.hpc[h].begun += 1;
        self.hpc[h].phase = Some(Phase { outcome, bytes, sent: 0, there: 0, server });
        if spec.knowledge.is_predicted() {
            self.report_read(now, queue);
            let begins = phases::Event::Begins { job: h as u64, bytes, deadline_ns: 0 };
            self.observe(now, begins, queue);
            queue.after(REPORT_NS, Happening::PhaseReports(h, self.hpc[h].begun));
        } else {
            self.report_hpc(now, h, HpcUpdate::PhaseBegins { alone_ns }, queue);
        }
        self.hold_drain(now, queue);
        for _ in 0..spec.processes {
            if !self.send_piece(now, h, queue) {
                break;
            }
        }
    }

    /// A process sends its next piece, if there is one.
    fn send_piece(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) -> bool {
        let Some(phase) = &mut self.hpc[h].phase else { return false };
        let bytes = self.setup.cluster.write_bytes.min(phase.bytes - phase.sent);
        if bytes == 0 {
            return false;
        }
        phase.sent += bytes;
        let there_at = self.cluster.pfs.write_to(now, phase.server, bytes);
        phase.server += 1;
        queue.at(there_at, Happening::Piece(h));
        true
    }

    /// A piece has arrived. Only the last piece of a phase may be shorter than others, so it does
    /// not matter which one it is.
    pub fn piece_there(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let Some(phase) = &mut self.hpc[h].phase else { return };
        let there = (phase.there + self.setup.cluster.write_bytes).min(phase.sent);
        self.phase_bytes += there - phase.there;
        phase.there = there;
        if phase.there == phase.bytes {
            self.phase_ends(now, h, queue);
        } else {
            self.send_piece(now, h, queue);
        }
    }

    fn phase_ends(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let is_predicted = self.setup.hpc[h].knowledge.is_predicted();
        if is_predicted {
            self.report_phase(now, h, queue);
        }
        let Some(Phase { mut outcome, .. }) = self.hpc[h].phase.take() else { return };
        outcome.end_ns = now.0;
        self.hpc[h].done.phases.push(outcome);
        self.note_phase(now, h, &outcome);
        match is_predicted {
            true => self.observe(now, phases::Event::Ends(h as u64), queue),
            false => self.report_hpc(now, h, HpcUpdate::PhaseEnds, queue),
        }
        self.hold_drain(now, queue);
        let (spec, hpc) = (&self.setup.hpc[h], &mut self.hpc[h]);
        if hpc.begun < spec.phases {
            let at = spec.arrivals.next(now, hpc.begun, spec.compute_ns, &mut hpc.rng);
            queue.at(at, Happening::PhaseBegins(h));
            let alone_ns = |io_ns| self.alone_ns(spec, self.setup.phase_bytes(io_ns));
            let expects = spec.expects(self.hpc[h].begun, at.saturating_since(now), alone_ns);
            expects.into_iter().for_each(|expects| self.report_hpc(now, h, expects, queue));
        } else {
            self.cluster.others_busy -= spec.busy();
            match is_predicted {
                true => self.observe(now, phases::Event::Closes(h as u64), queue),
                false => self.report_hpc(now, h, HpcUpdate::Leaves, queue),
            }
        }
    }
}
