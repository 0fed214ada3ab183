//! Messages over a byte stream: three bytes of length (little endian), a mark, then the message as
//! postcard.
//!
//! The mark shows with the first four bytes that the other end speaks something else, before
//! anything is waited for that will not come: TLS where plain was expected, or a protocol that does
//! not belong here.
//!
//! [`FrameReader`] collects what arrives in pieces, so that a loop over many sockets can use it as
//! well as a thread that waits on one. A frame longer than the bound ends the connection before
//! anything is allocated for it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Longest frame. A view of a thousand nodes takes about 100 KiB; splits and requests are sent in
/// pieces well below it.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

const HEAD_BYTES: usize = 4;

/// The fourth byte of every frame.
const MARK: u8 = b'F';

/// `message` as a frame.
///
/// # Errors
/// `InvalidInput`: it is longer than [`MAX_FRAME_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEAD_BYTES];
    frame = postcard::to_extend(message, frame)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("cannot encode a message: {e}")))?;
    let len = frame.len() - HEAD_BYTES;
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {len} bytes is too long"),
        ));
    }
    frame[..HEAD_BYTES].copy_from_slice(&head(len as u32));
    Ok(frame)
}

/// Sends `message`.
///
/// # Errors
/// As [`encode`], and those of the stream.
pub fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    stream.write_all(&encode(message)?)
}

/// Waits for one message and takes no byte beyond it from the stream.
///
/// # Errors
/// `UnexpectedEof`: the peer is gone. `InvalidData`: garbage. Those of the stream.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; body_len(head)?];
    stream.read_exact(&mut body)?;
    decode(&body)
}

fn head(len: u32) -> [u8; HEAD_BYTES] {
    let [low, middle, high, _] = len.to_le_bytes();
    [low, middle, high, MARK]
}

fn body_len([low, middle, high, mark]: [u8; HEAD_BYTES]) -> io::Result<usize> {
    if mark != MARK {
        // A TLS record begins with its kind (21: an alert, 22: a handshake) and the version 3.x.
        return Err(match (low, middle) {
            (21 | 22, 3) => io::Error::new(
                io::ErrorKind::InvalidData,
                "the other end speaks TLS, and this one does not; set cluster.tls on both or on neither",
            ),
            _ => {
                garbage(&format!("it begins with {:?}", [low, middle, high, mark].escape_ascii().to_string()))
            }
        });
    }
    let len = u32::from_le_bytes([low, middle, high, 0]) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(garbage(&format!("a frame of {len} bytes")));
    }
    Ok(len)
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(garbage(&format!("{} bytes after the message", rest.len()))),
        Err(e) => Err(garbage(&e.to_string())),
    }
}

fn garbage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a message of this protocol: {what}"))
}

/// Assembles frames from parts.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// Adds what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    ///
    /// # Errors
    /// `InvalidData`: garbage; the connection is of no use any more.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(head) = self.bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let end = HEAD_BYTES + body_len(*head)?;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let message = decode(&self.bytes[HEAD_BYTES..end])?;
        self.bytes.drain(..end);
        Ok(Some(message))
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing held.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Epoch, Question, ToAgent, ToCoordinator};
    use crate::peer::{PeerReply, PeerRequest};

    #[test]
    fn frames_survive_any_cutting() {
        let messages: Vec<ToCoordinator> =
            (0..5).map(|ask| ToCoordinator::Ask { ask, question: Question::Jobs }).collect();
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        for piece in 1..stream.len() {
            let mut reader = FrameReader::default();
            let mut got = Vec::new();
            for bytes in stream.chunks(piece) {
                reader.push(bytes);
                while let Some(message) = reader.next_message::<ToCoordinator>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages);
            assert!(reader.is_empty());
        }
        let mut rest = stream.as_slice();
        assert_eq!(receive::<ToCoordinator>(&mut rest).unwrap(), messages[0]);
        assert_eq!(receive::<ToCoordinator>(&mut rest).unwrap(), messages[1]);
    }

    #[test]
    fn a_length_out_of_bounds_allocates_nothing() {
        let mut reader = FrameReader::default();
        reader.push(&head(u32::MAX));
        assert_eq!(reader.next_message::<ToAgent>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(receive::<ToAgent>(&mut head(u32::MAX).as_slice()).is_err());
    }

    #[test]
    fn other_protocols_are_known_by_their_first_bytes() {
        let refusal = |bytes: &[u8]| receive::<ToAgent>(&mut &bytes[..]).unwrap_err().to_string();
        assert!(refusal(b"GET / HTTP/1.1").contains("begins with \"GET \""));
        for hello in [[22, 3, 1, 0], [22, 3, 3, 1], [21, 3, 3, 0]] {
            assert!(refusal(&hello).contains("speaks TLS"));
        }
    }

    #[test]
    fn a_new_coordinator_is_always_later() {
        assert!(Epoch { term: 2, number: 0 } > Epoch { term: 1, number: 900 });
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let mut framed = head(bytes.len() as u32).to_vec();
            framed.extend(&bytes);
            let _ = receive::<ToCoordinator>(&mut framed.as_slice());
            let _ = receive::<ToAgent>(&mut framed.as_slice());
            let _ = receive::<PeerRequest>(&mut framed.as_slice());
            let _ = receive::<PeerReply>(&mut framed.as_slice());
        }
    }
}
