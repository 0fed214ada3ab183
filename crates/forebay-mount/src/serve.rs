//! The threads that serve the kernel's requests.
//!
//! One thread always waits for the next request, up to the limit on threads, so a PFS that is slow
//! with one file does not delay other requests. A call that hangs in the PFS keeps its thread, also
//! after its program was killed, so the limit is far above what a working PFS needs. Calls that
//! wait for a lock have their own threads, because the request that releases the lock must be
//! served.

use crate::abi::{BATCH_FORGET, DESTROY, FORGET, INTERRUPT, InterruptIn, SETLKW};
use crate::caller::own_umask;
use crate::device::{Buffer, REQUEST_BYTES};
use crate::fs::{Fs, Out};
use crate::in_flight::{InFlight, install_kick};
use crate::lock_waits::LockWaits;
use crate::request::Request;
use rustix::io::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Threads that work on requests.
const THREADS_MAX: usize = 512;
/// Most threads that wait for requests. Others end, because each has up to 2 MiB of memory.
const IDLE_MAX: usize = 6;
const LOCK_STACK_BYTES: usize = 128 << 10;

/// The threads and what they share.
#[derive(Debug)]
struct Pool {
    fs: Arc<Fs>,
    in_flight: InFlight,
    threads: AtomicUsize,
    idle: AtomicUsize,
    lock_waits: LockWaits,
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
        threads: AtomicUsize::new(0),
        idle: AtomicUsize::new(0),
        lock_waits: LockWaits::default(),
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
            // Without memory for its buffers a thread ends, and the others go on.
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
    /// The kernel's, when the next request is asked for.
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
            if idle == 0 && pool.threads.load(Ordering::SeqCst) < THREADS_MAX {
                // Without it the others wait for this one.
                let _ = Pool::start_thread(pool);
            }
            Pool::handle(pool, bytes, &mut out);
        }
    }

    fn handle(pool: &Arc<Self>, bytes: &[u8], out: &mut Out) {
        let fs = &pool.fs;
        let Some(mut request) = Request::new(bytes) else { return };
        let unique = request.header.unique;
        match request.header.opcode {
            FORGET | BATCH_FORGET => {
                // A request that cannot be parsed releases no node; this only costs memory.
                let _ = fs.forget(&mut request);
            }
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
            _ => pool.serve_one(request, out, false),
        }
    }

    fn serve_one(&self, mut request: Request<'_>, out: &mut Out, waits_for_lock: bool) {
        let header = request.header;
        self.in_flight.begin(header.unique, header.pid, waits_for_lock);
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
        let (unique, uid) = (header.unique, header.uid);
        if !pool.lock_waits.enter(uid) {
            pool.fs.device.answer(unique, Err(Errno::NOLCK));
            return;
        }
        let own = pool.clone();
        let wait = move || {
            if let (Some(request), Ok(mut out)) = (Request::new(&bytes), Out::new()) {
                own.serve_one(request, &mut out, true);
            }
            own.lock_waits.leave(uid);
        };
        let builder = std::thread::Builder::new().name("lock".into()).stack_size(LOCK_STACK_BYTES);
        if builder.spawn(wait).is_err() {
            pool.lock_waits.leave(uid);
            pool.fs.device.answer(unique, Err(Errno::NOLCK));
        }
    }
}
