//! Whether a program loads a preloaded library.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A script may name another script as its interpreter, and so on.
const SCRIPTS: usize = 4;
const LINE_BYTES: usize = 4096;

/// Why a program does not load a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It has no dynamic linker.
    Static,
    /// It is a 32-bit program, and the library has 64 bits.
    Bits,
    /// It has more rights than its caller, so the dynamic linker ignores `LD_PRELOAD`.
    Rights,
    /// musl's dynamic linker does not start it with a library that is built for glibc.
    Musl,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Obstacle::Static => "is statically linked",
            Obstacle::Bits => "is a 32-bit program",
            Obstacle::Rights => "is a set-user-ID or set-group-ID program",
            Obstacle::Musl => "is linked with musl",
        })
    }
}

/// Why the program that a shell would start by this name cannot load the library; `None` if it can,
/// or if that is unknown.
pub fn obstacle(program: &OsStr) -> Option<Obstacle> {
    let mut path = find(program)?;
    for _ in 0..SCRIPTS {
        // A FIFO would wait for its writer.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut beginning = Vec::new();
        (&file).take(LINE_BYTES as u64).read_to_end(&mut beginning).ok()?;
        match interpreter(&beginning) {
            Some(next) => path = next,
            None => return of_binary(&file, &beginning),
        }
    }
    None
}

/// The file that `execvp` would execute.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
}

/// The interpreter of a script, or the program that `env` starts for it.
fn interpreter(beginning: &[u8]) -> Option<PathBuf> {
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first.to_owned());
    }
    let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(named))
}

/// Reads the headers of an ELF file (System V ABI, chapters 4 and 5) with this beginning.
fn of_binary(file: &File, beginning: &[u8]) -> Option<Obstacle> {
    const CLASS: usize = 4;
    const CLASS_64: u8 = 2;
    const INTERPRETER: u64 = 3;
    if !beginning.starts_with(b"\x7fELF") {
        return None;
    }
    if *beginning.get(CLASS)? != CLASS_64 {
        return Some(Obstacle::Bits);
    }
    let metadata = file.metadata().ok()?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let gives = |bit: u32, own: bool| metadata.mode() & bit != 0 && !own;
    if gives(0o4000, metadata.uid() == user) || gives(0o2000, metadata.gid() == group) {
        return Some(Obstacle::Rights);
    }
    let (at, each, count) =
        (number::<8>(beginning, 32)?, number::<2>(beginning, 54)?, number::<2>(beginning, 56)?);
    let mut headers = vec![0; usize::try_from(each * count).ok()?];
    file.read_exact_at(&mut headers, at).ok()?;
    let is_interpreter = |header: &&[u8]| number::<4>(header, 0) == Some(INTERPRETER);
    let Some(header) = headers.chunks_exact(usize::try_from(each).ok()?.max(1)).find(is_interpreter) else {
        return Some(Obstacle::Static);
    };
    let mut linker = vec![0; usize::try_from(number::<8>(header, 32)?).ok()?.min(LINE_BYTES)];
    file.read_exact_at(&mut linker, number::<8>(header, 8)?).ok()?;
    linker.windows(9).any(|part| part == b"/ld-musl-").then_some(Obstacle::Musl)
}

/// The number of `BYTES` bytes at an offset; the supported processors are little-endian.
fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut all = [0; 8];
    all[..BYTES].copy_from_slice(bytes.get(at..at + BYTES)?);
    Some(u64::from_le_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The headers of a program for 64 bits with one program header.
    fn elf(kind: u32, linker: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes[72] = 120;
        bytes[96] = linker.len() as u8;
        [&bytes, linker].concat()
    }

    #[test]
    fn what_cannot_load_a_library_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let glibc = elf(3, b"/lib64/ld-linux-x86-64.so.2\0");
        let of = |path: &Path| obstacle(path.as_os_str());
        assert_eq!(of(&file("dynamic", &glibc)), None);
        let alone = file("alone", &elf(1, b""));
        assert_eq!(of(&alone), Some(Obstacle::Static));
        assert_eq!(of(&file("musl", &elf(3, b"/lib/ld-musl-x86_64.so.1\0"))), Some(Obstacle::Musl));
        assert_eq!(of(&file("bits", b"\x7fELF\x01")), Some(Obstacle::Bits));
        let script = file("script", format!("#! {} -x\n", alone.display()).as_bytes());
        assert_eq!(of(&script), Some(Obstacle::Static));
        let around = file("around", format!("#!/usr/bin/env -S A=b {}\n", script.display()).as_bytes());
        assert_eq!(of(&around), Some(Obstacle::Static));
        assert_eq!(
            of(&file("endless", format!("#!{}/endless", directory.path().display()).as_bytes())),
            None
        );
        for cut in [0, 4, 5, 60, 70, 119, 125] {
            of(&file("cut", &glibc[..cut]));
        }
        if rustix::process::getuid().is_root() {
            let other = file("other", &glibc);
            std::os::unix::fs::chown(&other, Some(1), None).unwrap();
            std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(of(&other), Some(Obstacle::Rights));
        }
        assert_eq!(obstacle(OsStr::new("no program has this name")), None);
        assert_eq!(obstacle(OsStr::new("sh")), None);
    }
}
