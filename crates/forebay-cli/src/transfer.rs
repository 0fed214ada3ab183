//! `cat` and `cp`: read and copy files through the tier.

use crate::Outcome;
use crate::cli::{CatArgs, CpArgs, Global};
use crate::out::{print, unless_closed, with_path};
use forebay_agent::units::Human;
use forebay_client::{File, WriteMode, WriteOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

/// Bytes moved at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Passes the whole file to `sink`, part by part; returns its length.
fn pour(file: &File, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut offset = 0;
    loop {
        match file.read_at(&mut buffer, offset)? {
            0 => return Ok(offset),
            n => {
                sink(&buffer[..n])?;
                offset += n as u64;
            }
        }
    }
}

/// Writes files to standard output.
pub fn cat(global: &Global, args: &CatArgs) -> Outcome {
    let client = global.client();
    let mut stdout = io::stdout().lock();
    for path in &args.paths {
        let poured = client
            .open_with(path, args.read.into())
            .and_then(|file| pour(&file, &mut |piece| stdout.write_all(piece)));
        match poured {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            other => other.map_err(|e| with_path(path, e))?,
        };
    }
    unless_closed(stdout.flush()).map(|()| ExitCode::SUCCESS)
}

/// Copies a file.
pub fn cp(global: &Global, args: &CpArgs) -> Outcome {
    let client = global.client();
    let source = client.open_with(&args.source, args.read.into()).map_err(|e| with_path(&args.source, e))?;
    let target = match (args.target.is_dir(), args.source.file_name()) {
        (true, Some(name)) => args.target.join(name),
        _ => args.target.clone(),
    };
    if forebay_client::same_file(&args.source, &target).unwrap_or(false) {
        return Err(format!("{} and {} are the same file", args.source.display(), target.display()));
    }
    let options = WriteOptions { mode: args.write.into(), ..WriteOptions::default() };
    if options.mode == WriteMode::MemoryOnly && !client.in_scratch_job() {
        return Err(format!(
            "{}: a memory-only file is gone when its job ends, and this command would be all of the job; run it with the \
             programs that need the file: forebay run sh -c 'forebay cp --write memory ... && ...'",
            target.display()
        ));
    }
    let permissions = std::fs::metadata(&args.source).map_or(0o644, |m| m.permissions().mode() & 0o777);
    let options = WriteOptions { permissions, ..options };
    let writer = match &args.layout {
        Some(hint) => client.create_laid_out(&target, options, hint),
        None => client.create_with(&target, options),
    };
    let mut writer = writer.map_err(|e| with_path(&target, e))?;
    let bytes = pour(&source, &mut |piece| writer.write_all(piece));
    let bytes = bytes.map_err(|e| format!("{} to {}: {e}", args.source.display(), target.display()))?;
    writer.close().map_err(|e| with_path(&target, e))?;
    print(global, &serde_json::json!({ "target": target, "bytes": bytes }), |out| {
        writeln!(out, "{}: {}", target.display(), Human(bytes))
    })?;
    Ok(ExitCode::SUCCESS)
}
