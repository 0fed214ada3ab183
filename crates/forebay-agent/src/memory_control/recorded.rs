//! The machine that decides about the tier's capacity, and the log of its inputs and decisions.

use crate::config::{GAIN, MemoryConfig, PERIOD};
use crate::decision_log;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::node::{Action, Config, Event, NodeMemory};
use forebay_trace::LAWS;
use forebay_trace::log_files::{FILE_BYTES_MAX, Files, Recorder};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The log of a memory controller. A new file costs the laws what they have learnt, so files are
/// long.
const LOG: Files = Files {
    who: LAWS,
    prefix: "memory",
    bytes_long: FILE_BYTES_MAX - FILE_BYTES_MAX / 16,
    bytes_max: FILE_BYTES_MAX,
};

/// See the module.
pub struct Recorded {
    config: Config,
    machine: NodeMemory,
    recorder: Recorder,
    /// Names of the places, by number.
    names: Vec<String>,
    /// Decided upon what was heard since [`Recorded::begin`].
    decided: Vec<Action>,
}

impl Recorded {
    /// A machine that has heard nothing. Its log is in a directory with the name of this host, as
    /// agents of many nodes may share a configuration and a file system.
    ///
    /// # Errors
    /// The log cannot be written, or no law has that name.
    pub fn new(config: &MemoryConfig, decision_log: Option<&Path>) -> io::Result<Self> {
        Recorded::with(config, decision_log, LOG)
    }

    fn with(config: &MemoryConfig, decision_log: Option<&Path>, files: Files) -> io::Result<Self> {
        let (policy, target) = (config.policy.clone(), config.target);
        let built_from = Config { policy, target, period_ns: PERIOD.as_nanos() as u64, gain: GAIN };
        let machine = NodeMemory::new(built_from.clone()).map_err(io::Error::other)?;
        let recorder = decision_log::start(decision_log, files, &built_from)?;
        let (names, decided) = (Vec::new(), Vec::with_capacity(8));
        Ok(Recorded { config: built_from, machine, recorder, names, decided })
    }

    /// Continues under another target. Its log continues in another file, as the target is part of
    /// its beginning.
    pub fn configure(&mut self, config: &MemoryConfig) {
        let built_from = Config { target: config.target, ..self.config.clone() };
        match NodeMemory::new(built_from.clone()) {
            Ok(machine) => (self.config, self.machine) = (built_from, machine),
            Err(e) => return tracing::error!("the memory controller goes on as before: {e}"),
        }
        if let Err(e) = self.recorder.begin(&self.config) {
            tracing::warn!("the memory controller records no more: {e}");
        }
    }

    /// Takes the places that there are now; all laws start over.
    pub fn moved(&mut self, now: Nanos, names: Vec<String>) {
        self.names = names;
        self.note_names(now);
        self.hear(now, Event::Moved);
    }

    /// Begins a look. If the log continues in another file, it does so with new laws.
    pub fn begin(&mut self, now: Nanos) {
        self.decided.clear();
        self.recorder.flush();
        if !self.recorder.is_over() {
            return;
        }
        match (self.recorder.begin(&self.config), NodeMemory::new(self.config.clone())) {
            (Ok(()), Ok(machine)) => {
                self.machine = machine;
                self.note_names(now);
            }
            (Err(e), _) => tracing::warn!("the decision log of the memory controller pauses: {e}"),
            (_, Err(e)) => tracing::warn!("{e}"),
        }
    }

    fn note_names(&mut self, now: Nanos) {
        let places: BTreeMap<usize, &String> = self.names.iter().enumerate().collect();
        self.recorder.note(now, &BTreeMap::from([("places", places)]));
    }

    /// Hands `event` to the machine.
    pub fn hear(&mut self, now: Nanos, event: Event) {
        let before = self.decided.len();
        self.machine.handle(now, event, &mut self.decided);
        if self.recorder.is_on() {
            let cause = self.recorder.event(now, &event);
            self.recorder.actions(now, cause, &self.decided[before..]);
        }
    }

    /// What it has decided since the look began.
    pub fn decided(&self) -> &[Action] {
        &self.decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decides again what a file has recorded; returns the number of actions.
    fn replay(path: &Path) -> usize {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let (mut machine, mut decided, mut count) = (None, Vec::new(), 0);
        for mut line in lines {
            if let Some(setup) = line.get_mut("setup") {
                machine = Some(NodeMemory::new(serde_json::from_value(setup.take()).unwrap()).unwrap());
            } else if line.get("event").is_some() {
                assert!(decided.is_empty(), "{decided:?} was not recorded");
                let at = Nanos(line["t_ns"].as_u64().unwrap());
                let event = serde_json::from_value(line["event"].take()).unwrap();
                machine.as_mut().unwrap().handle(at, event, &mut decided);
            } else if let Some(action) = line.get("action") {
                assert_eq!(*action, serde_json::to_value(decided.remove(0)).unwrap());
                count += 1;
            } else {
                assert_eq!(line["note"]["places"]["0"], "node");
            }
        }
        count
    }

    #[test]
    fn each_file_of_a_long_log_replays_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files { bytes_long: 8 << 10, bytes_max: 16 << 10, ..LOG };
        let mut recorded = Recorded::with(&MemoryConfig::default(), Some(dir.path()), files).unwrap();
        recorded.moved(Nanos(0), vec!["node".into()]);
        for i in 0..100 {
            let now = Nanos(i * 100_000_000);
            recorded.begin(now);
            let (max_bytes, used_bytes) = (1 << 30, (6 + i % 4) << 28);
            let look = Event::Look {
                min_bytes: 0,
                max_bytes,
                capacity_bytes: max_bytes,
                tier_bytes: 1 << 28,
                pressed: i % 7 == 0,
            };
            recorded.hear(now, look);
            let place = Event::Place {
                place: 0,
                total_bytes: 10 << 28,
                used_bytes,
                shared_bytes: used_bytes,
                alarm: forebay_policy::memory::Alarm::None,
            };
            recorded.hear(now, place);
            recorded.hear(now, Event::Decide);
        }
        drop(recorded);
        let host = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let mut files: Vec<_> = std::fs::read_dir(host).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let replayed: Vec<usize> = files.iter().map(|file| replay(file)).collect();
        // The last one may just have begun.
        assert!(replayed.len() == 4 && replayed[..3].iter().all(|n| *n > 10), "{replayed:?}");
    }
}
