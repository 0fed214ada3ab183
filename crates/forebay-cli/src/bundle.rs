//! `bundle`: one file with what helps others to find a problem on this node.
//!
//! Each part is collected by itself, with a deadline: one that fails has its reason in the bundle
//! in place of its content. Names of files and users are replaced by pseudonyms ([`clean`]), unless
//! they are wanted; content of files and keys is in no part.

mod clean;
mod parts;

use crate::Outcome;
use crate::cli::{BundleArgs, Global};
use crate::out::print;
use clean::Cleaner;
use flate2::Compression;
use flate2::write::GzEncoder;
use parts::Part;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Collects and writes it.
pub fn bundle(global: &Global, args: &BundleArgs) -> Outcome {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let usual = || PathBuf::from(format!("forebay-bundle-{host}.tar.gz"));
    let path = args.output.clone().unwrap_or_else(usual);
    let failed = |e: io::Error| format!("cannot write {}: {e}", path.display());
    // Before the collection, which takes its time. Readable by its owner only: with --names it has
    // names.
    let new = path.with_file_name(format!(".forebay-bundle-{}.new", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let file = file.map_err(failed)?;
    let cleaner = (!args.names).then(|| Cleaner::new(&global.client()));
    let clean = |text: String| cleaner.as_ref().map_or_else(|| text.clone(), |cleaner| cleaner.clean(&text));
    let cleaned = |part: Part| Part { content: part.content.map(clean).map_err(clean), ..part };
    let parts: Vec<Part> = parts::collect(global, args).into_iter().map(cleaned).collect();
    let written = write(file, &parts).and_then(|()| std::fs::rename(&new, &path));
    written.inspect_err(|_| _ = std::fs::remove_file(&new)).map_err(failed)?;
    let missing: Vec<&Part> = parts.iter().filter(|part| part.content.is_err()).collect();
    let json = serde_json::json!({
        "file": path,
        "parts": parts.iter().map(|part| part.name).collect::<Vec<_>>(),
        "failed": missing.iter().map(|part| part.name).collect::<Vec<_>>(),
    });
    print(global, &json, |out| {
        writeln!(out, "{}: {} parts", path.display(), parts.len())?;
        for part in &missing {
            let why = part.content.as_ref().err().map_or("", String::as_str);
            writeln!(out, "  without {}: {}", part.name, why.trim_end())?;
        }
        match args.names {
            true => writeln!(out, "it has names of files and users"),
            false => writeln!(out, "names of files and users are replaced; look at it before you send it"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write(file: impl Write, parts: &[Part]) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for part in parts {
        let (ending, text) = match &part.content {
            Ok(text) => ("", text),
            Err(why) => (".failed", why),
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        header.set_cksum();
        archive.append_data(&mut header, format!("forebay-bundle/{}{ending}", part.name), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}
