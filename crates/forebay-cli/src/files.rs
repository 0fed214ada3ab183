//! Turns the names on a command line into files: expands patterns and walks directories, without
//! cycles.

use std::io;
use std::path::{Path, PathBuf};

/// Calls `each` for every regular file that `paths` name, in order; directories are descended into
/// if `recursive`. Symbolic links are followed where the user named them and not below. What cannot
/// be read is handed to `failed`, and the walk continues.
///
/// # Errors
/// What `each` returns ends the walk.
pub fn for_each_file<E>(
    paths: &[PathBuf],
    recursive: bool,
    each: &mut dyn FnMut(&Path) -> Result<(), E>,
    failed: &mut dyn FnMut(&Path, io::Error),
) -> Result<(), E> {
    for path in paths {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => walk(path, recursive, each, failed)?,
            Ok(_) => each(path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound && is_pattern(path) => {
                for found in expand(path, failed) {
                    match std::fs::metadata(&found) {
                        Ok(meta) if meta.is_dir() => walk(&found, recursive, each, failed)?,
                        Ok(_) => each(&found)?,
                        Err(e) => failed(&found, e),
                    }
                }
            }
            Err(e) => failed(path, e),
        }
    }
    Ok(())
}

fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains(['*', '?', '[']))
}

fn expand(pattern: &Path, failed: &mut dyn FnMut(&Path, io::Error)) -> Vec<PathBuf> {
    let text = pattern.to_str().unwrap_or_default();
    let mut found = Vec::new();
    match glob::glob(text) {
        Err(e) => failed(pattern, io::Error::new(io::ErrorKind::InvalidInput, e.msg)),
        Ok(matches) => {
            for entry in matches {
                match entry {
                    Ok(path) => found.push(path),
                    Err(e) => {
                        let path = e.path().to_owned();
                        failed(&path, e.into());
                    }
                }
            }
            if found.is_empty() {
                failed(pattern, io::Error::new(io::ErrorKind::NotFound, "nothing matches"));
            }
        }
    }
    found
}

/// Depth first, names in order, so that two runs see the same order; one directory's names in
/// memory at a time and level.
fn walk<E>(
    dir: &Path,
    recursive: bool,
    each: &mut dyn FnMut(&Path) -> Result<(), E>,
    failed: &mut dyn FnMut(&Path, io::Error),
) -> Result<(), E> {
    let mut entries = Vec::new();
    match std::fs::read_dir(dir) {
        Err(e) => failed(dir, e),
        Ok(reader) => {
            for entry in reader {
                match entry.and_then(|e| Ok((e.file_name(), e.file_type()?))) {
                    Ok(entry) => entries.push(entry),
                    Err(e) => failed(dir, e),
                }
            }
        }
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, kind) in entries {
        let path = dir.join(name);
        if kind.is_dir() {
            if recursive {
                walk(&path, recursive, each, failed)?;
            }
        } else if kind.is_file() {
            each(&path)?;
        }
    }
    Ok(())
}

/// All files as a list, and what could not be read.
pub fn list_files(paths: &[PathBuf], recursive: bool) -> (Vec<PathBuf>, Vec<(PathBuf, io::Error)>) {
    let (mut files, mut failures) = (Vec::new(), Vec::new());
    let listed: Result<(), std::convert::Infallible> = for_each_file(
        paths,
        recursive,
        &mut |path| {
            files.push(path.to_owned());
            Ok(())
        },
        &mut |path, e| failures.push((path.to_owned(), e)),
    );
    match listed {
        Ok(()) => (files, failures),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn files_directories_patterns_and_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("d/e")).unwrap();
        std::fs::create_dir(root.join("empty")).unwrap();
        for name in ["a.txt", "b.txt", "d/c.txt", "d/e/f.bin"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        let odd = root.join("d").join(OsStr::from_bytes(b"odd\n\xff"));
        std::fs::write(&odd, b"x").unwrap();
        std::os::unix::fs::symlink(root, root.join("d/loop")).unwrap();
        let names = |paths: &[&str], recursive| {
            let paths: Vec<_> = paths.iter().map(|p| root.join(p)).collect();
            let (files, failures) = list_files(&paths, recursive);
            (
                files.iter().map(|f| f.strip_prefix(root).unwrap().to_owned()).collect::<Vec<_>>(),
                failures.len(),
            )
        };
        let expect = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(names(&["*.txt"], false), (expect(&["a.txt", "b.txt"]), 0));
        assert_eq!(names(&["empty"], true), (vec![], 0));
        assert_eq!(names(&["nothing", "no*thing"], true), (vec![], 2));
        let (mut all, failed) = names(&["d"], true);
        let odd_at = all.iter().position(|p| p.as_os_str().as_bytes().ends_with(b"odd\n\xff")).unwrap();
        all.remove(odd_at);
        assert_eq!((all, failed), (expect(&["d/c.txt", "d/e/f.bin"]), 0));
    }
}
