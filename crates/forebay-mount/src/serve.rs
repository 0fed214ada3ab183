//! The threads that serve the kernel's requests.
//!
//! One thread always waits for the next request, so a PFS that is slow with one file does not delay
//! other requests. Users share the threads ([`crate::turns`]). Calls that wait for a lock have
//! their own threads, because the request that releases the lock must be served.

use crate::abi::{BATCH_FORGET, DESTROY, FORGET, INTERRUPT, InterruptIn, SETLKW};
use crate::caller::own_umask;
use crate::device::{Buffer, REQUEST_BYTES};
use crate::fs::{Fs, Out};
use crate::in_flight::{InFlight, install_kick};
use crate::request::Request;
use crate::shares::{Bound, Shares};
use crate::turns::{Queue, Turn, Turns};
use rustix::io::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Limit on calls that wait for a lock, each with its own thread.
const LOCK_WAITS: Bound = Bound { all: 1024, part: 2 };
/// Most threads that wait for requests. Others end, because each has up to 2 MiB of memory.
const IDLE_MAX: usize = 6;
const LOCK_STACK_BYTES: usize = 128 << 10;

/// The threads and what they share.
#[derive(Debug)]
struct Pool {
    fs: Arc<Fs>,
    in_flight: InFlight,
    turns: Turns,
    threads: AtomicUsize,
    idle: AtomicUsize,
    lock_waits: Shares,
    ended: Mutex<bool>,
    end: Condvar,
}

/// Serves a mounted file system until it is unmounted.
///
/// # Errors
/// No threads.
pub fn serve(fs: Arc<Fs>) -> io::Result<()> {
    install_kick();
    let pool = Arc::new(Pool {
        fs,
        in_flight: InFlight::default(),
        turns: Turns::default(),
        threads: AtomicUsize::new(0),
        idle: AtomicUsize::new(0),
        lock_waits: Shares::default(),
        ended: Mutex::new(false),
        end: Condvar::new(),
    });
    let watcher = pool.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || watcher.in_flight.look_after(&watcher.fs.device))?;
    Pool::start_thread(&pool)?;
    let mut ended = pool.ended.lock().unwrap_or_else(PoisonError::into_inner);
    while !*ended {
        ended = pool.end.wait(ended).unwrap_or_else(PoisonError::into_inner);
    }
    Ok(())
}

impl Pool {
    fn start_thread(pool: &Arc<Self>) -> io::Result<()> {
        pool.threads.fetch_add(1, Ordering::SeqCst);
        let own = pool.clone();
        let started = std::thread::Builder::new().name("requests".into()).spawn(move || {
            // Without memory for its buffers a thread ends, and the others continue.
            let result = own_umask().and_then(|()| Ok((Buffer::new(REQUEST_BYTES)?, Out::new()?)));
            let is_failure = result.is_ok_and(|buffers| Pool::work(&own, buffers).is_err());
            if own.threads.fetch_sub(1, Ordering::SeqCst) == 1 || is_failure {
                own.finish();
            }
        });
        if started.is_err() {
            pool.threads.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(drop)
    }

    fn finish(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
    }

    /// # Errors
    /// What the kernel returns for the read of the next request.
    fn work(pool: &Arc<Self>, (mut buffer, mut out): (Buffer, Out)) -> io::Result<()> {
        loop {
            if pool.idle.fetch_add(1, Ordering::SeqCst) >= IDLE_MAX {
                pool.idle.fetch_sub(1, Ordering::SeqCst);
                return Ok(());
            }
            let received = pool.fs.device.receive(buffer.request());
            let idle = pool.idle.fetch_sub(1, Ordering::SeqCst) - 1;
            let Some(bytes) = received? else {
                pool.finish();
                return Ok(());
            };
            // Without another thread, nobody would ask for requests while this one works.
            let is_last = idle == 0 && Pool::start_thread(pool).is_err();
            Pool::handle(pool, bytes, &mut out, is_last);
        }
    }

    fn handle(pool: &Arc<Self>, bytes: &[u8], out: &mut Out, is_last: bool) {
        let fs = &pool.fs;
        let Some(mut request) = Request::new(bytes) else { return };
        let unique = request.header.unique;
        match request.header.opcode {
            INTERRUPT => {
                let known =
                    request.arg::<InterruptIn>().is_ok_and(|arg| pool.in_flight.signalled(arg.unique));
                if !known {
                    // The kernel asks again, if the request is not answered meanwhile.
                    fs.device.answer(unique, Err(Errno::AGAIN));
                }
            }
            DESTROY => {
                fs.device.answer(unique, Ok(&[]));
            }
            SETLKW => Pool::wait_for_lock(pool, bytes.to_vec()),
            _ => pool.take_turns(bytes, out, is_last),
        }
    }

    /// Serves a request when it is its user's turn, and then requests that have waited for theirs.
    fn take_turns(&self, bytes: &[u8], out: &mut Out, is_last: bool) {
        let owner_of = |number| Some(self.fs.handles.get(number)?.owner);
        let (Some(request), Some(queue)) = (Request::new(bytes), Queue::of(bytes, owner_of)) else { return };
        let is_answered = !matches!(request.header.opcode, FORGET | BATCH_FORGET);
        if is_answered {
            self.in_flight.receive(request.header.unique, request.header.pid);
        }
        match self.turns.enter(queue, bytes, is_last) {
            Turn::Now => self.serve_one(request, out, false),
            Turn::Later => return,
            Turn::Never => {
                if is_answered && self.in_flight.finish(request.header.unique) {
                    self.fs.device.answer(request.header.unique, Err(Errno::NOMEM));
                }
                return;
            }
        }
        let mut served = queue;
        while let Some((queue, bytes)) = self.turns.next(served) {
            if let Some(request) = Request::new(&bytes) {
                self.serve_one(request, out, false);
            }
            served = queue;
        }
    }

    fn serve_one(&self, mut request: Request<'_>, out: &mut Out, waits_for_lock: bool) {
        let header = request.header;
        if matches!(header.opcode, FORGET | BATCH_FORGET) {
            // A request that cannot be parsed releases no node; this only costs memory.
            let _ = self.fs.forget(&mut request);
            return;
        }
        if !self.in_flight.begin(header.unique, header.pid, waits_for_lock) {
            return;
        }
        out.clear();
        let work = AssertUnwindSafe(|| self.fs.serve_request(&mut request, out));
        let done = catch_unwind(work).unwrap_or(Err(Errno::IO));
        let is_first = self.in_flight.finish(header.unique);
        let answer = done.map(|_| out.answer());
        let is_taken = is_first && self.fs.device.answer(header.unique, answer);
        if let (false, Ok(effect)) = (is_taken, done) {
            self.fs.undo(effect);
        }
    }

    fn wait_for_lock(pool: &Arc<Self>, bytes: Vec<u8>) {
        let Some(Request { header, .. }) = Request::new(&bytes) else { return };
        let refuse = || pool.fs.device.answer(header.unique, Err(Errno::NOLCK));
        let Some(place) = pool.lock_waits.take(header.uid, LOCK_WAITS) else {
            refuse();
            return;
        };
        let own = pool.clone();
        let wait = move || {
            if let (Some(request), Ok(mut out)) = (Request::new(&bytes), Out::new()) {
                own.serve_one(request, &mut out, true);
            }
            drop(place);
        };
        let builder = std::thread::Builder::new().name("lock".into()).stack_size(LOCK_STACK_BYTES);
        if builder.spawn(wait).is_err() {
            refuse();
        }
    }
}
