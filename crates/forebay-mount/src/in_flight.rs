//! Requests that are not answered yet, and the effect of signals to their callers.
//!
//! A program that is killed while it waits for the PFS must die, whatever the PFS does. Its request
//! is answered with `EINTR`, and the thread that works on it finishes alone. Of the calls that get
//! a signal that does not kill, only waits for locks end early. The kernel reports only the first
//! signal, and a program may be killed later, so requests whose callers got a signal are checked
//! until they are answered.

use crate::caller::is_dying;
use crate::device::Device;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
    thread: i32,
    waits_for_lock: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InFlight {
    /// This thread begins to work on a request of `caller`.
    pub fn begin(&self, unique: u64, caller: u32, waits_for_lock: bool) {
        // SAFETY: no pointers.
        let thread = unsafe { libc::gettid() };
        lock(&self.requests).insert(unique, Work { caller, thread, waits_for_lock });
    }

    /// The request is about to be answered: true for the first thread that reports this.
    pub fn claim(&self, unique: u64) -> bool {
        lock(&self.requests).remove(&unique).is_some()
    }

    /// The caller of this request got a signal. False if the request is not known: it is answered,
    /// or a thread has just got it.
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

    /// False once the request is answered.
    fn is_to_wait(&self, unique: u64, device: &Device) -> bool {
        let Some(work) = lock(&self.requests).get(&unique).copied() else { return false };
        let dies = is_dying(work.caller);
        if !dies && !work.waits_for_lock {
            return true;
        }
        {
            // The thread answers no request and begins no other one meanwhile: a call of another
            // program does not end by this signal.
            let requests = lock(&self.requests);
            if !requests.contains_key(&unique) {
                return false;
            }
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), work.thread, KICK) };
        }
        if dies && self.claim(unique) {
            device.answer(unique, Err(Errno::INTR));
        }
        !dies
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
