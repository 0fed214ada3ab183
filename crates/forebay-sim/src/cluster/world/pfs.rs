//! The servers of the file system, and what its client on a node reads ahead of a reader.
//!
//! A server sends what was requested in that order, at the speed of its link. So when the data of a
//! request will have come is known when it is made. Where servers run tasks, a request takes the
//! disk as well, at the same time, and a request of a task on the server itself takes nothing but
//! the disk, at no more than the share that tasks may take of it.
//!
//! A client reads ahead for a sequential reader as Linux does (`mm/readahead.c`): in windows, of
//! which the next is requested when the reader comes to one that was read ahead, or when the first
//! has come. So a reader has two windows pending, and computes meanwhile. Clients with a cache of
//! their own do the same with larger windows. Here nothing is requested beyond the reader's range.

use std::collections::{BTreeMap, VecDeque};

use forebay_policy::machine::Nanos;

use crate::cluster::Setup;

/// State of the servers.
pub struct Pfs<'a> {
    setup: &'a Setup,
    /// The server of each stripe of each file of each job.
    servers_of: Vec<Vec<Vec<u32>>>,
    /// When the link of each server has sent all that it has to send,
    free_at: Vec<Nanos>,
    /// when its disk has,
    disk_free_at: Vec<Nanos>,
    /// and when its tasks have all that they requested, at their share of the disk.
    share_free_at: Vec<Nanos>,
    /// Bytes requested from servers.
    pub served_bytes: u64,
    /// Bytes that servers were sent.
    pub written_bytes: u64,
    /// Bytes that went over links.
    pub link_bytes: u64,
    /// Requests to disks, each of at most what a client reads ahead.
    pub disk_requests: u64,
}

/// The source or target of a read or write.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A file of a job's input.
    Input(usize, u32),
    /// A file on one server.
    On(usize),
    /// A file whose stripes are in turn on servers from this one on.
    From(u64),
    /// Parts of files, one after the other: the end of each, and its server.
    Parts(Vec<(u64, usize)>),
}

impl Default for Source {
    fn default() -> Self {
        Source::From(0)
    }
}

/// Queues `bytes` after what is queued already; returns when they are done.
fn take(free_at: &mut Nanos, now: Nanos, bytes: u64, bytes_per_s: f64) -> Nanos {
    *free_at = (*free_at).max(now) + (bytes as f64 / bytes_per_s * 1e9) as u64;
    *free_at
}

/// A sequential reader of a range of a file.
#[derive(Debug, Default)]
pub(super) struct Reader {
    source: Source,
    /// The server that it runs on, if it runs on one.
    on: Option<usize>,
    /// All before this has been taken.
    at: u64,
    /// The end of what was requested.
    requested: u64,
    /// The end of the range.
    end: u64,
    window_bytes: u64,
    /// Windows that are requested and not taken.
    windows: VecDeque<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    bytes: u64,
    there_at: Nanos,
}

impl<'a> Pfs<'a> {
    pub fn new(setup: &'a Setup) -> Self {
        let servers_of = (0..setup.jobs.len()).map(|job| setup.servers_of(job)).collect();
        let free_at = vec![Nanos(0); setup.servers as usize];
        Pfs {
            setup,
            servers_of,
            disk_free_at: free_at.clone(),
            share_free_at: free_at.clone(),
            free_at,
            served_bytes: 0,
            written_bytes: 0,
            link_bytes: 0,
            disk_requests: 0,
        }
    }

    /// The servers of the stripes of each file of a job.
    pub fn layouts(&self, job: usize) -> &[Vec<u32>] {
        &self.servers_of[job]
    }

