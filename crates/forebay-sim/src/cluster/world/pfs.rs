//! The servers of the file system, and what its client on a node reads ahead of a reader.
//!
//! A server sends what it was asked for in that order, at the speed of its link. So when a request
//! will have come is known when it is made.
//!
//! A client reads ahead as Linux does for whoever reads on (`mm/readahead.c`): in windows, of which
//! the next is requested when the reader comes to one that was read ahead, or when the first has
//! come. So a reader has two windows under way, and computes meanwhile. Clients with a cache of
//! their own do the same with larger windows. Here none is requested beyond the reader's range.

use std::collections::VecDeque;

use forebay_policy::machine::Nanos;

use crate::cluster::Setup;

/// What servers are at.
pub struct Pfs<'a> {
    setup: &'a Setup,
    /// The server of each stripe of each file of each job.
    servers_of: Vec<Vec<Vec<u32>>>,
    free_at: Vec<Nanos>,
    /// Bytes that servers were asked for.
    pub served_bytes: u64,
    /// Bytes that servers were sent.
    pub written_bytes: u64,
}

/// Who reads a range of a file in sequence.
#[derive(Debug, Default)]
pub(super) struct Reader {
    job: usize,
    file: u32,
    /// It has taken all up to here.
    at: u64,
    /// It was requested up to here; of all up to there.
    requested: u64,
    end: u64,
    window_bytes: u64,
    /// Requested, and not taken.
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
        Pfs { setup, servers_of, free_at, served_bytes: 0, written_bytes: 0 }
    }

    /// The servers of the stripes of each file of a job.
    pub fn layouts(&self, job: usize) -> &[Vec<u32>] {
        &self.servers_of[job]
    }

    /// Bytes of what the jobs read on the server that has most of them.
    pub fn busiest_bytes(&self) -> u64 {
        let mut bytes = vec![0; self.free_at.len()];
        for (spec, files) in self.setup.jobs.iter().zip(&self.servers_of) {
            for (file, servers) in (0..).zip(files) {
                for (stripe, server) in servers.iter().enumerate() {
                    let left = spec.bytes_of(file).saturating_sub(stripe as u64 * self.setup.stripe_bytes);
                    bytes[*server as usize] += left.min(self.setup.stripe_bytes);
                }
            }
        }
        bytes.into_iter().max().unwrap_or(0)
    }

    /// Requests a range of a file; when all of it will be there.
    fn request(&mut self, now: Nanos, job: usize, file: u32, range: (u64, u64)) -> Nanos {
        let (mut at, end) = range;
        let mut there_at = now;
        self.served_bytes += end - at;
        while at < end {
            let stripe = at / self.setup.stripe_bytes;
            let next = (stripe + 1).saturating_mul(self.setup.stripe_bytes).min(end);
            let server = self.servers_of[job][file as usize][stripe as usize] as usize;
            there_at = there_at.max(self.serve(now, server, next - at));
            at = next;
        }
        there_at
    }

    /// A server is asked for, or sent, so many bytes; when it is done.
    fn serve(&mut self, now: Nanos, server: usize, bytes: u64) -> Nanos {
        self.free_at[server] = self.free_at[server].max(now) + self.serve_ns(bytes);
        self.free_at[server]
    }

    /// How long a server takes for so many bytes.
    pub fn serve_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.setup.server_bytes_per_s * 1e9) as u64
    }

    /// Servers.
    pub fn servers(&self) -> u64 {
        self.free_at.len() as u64
    }

    /// Sends one server so many bytes; when it has them. Servers are counted in turn.
    pub fn write_to(&mut self, now: Nanos, server: u64, bytes: u64) -> Nanos {
        self.written_bytes += bytes;
        self.serve(now, (server % self.servers()) as usize, bytes)
    }

    /// Sends a range of a file whose stripes lie in turn on servers from `first` on; when all of it
    /// is there.
    pub fn write(&mut self, now: Nanos, first: u64, range: (u64, u64)) -> Nanos {
        let (mut at, end) = range;
        let mut there_at = now;
        while at < end {
            let stripe = at / self.setup.stripe_bytes;
            let next = (stripe + 1).saturating_mul(self.setup.stripe_bytes).min(end);
            there_at = there_at.max(self.write_to(now, first.wrapping_add(stripe), next - at));
            at = next;
        }
        there_at
    }
}

impl Reader {
    /// Opens a range of a file of a job, of which it has `window_bytes` requested at a time.
    pub fn new((job, file): (usize, u32), (from, end): (u64, u64), window_bytes: u64) -> Self {
        Reader { job, file, at: from, requested: from, end, window_bytes, windows: VecDeque::new() }
    }

    /// Has the next window requested, unless two are; when it will be there.
    pub fn request(&mut self, now: Nanos, pfs: &mut Pfs<'_>) -> Option<Nanos> {
        if self.windows.len() > 1 || self.requested == self.end {
            return None;
        }
        let next = self.requested.saturating_add(self.window_bytes).min(self.end);
        let there_at = pfs.request(now, self.job, self.file, (self.requested, next));
        self.windows.push_back(Window { bytes: next - self.requested, there_at });
        self.requested = next;
        Some(there_at)
    }

    /// Bytes of the window to which it has come, if they are there.
    pub fn there(&self, now: Nanos) -> Option<u64> {
        self.windows.front().filter(|window| window.there_at <= now).map(|window| window.bytes)
    }

    /// When each window that it has not taken has come, or will.
    pub fn come_at(&self) -> impl Iterator<Item = Nanos> {
        self.windows.iter().map(|window| window.there_at)
    }

    /// Up to where it has taken all.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// It has taken that window.
    pub fn take(&mut self) {
        self.at += self.windows.pop_front().map_or(0, |window| window.bytes);
    }

    /// All was taken.
    pub fn is_done(&self) -> bool {
        self.windows.is_empty() && self.requested == self.end
    }
}
