//! `mount` and `umount` of a PFS with the tier in the read path, and `run --mount`, which mounts
//! over the PFS's own path for one program.
//!
//! `mount` returns when the mount is ready. It starts this program again with `--foreground` and
//! waits for its first line. If that process fails, its error is printed here.

use crate::Outcome;
use crate::cli::{Global, MountArgs, RunArgs, UmountArgs, parse_seconds};
use crate::out::no_agent;
use crate::patterns::whole_pattern;
use crate::program::start_companion;
use forebay_client::dirty::Patterns;
use forebay_client::{Client, ClientConfig, GuestMode, second_place};
use forebay_mount::{Mounted, Options};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Options that `mount(8)` passes on and that have no effect here.
const IGNORED: [&str; 10] =
    ["defaults", "auto", "noauto", "user", "nouser", "users", "async", "_netdev", "nofail", "allow_other"];

/// How long a mount for guests stays after its agent has gone: another one may be starting.
const AGENT_AWAY_MAX: Duration = Duration::from_secs(60);
const LOOK_FOR_AGENT: Duration = Duration::from_secs(5);

/// Mounts a PFS.
pub fn mount(global: &Global, args: &MountArgs) -> Outcome {
    let options = options_of(args)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    if args.foreground { serve(global, args, &options) } else { start(args) }
}

fn options_of(args: &MountArgs) -> Result<Options, String> {
    let mut options = Options { private: args.private, valid_for: args.attr_timeout, ..Options::default() };
    let (mut frozen, mut write_back) = (args.frozen.clone(), args.write_back.clone());
    for option in args.options.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            (name @ ("ro" | "rw"), "") => options.read_only = name == "ro",
            (name @ ("suid" | "nosuid"), "") => options.suid = name == "suid",
            (name @ ("dev" | "nodev"), "") => options.dev = name == "dev",
            (name @ ("exec" | "noexec"), "") => options.noexec = name == "noexec",
            ("attr_timeout", seconds) => options.valid_for = parse_seconds(seconds)?,
            ("frozen", dir) if !dir.is_empty() => frozen.push(dir.into()),
            ("write_back", pattern) if !pattern.is_empty() => write_back.push(pattern.into()),
            (name, _) if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("comment") => {
            }
            _ => {
                return Err(format!(
                    "-o {option}: unknown; known are ro, suid, dev, noexec, their opposites, attr_timeout=SECONDS, frozen=DIR and write_back=PATTERN"
                ));
            }
        }
    }
    if !frozen.is_empty() {
        let pfs = real(&args.pfs)?.into_os_string();
        options.frozen = frozen_dirs(&[pfs], &args.pfs.to_string_lossy(), &frozen)?;
    }
    options.write_back = patterns_on_pfs(args, &write_back)?;
    Ok(options)
}

/// The patterns by paths of the PFS; one below the mount point means the same file there.
fn patterns_on_pfs(args: &MountArgs, patterns: &[PathBuf]) -> Result<Patterns, String> {
    let at = std::path::absolute(&args.mountpoint).unwrap_or_else(|_| args.mountpoint.clone());
    let (pfs, at) = (real(&args.pfs)?, at.canonicalize().unwrap_or(at));
    let one = |pattern: &PathBuf| {
        let absolute = std::path::absolute(pattern).map_err(|e| format!("--write-back: {e}"))?;
        let whole = match absolute.strip_prefix(&args.mountpoint).or_else(|_| absolute.strip_prefix(&at)) {
            Ok(below) => pfs.join(below),
            Err(_) => absolute,
        };
        let text = whole_pattern("--write-back", &whole)?;
        match Path::new(&text).starts_with(glob::Pattern::escape(&pfs.to_string_lossy())) {
            true => Ok(text),
            false => Err(format!("--write-back {}: not on {}", pattern.display(), args.pfs.display())),
        }
    };
    let lines = patterns.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    Ok(Patterns::from_lines(&lines.join("\n")))
}

