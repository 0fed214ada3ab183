//! Messages over a byte stream: four bytes of length (little endian), then the message as postcard.
//!
//! [`FrameReader`] collects what arrives in pieces, so that a loop over many sockets can use it as well as a thread that
//! waits on one. A frame longer than the bound ends the connection before anything is allocated for it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Longest frame. A view of a thousand nodes takes about 100 KiB; splits and orders are told in pieces well below it.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

const HEAD_BYTES: usize = 4;

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
    frame[..HEAD_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(frame)
}

/// Sends `message`.
///
/// # Errors
/// As [`encode`], and those of the stream.
pub fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    stream.write_all(&encode(message)?)
}

/// Waits for one message and takes not a byte more than it from the stream.
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

fn body_len(head: [u8; HEAD_BYTES]) -> io::Result<usize> {
    let len = u32::from_le_bytes(head) as usize;
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

/// Frames out of pieces.
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
    use crate::cluster::{Epoch, ToAgent, ToCoordinator};
    use crate::peer::{PeerReply, PeerRequest};

    #[test]
    fn frames_survive_any_cutting() {
        let messages: Vec<ToCoordinator> = (0..5).map(|ask| ToCoordinator::AskJobs { ask }).collect();
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
        reader.push(&u32::MAX.to_le_bytes());
        assert_eq!(reader.next_message::<ToAgent>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(receive::<ToAgent>(&mut u32::MAX.to_le_bytes().as_slice()).is_err());
    }

    #[test]
    fn a_new_coordinator_is_always_later() {
        assert!(Epoch { term: 2, number: 0 } > Epoch { term: 1, number: 900 });
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend(&bytes);
            let _ = receive::<ToCoordinator>(&mut framed.as_slice());
            let _ = receive::<ToAgent>(&mut framed.as_slice());
            let _ = receive::<PeerRequest>(&mut framed.as_slice());
            let _ = receive::<PeerReply>(&mut framed.as_slice());
        }
    }
}
