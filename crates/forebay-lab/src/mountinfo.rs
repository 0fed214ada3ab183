//! What is mounted where, from `/proc/thread-self/mountinfo`: asked of the kernel alone, so a file
//! system that hangs cannot hang us.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Debug, PartialEq, Eq)]
pub struct MountLine {
    /// `major:minor`.
    pub device: String,
    /// Where.
    pub mount_point: PathBuf,
    /// Such as `ext4` or `fuse.forebay-slowfs`.
    pub fs_type: String,
}

/// All mounts that this thread sees, in order of mounting; none if `/proc` is not mounted.
pub fn read() -> Vec<MountLine> {
    read_table("/proc/thread-self/mountinfo")
}

/// All mounts that a process sees; none if it has gone.
pub fn of(pid: u32) -> Vec<MountLine> {
    read_table(&format!("/proc/{pid}/mountinfo"))
}

fn read_table(path: &str) -> Vec<MountLine> {
    let text = std::fs::read(path).unwrap_or_default();
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

fn parse(line: &[u8]) -> Option<MountLine> {
    // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE SUPEROPTIONS
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    Some(MountLine {
        device: String::from_utf8(fields.get(2)?.to_vec()).ok()?,
        mount_point: OsString::from_vec(unescape(fields.get(4)?)).into(),
        fs_type: String::from_utf8(fields.get(dash + 1)?.to_vec()).ok()?,
    })
}

/// `\040` and the like: the kernel escapes blanks, newlines and backslashes in octal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_tags() {
        let line = b"36 25 0:31 / /mnt/a\\040b\\012c rw,nosuid shared:5 - fuse.forebay-slowfs slow rw";
        let parsed = parse(line).unwrap();
        assert_eq!(parsed.device, "0:31");
        assert_eq!(parsed.mount_point, PathBuf::from("/mnt/a b\nc"));
        assert_eq!(parsed.fs_type, "fuse.forebay-slowfs");
        assert_eq!(parse(b"1 2 8:1 / / rw - ext4 /dev/sda rw").unwrap().fs_type, "ext4");
        assert_eq!(parse(b""), None);
        assert_eq!(unescape(b"a\\9z"), b"a\\9z");
    }
}
