//! What the nodes of the tier have to fetch and hold, and what moves there.
//!
//! Each request of the machine is one node's part of a wave. All that is requested of a wave moves
//! as one flow, at the speed that the profile has for its setting, and each request gets its share:
//! what the papers measure are prefetches of whole waves.

use std::collections::BTreeMap;

use forebay_model::profile::{Setting, Strain};
use forebay_model::sharing;
use forebay_policy::machine::Nanos;
use forebay_policy::planner::ActionKind;
use forebay_policy::stage::event::{Event, Part, Progress, RequestId};

use super::Colocation;
use crate::colocate::outcome::FetchSpan;

/// A wave of a job, by the places of both.
pub type Of = (usize, u32);

/// Ids of fetches in the table of flows; phases have the index of their job.
const FETCH: u64 = 1 << 40;
/// Far more waves than a job may have.
const WAVES: u64 = 1 << 20;

fn flow((job, wave): Of) -> u64 {
    FETCH + job as u64 * WAVES + u64::from(wave)
}

/// The wave whose flow has this id; `None` if it is a phase.
pub fn fetched(id: u64) -> Option<Of> {
    let id = id.checked_sub(FETCH)?;
    Some(((id / WAVES) as usize, (id % WAVES) as u32))
}

/// A node's part of a wave.
pub struct Request {
    of: Of,
    node: String,
    parts: Vec<Part>,
    bytes: u64,
    resident_bytes: f64,
    /// Bytes that have not come.
    left: f64,
    /// `None` while it pauses.
    setting: Option<Setting>,
    is_done: bool,
}

/// What is being fetched of a wave.
#[derive(Clone, Copy)]
pub struct Fetch {
    strain: Strain,
    /// `None` if its tasks read it by themselves.
    setting: Option<Setting>,
    kind: ActionKind,
    since: u64,
    /// Bytes of the wave that were missing at the last look.
    left: f64,
    /// The most memory that the tier has had since it began.
    memory_bytes: u64,
}

/// All requests to nodes.
#[derive(Default)]
pub struct Tier {
    requests: BTreeMap<RequestId, Request>,
    moving: BTreeMap<Of, Fetch>,
    /// What is in the tier without a request, by wave and offset: the node and its bytes.
    unheld: BTreeMap<(Of, u64), (String, f64)>,
    spans: Vec<FetchSpan>,
    peak_bytes: u64,
    overbooked_bytes: u64,
    /// Bytes that were read from the file system, as far as they are booked.
    read_bytes: f64,
    speeds: Vec<f64>,
}

impl Tier {
    /// Every stretch in which something was fetched, the most bytes held at the same time, and the
    /// most beyond the memory.
    pub fn outcome(self) -> (Vec<FetchSpan>, u64, u64) {
        (self.spans, self.peak_bytes, self.overbooked_bytes)
    }
}

