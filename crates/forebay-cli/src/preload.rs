//! The library that `forebay run` preloads, and the variables that it reads.

use forebay_client::Client;
use forebay_store::tier::check_own_directory;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// File name of the library.
const LIBRARY: &str = "libforebay_preload.so";

/// What a program needs to run with the library.
pub struct Preload {
    library: PathBuf,
    /// The roots of the mounts, as the library takes them.
    pub roots: OsString,
}

impl Preload {
    /// Finds the library and what it is to serve.
    pub fn find(client: &Client) -> Result<Self, String> {
        let library = library().ok_or(format!(
            "there is no {LIBRARY} beside this program or in its ../lib; set FOREBAY_PRELOAD to its path"
        ))?;
        let library = match has_special(library.as_os_str()) {
            true => link_to(&library).map_err(|e| {
                format!(
                    "{}: the dynamic linker cannot load a path with a space or a colon, {e}",
                    library.display()
                )
            })?,
            false => library,
        };
        let roots = client.mount_roots().map_err(|e| e.to_string())?;
        Ok(Preload { library, roots: list_of(&roots) })
    }

    /// Preloads the library before those that the user preloads.
    pub fn load_into(&self, command: &mut Command) {
        let mut preload = OsString::from(&self.library);
        let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let is_loaded = std::env::split_paths(&others).any(|path| path == self.library);
        if !others.is_empty() && !is_loaded {
            preload.push(":");
            preload.push(&others);
        }
        command.env("LD_PRELOAD", if is_loaded { others } else { preload });
        // The address sanitizer of a program that links it dynamically refuses to come second. It
        // works there: the library calls it, as any program does.
        let options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
        let mut first = OsString::from("verify_asan_link_order=0");
        if !options.is_empty() {
            first.push(":");
            first.push(options);
        }
        command.env("ASAN_OPTIONS", first);
    }
}

/// The roots and the other places where the same directories are mounted, separated by colons.
fn list_of(roots: &[OsString]) -> OsString {
    let mut list = Vec::new();
    for root in roots {
        let places = forebay_pfs::mount::other_places(Path::new(root));
        for place in std::iter::once(root.as_os_str()).chain(places.iter().map(|place| place.as_os_str())) {
            if !list.is_empty() {
                list.push(b':');
            }
            for &byte in place.as_bytes() {
                list.extend([b':', b'\\'].contains(&byte).then_some(b'\\'));
                list.push(byte);
            }
        }
    }
    OsString::from_vec(list)
}

/// The library: named by FOREBAY_PRELOAD, next to this program, or in ../lib of it.
fn library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_PRELOAD").filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    let above = beside.parent().unwrap_or(beside);
    let places = [beside.to_owned(), above.join("lib"), above.join("lib/forebay")];
    places.into_iter().map(|dir| dir.join(LIBRARY)).find(|path| path.is_file())
}

/// Whether a path contains what separates paths in LD_PRELOAD, which knows no quoting, or begins a
/// substitution there.
fn has_special(path: &OsStr) -> bool {
    path.as_bytes().iter().any(|byte| b" :$".contains(byte))
}

/// A link to the library under a name without such characters. Its directory is this user's, and no
/// other user can put another library there. It stays for programs that are still running.
fn link_to(library: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let directory = PathBuf::from(format!("/tmp/forebay-{}-library", rustix::process::geteuid().as_raw()));
    // 0755: the program may start others as another user.
    match std::fs::DirBuilder::new().mode(0o755).create(&directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => check_own_directory(&directory)?,
    }
    let library = std::path::absolute(library)?;
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let link = directory.join(format!("{:016x}.so", hasher.finish()));
    if std::fs::read_link(&link).ok().as_ref() != Some(&library) {
        // Renamed into place: others may be about to load it.
        let fresh = directory.join(format!("{}.new", std::process::id()));
        std::os::unix::fs::symlink(&library, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    Ok(link)
}
