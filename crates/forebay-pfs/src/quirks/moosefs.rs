//! MooseFS: files are cut into chunks of 64 MiB, each on a server of its own. No attribute reports
//! them, but a tool of its client does.
//!
//! The tool asks the metadata server for each file by its path, and is run once for many. It may
//! hang as the PFS does: it has a deadline, is killed then, and nobody waits for its end.

use super::create::{Laid, New};
use super::{FileSystem, Traits, UNKNOWN};
use crate::ChangeStamp;
use crate::layout::Layout;
use crate::layout::hint::Hint;
use crate::mount::MountLine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(super) const MOOSEFS: FileSystem = FileSystem {
    name: "MooseFS",
    is_of,
    traits: Traits {
        stamps_late: true,
        reads_ahead: true,
        layout_by_path: true,
        storage_classes: true,
        chunk_bytes: Some(CHUNK_BYTES),
        known_stamps: Some(ChangeStamp::Ctime),
        ..UNKNOWN.traits
    },
    layout: None,
    create: Some(create),
};

const CHUNK_BYTES: u64 = 64 << 20;

/// Its client is a FUSE program that names no type of its own, but begins the source with its name.
fn is_of(line: &MountLine) -> bool {
    let types: [&[u8]; 3] = [b"moosefs", b"fuse.mfs", b"fuse.moosefs"];
    types.contains(&line.fs_type.as_slice()) || line.source.starts_with(b"mfs#")
}

/// The tool, on the `PATH`.
const TOOL: &str = "mfsfileinfo";

/// Paths for one run; with all of them as long as they may be, half of what Linux takes as
/// arguments.
const RUN_PATHS: usize = 256;

/// Longest path that Linux takes, with its end.
const PATH_BYTES_MAX: usize = 4096;

/// Longest output of one run: chunks of 4 TiB of files. The rest is not known.
const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Limit on runs that were killed and have not died yet; at the limit no more are begun.
const HUNG_MAX: usize = 8;

/// How long to wait for the end of a run before it is left to a thread.
const END_TIME: Duration = Duration::from_millis(20);

/// Stack of that thread.
const STACK_BYTES: usize = 64 << 10;

static HUNG: AtomicUsize = AtomicUsize::new(0);

/// Where files of MooseFS (absolute paths) are, in their order, as far as that is known by
/// `deadline`; `None` for all if the tool is not installed. A layout has an entry for each chunk,
/// the first copy that is good, empty if there is none. It ends early if the tool had to stop in
/// the middle of a file; the file's size distinguishes the two.
pub fn probe_paths(paths: &[&Path], deadline: Instant) -> Vec<Option<Layout>> {
    let mut layouts = vec![None; paths.len()];
    let asked: Vec<usize> = (0..paths.len()).filter(|&i| can_be_asked(paths[i])).collect();
    for run in asked.chunks(RUN_PATHS) {
        let of_run: Vec<&Path> = run.iter().map(|&i| paths[i]).collect();
        let mut command = Command::new(TOOL);
        command.args(&of_run);
        let Ok(output) = output_of(command, deadline) else { break };
        for (&i, layout) in run.iter().zip(parse(&output, &of_run)) {
            layouts[i] = layout;
        }
    }
    layouts
}

/// Whether the tool can be asked about a path: one that would be mistaken for an option, or tear
/// the output's lines, is not.
fn can_be_asked(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    path.is_absolute() && bytes.len() < PATH_BYTES_MAX && !bytes.iter().any(|b| matches!(b, b'\n' | 0))
}

/// The tool that sets a storage class.
const CLASS_TOOL: &str = "mfssetsclass";

/// Gives the file at `path` the storage class `class`, with the rights of the user and group
/// `rights`, or of this process.
///
/// # Errors
/// The tool's message; it is not installed, or did not end by `deadline`.
pub fn set_class(path: &Path, class: &str, rights: Option<(u32, u32)>, deadline: Instant) -> io::Result<()> {
    if !can_be_asked(path) || class.is_empty() || class.starts_with('-') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such path or storage class can be set"));
    }
    let mut command = Command::new("/bin/sh");
    // Its errors are on its standard output or error, and its exit code is this line's end.
    command.args(["-c", "\"$0\" \"$1\" \"$2\" 2>&1; echo \"=$?\"", CLASS_TOOL, class]).arg(path);
    if let Some((uid, gid)) = rights {
        command.uid(uid).gid(gid);
    }
    let output = output_of(command, deadline)?;
    let said = String::from_utf8_lossy(&output);
    match said.trim_end().rsplit_once('=') {
        Some((_, "0")) => Ok(()),
        Some((_, "127")) => {
            Err(io::Error::new(io::ErrorKind::NotFound, format!("{CLASS_TOOL} is not installed")))
        }
        Some((why, _)) => {
            let why = why.trim().rsplit(": ").next().unwrap_or_default().to_owned();
            Err(io::Error::other(format!("MooseFS does not take the storage class {class}: {why}")))
        }
        None => Err(io::Error::new(io::ErrorKind::TimedOut, format!("{CLASS_TOOL} did not end in time"))),
    }
}

