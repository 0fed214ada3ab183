//! Places for connections that are authenticating: a bounded number, which strangers cannot
//! use up.
//!
//! A TLS handshake takes as long as the other end likes, up to its deadline. A stranger that opens
//! connections and sends nothing would hold all places, and members would wait. So when all are
//! taken, a new connection displaces the oldest handshake of the address (on this machine: the
//! user) that has the most: a member needs milliseconds, and one place. Nobody waits for a place.

use crate::owner;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The origin of a connection: an address, and on this machine a user.
type Origin = (IpAddr, Option<u32>);

/// The places.
#[derive(Clone, Debug)]
pub struct Proving {
    inner: Arc<Mutex<Inner>>,
    places: usize,
}

#[derive(Debug, Default)]
struct Inner {
    /// By their number, so the oldest is first.
    handshakes: BTreeMap<u64, (Origin, TcpStream)>,
    next: u64,
    displaced: u64,
}

/// A place; dropping it frees it.
#[derive(Debug)]
pub struct Place {
    proving: Proving,
    number: u64,
}

impl Proving {
    /// Makes `places` places, all of them free.
    pub fn new(places: usize) -> Self {
        Proving { inner: Arc::default(), places: places.max(1) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for `socket`. If none is free, another handshake is shut down for it: its
    /// reader sees the end immediately.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn enter(&self, socket: &TcpStream) -> io::Result<Place> {
        let address = socket.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| from.ip());
        self.enter_from((address, owner::connector(socket)), socket)
    }

    fn enter_from(&self, origin: Origin, socket: &TcpStream) -> io::Result<Place> {
        let socket = socket.try_clone()?;
        let mut inner = self.inner();
        if inner.handshakes.len() >= self.places {
            inner.displace();
        }
        let number = inner.next;
        inner.next += 1;
        inner.handshakes.insert(number, (origin, socket));
        Ok(Place { proving: self.clone(), number })
    }

    /// Handshakes displaced so far.
    pub fn displaced(&self) -> u64 {
        self.inner().displaced
    }
}

impl Inner {
    /// Ends the oldest handshake of the origin that has the most; between equals, the one with the
    /// oldest.
    fn displace(&mut self) {
        let mut by_origin: BTreeMap<Origin, (usize, u64)> = BTreeMap::new();
        for (number, (origin, _)) in &self.handshakes {
            by_origin.entry(*origin).or_insert((0, *number)).0 += 1;
        }
        let crowd = by_origin.values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        if let Some((_, socket)) = crowd.and_then(|(_, oldest)| self.handshakes.remove(oldest)) {
            // Its end may have closed it already.
            let _ = socket.shutdown(Shutdown::Both);
            self.displaced += 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.proving.inner().handshakes.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// A connection from `127.0.0.LAST`: both ends.
    fn pair(listener: &TcpListener, last: u8) -> (TcpStream, TcpStream) {
        use rustix::net::{AddressFamily, SocketAddrV4, SocketType, bind, connect, socket};
        let from = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&from, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        connect(&from, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
        (TcpStream::from(from), listener.accept().unwrap().0)
    }

    #[test]
    fn strangers_displace_each_other_and_no_member() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proving = Proving::new(4);
        let (mut member, at_member) = pair(&listener, 9);
        let kept = proving.enter(&at_member).unwrap();
        let mut strangers: Vec<_> = (0..10)
            .map(|_| {
                let (theirs, ours) = pair(&listener, 2);
                let place = proving.enter(&ours).unwrap();
                (theirs, ours, place)
            })
            .collect();
        assert_eq!((proving.displaced(), proving.inner().handshakes.len()), (7, 4));
        let ended = |stream: &mut TcpStream| {
            stream.set_nonblocking(true).unwrap();
            matches!(stream.read(&mut [0]), Ok(0))
        };
        let gone: Vec<bool> = strangers.iter_mut().map(|(theirs, ..)| ended(theirs)).collect();
        assert_eq!(gone, [[true; 7].as_slice(), &[false; 3]].concat(), "the oldest of them go");
        assert!(!ended(&mut member), "though the member is older");
        drop((kept, strangers));
        assert!(proving.inner().handshakes.is_empty());
    }

    #[test]
    fn on_this_machine_users_displace_their_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proving = Proving::new(3);
        let enter = |uid| {
            let (theirs, ours) = pair(&listener, 1);
            let place = proving.enter_from((ours.peer_addr().unwrap().ip(), Some(uid)), &ours).unwrap();
            (theirs, ours, place)
        };
        let mut first = enter(1);
        let others: Vec<_> = (0..5).map(|_| enter(2)).collect();
        first.0.set_nonblocking(true).unwrap();
        assert!(first.0.read(&mut [0]).is_err(), "it has ended, though its user has one");
        assert_eq!(proving.displaced(), 3);
        drop(others);
        let (_theirs, ours) = pair(&listener, 1);
        assert_eq!(owner::connector(&ours), Some(rustix::process::geteuid().as_raw()));
    }
}
