//! Finds the user at the other end of a loopback connection, by asking the kernel.
//!
//! Any user of a machine can connect to a loopback port, and listen on one that is free. A
//! connection between processes of one machine shows in the kernel's tables (`sock_diag`, or
//! `/proc/net/tcp` and `tcp6`) twice, once for each end, with the user each end belongs to; so both
//! sides can make sure that the other is of their own user, or root's, without a secret to keep.
//!
//! Two traps. A connection that nobody has accepted yet is shown as root's by older kernels (by
//! newer ones as that of whoever listens), and so is one whose process has closed it: such rows
//! have no inode and prove nothing. So a connection that still waits in the queue of its listener
//! is believed only if the listening socket is of a user we trust, and that socket is looked for
//! *before*: a stranger's queue is emptied when the stranger closes the listening socket, so what
//! waits afterwards cannot be the stranger's.

use crate::sock_diag;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

/// The sockets over IPv4; `tcp6` next to it has the others.
const TABLE: &str = "/proc/thread-self/net/tcp";

/// Rows can be skipped while others come and go in the same bucket of the kernel's table; then
/// another look helps.
const LOOKS: usize = 4;

const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;

/// A row of `/proc/net/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    uid: u32,
    inode: u64,
}

/// Makes sure that the process that connected `socket` to this one belongs to this user or root.
///
/// # Errors
/// `PermissionDenied`: it is not, or it cannot be determined. Those of the socket.
pub fn check_connector(socket: &TcpStream) -> io::Result<()> {
    let (here, there) = ends(socket)?;
    for _ in 0..LOOKS {
        if let Some(row) = other_end(here, there)?.filter(|row| row.inode != 0) {
            return trust(row.uid, &format!("the connection from {there} is"));
        }
    }
    Err(denied(format!(
        "the kernel does not report the user of the connection from {there}; it may be closed already"
    )))
}

/// The user who has connected `socket` from this machine; `None` if it comes from another one, or
/// if the kernel does not report it.
pub fn connector(socket: &TcpStream) -> Option<u32> {
    let (here, there) = ends(socket).ok().filter(|(_, there)| there.ip().to_canonical().is_loopback())?;
    other_end(here, there).ok()?.filter(|row| row.inode != 0).map(|row| row.uid)
}

/// Makes sure that the process to which `socket` is connected belongs to this user or root.
///
/// # Errors
/// As [`check_connector`].
pub fn check_listener(socket: &TcpStream) -> io::Result<()> {
    let (here, there) = ends(socket)?;
    let mut listeners: Vec<Row> = Vec::new();
    for _ in 0..LOOKS {
        let Some(row) = other_end(here, there)? else { continue };
        let owners = owners(&row, &listeners);
        if !owners.is_empty() {
            let whose = format!("the process that answers on {there} is");
            return owners.into_iter().try_for_each(|uid| trust(uid, &whose));
        }
        // Not accepted yet: see whose queue it may be in, and look again.
        listeners = rows(|row| listens_on(row, there)).map_err(|e| unreadable(&e))?;
    }
    Err(denied(format!("the kernel does not report the user of the process on {there}; it may have ended")))
}

/// Whether a process of user `uid` listens at TCP port `port` of this node. The kernel closes the
/// port however the process ends.
///
/// # Errors
/// The kernel does not show its sockets.
pub fn listens(uid: u32, port: u16) -> io::Result<bool> {
    let is_wanted = |row: &Row| row.state == LISTEN && row.local.port() == port && row.uid == uid;
    for _ in 0..LOOKS {
        match rows(is_wanted) {
            Ok(found) if found.is_empty() => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return found.map(|_| true),
        }
    }
    Ok(false)
}

/// The users to whom a connection may belong: its own user, or, while it waits in a queue, those
/// who were seen to listen before. Empty: it cannot be determined.
fn owners(row: &Row, listeners: &[Row]) -> Vec<u32> {
    match row.inode {
        0 => listeners.iter().map(|listener| listener.uid).collect(),
        _ => vec![row.uid],
    }
}

/// Addresses of this end and of the other.
fn ends(socket: &TcpStream) -> io::Result<(SocketAddr, SocketAddr)> {
    Ok((canonical(socket.local_addr()?), canonical(socket.peer_addr()?)))
}

/// IPv4 over a socket for both is IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn listens_on(row: &Row, address: SocketAddr) -> bool {
    let ip = row.local.ip();
    row.state == LISTEN && row.local.port() == address.port() && (ip.is_unspecified() || ip == address.ip())
}

