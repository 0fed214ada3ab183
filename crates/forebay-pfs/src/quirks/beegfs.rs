//! BeeGFS: a file gets its layout with its creation, through a call on its directory
//! (`BEEGFS_IOC_MKFILE_STRIPEHINTS` in `beegfs_ioctl.h`). Its client applies the umask.

use super::create::{Laid, New, made};
use super::{FileSystem, Traits, UNKNOWN};
use crate::ChangeStamp;
use crate::layout::hint::{ALL, Hint};
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd};

pub(super) const BEEGFS: FileSystem = FileSystem {
    name: "BeeGFS",
    is_of: |line| line.fs_type == b"beegfs",
    traits: Traits { known_stamps: Some(ChangeStamp::Ctime), ..UNKNOWN.traits },
    layout: None,
    create: Some(create),
};

/// `struct BeegfsIoctl_MkFileWithStripeHints_Arg`.
#[repr(C)]
struct Argument {
    filename: *const c_char,
    mode: c_int,
    numtargets: c_uint,
    chunksize: c_uint,
}

/// `_IOW('f', 27, struct BeegfsIoctl_MkFileWithStripeHints_Arg)`.
const CREATE: u32 = 1 << 30 | (size_of::<Argument>() as u32) << 16 | (b'f' as u32) << 8 | 27;

/// Least bytes of a chunk.
const CHUNK_BYTES_MIN: u64 = 64 << 10;

/// Targets and bytes of a chunk; 0 for the directory's default.
fn hints_of(hint: &Hint) -> Result<(u32, u32), String> {
    if hint.pool.is_some() || !hint.servers.is_empty() {
        return Err("BeeGFS lets only root choose a pool or servers for a file; set those of the directory \
                    (`beegfs-ctl --setpattern`)"
            .into());
    }
    let bytes = hint.stripe_bytes.unwrap_or(0);
    let is_chunk = bytes == 0 || bytes >= CHUNK_BYTES_MIN && bytes.is_power_of_two();
    let bytes = u32::try_from(bytes).ok().filter(|_| is_chunk);
    // All targets are ~0 there as well.
    let stripes = hint.stripes.unwrap_or(0);
    debug_assert_eq!(ALL, !0);
    Ok((stripes, bytes.ok_or("a chunk of BeeGFS is a power of two from 64 KiB to 2 GiB")?))
}

fn create(new: &mut New<'_>, hint: &Hint) -> Laid {
    let hints = hints_of(hint)?;
    Ok(made(create_file(new.dir, new.name, new.mode, hints))?.map(Ok))
}

/// Creates the file; `EEXIST` if there is one.
fn create_file(
    dir: BorrowedFd<'_>,
    name: &CStr,
    mode: u32,
    (numtargets, chunksize): (u32, u32),
) -> Result<(), Errno> {
    let argument = Argument { filename: name.as_ptr(), mode: mode as c_int, numtargets, chunksize };
    // SAFETY: the call reads the argument and the name, which live until it returns.
    match unsafe { libc::ioctl(dir.as_raw_fd(), CREATE.into(), &raw const argument) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_call_has_the_number_and_the_form_of_its_header() {
        assert_eq!(CREATE, 0x4018_661B);
        let argument = Argument { filename: c"f".as_ptr(), mode: 0o640, numtargets: 8, chunksize: 1 << 20 };
        // SAFETY: plain data; the padding at the end is not looked at.
        let bytes: [u8; 20] = unsafe { std::ptr::read((&raw const argument).cast()) };
        assert_eq!(bytes[..8], (argument.filename as usize).to_le_bytes());
        assert_eq!(bytes[8..], [0xA0, 1, 0, 0, 8, 0, 0, 0, 0, 0, 0x10, 0]);
    }

    #[test]
    fn chunks_are_powers_of_two_and_pools_are_the_directories() {
        let hints = |text: &str| hints_of(&text.parse().unwrap());
        assert_eq!(hints("stripes:4,size:1MiB"), Ok((4, 1 << 20)));
        assert_eq!((hints("stripes:all"), hints("size:64KiB")), (Ok((!0, 0)), Ok((0, 65_536))));
        for text in ["size:32KiB", "size:96KiB", "size:4GiB", "pool:fast", "servers:1"] {
            assert!(hints(text).is_err(), "{text}");
        }
    }

    #[test]
    fn another_file_system_refuses_the_call() {
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        assert!(create_file(open.as_fd(), c"f", 0o644, (1, 0)).is_err());
        assert!(!dir.path().join("f").exists());
    }
}
