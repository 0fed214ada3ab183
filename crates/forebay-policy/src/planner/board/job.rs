//! A Big Data job on the board: its waves, and how much of each is in the tier.
//!
//! Waves compute in ascending order but may be fetched in any: a planner may leave the next wave
//! for the tasks to read themselves and fetch a later one meanwhile. So each wave from the one in
//! compute on has its own account, kept only once a part of it was fetched.

use alloc::collections::BTreeMap;

use forebay_model::profile::Strain;

/// A Big Data job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of waves.
    pub waves: u32,
    /// Bytes in a wave.
    pub wave_bytes: u64,
    /// Compute of a wave, reading it from the tier included, in ns.
    pub compute_ns: u64,
    /// Reading a whole wave from the tier, in ns.
    pub tier_read_ns: u64,
    /// Waves whose compute has begun.
    pub started: u32,
    /// When the compute under way ends, in ns; `None` if the job waits.
    pub computing_until: Option<crate::machine::Nanos>,
    /// The fetch under way.
    pub fetch: Option<Fetch>,
    /// Waves of which a part was fetched and whose compute is not over.
    pub(super) parts: BTreeMap<u32, Part>,
}

/// How much of a wave has been fetched.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Bytes left by the model; below zero if fetching takes longer than by the model.
    pub left_bytes: f64,
    /// Bytes fetched before the wave was planned.
    pub ahead_bytes: f64,
    /// Bytes that tasks have read from the PFS themselves, by the model.
    pub direct_bytes: f64,
    /// Whether a part of it is in the tier; a wave that is only read directly takes no memory.
    pub in_tier: bool,
    /// Whether a part of it was lost with a node and is still missing.
    pub damaged: bool,
    /// Whether all of it has been fetched.
    pub there: bool,
}

/// A fetch under way.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    /// Which wave.
    pub wave: u32,
    /// The strain of its current setting.
    pub strain: Strain,
    /// Whether tasks read it themselves.
    pub direct: bool,
}

impl Part {
    /// Returns its bytes in the tier, of `wave_bytes` in all.
    pub fn tier_bytes(&self, wave_bytes: u64) -> f64 {
        if self.in_tier { wave_bytes as f64 - self.left_bytes.max(0.0) - self.direct_bytes } else { 0.0 }
    }
}

impl Job {
    /// Returns the number of waves whose compute is over.
    pub(super) fn finished(&self) -> u32 {
        if self.computing_until.is_some() { self.started.saturating_sub(1) } else { self.started }
    }

    /// Returns its bytes in the tier: of the wave in compute, of those waiting for it, and of those
    /// fetched in part.
    pub fn tier_bytes(&self) -> f64 {
        self.parts.values().map(|p| p.tier_bytes(self.wave_bytes)).sum()
    }

    /// Returns the bytes that the fetch under way will still fetch into the tier.
    pub(super) fn coming_bytes(&self) -> f64 {
        let fetch = self.fetch.filter(|f| !f.direct);
        fetch.map_or(0.0, |f| self.part(f.wave).left_bytes.max(0.0))
    }

    /// Returns whether it has nothing to compute, so that its tasks wait for the next wave.
    pub fn waits(&self) -> bool {
        self.computing_until.is_none() && self.buffered() == 0
    }

    /// Returns whether all of `wave` has been fetched.
    pub fn is_there(&self, wave: u32) -> bool {
        self.parts.get(&wave).is_some_and(|p| p.there)
    }

    /// Returns the number of fetched waves that have not begun to compute, and that compute reaches
    /// without waiting.
    pub fn buffered(&self) -> u32 {
        self.first_missing() - self.started
    }

    /// Returns the first wave that has not begun to compute and is not all fetched.
    pub fn first_missing(&self) -> u32 {
        let mut wave = self.started;
        while self.is_there(wave) {
            wave += 1;
        }
        wave
    }

