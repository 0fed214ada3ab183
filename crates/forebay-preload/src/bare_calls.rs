//! Whether the program may close or replace a descriptor by a call that this library does not see.
//!
//! Then a number may stand for another file at the next read, and every read that is served first
//! compares the open files, which costs a system call. A program that has no such calls does not
//! pay for it. Such calls are:
//!
//! - bare system calls in the text of the program or of a library, of Go's runtime, Zig, Rust's
//!   `rustix`, liburing or the sanitizers. They are found by their instruction, in the text that is
//!   mapped when the first file is served and whenever a library was loaded since. An instruction
//!   whose number is loaded right before it, and is of a harmless call, does not count; neither do
//!   the C library and the compilers' own libraries;
//! - requests of an `io_uring`, and a child that shares the table of descriptors;
//! - a second C library, which `dlmopen` loads.
//!
//! What is mistaken for such a call only makes reads slower. Code that a program generates while it
//! runs, and text after the first 64 MiB, are not looked at: the latter counts as having such
//! calls.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::kernel;

/// Most text that is looked at: some tens of milliseconds' worth.
const MOST_TEXT_BYTES: usize = 64 << 20;

/// How many bytes before its instruction the number of a harmless call is loaded, at most.
const NUMBER_BYTES: usize = 40;

/// Objects whose bare calls close no descriptor of the program, by the beginning of their names.
const HARMLESS: [&str; 9] = [
    "libc.so.",
    "ld-linux",
    "libpthread.so.",
    "libdl.so.",
    "librt.so.",
    "linux-vdso",
    "libgomp.so.",
    "libcrypto.so.",
    "libforebay_preload.so",
];

/// The program may close descriptors unseen.
static IS_POSSIBLE: AtomicBool = AtomicBool::new(false);
/// Objects that the dynamic linker had loaded by the last look.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Loads that the program has requested, and those by the last look.
static LOADS: AtomicU32 = AtomicU32::new(1);
static LOADS_SEEN: AtomicU32 = AtomicU32::new(0);
/// Bytes of text seen so far.
static TEXT_BYTES: AtomicU64 = AtomicU64::new(0);

/// Whether the program may have closed a descriptor unseen.
#[inline]
pub fn are_possible() -> bool {
    if LOADS.load(Acquire) != LOADS_SEEN.load(Relaxed) {
        look();
    }
    IS_POSSIBLE.load(Relaxed)
}

/// Notes that the program prepares such calls.
pub fn found() {
    IS_POSSIBLE.store(true, Relaxed);
}

/// Notes that the program loads a library.
pub fn loads() {
    LOADS.fetch_add(1, Release);
}

/// The signals that come from elsewhere, and not from what a thread does itself.
const HANDLED: u64 = !(1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGTRAP - 1)
    | 1 << (libc::SIGSYS - 1));

/// Looks at what was loaded since the last time.
#[cold]
pub fn look() {
    let loads = LOADS.load(Acquire);
    let mut walk = Walk { at: 0, from: None };
    let blocked = HANDLED;
    let mut before = 0_u64;
    // SAFETY: the callbacks have the right type, and `walk` lives longer than the calls. The
    // dynamic linker holds a lock meanwhile, and would for ever if a handler jumped out of it.
    unsafe {
        kernel::sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const blocked, &raw mut before, 8);
        libc::dl_iterate_phdr(Some(count), (&raw mut walk).cast());
        if walk.from.is_some() {
            walk.at = 0;
            libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast());
        }
        kernel::sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8);
    }
    LOADS_SEEN.store(loads, Relaxed);
}

/// A walk over the loaded objects, which are in the order of their loading.
struct Walk {
    at: u64,
    /// The first object that is new.
    from: Option<u64>,
}

/// Counts the objects, if there are new ones.
unsafe extern "C" fn count(info: *mut libc::dl_phdr_info, _: usize, walk: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's description of an object, and the walk of `look`.
    let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk>()) };
    let new = info.dlpi_adds.wrapping_sub(LOOKED_AT.load(Relaxed));
    if new == 0 {
        return 1;
    }
    walk.at += 1;
    walk.from = Some(walk.at.saturating_sub(new));
    0
}

/// Looks at an object that is new. The dynamic linker unloads none meanwhile.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, walk: *mut c_void) -> c_int {
    // SAFETY: as above.
    let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk>()) };
    LOOKED_AT.store(info.dlpi_adds, Relaxed);
    walk.at += 1;
    if walk.from.is_none_or(|from| walk.at <= from) || is_harmless(info) {
        return 0;
    }
    // SAFETY: as many headers as the object says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0) {
        let bytes = header.p_filesz as usize;
        let all = TEXT_BYTES.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        if all > MOST_TEXT_BYTES as u64 || header.p_flags & libc::PF_R == 0 {
            found();
            return 1;
        }
        let at = (info.dlpi_addr + header.p_vaddr) as *const u8;
        // SAFETY: a segment that is mapped and readable while the object is loaded.
        if has_bare_call(unsafe { core::slice::from_raw_parts(at, bytes) }) {
            found();
            return 1;
        }
    }
    0
}

fn is_harmless(info: &libc::dl_phdr_info) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: a C string of the dynamic linker.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    HARMLESS.iter().any(|beginning| name.starts_with(beginning.as_bytes()))
}

