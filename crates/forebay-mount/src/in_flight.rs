//! Requests that are not answered yet, and the effect of signals to their callers.
//!
//! A program that is killed while it waits for the PFS must die, whatever the PFS does. Its request
//! is answered with `EINTR`, and the thread that works on it finishes alone. Of the calls that get
//! a signal that does not kill, only waits for locks end early. The kernel reports only the first
//! signal, and a program may be killed later, so requests whose callers got a signal are checked
//! until they are answered.

use crate::credentials::is_dying;
use crate::device::Device;
use crate::lock::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often callers that got a signal are checked.
const ROUND: Duration = Duration::from_millis(20);

/// A signal that has no other use here; its handler does nothing, but calls that wait end.
pub const KICK: i32 = libc::SIGURG;

/// Requests by their numbers.
#[derive(Debug, Default)]
pub struct InFlight {
    requests: Mutex<HashMap<u64, Work>>,
    signalled: Mutex<Vec<u64>>,
    news: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    caller: u32,
    /// None while it waits for its turn.
    thread: Option<i32>,
    waits_for_lock: bool,
    /// Its caller has died and has its answer; the thread still works on it.
    is_answered: bool,
}

impl InFlight {
    /// Notes that a request of `caller` was received; it may wait for its turn.
    pub fn receive(&self, unique: u64, caller: u32) {
        let work = Work { caller, thread: None, waits_for_lock: false, is_answered: false };
        lock(&self.requests).insert(unique, work);
    }

    /// Notes that this thread begins to work on a request of `caller`: true if it is not answered
    /// yet.
    pub fn begin(&self, unique: u64, caller: u32, waits_for_lock: bool) -> bool {
        thread_local! {
            static NUMBER: libc::pid_t = rustix::thread::gettid().as_raw_pid();
        }
        let thread = Some(NUMBER.with(|number| *number));
        let mut requests = lock(&self.requests);
        let is_answered = requests.get(&unique).is_some_and(|work| work.is_answered);
        match is_answered {
            true => requests.remove(&unique),
            false => requests.insert(unique, Work { caller, thread, waits_for_lock, is_answered }),
        };
        !is_answered
    }

    /// Notes that the thread has finished its work on the request: true if it is to answer.
    pub fn finish(&self, unique: u64) -> bool {
        lock(&self.requests).remove(&unique).is_some_and(|work| !work.is_answered)
    }

    /// Notes that the caller of this request got a signal. False if the request is not known: it is
    /// answered, or a thread has just got it.
    pub fn signalled(&self, unique: u64) -> bool {
        if !lock(&self.requests).contains_key(&unique) {
            return false;
        }
        lock(&self.signalled).push(unique);
        self.news.notify_one();
        true
    }

    /// Checks the callers that got signals, forever.
    pub fn look_after(&self, device: &Device) {
        loop {
            let mut signalled = lock(&self.signalled);
            while signalled.is_empty() {
                signalled = self.news.wait(signalled).unwrap_or_else(PoisonError::into_inner);
            }
            let mut list = std::mem::take(&mut *signalled);
            drop(signalled);
            list.retain(|unique| self.is_to_wait(*unique, device));
            lock(&self.signalled).append(&mut list);
            std::thread::sleep(ROUND);
        }
    }

    /// False once the thread has finished its work on the request.
    fn is_to_wait(&self, unique: u64, device: &Device) -> bool {
        let Some(work) = lock(&self.requests).get(&unique).copied() else { return false };
        let dies = work.is_answered || is_dying(work.caller);
        if !dies && !work.waits_for_lock {
            return true;
        }
        // The thread begins no other request meanwhile: a call of another program does not end by
        // this signal.
        let mut requests = lock(&self.requests);
        let Some(work) = requests.get_mut(&unique) else { return false };
        // Even when the request is answered: a signal that comes just before the call waits is
        // lost, so only the end of the work shows that one has arrived.
        if let Some(thread) = work.thread {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, KICK) };
        }
        if dies && !std::mem::replace(&mut work.is_answered, true) {
            drop(requests);
            device.answer(unique, Err(Errno::INTR));
        }
        true
    }
}

/// Installs the handler of [`KICK`].
pub fn install_kick() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing. Without SA_RESTART, calls that wait end.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(KICK, &raw const action, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// The first signal arrives before the call waits. A thread that nobody wakes again would
    /// keep its place and, if it waits for a lock, take the lock for a program that has died.
    #[test]
    fn a_thread_whose_caller_died_is_woken_until_it_has_finished() {
        install_kick();
        let requests = Arc::new(InFlight::default());
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let (device, watcher) = (Device::new(null.into()), requests.clone());
        std::thread::spawn(move || watcher.look_after(&device));
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let worker = requests.clone();
        let thread = std::thread::spawn(move || {
            assert!(worker.begin(1, u32::MAX, true));
            assert!(worker.signalled(1));
            let pause = rustix::fs::Timespec { tv_sec: 3600, tv_nsec: 0 };
            // Ends by the first signal.
            assert!(matches!(
                rustix::thread::nanosleep(&pause),
                rustix::thread::NanosleepRelativeResult::Interrupted(_)
            ));
            let waited = rustix::io::read(&read, &mut [0; 1]);
            (waited, worker.finish(1))
        });
        let (waited, is_to_answer) = thread.join().unwrap();
        assert_eq!(waited, Err(Errno::INTR));
        assert!(!is_to_answer, "the program has its answer");
    }
}