    /// Returns the state of `wave`.
    pub fn part(&self, wave: u32) -> Part {
        let untouched = Part {
            left_bytes: self.wave_bytes as f64,
            ahead_bytes: 0.0,
            direct_bytes: 0.0,
            in_tier: false,
            damaged: false,
            there: false,
        };
        self.parts.get(&wave).copied().unwrap_or(untouched)
    }

    /// Notes how `wave` is fetched from now on.
    pub(super) fn set_fetch(&mut self, wave: u32, strain: Strain, direct: bool) {
        let mut part = self.part(wave);
        part.in_tier |= !direct;
        self.parts.insert(wave, part);
        self.fetch = Some(Fetch { wave, strain, direct });
    }

    /// Advances the fetch under way by `bytes`.
    pub(super) fn advance(&mut self, bytes: f64) {
        let Some(fetch) = self.fetch else { return };
        if let Some(part) = self.parts.get_mut(&fetch.wave) {
            part.left_bytes -= bytes;
            part.direct_bytes += if fetch.direct { bytes } else { 0.0 };
        }
    }

    /// Corrects the fetch under way: it causes `excess` times the excess that the model had, and is
    /// and was `speed` times as fast.
    pub(super) fn correct_fetch(&mut self, excess: f64, speed: f64) {
        let Some(fetch) = self.fetch.as_mut() else { return };
        fetch.strain.i_hpc = 1.0 + excess * (fetch.strain.i_hpc - 1.0);
        fetch.strain.speed_bytes_per_s *= speed;
        if let Some(part) = self.parts.get_mut(&fetch.wave) {
            let planned = self.wave_bytes as f64 - part.ahead_bytes;
            part.left_bytes = planned - speed * (planned - part.left_bytes);
            part.direct_bytes *= speed;
        }
    }

    /// Notes that all of `wave` has been fetched. Returns how many of its bytes had come by the
    /// model.
    pub(super) fn fetched(&mut self, wave: u32) -> Option<f64> {
        let was_fetched = self.fetch.take_if(|f| f.wave == wave);
        let mut part = self.part(wave);
        let by_the_model = self.wave_bytes as f64 - part.ahead_bytes - part.left_bytes;
        part.there = true;
        part.damaged = false;
        part.left_bytes = 0.0;
        // A wave that was never announced as read directly is in the tier.
        part.in_tier |= was_fetched.is_none_or(|f| !f.direct);
        self.parts.insert(wave, part);
        was_fetched.map(|_| by_the_model)
    }

    /// Notes the bytes of each of these waves that were fetched before it was planned.
    pub(super) fn fetched_ahead(&mut self, waves: &[(u32, u64)]) {
        let under_way = self.fetch.map(|fetch| fetch.wave);
        for (wave, bytes) in
            waves.iter().filter(|(wave, _)| *wave >= self.started && Some(*wave) != under_way)
        {
            let (mut part, ahead_bytes) = (self.part(*wave), bytes.min(&self.wave_bytes));
            if !part.there {
                part.left_bytes -= *ahead_bytes as f64 - part.ahead_bytes;
                part.ahead_bytes = *ahead_bytes as f64;
                part.in_tier = true;
                self.parts.insert(*wave, part);
            }
        }
    }

    /// Notes the bytes of these waves that were lost with a node. The fetch under way stops.
    pub(super) fn lost(&mut self, waves: &[(u32, u64)]) {
        self.fetch = None;
        for (wave, bytes) in waves {
            if let Some(part) = self.parts.get_mut(wave) {
                part.left_bytes = part.left_bytes.max(0.0) + *bytes as f64;
                part.there &= *bytes == 0;
                part.damaged |= *bytes > 0;
            }
        }
    }

    /// Forgets every wave before `wave`, whose compute is over, which frees their memory.
    pub(super) fn forget_before(&mut self, wave: u32) {
        self.parts = self.parts.split_off(&wave);
    }
}
