//! Which server holds which byte.
//!
//! A file is divided into stripes of `stripe_bytes`; stripe `i` is on server
//! `(i + first_server) mod servers`. The first server follows from the inode number, so that files
//! spread over the servers as on a real parallel file system and a small file is not always on
//! server 0. Inode numbers of one directory are mostly consecutive, so a plain remainder deals
//! files out in turn; a hash would only make that uneven.

/// The most servers a lab file system may have; bounds the per-request arrays on the stack.
pub const SERVERS_MAX: usize = 64;

/// The geometry of the file system: number of servers and unit of striping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striping {
    servers: usize,
    stripe_bytes: u64,
}

/// Bytes of one request on each server, by server index.
pub type Share = [u64; SERVERS_MAX];

impl Striping {
    /// # Errors
    /// A sentence if there are no servers, more than [`SERVERS_MAX`], or a stripe of no bytes.
    pub fn new(servers: usize, stripe_bytes: u64) -> Result<Self, String> {
        if servers == 0 || servers > SERVERS_MAX {
            return Err(format!("servers = {servers}, but it must be between 1 and {SERVERS_MAX}"));
        }
        if stripe_bytes == 0 {
            return Err("stripe = 0, but a stripe must hold at least one byte; 1MiB is usual".into());
        }
        Ok(Self { servers, stripe_bytes })
    }

    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// The unit of striping, in bytes.
    pub fn stripe_bytes(&self) -> u64 {
        self.stripe_bytes
    }

    /// The server of stripe 0 of the file with this inode number.
    pub fn first_server(&self, ino: u64) -> usize {
        (ino % self.servers as u64) as usize
    }

    /// The server of the byte at `offset`.
    pub fn server_of(&self, first_server: usize, offset: u64) -> usize {
        let stripe = offset / self.stripe_bytes;
        ((stripe % self.servers as u64) as usize + first_server) % self.servers
    }

    /// How many bytes of `[offset, offset + len)` each server holds. The range ends at
    /// `u64::MAX`.
    ///
    /// Walks at most one round of stripes by hand and multiplies the whole rounds, so its cost does
    /// not grow with `len`.
    pub fn share(&self, first_server: usize, offset: u64, len: u64) -> Share {
        let mut share = [0; SERVERS_MAX];
        let mut at = offset;
        let end = offset.saturating_add(len);
        let round_bytes = self.stripe_bytes.saturating_mul(self.servers as u64);
        let rounds = (end - at) / round_bytes;
        for bytes in &mut share[..self.servers] {
            *bytes = rounds * self.stripe_bytes; // any whole round touches each server with one stripe's worth
        }
        at += rounds * round_bytes;
        while at < end {
            let piece = (self.stripe_bytes - at % self.stripe_bytes).min(end - at);
            share[self.server_of(first_server, at)] += piece;
            at += piece;
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn consecutive_stripes_go_round() {
        let striping = Striping::new(4, 1 << 20).unwrap();
        let servers: Vec<_> = (0..6).map(|i| striping.server_of(2, i << 20)).collect();
        assert_eq!(servers, [2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn a_read_across_a_border_is_split() {
        let striping = Striping::new(4, 100).unwrap();
        assert_eq!(striping.share(0, 90, 120)[..4], [10, 100, 10, 0]);
        assert_eq!(striping.share(3, 0, 1000)[..4], [300, 200, 200, 300]);
        assert_eq!(striping.share(0, 50, 0)[..4], [0; 4]);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        assert!(Striping::new(0, 1).is_err());
        assert!(Striping::new(SERVERS_MAX + 1, 1).is_err());
        assert!(Striping::new(1, 0).unwrap_err().contains("stripe = 0"));
    }

    proptest! {
        #[test]
        fn shares_are_the_bytes_counted_one_by_one(
            servers in 1usize..9, stripe in 1u64..40, first in 0usize..9, offset in 0u64..500, len in 0u64..700,
        ) {
            let striping = Striping::new(servers, stripe).unwrap();
            let first = first % servers;
            let mut counted = [0u64; SERVERS_MAX];
            for byte in offset..offset + len {
                counted[((byte / stripe) as usize + first) % servers] += 1;
            }
            prop_assert_eq!(striping.share(first, offset, len), counted);
        }

        #[test]
        fn no_overflow_at_the_end_of_the_address_space(
            servers in 1usize..=SERVERS_MAX, stripe in 1u64..=1 << 40, back in 0u64..1 << 30, len in any::<u64>(),
        ) {
            let striping = Striping::new(servers, stripe).unwrap();
            let offset = u64::MAX - back;
            let share = striping.share(0, offset, len);
            prop_assert_eq!(share.iter().sum::<u64>(), len.min(back));
        }
    }
}