fn start(args: &MountArgs) -> Outcome {
    let failed = |e: std::io::Error| format!("cannot start the mount of {}: {e}", args.pfs.display());
    let memory = rustix::fs::memfd_create("forebay-mount", rustix::fs::MemfdFlags::CLOEXEC);
    let mut messages = File::from(memory.map_err(|e| failed(e.into()))?);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // Before the other arguments: after `--` it would be a place.
    let mut arguments = std::env::args_os().skip(1);
    for argument in arguments.by_ref() {
        let is_subcommand = argument == "mount";
        command.arg(argument);
        if is_subcommand {
            command.args(["--foreground", "--in-background"]);
            break;
        }
    }
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(messages.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let mut first = [0];
    let is_ready = child.stdout.take().is_some_and(|mut out| out.read(&mut first).is_ok_and(|n| n == 1));
    if is_ready {
        return Ok(ExitCode::SUCCESS);
    }
    let _ended = child.wait();
    let mut text = String::new();
    let _shown_below = messages.rewind().and_then(|()| messages.read_to_string(&mut text));
    let why = text.trim().trim_start_matches("forebay: ");
    Err(if why.is_empty() { "the mount has ended before it was ready".into() } else { why.to_owned() })
}

fn serve(global: &Global, args: &MountArgs, options: &Options) -> Outcome {
    let (pfs, at) = (&args.pfs, &args.mountpoint);
    let mut config = quiet_config(global, args.copies.as_deref());
    if args.for_guests {
        config.guest = GuestMode::RequestsOnly;
    }
    let agent = args.for_guests.then(|| Client::new(config.clone()));
    let mounted = Mounted::new(pfs, at, options, Client::new(config))
        .map_err(|e| format!("cannot mount {} at {}: {e}", pfs.display(), at.display()))?;
    // The process would keep the directory of its caller busy.
    let _ = std::env::set_current_dir("/");
    unmount_at_signals(mounted.at().to_owned())?;
    if let Some(agent) = agent {
        unmount_after_agent(agent, mounted.at().to_owned())?;
    }
    if args.in_background {
        // Not before it is mounted: autofs lets only processes of its own group see the place.
        rustix::process::setsid().map_err(|e| format!("cannot leave the session of the starter: {e}"))?;
    }
    // The starter may be gone.
    let _ = writeln!(std::io::stdout(), "mounted {} at {}", pfs.display(), mounted.at().display());
    if args.in_background {
        // From here on nobody reads what the starter has given it for its first messages.
        forebay_mount::to_system_log().map_err(|e| format!("cannot let go of standard error: {e}"))?;
    }
    mounted.words().iter().for_each(|line| forebay_mount::say(line));
    mounted.serve().map_err(|e| {
        let why = format!("the mount at {} has ended: {e}", mounted.at().display());
        if args.in_background {
            forebay_mount::say(&why);
        }
        why
    })?;
    Ok(ExitCode::SUCCESS)
}

/// In the background, nobody reads messages.
fn quiet_config(global: &Global, copies: Option<&str>) -> ClientConfig {
    let mut config = global.client_config();
    config.second = copies.map_or(config.second, second_place);
    config.quiet = true;
    config.guest = GuestMode::Requests;
    // A reader continues with the PFS after any change, so nothing need be distinguished: without a
    // watch, a write whose mtime was set back along with an unlink would pass for the unlink alone.
    config.watches = false;
    // The mount works in another directory.
    config.socket = config.socket.map(|socket| std::path::absolute(&socket).unwrap_or(socket));
    config
}

/// The first signal unmounts: now, or when the last program that uses the mount has ended. The
/// second ends this process.
fn unmount_at_signals(at: PathBuf) -> Result<(), String> {
    let signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]);
    let mut signals = signals.map_err(|e| format!("cannot wait for signals: {e}"))?;
    let wait = move || {
        let mut is_first = true;
        for _signal in signals.forever() {
            if !is_first {
                std::process::exit(1);
            }
            is_first = false;
            if forebay_mount::unmount(&at, false).is_err() {
                // It may be gone already.
                let _ = forebay_mount::unmount(&at, true);
            }
        }
    };
    let thread = std::thread::Builder::new().name("end".into()).spawn(wait);
    thread.map(drop).map_err(|e| format!("cannot wait for signals: {e}"))
}

/// Unmounts once there has been no agent for a while: its programs keep what they have open.
fn unmount_after_agent(agent: Client, at: PathBuf) -> Result<(), String> {
    let wait = move || {
        let mut seen = Instant::now();
        while seen.elapsed() < AGENT_AWAY_MAX {
            std::thread::sleep(LOOK_FOR_AGENT);
            if agent.admin().status().is_ok() {
                seen = Instant::now();
            }
        }
        // It may be gone already.
        let _ = forebay_mount::unmount(&at, true);
    };
    let thread = std::thread::Builder::new().name("agent".into()).spawn(wait);
    thread.map(drop).map_err(|e| format!("cannot wait for the agent's end: {e}"))
}

