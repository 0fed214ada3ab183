//! Patterns of files in options.

use std::io;
use std::path::{Path, PathBuf};

/// What precedes the first component with a special character.
fn plain_part(path: &Path) -> PathBuf {
    let is_plain =
        |part: &std::path::Component<'_>| !part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    path.components().take_while(is_plain).collect()
}

/// The deepest directory that exists and contains all files that match the pattern, free of links.
pub fn existing_directory(pattern: &Path) -> io::Result<PathBuf> {
    let plain = plain_part(&std::path::absolute(pattern)?);
    let existing = plain.ancestors().find(|dir| dir.is_dir());
    existing.unwrap_or(Path::new("/")).canonicalize()
}

/// The pattern as the kernel names files: absolute, and free of symbolic links in its directories.
/// A directory stands for all files below it.
pub fn whole_pattern(option: &str, pattern: &Path) -> Result<String, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{option} {}: {e}", pattern.display());
    let absolute = std::path::absolute(pattern).map_err(|e| failed(&e))?;
    let plain = plain_part(&absolute);
    let rest = absolute.strip_prefix(&plain).unwrap_or(Path::new(""));
    // What does not exist yet has no links.
    let existing = plain.ancestors().find_map(|dir| Some((dir, dir.canonicalize().ok()?)));
    let plain = match existing {
        Some((dir, real)) => {
            // By components: an empty rest would leave a slash at the end.
            let rest = plain.strip_prefix(dir).unwrap_or(Path::new(""));
            real.components().chain(rest.components()).collect()
        }
        None => plain,
    };
    let escaped = plain.to_str().ok_or_else(|| failed(&"a pattern is UTF-8 text"))?;
    let mut text = glob::Pattern::escape(escaped);
    match rest.to_str().ok_or_else(|| failed(&"a pattern is UTF-8 text"))? {
        "" if plain.is_dir() => text += "/**/*",
        "" => {}
        rest => text = format!("{text}/{rest}"),
    }
    glob::Pattern::new(&text).map_err(|e| failed(&e))?;
    if text.contains(['\n', '\x1e']) {
        return Err(failed(&"a pattern is one line"));
    }
    Ok(text)
}
