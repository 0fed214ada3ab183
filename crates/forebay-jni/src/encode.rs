//! Answers with a structure, as `java.io.DataInputStream` reads them: big-endian numbers, byte
//! strings after their length.

/// An answer being put together.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// Appends a number; one larger than Java's largest becomes that.
    pub fn number(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&i64::try_from(value).unwrap_or(i64::MAX).to_be_bytes());
        self
    }

    /// Appends how many of something follow.
    pub fn count(&mut self, value: usize) -> &mut Self {
        self.0.extend_from_slice(&i32::try_from(value).unwrap_or(i32::MAX).to_be_bytes());
        self
    }

    /// Appends a byte string.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.count(value.len());
        self.0.extend_from_slice(value);
        self
    }

    /// Returns all of it.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_big_endian_and_strings_have_their_length_before_them() {
        let mut answer = Encoder::default();
        answer.count(2).number(u64::MAX).bytes(b"ab");
        assert_eq!(answer.finish(), b"\0\0\0\x02\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\x02ab");
    }
}