    /// Bytes of a job's input on each server.
    pub fn bytes_on_servers(&self, job: usize) -> Vec<u64> {
        let (spec, mut bytes) = (&self.setup.jobs[job], vec![0; self.free_at.len()]);
        for (file, servers) in (0..).zip(&self.servers_of[job]) {
            for (stripe, server) in servers.iter().enumerate() {
                let left = spec.bytes_of(file).saturating_sub(stripe as u64 * self.setup.stripe_bytes);
                bytes[*server as usize] += left.min(self.setup.stripe_bytes);
            }
        }
        bytes
    }

    /// Bytes that the jobs read on the server that has most of them.
    pub fn busiest_bytes(&self) -> u64 {
        let jobs: Vec<Vec<u64>> = (0..self.servers_of.len()).map(|job| self.bytes_on_servers(job)).collect();
        let on = |server: usize| jobs.iter().map(|bytes| bytes[server]).sum();
        (0..self.free_at.len()).map(on).max().unwrap_or(0)
    }

    /// The server that has most of a range of a file, and how many bytes it has.
    pub fn server_with_most(&self, job: usize, (file, offset, len): (u32, u64, u64)) -> (usize, u64) {
        let source = Source::Input(job, file);
        let mut bytes = BTreeMap::new();
        for (server, part) in self.parts(&source, (offset, offset + len)) {
            *bytes.entry(server).or_default() += part;
        }
        // The first among servers with equal amounts.
        let most = |a: (usize, u64), b: (usize, u64)| if b.1 > a.1 { b } else { a };
        bytes.into_iter().fold((0, 0), most)
    }

    /// The server of the byte `at` of a source, and the end of its part there.
    fn part(&self, source: &Source, at: u64) -> (usize, u64) {
        let stripe = at / self.setup.stripe_bytes;
        let end = (stripe + 1).saturating_mul(self.setup.stripe_bytes);
        match source {
            Source::Input(job, file) => {
                (self.servers_of[*job][*file as usize][stripe as usize] as usize, end)
            }
            Source::On(server) => (*server, u64::MAX),
            Source::From(first) => ((first.wrapping_add(stripe) % self.servers()) as usize, end),
            Source::Parts(parts) => {
                let (end, server) = parts[parts.partition_point(|(end, _)| *end <= at)];
                (server, end)
            }
        }
    }

    /// The servers of a range of a source, and the bytes there.
    pub(super) fn parts(&self, source: &Source, (mut at, end): (u64, u64)) -> Vec<(usize, u64)> {
        let mut parts = Vec::new();
        while at < end {
            let (server, next) = self.part(source, at);
            parts.push((server, next.min(end) - at));
            at = next.min(end);
        }
        parts
    }

    /// Requests a range of a source for a task on a server or elsewhere; returns when all will be
    /// there.
    pub(super) fn read(
        &mut self,
        now: Nanos,
        source: &Source,
        range: (u64, u64),
        on: Option<usize>,
    ) -> Nanos {
        self.served_bytes += range.1 - range.0;
        self.serve_all(now, source, range, on)
    }

    /// Sends a range to its servers from a task on a server or elsewhere; returns when all is
    /// there.
    pub(super) fn write(
        &mut self,
        now: Nanos,
        source: &Source,
        range: (u64, u64),
        on: Option<usize>,
    ) -> Nanos {
        self.written_bytes += range.1 - range.0;
        self.serve_all(now, source, range, on)
    }

    fn serve_all(
        &mut self,
        now: Nanos,
        source: &Source,
        (mut at, end): (u64, u64),
        on: Option<usize>,
    ) -> Nanos {
        let mut there_at = now;
        while at < end {
            let (server, next) = self.part(source, at);
            there_at = there_at.max(self.serve(now, server, next.min(end) - at, on));
            at = next.min(end);
        }
        there_at
    }

    /// Sends bytes from a server that it does not have to read; returns when they are there.
    pub fn send(&mut self, now: Nanos, server: usize, bytes: u64) -> Nanos {
        self.link_bytes += bytes;
        take(&mut self.free_at[server], now, bytes, self.setup.server_bytes_per_s)
    }