impl Colocation<'_> {
    /// Requests from a node its part of a wave; what it already has of that counts.
    pub fn asked(&mut self, id: RequestId, of: Of, node: String, parts: Vec<Part>, setting: Setting) {
        let mut resident_bytes = 0.0;
        for part in &parts {
            resident_bytes += self.tier.unheld.remove(&(of, part.offset)).map_or(0.0, |(_, bytes)| bytes);
        }
        let bytes: u64 = parts.iter().map(|part| part.len).sum();
        let left = bytes as f64 - resident_bytes;
        let request =
            Request { of, node, parts, bytes, resident_bytes, left, setting: Some(setting), is_done: false };
        assert!(self.tier.requests.insert(id, request).is_none(), "request {id} was made twice");
    }

    /// A request continues at another setting, or pauses.
    pub fn adjusted(&mut self, id: RequestId, setting: Option<Setting>) -> Option<Of> {
        let request = self.tier.requests.get_mut(&id)?;
        request.setting = setting;
        Some(request.of)
    }

    /// Nothing is held for the request any more; what has come of it may stay until there is no
    /// room.
    pub fn released(&mut self, now: Nanos, id: RequestId) -> Option<Of> {
        let of = self.tier.requests.get(&id)?.of;
        self.note_peak(now);
        self.book(now, of);
        let request = self.tier.requests.remove(&id)?;
        if of.1 >= self.jobs[of.0].started {
            let mut came = request.bytes as f64 - request.left;
            for part in &request.parts {
                let bytes = came.min(part.len as f64);
                came -= bytes;
                if bytes > 0.0 {
                    self.tier.unheld.insert((of, part.offset), (request.node.clone(), bytes));
                }
            }
        }
        Some(of)
    }

    /// Books what has come of a wave since the last time.
    fn book(&mut self, now: Nanos, of: Of) {
        let Some(fetch) = self.tier.moving.get_mut(&of) else { return };
        let left = self.flows.left(now, flow(of)).unwrap_or(0.0);
        let moved = (fetch.left - left).max(0.0);
        fetch.left = left;
        self.tier.read_bytes += moved;
        self.jobs[of.0].left[of.1 as usize] = left;
        if fetch.setting.is_none() {
            self.jobs[of.0].done.waves[of.1 as usize].direct_bytes += moved;
            return;
        }
        let mine = |r: &&mut Request| r.of == of && r.setting.is_some() && !r.is_done;
        let all: f64 = self.tier.requests.values_mut().filter(mine).map(|r| r.left).sum();
        if all > 0.0 {
            let rest = 1.0 - (moved / all).min(1.0);
            self.tier.requests.values_mut().filter(mine).for_each(|r| r.left *= rest);
        }
    }

    /// Ends the fetch of a wave, and books it.
    pub fn put_down(&mut self, now: Nanos, of: Of) {
        self.note_peak(now);
        self.book(now, of);
        let Some(fetch) = self.tier.moving.remove(&of) else { return };
        // A wave is complete when its end was announced, and not by rounding before.
        let left = self.flows.abort(now, flow(of)).map_or(0.0, |left| left.max(f64::MIN_POSITIVE));
        self.jobs[of.0].left[of.1 as usize] = left;
        if now.0 > fetch.since && fetch.strain.speed_bytes_per_s > 0.0 {
            let (job, wave) = of;
            let Fetch { since: from_ns, setting, kind, .. } = fetch;
            self.tier.spans.push(FetchSpan { job, wave, from_ns, to_ns: now.0, setting, kind });
        }
    }

    /// Renews the fetch of a wave: for its requests that do not pause, or by tasks that wait for it
    /// and may read by themselves.
    pub fn renew(&mut self, now: Nanos, of: Of) {
        let memory_bytes = self.memory_bytes();
        let before = self.tier.moving.get(&of).map_or(0, |fetch| fetch.memory_bytes);
        self.put_down(now, of);
        let mut requests = self.tier.requests.values().filter(|r| r.of == of && !r.is_done);
        let setting = requests.find_map(|r| r.setting);
        let job = &self.jobs[of.0];
        let reads = job.may_read.contains(&of.1) && job.waits_for(of.1);
        let strain = match setting {
            Some(setting) => self.true_strain(setting),
            None if reads => self.setup.true_direct.strain(),
            None => return,
        };
        let left = job.left[of.1 as usize];
        if setting.is_none() && left <= 0.0 {
            return;
        }
        let kind = self.kinds.get(&of).copied().unwrap_or(ActionKind::Search);
        self.flows.start(now, flow(of), left);
        let memory_bytes = memory_bytes.max(before);
        self.tier.moving.insert(of, Fetch { strain, setting, kind, since: now.0, left, memory_bytes });
    }

    /// A node that is down or up again changes the effect of the settings of fetches, and the
    /// memory.
    pub fn renew_all(&mut self, now: Nanos) {
        let moving: Vec<Of> = self.tier.moving.keys().copied().collect();
        moving.into_iter().for_each(|of| self.renew(now, of));
    }

    /// Bytes that were fetched for requests, and bytes without a request.
    fn tier_bytes(&self, now: Nanos) -> (f64, f64) {
        let came: f64 = self.tier.requests.values().map(|r| r.bytes as f64 - r.left).sum();
        let moving = self.tier.moving.iter().filter(|(_, fetch)| fetch.setting.is_some());
        let moved = moving.map(|(of, f)| f.left - self.flows.left(now, flow(*of)).unwrap_or(0.0));
        (came + moved.sum::<f64>(), self.tier.unheld.values().map(|(_, bytes)| bytes).sum())
    }

    /// Bytes that were read from the file system.
    pub fn read_bytes(&self, now: Nanos) -> f64 {
        let moving = self.tier.moving.iter();
        let moved = moving.map(|(of, f)| f.left - self.flows.left(now, flow(*of)).unwrap_or(0.0));
        self.tier.read_bytes + moved.map(|bytes| bytes.max(0.0)).sum::<f64>()
    }

    /// To be called before anything is freed. A fetch may not fetch more than the most memory since
    /// it began: it need not stop when memory shrinks. Bytes without a request give way to bytes
    /// with one.
    fn note_peak(&mut self, now: Nanos) {
        let (held, unheld) = self.tier_bytes(now);
        let memory = self.memory_bytes() as f64;
        let mut over = (held + unheld - memory).min(unheld);
        while over > 0.0
            && let Some(((of, _), (_, bytes))) = self.tier.unheld.pop_last()
        {
            over -= bytes;
            self.lacks(now, of, bytes);
        }
        self.tier.peak_bytes = self.tier.peak_bytes.max(held as u64);
        let fetches = |f: &&Fetch| f.setting.is_some() && now.0 > f.since;
        let most = self.tier.moving.values().filter(fetches).map(|f| f.memory_bytes).max();
        let over = most.map_or(0, |most| (held as u64).saturating_sub(most));
        self.tier.overbooked_bytes = self.tier.overbooked_bytes.max(over);
    }

    /// Bytes of a wave are gone from the tier.
    fn lacks(&mut self, now: Nanos, of: Of, bytes: f64) {
        self.book(now, of);
        self.jobs[of.0].left[of.1 as usize] += bytes;
        if let Some(fetch) = self.tier.moving.get_mut(&of) {
            fetch.left += bytes;
            self.flows.abort(now, flow(of));
            self.flows.start(now, flow(of), fetch.left);
        }
    }

    /// A node is gone, with its requests and what it held.
    pub fn lose(&mut self, now: Nanos, node: &str) {
        let moving: Vec<Of> = self.tier.moving.keys().copied().collect();
        moving.iter().for_each(|of| self.put_down(now, *of));
        let mut lost = Vec::new();
        self.tier.requests.retain(|_, request| {
            let is_there = request.node != node;
            if !is_there {
                lost.push((request.of, request.bytes as f64 - request.left));
            }
            is_there
        });
        self.tier.unheld.retain(|(of, _), (at, bytes)| {
            if at == node {
                lost.push((*of, *bytes));
            }
            at != node
        });
        for ((job, wave), bytes) in lost {
            let job = &mut self.jobs[job];
            if wave >= job.started {
                job.left[wave as usize] += bytes;
                job.done.lost_bytes += bytes;
            }
        }
        moving.into_iter().for_each(|of| self.renew(now, of));
    }

    /// Nodes report their progress with what tasks wait for.
    pub fn progress(&mut self, now: Nanos) -> Vec<Event> {
        let moving = self.tier.moving.keys().copied();
        let waited: Vec<Of> = moving.filter(|of| self.jobs[of.0].waits_for(of.1)).collect();
        let mut events = Vec::new();
        for of in waited {
            self.book(now, of);
            let requests = self.tier.requests.iter().filter(|(_, r)| r.of == of && !r.is_done);
            events.extend(requests.map(|(id, request)| request.report(*id, request.left, false)));
        }
        events
    }

    /// All of a wave is there: its nodes report it.
    pub fn complete(&mut self, now: Nanos, of: Of) -> Vec<Event> {
        self.put_down(now, of);
        self.jobs[of.0].left[of.1 as usize] = 0.0;
        let mine =
            self.tier.requests.iter_mut().filter(|(_, r)| r.of == of && r.setting.is_some() && !r.is_done);
        let events = mine.map(|(id, request)| {
            request.is_done = true;
            let read_directly = request.left;
            request.bytes -= read_directly.round() as u64;
            request.left = 0.0;
            request.report(*id, read_directly, true)
        });
        events.collect()
    }

    /// Renews every pace; called whenever a flow begins, ends or changes.
    pub fn set_paces(&mut self, now: Nanos) {
        let strains: Vec<Strain> = self.tier.moving.values().map(|fetch| fetch.strain).collect();
        let active = self.hpc.iter().filter(|h| h.phase.is_some()).count();
        let pfs = self.setup.planner.pfs_bytes_per_s;
        let excess = sharing::load(active, &strains, pfs, &mut self.tier.speeds);
        for (h, hpc) in self.hpc.iter().enumerate().filter(|(_, h)| h.phase.is_some()) {
            self.flows.set_pace(now, h as u64, hpc.share / (1.0 + excess));
        }
        for (of, speed) in self.tier.moving.keys().zip(&self.tier.speeds) {
            self.flows.set_pace(now, flow(*of), speed * 1e-9);
        }
    }
}

impl Request {
    /// Reports that `left` bytes have not come; if it is `done`, they will not come: tasks have
    /// read them by themselves.
    fn report(&self, request: RequestId, left: f64, done: bool) -> Event {
        let left_bytes = left.round() as u64;
        let resident_bytes = self.resident_bytes as u64;
        let all = if done { self.bytes + left_bytes } else { self.bytes };
        let progress = Progress {
            fetched_bytes: all.saturating_sub(resident_bytes + left_bytes),
            resident_bytes,
            failed_bytes: if done { left_bytes } else { 0 },
            done,
        };
        Event::Request { request, node: self.node.clone(), progress }
    }
}