/// Asks the kernel for this one socket; reads the list of all only where that is not possible.
fn other_end(here: SocketAddr, there: SocketAddr) -> io::Result<Option<Row>> {
    match sock_diag::ask(there, here) {
        Ok(found) => {
            let row = |s: sock_diag::Socket| Row {
                local: there,
                remote: here,
                state: s.state,
                uid: s.uid,
                inode: s.inode,
            };
            return Ok(found.map(row).filter(|row| row.state == ESTABLISHED));
        }
        // The list is as slow for a socket that has gone, and a stranger may send many of those.
        Err(e) if e.kind() == io::ErrorKind::NotFound && sock_diag::has_answered() => return Ok(None),
        Err(_) => {}
    }
    let found = rows(|row| row.state == ESTABLISHED && row.local == there && row.remote == here);
    Ok(found.map_err(|e| unreadable(&e))?.first().copied())
}

fn trust(uid: u32, whose: &str) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if uid == 0 || uid == own {
        return Ok(());
    }
    Err(denied(format!(
        "{whose} user {uid}'s; without TLS only user {own} and root are trusted (see cluster.tls)"
    )))
}

fn denied(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn unreadable(e: &io::Error) -> io::Error {
    denied(format!(
        "cannot read the kernel's tables of sockets ({TABLE}), which name the user of a loopback connection: {e}; use cluster.tls instead"
    ))
}

/// The TCP sockets of this thread's network namespace that `wanted` picks. A look costs the kernel
/// a walk over its whole table (1.5 ms for one of 262144 buckets, however few sockets there are),
/// so the second one is read only if the first has none of them.
fn rows(wanted: impl Fn(&Row) -> bool) -> io::Result<Vec<Row>> {
    let pick = |text: String| -> Vec<Row> { text.lines().filter_map(parse_row).filter(&wanted).collect() };
    let found = std::fs::read_to_string(TABLE).map(pick)?;
    if !found.is_empty() {
        return Ok(found);
    }
    match std::fs::read_to_string(format!("{TABLE}6")) {
        // A kernel without IPv6.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(found),
        text => text.map(pick).map_err(|e| io::Error::new(e.kind(), format!("{TABLE}6: {e}"))),
    }
}

fn parse_row(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    Some(Row {
        local: parse_address(fields.get(1)?)?,
        remote: parse_address(fields.get(2)?)?,
        state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
        uid: fields.get(7)?.parse().ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// The kernel prints an address as 32-bit words in the order of this machine, each word's bytes
/// being in network order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn rows_are_read_as_the_kernel_writes_them() {
        let line = "   7: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1";
        let row = parse_row(line).unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(row.local, "127.0.0.1:8080".parse().unwrap());
            assert_eq!(row.remote, "127.0.0.2:50000".parse().unwrap());
        }
        assert_eq!((row.state, row.uid, row.inode), (ESTABLISHED, 1000, 4242));
        assert_eq!(
            parse_row("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"),
            None
        );
    }

    #[test]
    fn only_the_user_whose_program_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert!(listens(uid, address.port()).unwrap());
        assert!(!listens(uid + 1, address.port()).unwrap(), "another user");
        let _one = TcpStream::connect(address).unwrap();
        let _other = listener.accept().unwrap();
        drop(listener);
        assert!(!listens(uid, address.port()).unwrap(), "a connection from the port is no listener");
    }

    #[test]
    fn both_ends_of_our_own_connections_are_ours() {
        for address in ["127.0.0.1:0", "127.0.0.3:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                eprintln!("{address} is not to be had here: left out");
                continue;
            };
            let mut to = listener.local_addr().unwrap();
            if to.ip().is_unspecified() {
                // Over IPv4 to a socket that listens for both: shown in tcp6 with mapped addresses.
                to.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            let one = TcpStream::connect(to).unwrap();
            check_listener(&one).unwrap();
            let other = listener.accept().unwrap().0;
            check_connector(&other).unwrap();
            check_listener(&one).unwrap();
            drop(one);
            assert_eq!(check_connector(&other).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }

    /// As older kernels show it: whatever waits in a queue is root's.
    #[test]
    fn what_waits_in_a_queue_is_its_listeners() {
        let address = "127.0.0.1:1".parse().unwrap();
        let waiting = Row { local: address, remote: address, state: ESTABLISHED, uid: 0, inode: 0 };
        let listener = Row { state: LISTEN, uid: 1000, inode: 7, ..waiting };
        assert!(owners(&waiting, &[]).is_empty());
        assert_eq!(owners(&waiting, &[listener]), [1000]);
        let accepted = Row { inode: 8, uid: 1001, ..waiting };
        assert_eq!(owners(&accepted, &[listener]), [1001]);
    }

    #[test]
    fn other_users_are_refused() {
        assert!(trust(0, "it is").is_ok());
        let stranger = rustix::process::geteuid().as_raw() + 1;
        assert!(trust(stranger, "it is").unwrap_err().to_string().contains("only user"));
    }
}