/// Whether a call with this number may close or replace a descriptor, or make others do so.
fn is_dangerous(number: u32) -> bool {
    const NUMBERS: &[libc::c_long] = &[
        libc::SYS_close,
        libc::SYS_close_range,
        libc::SYS_dup3,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_clone,
        libc::SYS_clone3,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2,
    ];
    NUMBERS.contains(&libc::c_long::from(number))
}

/// Whether machine code makes system calls that may close a descriptor.
#[cfg(target_arch = "x86_64")]
fn has_bare_call(text: &[u8]) -> bool {
    let mut rest = text;
    // The second byte of `syscall` is rarer than the first.
    while let Some(found) = position(rest, 0x05) {
        let at = text.len() - rest.len() + found;
        rest = &rest[found + 1..];
        let (before, after) = (&text[..at], &text[at + 1..]);
        if before.last() == Some(&0x0f) && may_follow(after) && may_close(&before[..before.len() - 1]) {
            return true;
        }
    }
    false
}

#[cfg(target_arch = "x86_64")]
fn position(bytes: &[u8], byte: u8) -> Option<usize> {
    // SAFETY: the bytes are a slice's.
    let found = unsafe { libc::memchr(bytes.as_ptr().cast(), c_int::from(byte), bytes.len()) };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}

/// Whether an instruction after `syscall` may begin like this. The same two bytes are often part of
/// an address or of a jump's distance, which end with 0 or 255.
#[cfg(target_arch = "x86_64")]
fn may_follow(after: &[u8]) -> bool {
    match after {
        [0 | 0xff, ..] => false,
        // `ret`, and instructions with a constant or a distance right behind: `mov`, `cmp`, `and`,
        // `test`, `call`, `jmp`.
        [0xc3 | 0xb8..=0xbf | 0x3d | 0x25 | 0xa9 | 0xe8 | 0xe9, ..] => true,
        [_, 0 | 0xff, ..] => false,
        _ => true,
    }
}

/// Whether the call may be a dangerous one: its number, in `eax`, is unknown or one of these.
#[cfg(target_arch = "x86_64")]
fn may_close(before: &[u8]) -> bool {
    let near = &before[before.len().saturating_sub(NUMBER_BYTES)..];
    let number = near.windows(7).rev().find_map(|bytes| match bytes {
        // `mov r8d, imm32` differs by its prefix only.
        [_, 0x41 | 0x49, 0xb8, ..] => None,
        // `mov eax, imm32`, and `mov rax, imm32`.
        [_, _, 0xb8, low, high, 0, 0] | [0x48, 0xc7, 0xc0, low, high, 0, 0] => {
            Some(u32::from(*low) | u32::from(*high) << 8)
        }
        _ => None,
    });
    number.is_none_or(is_dangerous)
}

/// Whether machine code makes system calls that may close a descriptor.
#[cfg(target_arch = "aarch64")]
fn has_bare_call(text: &[u8]) -> bool {
    const SVC: u32 = 0xd400_0001;
    let words = || text.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    words().enumerate().filter(|(_, word)| *word == SVC).any(|(at, _)| {
        let near = at.saturating_sub(NUMBER_BYTES / 4);
        // `mov w8, imm16`, and the same of `x8`.
        let number =
            words().skip(near).take(at - near).filter(|word| word & 0x7fe0_001f == 0x5280_0008).last();
        number.is_none_or(|word| is_dangerous(word >> 5 & 0xffff))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_are_distinguished_from_constants_and_dangerous_ones_from_harmless_ones() {
        let calls = |number: &[u8], after: &[u8]| {
            has_bare_call(&[&[0x90, 0x90], number, &[0x0f, 0x05], after].concat())
        };
        let (close, futex) = ([0xb8, 3, 0, 0, 0], [0xb8, 0xca, 0, 0, 0]);
        let any = [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7];
        let after: [&[u8]; 5] = [
            &[0xc3],
            &[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
            &[0x3d, 0x00, 0xf0, 0xff, 0xff],
            &[0x89, 0xc2],
            &[],
        ];
        for after in after {
            assert!(calls(&any, after) && calls(&close, after), "{after:x?}");
            assert!(!calls(&futex, after), "{after:x?}");
        }
        // The constant is an argument.
        assert!(calls(&[0x89, 0xf8, 0x41, 0xb8, 0xca, 0, 0, 0], &[0xc3]));
        // The bytes by which libgcc recognizes the return from a signal handler.
        assert!(!calls(&[0x48, 0xba, 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0], &[0x48, 0x39]));
        // An address and a distance.
        assert!(!calls(&[0x48, 0x8d, 0x3d, 0x81], &[0x00, 0xe8]));
        assert!(!calls(&[0xe8], &[0xfd, 0xff, 0x90]));
        assert!(!has_bare_call(&[0x05, 0x0f]) && !has_bare_call(&[]));
    }

    #[test]
    fn the_libraries_of_this_test_were_looked_at_once() {
        look();
        let (bytes, objects) = (TEXT_BYTES.load(Relaxed), LOOKED_AT.load(Relaxed));
        assert!(bytes > 0 && objects > 0);
        look();
        assert_eq!((TEXT_BYTES.load(Relaxed), LOOKED_AT.load(Relaxed)), (bytes, objects));
        loads();
        are_possible();
        assert_eq!(LOADS_SEEN.load(Relaxed), LOADS.load(Relaxed));
    }
}
