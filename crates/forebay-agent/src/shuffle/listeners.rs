//! Whether the master of an application lives: it listens at a port of this node.
//!
//! YARN starts nothing of ours in the master of a MapReduce job, but each task knows the address at
//! which the master listens for its tasks. The kernel closes that port however the master ends, and
//! names the user whose it is. Asking the master itself would take its protocol.

use std::io;

/// Tables of the TCP sockets of this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// State of a socket that listens, as the tables have it.
const LISTENS: &str = "0A";

/// The kernel may leave out a socket while those before it in its table come and go.
const LOOKS: usize = 3;

/// Whether a process of user `uid` listens at TCP port `port` of this node.
///
/// # Errors
/// The kernel does not show its sockets.
pub fn listens(uid: u32, port: u16) -> io::Result<bool> {
    for table in std::iter::repeat_n(TABLES, LOOKS).flatten() {
        match std::fs::read_to_string(table) {
            Ok(sockets) if is_in(&sockets, uid, port) => return Ok(true),
            // A kernel without IPv6.
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(false)
}

/// A line is `number: ADDRESS:PORT remote state queues timer retransmits uid ...`, numbers in
/// hexadecimal but for the last.
fn is_in(sockets: &str, uid: u32, port: u16) -> bool {
    sockets.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace();
        let local = words.nth(1).and_then(|local| local.rsplit_once(':'));
        let is_port = local.is_some_and(|(_, at)| u16::from_str_radix(at, 16) == Ok(port));
        is_port && words.nth(1) == Some(LISTENS) && words.nth(3).and_then(|w| w.parse().ok()) == Some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_user_whose_program_listens_is_alive() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let uid = rustix::process::geteuid().as_raw();
        assert!(listens(uid, port).unwrap());
        assert!(!listens(uid + 1, port).unwrap(), "another user");
        drop(listener);
        assert!(!listens(uid, port).unwrap());
    }

    #[test]
    fn a_connection_from_the_port_is_no_listener() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \u{20}  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 1\n\
            \u{20}  1: 0100007F:1F91 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 1\n";
        assert!(is_in(table, 1000, 0x1f90));
        assert!(!is_in(table, 1000, 0x1f91), "it is connected");
        assert!(!is_in("a line\nthat is none\n", 1000, 80));
    }
}