    /// Requests `bytes` from a server, or sends them to it; returns when it is done.
    fn serve(&mut self, now: Nanos, server: usize, bytes: u64, on: Option<usize>) -> Nanos {
        let mut done_at = now;
        let is_local = on == Some(server);
        if let Some(shipping) = &self.setup.shipping {
            let disk = shipping.disk_bytes_per_s;
            self.disk_requests += bytes.div_ceil(self.setup.read_ahead_bytes);
            done_at = take(&mut self.disk_free_at[server], now, bytes, disk);
            if is_local {
                let share = shipping.io_share * disk;
                done_at = done_at.max(take(&mut self.share_free_at[server], now, bytes, share));
            }
        }
        if is_local { done_at } else { done_at.max(self.send(now, server, bytes)) }
    }

    /// How long a server takes for `bytes`.
    pub fn serve_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.setup.serves_bytes_per_s() * 1e9) as u64
    }

    /// Number of servers.
    pub fn servers(&self) -> u64 {
        self.free_at.len() as u64
    }

    /// Sends `bytes` to one server; returns when it has them. Servers are counted in turn.
    pub fn write_to(&mut self, now: Nanos, server: u64, bytes: u64) -> Nanos {
        let server = (server % self.servers()) as usize;
        self.write(now, &Source::On(server), (0, bytes), None)
    }

    /// Sends a range of a file whose stripes are in turn on servers from `first` on; returns when
    /// all of it is there.
    pub fn write_in_turn(&mut self, now: Nanos, first: u64, range: (u64, u64)) -> Nanos {
        self.write(now, &Source::From(first), range, None)
    }
}

impl Reader {
    /// Opens a range of a file of a job, for a reader that requests `window_bytes` at a time.
    pub fn new((job, file): (usize, u32), (at, end): (u64, u64), window_bytes: u64) -> Self {
        let source = Source::Input(job, file);
        Reader { source, on: None, at, requested: at, end, window_bytes, windows: VecDeque::new() }
    }

    /// Opens parts of files: the server and the bytes of each.
    pub fn of_parts(parts: &[(usize, u64)], window_bytes: u64) -> Self {
        let mut end = 0;
        let up_to = |&(server, bytes): &(usize, u64)| {
            end += bytes;
            (end, server)
        };
        let source = Source::Parts(parts.iter().map(up_to).collect());
        Reader { source, end, window_bytes, ..Reader::default() }
    }

    /// The same reader for a task on a server.
    pub fn on(self, on: Option<usize>) -> Self {
        Reader { on, ..self }
    }

    /// Bytes of its range.
    pub fn bytes(&self) -> u64 {
        self.end - self.at
    }

    /// Requests the next window, unless two are pending; returns when it will be there.
    pub fn request(&mut self, now: Nanos, pfs: &mut Pfs<'_>) -> Option<Nanos> {
        if self.windows.len() > 1 || self.requested == self.end {
            return None;
        }
        let next = self.requested.saturating_add(self.window_bytes).min(self.end);
        let there_at = pfs.read(now, &self.source, (self.requested, next), self.on);
        self.windows.push_back(Window { bytes: next - self.requested, there_at });
        self.requested = next;
        Some(there_at)
    }

    /// Bytes of the next window, if they are there.
    pub fn there(&self, now: Nanos) -> Option<u64> {
        self.windows.front().filter(|window| window.there_at <= now).map(|window| window.bytes)
    }

    /// When each window that it has not taken has come, or will.
    pub fn come_at(&self) -> impl Iterator<Item = Nanos> {
        self.windows.iter().map(|window| window.there_at)
    }

    /// The position before which it has taken all.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Takes the next window.
    pub fn take(&mut self) {
        self.at += self.windows.pop_front().map_or(0, |window| window.bytes);
    }

    /// Returns whether all was taken.
    pub fn is_done(&self) -> bool {
        self.windows.is_empty() && self.requested == self.end
    }
}