fn create(new: &mut New<'_>, hint: &Hint) -> Laid {
    let class = class_of(hint)?;
    let Some(file) = new.file(OFlags::empty())? else { return Ok(None) };
    Ok(Some((new.set_class)(file.as_fd(), class)))
}

/// Chunks have one size, and are where the storage class lets them.
fn class_of(hint: &Hint) -> Result<&str, String> {
    match (&hint.pool, hint) {
        (Some(class), Hint { stripes: None, stripe_bytes: None, servers, .. }) if servers.is_empty() => {
            Ok(class)
        }
        _ => Err("MooseFS takes a storage class only: `pool:CLASS`".into()),
    }
}

/// What `command` writes to its standard output until it ends, or until `deadline`.
fn output_of(mut command: Command, deadline: Instant) -> io::Result<Vec<u8>> {
    if Instant::now() >= deadline || HUNG.load(Ordering::Relaxed) >= HUNG_MAX {
        return Err(io::ErrorKind::TimedOut.into());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // What came before an error is as good as what comes before the deadline.
        let _ = read_until(stdout, deadline, &mut output);
    }
    end(child);
    Ok(output)
}

fn read_until(mut from: ChildStdout, deadline: Instant, output: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = vec![0u8; 64 << 10];
    while output.len() < OUTPUT_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(len) => output.extend_from_slice(&piece[..len]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Ends the tool. One that hangs in the PFS dies when that answers, and only a thread of its own
/// waits for it.
fn end(mut child: Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let patience = Instant::now() + END_TIME;
    while Instant::now() < patience {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    HUNG.fetch_add(1, Ordering::Relaxed);
    let wait = move || {
        let _ = child.wait();
        HUNG.fetch_sub(1, Ordering::Relaxed);
    };
    // Without a thread it stays in the count, and as an ended process in the kernel's table, for as
    // long as this one lives.
    let _ = std::thread::Builder::new().name("reap".into()).stack_size(STACK_BYTES).spawn(wait);
}

/// Reads what the tool has reported of `paths`, in their order. A file begins with a line of its
/// path and a colon; all that belongs to it is indented. If it knows nothing about a file, it says
/// so in another line.
fn parse(output: &[u8], paths: &[&Path]) -> Vec<Option<Layout>> {
    let mut layouts: Vec<Option<Layout>> = vec![None; paths.len()];
    let mut current: Option<usize> = None;
    let mut next = 0;
    for line in output.split(|&b| b == b'\n') {
        if line.first() == Some(&b'\t') {
            if let Some(at) = current
                && let Some(layout) = &mut layouts[at]
            {
                take_chunk_line(&mut layout.servers, &String::from_utf8_lossy(line));
            }
        } else if let Some(path) = line.strip_suffix(b":") {
            // In the order of the arguments; some may be missing.
            let skipped = paths[next..].iter().position(|asked| asked.as_os_str().as_bytes() == path);
            current = skipped.map(|skipped| next + skipped);
            if let Some(at) = current {
                layouts[at] =
                    Some(Layout { stripe_bytes: CHUNK_BYTES, servers: Vec::new(), first_server: 0 });
                next = at + 1;
            }
        }
    }
    layouts
}

fn take_chunk_line(servers: &mut Vec<String>, line: &str) {
    if line.starts_with("\tchunk ") {
        servers.push(String::new());
        return;
    }
    let good = line.strip_prefix("\t\tcopy ").and_then(|copy| copy.strip_suffix(" (status:VALID)"));
    if let Some((_, server)) = good.and_then(|copy| copy.split_once(": "))
        && let Some(last) = servers.last_mut()
        && last.is_empty()
    {
        server.clone_into(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_a_class_and_nothing_else() {
        assert_eq!(class_of(&"pool:2".parse().unwrap()).unwrap(), "2");
        for text in ["stripes:2", "pool:2,size:1MiB", "pool:2,servers:1"] {
            assert!(class_of(&text.parse().unwrap()).unwrap_err().contains("storage class"), "{text}");
        }
    }

    const SAID: &str = "/mnt/mfs/big:\n\
        \tchunk 0: 0000000000000009_00000001 / (id:9 ver:1)\n\
        \t\tcopy 1: 10.77.0.14:9422 (status:VALID)\n\
        \tchunk 1: 000000000000000A_00000001 / (id:10 ver:1)\n\
        \t\tcopy 1: 10.77.0.11:9422 (status:WRONG VERSION)\n\
        \t\tcopy 2: 10.77.0.12:9422 (status:VALID)\n\
        \t\tcopy 3: 10.77.0.13:9422 (status:VALID)\n\
        \tchunk 2: empty\n\
        \tchunk 3: 000000000000000B_00000001 / (id:11 ver:1)\n\
        \t\tno valid copies !!!\n\
        /mnt/mfs/nothere: realpath error on (/mnt/mfs/nothere): ENOENT (No such file or directory)\n\
        /mnt/mfs/empty:\n\
        \tno chunks - empty file\n\
        /mnt/mfs/a: b:\n\
        \tchunk 0: 000000000000000C_00000001 / (id:12 ver:1)\n\
        \t\tcopy 1: 10.77.0.11:9422 (status:VALID)\n";

    const ASKED: [&str; 4] = ["/mnt/mfs/big", "/mnt/mfs/nothere", "/mnt/mfs/empty", "/mnt/mfs/a: b"];

    fn servers(output: &[u8], paths: &[&str]) -> Vec<Option<Vec<String>>> {
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        parse(output, &paths).into_iter().map(|layout| layout.map(|layout| layout.servers)).collect()
    }

    #[test]
    fn each_chunk_is_where_its_first_good_copy_is() {
        let reported = servers(SAID.as_bytes(), &ASKED);
        assert_eq!(reported[0].as_deref().unwrap(), ["10.77.0.14:9422", "10.77.0.12:9422", "", ""]);
        assert_eq!(reported[1], None);
        assert_eq!(reported[2].as_deref().unwrap(), [""; 0]);
        assert_eq!(reported[3].as_deref().unwrap(), ["10.77.0.11:9422"]);
        let layouts = parse(SAID.as_bytes(), &[Path::new("/mnt/mfs/big")]);
        let big = layouts[0].as_ref().unwrap();
        assert_eq!(big.server_of((64 << 20) - 1), Some("10.77.0.14:9422"));
        assert_eq!(big.server_of(64 << 20), Some("10.77.0.12:9422"));
        assert_eq!(big.server_of(128 << 20), None);
    }

    #[test]
    fn files_that_were_not_asked_for_are_left_out() {
        let reported = servers(SAID.as_bytes(), &["/mnt/mfs/a: b"]);
        assert_eq!(reported, [Some(vec!["10.77.0.11:9422".to_owned()])]);
        assert_eq!(servers(SAID.as_bytes(), &["/other"]), [None]);
    }

    #[test]
    fn output_that_is_cut_off_names_no_other_servers() {
        let whole = servers(SAID.as_bytes(), &ASKED);
        for len in 0..SAID.len() {
            let cut = servers(&SAID.as_bytes()[..len], &ASKED);
            for (cut, whole) in cut.iter().zip(&whole) {
                let (cut, whole) = (cut.as_deref().unwrap_or(&[]), whole.as_deref().unwrap_or(&[]));
                assert!(cut.len() <= whole.len(), "{len}");
                assert!(cut.iter().zip(whole).all(|(c, w)| c.is_empty() || c == w), "{len}");
            }
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_full_pipe_holds_nobody_up_and_the_deadline_ends_a_run() {
        let soon = || Instant::now() + Duration::from_secs(20);
        let long = output_of(shell("head -c 1000000 /dev/zero; exit 1"), soon()).unwrap();
        assert_eq!(long.len(), 1_000_000);
        let endless = output_of(shell("exec cat /dev/zero"), soon()).unwrap();
        assert!(endless.len() >= OUTPUT_BYTES_MAX && endless.len() < 2 * OUTPUT_BYTES_MAX);
        let began = Instant::now();
        let hung = output_of(shell("echo before; exec sleep 60"), began + Duration::from_secs(1)).unwrap();
        assert_eq!(hung, b"before\n");
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(output_of(shell("echo late"), began).is_err());
        assert!(output_of(Command::new("forebay-no-such-tool"), soon()).is_err());
    }

    #[test]
    fn paths_that_would_confuse_the_tool_are_not_asked_for() {
        assert!(can_be_asked(Path::new("/mnt/mfs/a b:")));
        for path in ["-h", "relative", "/a\nb", "/a\0b", &format!("/{}", "x".repeat(5000))] {
            assert!(!can_be_asked(Path::new(path)), "{path}");
        }
        let reported =
            probe_paths(&[Path::new("-h"), Path::new("x")], Instant::now() + Duration::from_secs(5));
        assert_eq!(reported, [None, None], "nothing is run for them");
    }
}
