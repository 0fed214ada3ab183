//! Asks the kernel about one TCP socket, whatever the number of sockets.
//!
//! `/proc/net/tcp` lists all of them, and a walk over the kernel's table takes milliseconds; a user
//! who opens connections in a loop would keep a processor busy with it. The kernel's socket
//! diagnostics find one socket by both its addresses in microseconds. Where they are missing
//! ([`ask`] fails) the caller reads the list.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Bytes of `struct nlmsghdr`, and where `struct inet_diag_msg` behind it has what is wanted.
const HEADER: usize = 16;
const STATE_AT: usize = HEADER + 1;
const UID_AT: usize = HEADER + 64;
const INODE_AT: usize = HEADER + 68;

static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel has described a socket to this process. `ENOENT` of [`ask`] then says that
/// there is no such socket; before, it may as well say that TCP has no diagnostics here.
pub fn has_answered() -> bool {
    ANSWERED.load(Ordering::Relaxed)
}

/// One socket, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its TCP state.
    pub state: u8,
    /// Its user.
    pub uid: u32,
    /// 0 while no process has it.
    pub inode: u64,
}

/// The socket of this network namespace that is bound to `local` and connected to `remote`. If
/// there is none, the kernel may answer with one that listens on `local`; the state shows it.
///
/// # Errors
/// The kernel has no socket diagnostics, or they are not permitted here.
pub fn ask(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Socket>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&socket, &request(local, remote), SendFlags::empty())?;
    let mut answer = [0u8; 1024];
    // The kernel answers before the send returns.
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    parse(&answer[..len])
}

fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut body = vec![family, IPPROTO_TCP, 0, 0];
    body.extend(u32::MAX.to_ne_bytes()); // all states
    body.extend(local.port().to_be_bytes());
    body.extend(remote.port().to_be_bytes());
    for address in [local, remote] {
        let mut bytes = [0u8; 16];
        match address.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        body.extend(bytes);
    }
    body.extend(0u32.to_ne_bytes()); // any interface
    body.extend([0xff; 8]); // no cookie
    let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 8]); // sequence number and sender
    request.extend(body);
    request
}

fn parse(answer: &[u8]) -> io::Result<Option<Socket>> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "a short answer of the kernel");
    let u32_at = |at: usize| {
        let bytes = answer.get(at..at + 4).ok_or_else(short)?;
        Ok::<_, io::Error>(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = answer.get(4..6).ok_or_else(short)?;
    if u16::from_ne_bytes([kind[0], kind[1]]) == NLMSG_ERROR {
        let error = (u32_at(HEADER)? as i32).wrapping_neg();
        return Err(io::Error::from_raw_os_error(error));
    }
    let state = *answer.get(STATE_AT).ok_or_else(short)?;
    ANSWERED.store(true, Ordering::Relaxed);
    Ok(Some(Socket { state, uid: u32_at(UID_AT)?, inode: u32_at(INODE_AT)?.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_names_the_user_of_one_socket() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (local, remote) = (one.local_addr().unwrap(), one.peer_addr().unwrap());
            match ask(local, remote) {
                Ok(found) => {
                    let found = found.unwrap();
                    assert_eq!((found.state, found.uid), (1, rustix::process::geteuid().as_raw()));
                    assert_ne!(found.inode, 0);
                }
                Err(e) => eprintln!("no socket diagnostics here: {e}"),
            }
        }
    }
}
