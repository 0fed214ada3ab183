//! Whose request is served when: each user has a share of the threads.
//!
//! Any call of a user may wait for long: a hung PFS, a stopped agent, a file under somebody's
//! lease. So a user's requests beyond its share of the threads wait in memory, until a thread of
//! the same user is free, and others are served meanwhile.
//!
//! While a program waits for a request about names, the kernel locks the directory, which other
//! users may need. So these requests do not wait behind those about content, which a user can make
//! wait at will; and reads do not wait behind opens, because programs share mapped pages.

use crate::abi::*;
use crate::request::Request;
use crate::shares::{Bound, Taken};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Threads for each [`Kind`]. A PFS that hangs keeps the threads that call it, even after their
/// programs were killed.
const THREADS: Bound = Bound { all: 1024, part: 4 };

/// Bytes of requests that wait.
const WAITING: Bound = Bound { all: 512 << 20, part: 2 };

/// What a request that waits takes besides its own bytes.
const OVERHEAD_BYTES: usize = 128;

/// The user of requests that the kernel makes for itself.
const KERNEL: u32 = u32::MAX;

/// What requests are about. Each kind has its own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Names and attributes.
    Names,
    /// Reads and writes.
    Data,
    /// What waits for a lease.
    Opens,
}

/// The user of requests, and what they are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    kind: Kind,
    uid: u32,
}

impl Queue {
    /// The queue of a request. `owner_of` says who has opened a file.
    pub fn of(bytes: &[u8], owner_of: impl Fn(u64) -> Option<u32>) -> Option<Self> {
        let mut request = Request::new(bytes)?;
        let header = request.header;
        let kind = match header.opcode {
            OPEN | SETLK => Kind::Opens,
            SETATTR => match request.arg::<SetattrIn>() {
                Ok(arg) if arg.valid & FATTR_SIZE != 0 => Kind::Opens,
                _ => Kind::Names,
            },
            READ | WRITE | FLUSH | RELEASE | FSYNC | SYNCFS | FALLOCATE | COPY_FILE_RANGE => Kind::Data,
            _ => Kind::Names,
        };
        let uid = match header.opcode {
            FORGET | BATCH_FORGET => KERNEL,
            // The kernel names nobody, and the number of the open file comes first.
            RELEASE | RELEASEDIR | WRITE if header.pid == 0 => {
                request.arg().ok().and_then(owner_of).unwrap_or(KERNEL)
            }
            _ => header.uid,
        };
        Some(Queue { kind, uid })
    }
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This thread serves it, and then asks for the [`Turns::next`].
    Now,
    /// It waits.
    Later,
    /// There is no memory for it.
    Never,
}

/// The requests that are served and those that wait.
#[derive(Debug, Default)]
pub struct Turns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    threads: [Taken; 3],
    waiting: HashMap<Queue, VecDeque<Box<[u8]>>>,
    waiting_bytes: Taken,
}

impl State {
    fn take_thread(&mut self, queue: Queue) -> bool {
        self.threads[queue.kind as usize].take(queue.uid, 1, THREADS)
    }

    /// A request of this queue, if its user may have a thread.
    fn take_waiting(&mut self, queue: Queue) -> Option<Box<[u8]>> {
        if !self.waiting.contains_key(&queue) || !self.take_thread(queue) {
            return None;
        }
        let requests = self.waiting.get_mut(&queue)?;
        let bytes = requests.pop_front()?;
        if requests.is_empty() {
            self.waiting.remove(&queue);
        }
        self.waiting_bytes.give_back(queue.uid, bytes.len() + OVERHEAD_BYTES);
        Some(bytes)
    }
}

impl Turns {
    /// Whether this thread serves a request. `is_last`: no other thread could serve the next one.
    pub fn enter(&self, queue: Queue, bytes: &[u8], is_last: bool) -> Turn {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others_serve = state.threads.iter().any(|taken| !taken.is_empty());
        let waits = state.waiting.contains_key(&queue) || is_last && others_serve;
        if !waits && state.take_thread(queue) {
            return Turn::Now;
        }
        let amount = bytes.len() + OVERHEAD_BYTES;
        if must_be_served(bytes) {
            state.waiting_bytes.add(queue.uid, amount);
        } else if !state.waiting_bytes.take(queue.uid, amount, WAITING) {
            return Turn::Never;
        }
        state.waiting.entry(queue).or_default().push_back(bytes.into());
        Turn::Later
    }

    /// The next request for this thread, which has served one of `queue`: the same user's first.
    pub fn next(&self, queue: Queue) -> Option<(Queue, Box<[u8]>)> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.threads[queue.kind as usize].give_back(queue.uid, 1);
        if state.waiting.is_empty() {
            return None;
        }
        let others: Vec<_> = state.waiting.keys().copied().collect();
        let queues = std::iter::once(queue).chain(others);
        queues.into_iter().find_map(|queue| Some((queue, state.take_waiting(queue)?)))
    }
}

/// Whether the request has to be served: the kernel says only once that a file is closed. There are
/// no more of these than open files.
fn must_be_served(bytes: &[u8]) -> bool {
    Request::new(bytes).is_some_and(|request| matches!(request.header.opcode, RELEASE | RELEASEDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Queue = Queue { kind: Kind::Opens, uid: 1 };
    const B: Queue = Queue { kind: Kind::Opens, uid: 2 };

    fn enter(turns: &Turns, queue: Queue, name: &str) -> Turn {
        turns.enter(queue, name.as_bytes(), false)
    }

    #[test]
    fn a_users_requests_wait_for_its_own_threads_in_their_order() {
        let turns = Turns::default();
        let count = (0..2000).take_while(|_| enter(&turns, A, "now") == Turn::Now).count();
        assert_eq!(count, THREADS.all / THREADS.part);
        assert_eq!((enter(&turns, A, "third"), enter(&turns, B, "other")), (Turn::Later, Turn::Now));
        assert_eq!(enter(&turns, Queue { kind: Kind::Names, uid: 1 }, "name"), Turn::Now);
        assert_eq!(turns.next(B), None, "another user's thread serves no more than that user's share");
        // The request that was refused a thread first.
        assert_eq!(turns.next(A), Some((A, b"now"[..].into())));
        assert_eq!(turns.next(A), Some((A, b"third"[..].into())));
        assert_eq!(turns.next(A), None);
    }

    #[test]
    fn without_more_threads_a_request_waits_for_one_that_works() {
        let turns = Turns::default();
        assert_eq!(turns.enter(A, b"first", true), Turn::Now, "nobody else would serve it");
        assert_eq!(turns.enter(B, b"second", true), Turn::Later);
        assert_eq!(turns.next(A), Some((B, b"second"[..].into())));
    }
}
