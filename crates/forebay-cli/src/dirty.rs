//! `dirty`, `sync` and `rescue`: files that programs wrote to the tier first.

use crate::Outcome;
use crate::cli::{Global, RescueArgs, SyncArgs};
use crate::out::{self, no_agent, print, with_path};
use crate::patterns::{existing_directory, whole_pattern};
use forebay_agent::units::Human;
use forebay_client::Client;
use forebay_client::dirty::Patterns;
use forebay_wire::{DirtyState, DirtyStatus, SecondPlace};
use indicatif::ProgressBar;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A wait that is shorter shows no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// Lists the files that the PFS does not have yet.
pub fn dirty(global: &Global) -> Outcome {
    let files = global.client().dirty_files().map_err(|e| no_agent(global, &e))?;
    print(global, &files.iter().map(json).collect::<Vec<_>>(), |out| {
        if files.is_empty() {
            return writeln!(out, "the file system has all that was written");
        }
        let [number, left, age, rate, safe] = ["NUMBER", "LEFT", "AGE", "RATE", "SAFE IN"];
        writeln!(out, "{number:>6} {left:>10} {age:>8}  {:<6} {rate:>12} {safe:>9}  PATH", "STATE")?;
        for file in &files {
            let (age, name) = (file.age_ms as f64 / 1000.0, out::name(&file.path));
            let left = Human(file.bytes.saturating_sub(file.drained_bytes));
            let rate = match file.rate_bytes_per_s {
                0 => "-".into(),
                rate => format!("{}/s", Human(rate)),
            };
            let safe = file.safe_in_ms.map_or("-".into(), |ms| format!("{:.1} s", ms as f64 / 1000.0));
            let (number, state) = (file.copy, state(file));
            writeln!(out, "{number:>6} {left:>10} {age:>6.1} s  {state:<6} {rate:>12} {safe:>9}  {name}")?;
            for why in [&file.error, &file.why].into_iter().filter(|why| !why.is_empty()) {
                writeln!(out, "       {why}")?;
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn state(file: &DirtyStatus) -> String {
    match file.state {
        DirtyState::Open => "open".into(),
        DirtyState::Waits => "waits".into(),
        DirtyState::Drains if file.bytes > 0 => {
            format!("{} %", file.drained_bytes.min(file.bytes) * 100 / file.bytes)
        }
        DirtyState::Drains => "drains".into(),
        DirtyState::Failed => "failed".into(),
        DirtyState::Parked => "parked".into(),
        DirtyState::Copy => "copy".into(),
    }
}

fn json(file: &DirtyStatus) -> serde_json::Value {
    serde_json::json!({
        "number": file.copy, "mount": file.mount, "path": out::name(&file.path), "uid": file.uid,
        "bytes": file.bytes, "drained_bytes": file.drained_bytes, "age_ms": file.age_ms, "state": file.state,
        "error": file.error, "rate_bytes_per_s": file.rate_bytes_per_s, "safe_in_ms": file.safe_in_ms,
        "why": file.why,
    })
}

/// Waits until the file system has what was written.
pub fn sync(global: &Global, args: &SyncArgs) -> Outcome {
    let client = global.client();
    let mut failed = 0;
    let mut paths = if args.paths.is_empty() { vec![None] } else { Vec::new() };
    for path in &args.paths {
        paths.extend(meant(global, &client, path)?.into_iter().map(Some));
    }
    for path in paths {
        if let Err(e) = wait(&client, path.as_deref(), args.quiet, || true) {
            failed += 1;
            eprintln!("forebay: {}", path.map_or_else(|| e.to_string(), |path| with_path(&path, &e)));
        }
    }
    if failed > 0 {
        eprintln!(
            "forebay: what was not written stays in memory; `forebay dirty` lists it, `forebay rescue` saves it"
        );
    }
    print(global, &serde_json::json!({ "failed": failed }), |out| match failed {
        0 => writeln!(out, "the file system has all that was written"),
        _ => Ok(()),
    })?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The files that a path given to `sync` means: itself; or the dirty ones that are below a
/// directory or match a pattern, and still have a name on the file system.
fn meant(global: &Global, client: &Client, path: &Path) -> Result<Vec<PathBuf>, String> {
    match path.metadata() {
        Ok(facts) if !facts.is_dir() => return Ok(vec![path.to_owned()]),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if !path.to_string_lossy().contains(['*', '?', '[']) {
                eprintln!("forebay: {}: there is no such file, so nothing is waited for", path.display());
            }
        }
        Err(e) => return Err(with_path(path, &e)),
    }
    let patterns = Patterns::from_lines(&whole_pattern("sync", path)?);
    let top = existing_directory(path).map_err(|e| with_path(path, &e))?;
    let files = client.dirty_files().map_err(|e| no_agent(global, &e))?;
    let here = files.into_iter().filter(|file| file.state != DirtyState::Copy);
    let paths = here.filter_map(|file| seen_from(&top, Path::new(OsStr::from_bytes(&file.path))));
    // A file system that does not answer is not a proof that a file has gone.
    let is_there = |path: &PathBuf| !matches!(path.try_exists(), Ok(false));
    Ok(paths.filter(|path| patterns.match_path(path.as_os_str().as_bytes()) && is_there(path)).collect())
}

/// The path of a file below `top`, even if the agent sees the file system at another mount point.
fn seen_from(top: &Path, path: &Path) -> Option<PathBuf> {
    let inode = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let wanted = inode(top)?;
    let same = path.ancestors().skip(1).find(|ancestor| inode(ancestor) == Some(wanted))?;
    Some(top.join(path.strip_prefix(same).ok()?))
}

/// Waits for one file, or all files of this user, with a bar if it takes long. `goes_on` is asked
/// each second. Returns whether it has come to its end.
fn wait(
    client: &Client,
    path: Option<&Path>,
    is_quiet: bool,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<bool> {
    let started = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    let ended = client.sync_dirty(path, || {
        if started.elapsed() >= SHOWN_AFTER
            && let Ok(files) = client.dirty_files()
        {
            let left: u64 = files.iter().map(|file| file.bytes.saturating_sub(file.drained_bytes)).sum();
            let bar = bar.get_or_insert_with(|| {
                let bar = crate::load::bar(is_quiet);
                bar.set_length(left);
                bar.set_message("to the file system");
                bar
            });
            bar.set_position(bar.length().unwrap_or(0).saturating_sub(left));
        }
        goes_on()
    });
    bar.iter().for_each(ProgressBar::finish_and_clear);
    ended
}

/// Waits for what a program has written, at its end. A signal ends the wait; the agent continues.
/// Then for the markers of the rules that select `rules`.
pub fn wait_for_program(client: &Client, rules: &[String], is_quiet: bool) -> Result<(), String> {
    let not_written = |why: String| {
        Err(format!(
            "what the program has written is not all on the file system: {why}; `forebay dirty` lists it"
        ))
    };
    match wait(client, None, is_quiet, || !is_signalled()) {
        Ok(true) if rules.is_empty() => Ok(()),
        Ok(true) => match client.wait_for_markers(rules, || !is_signalled()) {
            Ok(_) => Ok(()),
            Err(e) => Err(format!("nothing says that the checkpoints are complete: {e}")),
        },
        Ok(false) => {
            eprintln!(
                "forebay run: the agent goes on writing to the file system; `forebay sync` waits for it"
            );
            Ok(())
        }
        Err(e) => not_written(e.to_string()),
    }
}

/// Waits until the second place has what a program has written, including to files that it has not
/// closed itself. A signal ends the wait.
pub fn wait_for_copies(client: &Client, second: SecondPlace) -> Result<(), String> {
    match client.keep_dirty(None, second, || !is_signalled()) {
        Ok(true) => Ok(()),
        Ok(false) => Err("interrupted: what was written may be in the memory of this node alone".into()),
        Err(e) => Err(format!("what the program has written is in the memory of this node alone: {e}")),
    }
}

/// Whether a signal that ends a program is pending. These are blocked while a program is followed.
fn is_signalled() -> bool {
    // SAFETY: sets on this stack that are initialised before they are used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        libc::sigtimedwait(&set, std::ptr::null_mut(), &at_once) > 0
    }
}

/// Saves the content of files that cannot be written to the file system.
pub fn rescue(global: &Global, args: &RescueArgs) -> Outcome {
    let client = global.client();
    let files = client.dirty_files().map_err(|e| no_agent(global, &e))?;
    let chosen: Vec<&DirtyStatus> = match args.number {
        Some(number) => files.iter().filter(|file| file.copy == number).collect(),
        None => files.iter().filter(|file| file.state == DirtyState::Parked).collect(),
    };
    if let (Some(number), true) = (args.number, chosen.is_empty()) {
        return Err(format!("no dirty file has the number {number}; `forebay dirty` lists them"));
    }
    let mut saved = Vec::new();
    if !chosen.is_empty() {
        std::fs::create_dir_all(&args.directory).map_err(|e| format!("{}: {e}", args.directory.display()))?;
    }
    for file in chosen {
        let target = args.directory.join(target_name(file));
        save(&client, file, &target).map_err(|e| format!("{}: {e}", target.display()))?;
        if args.drop {
            client.drop_dirty(file.copy).map_err(|e| format!("{}: {e}", out::name(&file.path)))?;
        }
        saved.push((out::name(&file.path), target));
    }
    let pairs = saved.iter().map(|(path, target)| serde_json::json!({ "path": path, "saved": target }));
    print(global, &pairs.collect::<Vec<_>>(), |out| {
        if saved.is_empty() {
            return writeln!(out, "no file is parked");
        }
        saved.iter().try_for_each(|(path, target)| writeln!(out, "{path} -> {}", target.display()))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Its own name with its number before it: files of many directories meet in one.
fn target_name(file: &DirtyStatus) -> OsString {
    let path = Path::new(OsStr::from_bytes(&file.path));
    let mut name = format!("{}-", file.copy).into_bytes();
    name.extend(path.file_name().unwrap_or(OsStr::new("file")).as_bytes());
    OsString::from_vec(name)
}

fn save(client: &Client, file: &DirtyStatus, target: &PathBuf) -> io::Result<()> {
    let mut content = File::from(client.export_dirty(file.copy)?);
    let mut saved = File::options().write(true).create_new(true).open(target)?;
    io::copy(&mut content, &mut saved)?;
    saved.sync_all()
}
