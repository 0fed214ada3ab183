//! Which files are the PFS's: those whose path is below one of its roots.
//!
//! The path comes from the kernel (`/proc/self/fd`), so it is absolute and free of symbolic links,
//! whatever the program has opened, inherited or duplicated. Asking the PFS (`stat`) would be a
//! request to a server that may hang, in a program that may have nothing to do with it.

#[cfg(not(test))]
use crate::kernel;

/// Longest root that is honoured, in bytes.
pub const MAX_ROOT_BYTES: usize = 500;

const MAX_ROOTS_BYTES: usize = 4096;

/// The roots of the PFS, each with a zero byte after it.
pub struct Roots {
    bytes: [u8; MAX_ROOTS_BYTES],
    len: usize,
}

impl Roots {
    /// No file is the PFS's.
    pub const NONE: Roots = Roots { bytes: [0; MAX_ROOTS_BYTES], len: 0 };

    /// Takes `list`, absolute paths without symbolic links, separated by colons; a backslash stands
    /// before a colon or backslash of a path. What does not fit is left out.
    pub fn set(&mut self, list: &[u8]) {
        self.len = 0;
        let (mut end, mut is_escaped) = (0, false);
        for &byte in list.iter().chain(b":") {
            let is_special = !is_escaped && [b':', b'\\'].contains(&byte);
            is_escaped = is_special && byte == b'\\';
            if is_special && byte == b':' {
                self.take(end);
                end = self.len;
            } else if !is_special {
                let Some(place) = self.bytes.get_mut(end) else { return };
                *place = byte;
                end += 1;
            }
        }
    }

    /// Takes what was copied up to `end` if it can be a root.
    fn take(&mut self, end: usize) {
        let root = self.bytes.get(self.len..end).unwrap_or_default();
        let root = root.strip_suffix(b"/").unwrap_or(root);
        let is_usable = root.first() == Some(&b'/') && root.len() <= MAX_ROOT_BYTES;
        let after = self.len + root.len();
        if let (true, Some(separator)) = (is_usable, self.bytes.get_mut(after)) {
            *separator = 0;
            self.len = after + 1;
        }
    }

    /// All roots.
    pub fn all(&self) -> impl Iterator<Item = &[u8]> {
        let list = self.bytes.get(..self.len).unwrap_or_default();
        list.split(|&b| b == 0).filter(|root| !root.is_empty())
    }

    /// Whether the file at `path`, of which the beginning is enough, is below a root.
    pub fn cover(&self, path: &[u8]) -> bool {
        self.all().any(|root| path.strip_prefix(root).is_some_and(|rest| rest.first() == Some(&b'/')))
    }
}

/// The path of `fd`, or the beginning of it. What is not a file has a name without a leading slash.
/// Empty if the kernel does not report it.
#[cfg(not(test))]
pub fn of_descriptor(fd: i32, room: &mut [u8]) -> &[u8] {
    // "/proc/self/fd/", ten digits and a zero byte.
    let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let (mut digits, mut at, mut rest) = ([0u8; 10], 10, fd.unsigned_abs());
    while at > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for (place, digit) in name.iter_mut().skip(14).zip(digits.iter().skip(at)) {
        *place = *digit;
    }
    // SAFETY: the name ends with a zero byte, and the kernel writes no more than there is room.
    let len =
        unsafe { kernel::sys!(SYS_readlinkat, libc::AT_FDCWD, name.as_ptr(), room.as_mut_ptr(), room.len()) };
    usize::try_from(len).ok().and_then(|len| room.get(..len)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(list: &str) -> Roots {
        let mut roots = Roots::NONE;
        roots.set(list.as_bytes());
        roots
    }

    #[test]
    fn files_below_a_root_are_covered_and_no_others() {
        let roots = roots("/lustre/scratch/:/gpfs");
        for path in ["/lustre/scratch/a", "/gpfs/x/y", "/gpfs/x (deleted)"] {
            assert!(roots.cover(path.as_bytes()), "{path}");
        }
        for path in ["/lustre/scratch", "/lustre/scratch2/a", "/gpf", "/gpfs2/a", "pipe:[1]", "", "/"] {
            assert!(!roots.cover(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn roots_may_have_any_character_in_their_names() {
        let roots = roots(r"/gvfs\:host:/a\\b:/my data:/year=2024/:/:/last\");
        for path in ["/gvfs:host/f", r"/a\b/f", "/my data/f", "/year=2024/f"] {
            assert!(roots.cover(path.as_bytes()), "{path}");
        }
        for path in ["/gvfs/f", "host/f", "/ab/f", "/last/f"] {
            assert!(!roots.cover(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn roots_that_make_no_sense_cover_nothing() {
        for list in ["", ":", "::", "relative:also/this", "/"] {
            assert!(!roots(list).cover(b"/any/file"), "{list:?}");
        }
        assert!(!roots(&"/x".repeat(400)).cover("/x".repeat(500).as_bytes()), "too long");
        let many: Vec<_> = (0..2_000).map(|i| format!("/r{i}")).collect();
        let roots = roots(&many.join(":"));
        assert!(roots.cover(b"/r7/file") && !roots.cover(b"/r1999/file"));
    }
}