/// Unmounts.
pub fn umount(args: &UmountArgs) -> Outcome {
    let at = &args.mountpoint;
    let is_dead = rustix::fs::stat(at).err() == Some(rustix::io::Errno::NOTCONN);
    match forebay_mount::unmount(at, args.lazy || is_dead) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Err(format!(
            "cannot unmount {}: a program has a file open or its current directory there; `forebay umount --lazy` \
             detaches it now and ends it when nobody uses it any more",
            at.display()
        )),
        Err(e) => Err(format!("cannot unmount {}: {e}", at.display())),
    }
}

/// Mounts each PFS of the agent over its own path, for this process and its children only. A
/// companion serves the mounts until the program, which this process becomes, has ended. Returns
/// its number. No thread may have been started yet.
pub fn mount_for_program(
    global: &Global,
    client: &Client,
    command: &mut Command,
    args: &RunArgs,
    (write_back, is_quiet): (&Patterns, bool),
) -> Result<u32, String> {
    let roots = client.mount_roots().map_err(|e| no_agent(global, &e))?;
    let frozen = frozen_dirs(&roots, "a file system that the agent serves", &args.frozen)?;
    let write_back = write_back.clone();
    let here = std::env::current_dir();
    let mut config = quiet_config(global, args.copies.as_deref());
    config.job_name = args.job.clone().or(config.job_name);
    // In a user namespace, root and all other users look the same.
    config.trusted_agent = client.agent_process().map_err(|e| no_agent(global, &e))?;
    if let Some(agent) = &config.trusted_agent {
        command.env("FOREBAY_TRUST_AGENT", agent.to_string());
    }
    enter_namespaces().map_err(|e| {
        format!("--mount: cannot make a mount namespace: {e}; the system may forbid user namespaces")
    })?;
    // The companion has no standard error of its own, and must not keep the program's open.
    let words = std::io::stderr().as_fd().try_clone_to_owned();
    let words = words.map_err(|e| format!("--mount: cannot duplicate standard error: {e}"))?;
    let mount = move || {
        let mut words = File::from(words);
        roots.iter().try_for_each(|root| {
            let frozen = frozen.iter().filter(|dir| dir.starts_with(root)).cloned().collect();
            let options = Options { frozen, write_back: write_back.clone(), ..Options::default() };
            let said = serve_privately(&config, root, options)?;
            for line in said.iter().filter(|_| !is_quiet) {
                // Nobody may be there to read it.
                let _ = writeln!(words, "forebay run: {line}");
            }
            Ok(())
        })
    };
    let companion = start_companion(mount)?;
    if let Ok(here) = here {
        // By its name it is below the mount, if it is on the PFS.
        std::env::set_current_dir(&here).map_err(|e| format!("--mount: {}: {e}", here.display()))?;
    }
    Ok(companion)
}

fn real(dir: &Path) -> Result<PathBuf, String> {
    dir.canonicalize().map_err(|e| format!("{}: {e}", dir.display()))
}

/// The directories by their real paths, each below one of `roots`, which are called `name`.
fn frozen_dirs(roots: &[OsString], name: &str, dirs: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let below = |dir: &PathBuf| {
        let real = real(dir).map_err(|e| format!("--frozen {e}"))?;
        match roots.iter().any(|root| real.starts_with(root)) {
            true => Ok(real),
            false => Err(format!("--frozen {}: not on {name}", dir.display())),
        }
    };
    dirs.iter().map(below).collect()
}

/// Mounts a PFS over its own path, and serves it until this process ends. Returns what the user
/// should know.
fn serve_privately(config: &ClientConfig, root: &OsString, options: Options) -> Result<Vec<String>, String> {
    let root = Path::new(root);
    let mounted = Mounted::new(root, root, &options, Client::new(config.clone()))
        .map_err(|e| format!("--mount: cannot mount over {}: {e}", root.display()))?;
    let words = mounted.words().to_vec();
    let serve = move || {
        // The mount ends with this process.
        let _ = mounted.serve();
    };
    let thread = std::thread::Builder::new().name("mount".into()).spawn(serve);
    thread.map_err(|e| format!("--mount: {e}"))?;
    // Until it has asked, the kernel treats root as the owner, whom the namespace does not know,
    // and lets nobody write into the directory. A PFS that fails says so later.
    let _ = std::fs::metadata(root);
    Ok(words)
}

fn enter_namespaces() -> std::io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let is_root = rustix::process::geteuid().is_root();
    let flags = if is_root { UnshareFlags::NEWNS } else { UnshareFlags::NEWNS | UnshareFlags::NEWUSER };
    // SAFETY: descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    if !is_root {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // Mounts of the host still appear here, but none of here appears there.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}
