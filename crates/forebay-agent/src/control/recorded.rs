//! The machine that decides about the tier's capacity, and the log of what it hears and decides.

use crate::config::MemoryConfig;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::node::{Action, Config, Event, NodeMemory};
use forebay_trace::LAWS;
use forebay_trace::log::{FILE_BYTES_MAX, Files, Recorder};
use std::io;

/// The log of a memory controller.
const LOG: Files = Files { who: LAWS, prefix: "memory", bytes_max: FILE_BYTES_MAX };

/// See the module.
pub struct Recorded {
    config: Config,
    machine: NodeMemory,
    recorder: Recorder,
    /// Decided upon what was heard since [`Recorded::begin`].
    decided: Vec<Action>,
}

impl Recorded {
    /// A machine that has heard nothing.
    ///
    /// # Errors
    /// The log cannot be written, or no law has that name.
    pub fn new(config: &MemoryConfig) -> io::Result<Self> {
        let machine = Config {
            policy: config.policy.clone(),
            target: config.target,
            period_ns: config.period.as_nanos() as u64,
        };
        let recorder = match &config.decision_log {
            None => Recorder::off(),
            Some(dir) => Recorder::start(dir, LOG, &machine).map_err(|e| {
                let dir = dir.display();
                io::Error::new(
                    e.kind(),
                    format!("cannot record decisions in {dir} (memory.decision_log): {e}"),
                )
            })?,
        };
        let config = machine.clone();
        let machine = NodeMemory::new(machine).map_err(io::Error::other)?;
        Ok(Recorded { config, machine, recorder, decided: Vec::with_capacity(8) })
    }

    /// A look begins. If the log goes on in another file, it does so with new laws.
    pub fn begin(&mut self) {
        self.decided.clear();
        self.recorder.flush();
        if self.recorder.is_over()
            && let Ok(machine) = NodeMemory::new(self.config.clone())
        {
            if let Err(e) = self.recorder.begin(&self.config) {
                tracing::warn!("the decision log of the memory controller cannot go on: {e}");
            }
            self.machine = machine;
        }
    }

    /// The machine hears `event`.
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
