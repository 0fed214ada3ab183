//! Waits for the kernel's events, and for calls of other threads.

use crate::memory::alarm::Alarm;
use crate::stop::Wake;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Events taken at a time; the others stay for the next wait.
const EVENTS: usize = 8;

const WAKE: u64 = 0;
const ALARM: u64 = 1;

/// See the module.
#[derive(Debug)]
pub struct Calls(OwnedFd);

impl Calls {
    /// Makes [`Calls::wait`] wait for `wake`.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(wake: &Wake) -> io::Result<Self> {
        let calls = Calls(epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&calls.0, wake.as_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(calls)
    }

    /// Makes [`Calls::wait`] wait for `alarm`, too, until that is dropped.
    ///
    /// # Errors
    /// Out of memory for watches.
    pub fn add(&self, alarm: &Alarm) -> io::Result<()> {
        let (fd, event) = alarm.source();
        Ok(epoll::add(&self.0, fd, EventData::new_u64(ALARM), event | EventFlags::ET)?)
    }

    /// Waits for `limit` at most; returns whether the kernel has reported something. Calls of
    /// `wake` are cleared.
    pub fn wait(&self, limit: Duration, wake: &Wake) -> bool {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(WAKE) };
        let mut events = [none; EVENTS];
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let came = epoll::wait(&self.0, &mut events, Some(&limit)).unwrap_or(0);
        let (called, reported) = events[..came].iter().fold((false, false), |(called, reported), event| {
            let is_call = event.data.u64() == WAKE;
            (called || is_call, reported || !is_call)
        });
        if called {
            wake.clear();
        }
        reported
    }
}
