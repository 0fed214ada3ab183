//! `up`, `down` and `config check`: start, end and check an agent.
//!
//! `up` returns when the agent answers, so that a script can continue with the next line. It starts
//! this program again in the foreground, in a session of its own, and waits for it; whatever keeps
//! it from starting is printed here.

use crate::Outcome;
use crate::cli::{AgentArgs, DownArgs, Global, UpArgs};
use crate::log::start_log;
use crate::out::{no_agent, print};
use forebay_agent::Closer;
use forebay_agent::config::layers::{Given, waiting};
use forebay_agent::config::reload::{ACCESS_WAIT, LIVE};
use forebay_agent::config::{self, Key, PAGE_BYTES, default_state_dir};
use forebay_agent::memory;
use forebay_agent::units::Human;
use forebay_agent::{Agent, ClusterConfig, Config, CoordinatorAddress, MountConfig};
use forebay_client::{Client, ClientConfig};
use forebay_coordinator::Coordinator;
use forebay_store::Tier;
use forebay_wire::link::Security;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// An agent that adopts a large cache takes a while; one that takes longer than this has hung.
const START_TIME: Duration = Duration::from_secs(60);

/// A configuration, and which of its keys are given where.
type Configured = Result<(Config, Vec<Given>), String>;

/// Longest time `down` waits for the agent to be gone.
const STOP_TIME: Duration = Duration::from_secs(10);

/// Starts an agent.
pub fn up(global: &Global, args: UpArgs) -> Outcome {
    forebay_store::tier::mask_writers();
    let (config, given) = configure(global, &args)?;
    if args.foreground {
        let global = global.clone();
        return serve(config, given, true, move || configure(&global, &args));
    }
    let socket = config.socket();
    if let Ok(status) = client_of(&socket).admin().status() {
        return Err(format!(
            "an agent is running already (process {}); end it with `forebay down`",
            status.pid
        ));
    }
    let log = args.log.clone().unwrap_or_else(|| config.state_dir.join("agent.log"));
    // Before the log is opened: in somebody else's directory it could be a link to anywhere.
    forebay_store::tier::claim_state_dir(&config.state_dir).map_err(|e| e.to_string())?;
    let log_file = std::fs::OpenOptions::new().create(true).append(true).open(&log).map_err(|e| {
        format!("cannot write the log {}: {e}; --log needs a file in a directory that exists", log.display())
    })?;
    let mut child = spawn(log_file).map_err(|e| format!("cannot start the agent: {e}"))?;
    wait_ready(&mut child, &socket, &log)?;
    announce(global, &socket, &log)
}

fn client_of(socket: &Path) -> Client {
    Client::new(ClientConfig { socket: Some(socket.to_owned()), quiet: true, ..ClientConfig::from_env() })
}

/// The configuration with the command line on top of it, and which keys are given below that.
fn configure(global: &Global, args: &UpArgs) -> Configured {
    let (mut config, given) = Config::load(args.config.as_deref())?;
    let configured = config.mounts.len();
    for pfs in &args.pfs {
        let mut mount = parse_pfs(pfs)?;
        mount.page_bytes = args.page_size.unwrap_or(mount.page_bytes);
        if !mount.page_bytes.is_power_of_two() || !PAGE_BYTES.contains(&mount.page_bytes) {
            return Err(format!(
                "--page-size {}: must be a power of two from 64KiB to 64MiB",
                mount.page_bytes
            ));
        }
        // One that the configuration has too is meant as it is there.
        let same = |other: &&mut MountConfig| (&other.label, &other.root) == (&mount.label, &mount.root);
        match config.mounts.iter_mut().take(configured).find(same) {
            Some(other) => other.page_bytes = args.page_size.unwrap_or(other.page_bytes),
            None => config.mounts.push(mount),
        }
    }
    config.capacity = args.capacity.unwrap_or(config.capacity);
    config.state_dir = args.state_dir.clone().unwrap_or(config.state_dir);
    if let Some(socket) = &global.socket {
        // A client's option; for `up` it has to be the place where the agent listens anyway.
        if *socket != config.socket() && args.state_dir.is_none() {
            config.state_dir = socket.parent().unwrap_or(Path::new(".")).to_owned();
        }
        if *socket != config.socket() {
            return Err(format!(
                "the agent listens on {}, not on {}",
                config.socket().display(),
                socket.display()
            ));
        }
    }
    if let Some(name) = &args.eviction {
        config.eviction = name.parse().map_err(|e| format!("--eviction: {e}"))?;
    }
    config.backing = match args.backing.as_deref() {
        None => config.backing,
        Some("auto") => forebay_store::Backing::Auto,
        Some("mount") => forebay_store::Backing::Mount,
        Some("namespace") => forebay_store::Backing::Namespace,
        Some("directory") => forebay_store::Backing::Directory,
        Some(other) => return Err(format!("--backing {other}: write auto, mount, namespace or directory")),
    };
    if let Some(listen) = &args.console {
        if !config.cluster.coordinator.is_empty() {
            return Err(format!(
                "--console: the console is served by the coordinator, which is {} (cluster.coordinator)",
                config.cluster.coordinator.join(", ")
            ));
        }
        config.console.listen_on("console", listen)?;
    }
    config.validate()?;
    Ok((config, given))
}

/// `LABEL=DIR`, or `DIR`, whose last component is the label then.
fn parse_pfs(text: &str) -> Result<MountConfig, String> {
    let (label, root) = match text.split_once('=') {
        Some((label, root)) if !label.contains('/') => (Some(label.to_owned()), root),
        _ => (None, text),
    };
    let root = Path::new(root).canonicalize().map_err(|e| format!("--pfs {text}: {e}"))?;
    let label = label.unwrap_or_else(|| {
        root.file_name()
            .map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().replace([':', '\n'], "_"))
    });
    Ok(MountConfig::new(&label, &root))
}

/// Starts this very command again, in the foreground and in a session of its own.
fn spawn(log: std::fs::File) -> io::Result<Child> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--foreground");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    command.spawn()
}

fn wait_ready(child: &mut Child, socket: &Path, log: &Path) -> Result<(), String> {
    let deadline = Instant::now() + START_TIME;
    let start = std::fs::metadata(log).map_or(0, |m| m.len());
    let client = client_of(socket);
    while Instant::now() < deadline {
        if client.admin().status().is_ok_and(|s| s.pid == child.id()) {
            return Ok(());
        }
        match child.try_wait() {
            Ok(Some(_)) => return Err(last_words(log, start)),
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(e) => return Err(format!("cannot wait for the agent: {e}")),
        }
    }
    Err(format!("the agent is not ready after {} s; see {}", START_TIME.as_secs(), log.display()))
}

/// What the agent said before it ended.
fn last_words(log: &Path, from: u64) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(log).and_then(|mut file| {
        io::Seek::seek(&mut file, io::SeekFrom::Start(from.saturating_sub(4096)))?;
        file.read_to_string(&mut text)
    });
    let said = text.lines().rev().find_map(|line| line.strip_prefix("forebay: "));
    match (read, said) {
        (Ok(_), Some(said)) => said.to_owned(),
        _ => format!("the agent ended at once; see {}", log.display()),
    }
}

fn announce(global: &Global, socket: &Path, log: &Path) -> Outcome {
    let status = client_of(socket).admin().status().map_err(|e| no_agent(global, &e))?;
    print(global, &crate::status::to_json(&status)?, |out| {
        let labels: Vec<_> = status.mounts.iter().map(|m| crate::out::name(&m.root)).collect();
        writeln!(
            out,
            "agent {} serves {} with {}",
            status.pid,
            labels.join(", "),
            Human(status.capacity_bytes)
        )?;
        for mount in status.mounts.iter().filter(|mount| !mount.cached) {
            writeln!(out, "mount  {} is not cached: {}", mount.label, mount.stamps)?;
        }
        writeln!(out, "tier   {}, huge pages: {}", status.tier, status.huge_pages)?;
        writeln!(out, "socket {}", socket.display())?;
        writeln!(out, "log    {}", log.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the agent of a node whose coordinator is elsewhere.
pub fn agent(args: &AgentArgs) -> Outcome {
    forebay_store::tier::mask_writers();
    let path = args.config.clone();
    let (config, given) = Config::load(path.as_deref())?;
    if config.cluster.coordinator.is_empty() {
        let place = path.map_or("no configuration file".to_owned(), |path| path.display().to_string());
        return Err(format!(
            "{place}: cluster.coordinator is empty: give the coordinator's HOST:PORT, or start an agent with a coordinator of \
             its own by `forebay up`"
        ));
    }
    serve(config, given, false, move || Config::load(path.as_deref()))
}

/// The way to the coordinator: to another process, or to one started here.
/// `may_start`: also as one of several candidates.
fn find_coordinator(
    config: &ClusterConfig,
    may_start: bool,
) -> io::Result<(CoordinatorAddress, Option<Coordinator>)> {
    if !config.etcd.is_empty() && config.coordinator.is_empty() {
        let what =
            "cluster.etcd needs cluster.coordinator here: the list of all candidates, this one included";
        return Err(io::Error::other(what));
    }
    let runs_one = config.coordinator.is_empty() || may_start && !config.coordinator_listen.is_empty();
    let coordinator = runs_one.then(|| crate::coordinator::start(config)).transpose()?;
    let address = match &coordinator {
        Some(coordinator) if config.coordinator.is_empty() => {
            CoordinatorAddress::Local(Box::new(coordinator.connector()))
        }
        _ => {
            let security = Security::configured(config.tls.as_deref())?;
            CoordinatorAddress::Remote(config.coordinator.clone(), security)
        }
    };
    Ok((address, coordinator))
}

/// Runs the agent in this process until a signal or a request ends it. `again` reads its
/// configuration once more. `may_start`: also a coordinator, as one of the candidates that it
/// names.
fn serve(
    config: Config,
    given: Vec<Given>,
    may_start: bool,
    again: impl Fn() -> Configured + Send + 'static,
) -> Outcome {
    let closer = Closer::start().map_err(|e| format!("cannot start the process that closes files: {e}"))?;
    start_log();
    // First: a reload while the agent starts must not end it.
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
        .map_err(|e| format!("cannot handle signals: {e}"))?;
    log_limits(&config);
    let program = std::env::current_exe().ok();
    let (coordinator_at, coordinator) =
        find_coordinator(&config.cluster, may_start).map_err(|e| e.to_string())?;
    let state_dir = config.state_dir.clone();
    // An error means that another agent has it.
    let first = matches!(Tier::reopen(&state_dir), Ok(None));
    let agent = Agent::start(config, program, coordinator_at, closer).map_err(|e| {
        if first {
            forget_tier(&state_dir);
        }
        e.to_string()
    })?;
    tracing::info!(
        socket = %agent.config().socket().display(),
        tier = agent.tier().description(),
        huge_pages = agent.tier().huge_pages(),
        capacity_bytes = agent.capacity_bytes(),
        "agent is ready"
    );
    let socket = agent.config().socket();
    crate::coordinator::serve_web(agent.config(), Some(socket), coordinator.as_ref())?;
    let stop = agent.stop();
    let reconfigure = agent.reconfigurer();
    let runs_coordinator = coordinator.is_some();
    let live: Vec<&str> = LIVE.into_iter().filter(|key| !(runs_coordinator && *key == ACCESS_WAIT)).collect();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if signal != libc::SIGHUP {
                return stop.stop();
            }
            let reloaded = again()
                .and_then(|(config, now)| reconfigure(&config).map(|capacity_bytes| (capacity_bytes, now)));
            match reloaded {
                Ok((capacity_bytes, now)) => {
                    let later = waiting(&given, &now, &live).join(", ");
                    tracing::info!(
                        capacity_bytes,
                        at_the_next_start = later,
                        "the configuration is read again"
                    );
                }
                Err(e) => tracing::error!("the configuration is not changed: {e}"),
            }
        }
    });
    agent.run().map_err(|e| format!("cannot end cleanly: {e}"))?;
    if let Some(coordinator) = coordinator {
        coordinator.stop();
    }
    tracing::info!("agent has ended");
    Ok(ExitCode::SUCCESS)
}

/// Releases the memory file system of an agent that could not start. One that was there before
/// stays: it holds a cache.
fn forget_tier(state_dir: &Path) {
    let destroyed = Tier::reopen(state_dir).and_then(|tier| tier.map_or(Ok(()), Tier::destroy));
    if let Err(e) = destroyed {
        tracing::warn!(error = %e, "the tier of an agent that did not start remains; `forebay down --drop` removes it");
    }
}

/// tmpfs pages count in the control group: say so where the operator looks when something was
/// killed.
fn log_limits(config: &Config) {
    match memory::group_limit() {
        Some(limit) => tracing::info!(
            group = %limit.group.display(),
            limit_bytes = limit.bytes,
            capacity_bytes = config.capacity.of(limit.bytes),
            "the tier's memory counts against this control group"
        ),
        None => {
            tracing::info!(total_bytes = memory::total_bytes(), "no control group limits the tier's memory")
        }
    }
}

/// Ends the agent.
pub fn down(global: &Global, args: &DownArgs) -> Outcome {
    // The agent whose directory is named is meant, and no other.
    let named = args.state_dir.as_ref().filter(|_| global.socket.is_none());
    let client = named.map_or_else(|| global.client(), |dir| client_of(&dir.join("agent.sock")));
    let mut kept = String::new();
    let status = client.admin().status();
    let of_another_protocol = status.as_ref().err().and_then(|_| client.agent_of_another_protocol());
    let ended = match status {
        Ok(status) => {
            if args.drop {
                client.sync_dirty(None, || true).map_err(|e| {
                    format!("the cache is not dropped, because it has files that the file system does not have: {e}")
                })?;
            }
            client.admin().shutdown().map_err(|e| no_agent(global, &e))?;
            wait_gone(status.pid)?;
            if !args.drop {
                kept = format!(
                    "the cache stays for the next agent: {} of memory in {}; `forebay down --drop` releases it",
                    Human(status.resident_bytes),
                    status.tier
                );
            }
            Some(status.pid)
        }
        Err(e) if of_another_protocol.is_some() && args.drop => {
            return Err(format!(
                "{e}; `forebay down` ends that agent and leaves its cache and what is not written yet to the next one, \
                 which `--drop` then ends"
            ));
        }
        Err(_) if of_another_protocol.is_some() => {
            kept = "the cache stays for the next agent of the same version".to_owned();
            of_another_protocol.map(end_by_signal).transpose()?
        }
        Err(e) if args.drop => {
            tracing::debug!(error = %e, "no agent to end");
            None
        }
        Err(e) => return Err(no_agent(global, &e) + &agents_of_others(&client)),
    };
    if args.drop {
        drop_tier(global, args)?;
    }
    print(global, &serde_json::json!({ "ended": ended, "dropped": args.drop }), |out| {
        match ended {
            Some(pid) => writeln!(out, "agent {pid} has ended")?,
            None => writeln!(out, "no agent was running")?,
        }
        match args.drop {
            true => writeln!(out, "the cache is dropped and its memory is free"),
            false => writeln!(out, "{kept}"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Sockets of agents in the usual places of other users, for a user who looked in the wrong place.
fn agents_of_others(client: &Client) -> String {
    let usual = ["/run/forebay/agent.sock", "/run/user/*/forebay/agent.sock", "/tmp/forebay-*/agent.sock"];
    let found = usual.iter().filter_map(|pattern| glob::glob(pattern).ok()).flatten().flatten();
    let others: Vec<_> = found
        .filter(|path| Some(path.as_path()) != client.socket())
        .map(|path| path.display().to_string())
        .collect();
    match others.is_empty() {
        true => String::new(),
        false => format!("\nother agents of this machine: {}; name one with --socket", others.join(", ")),
    }
}

/// Ends an agent that takes no requests of this version, as a service manager does.
fn end_by_signal(pid: i32) -> Result<u32, String> {
    let failed =
        |e: &dyn std::fmt::Display| format!("cannot end agent {pid}, which is of another version: {e}");
    let process = rustix::process::Pid::from_raw(pid).ok_or_else(|| failed(&"no such process"))?;
    rustix::process::kill_process(process, rustix::process::Signal::TERM).map_err(|e| failed(&e))?;
    wait_gone(pid.unsigned_abs())?;
    Ok(pid.unsigned_abs())
}

fn wait_gone(pid: u32) -> Result<(), String> {
    let deadline = Instant::now() + STOP_TIME;
    while Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(pid) {
        if Instant::now() > deadline {
            return Err(format!("agent {pid} still runs after {} s", STOP_TIME.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn is_zombie(pid: u32) -> bool {
    // The program's name, in brackets, may be any bytes.
    std::fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit(|byte| *byte == b')').next().is_some_and(|rest| rest.starts_with(b" Z"))
    })
}

fn drop_tier(global: &Global, args: &DownArgs) -> Result<(), String> {
    let from_socket = global.socket.as_deref().and_then(Path::parent).map(PathBuf::from);
    let state_dir = args.state_dir.clone().or(from_socket).unwrap_or_else(default_state_dir);
    let failed = |e: io::Error| format!("cannot drop the cache of {}: {e}", state_dir.display());
    match Tier::reopen(&state_dir).map_err(failed)? {
        Some(tier) if !tier.list_dirty().map_err(failed)?.is_empty() => Err(format!(
            "the cache of {} is not dropped: it has files that the file system does not have; start the agent \
             again, which writes them",
            state_dir.display()
        )),
        Some(tier) => tier.destroy().map_err(failed),
        None => Err(format!(
            "there is nothing to drop: no agent has left a cache in {}; name the agent's directory with --state-dir",
            state_dir.display()
        )),
    }
}

/// Checks a configuration file.
pub fn check_config(global: &Global, file: &Path) -> Outcome {
    let config = Config::load_file(file)?;
    config.sizes(memory::usable_bytes()).map_err(|e| format!("{}: {e}", file.display()))?;
    let failed = |why: String| Err(format!("{}: {why}", file.display()));
    if let Err(why) = crate::coordinator::profile(&config.cluster) {
        return failed(why);
    }
    if config.mounts.is_empty() && config.cluster.coordinator_listen.is_empty() {
        return failed(
            "no PFS to serve: an agent needs a [[mount]] with label and root, a coordinator cluster.coordinator_listen".into(),
        );
    }
    for mount in &config.mounts {
        if !mount.root.is_dir() {
            let (label, root) = (&mount.label, mount.root.display());
            return failed(format!(
                "mount {label:?}: root = {root}: not a directory on this machine; mount the PFS there"
            ));
        }
    }
    print(global, &serde_json::json!({ "file": file, "ok": true, "mounts": config.mounts.len() }), |out| {
        writeln!(out, "{}: good; {} mount(s)", file.display(), config.mounts.len())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the configuration that an agent would start with, and where each value comes from.
pub fn config_show(global: &Global, path: Option<&Path>, with_origin: bool) -> Outcome {
    let (config, given) = Config::load(path)?;
    let of = |key: &Key, mount: &str| {
        let one = given.iter().find(|one| one.key == key.name && one.mount == mount);
        one.map_or((key.default.to_owned(), "default".to_owned()), |one| {
            (one.value.clone(), one.origin.clone())
        })
    };
    let mut rows = Vec::new();
    for key in config::keys() {
        if !key.name.starts_with("mount.") {
            rows.push((key.name, "", of(key, "")));
        }
    }
    for mount in &config.mounts {
        let keys = config::keys().filter(|key| key.name.starts_with("mount."));
        rows.extend(keys.map(|key| (key.name, mount.label.as_str(), of(key, &mount.label))));
    }
    let json = |(key, mount, (value, origin)): &(&str, &str, (String, String))| serde_json::json!({ "key": key, "mount": mount, "value": value, "origin": origin });
    print(global, &rows.iter().map(json).collect::<Vec<_>>(), |out| {
        let mut table = ("", "");
        for (key, mount, (value, origin)) in rows.iter().filter(|(_, _, (value, _))| !value.is_empty()) {
            let (of, name) = key.split_once('.').unwrap_or(("", key));
            if (of, *mount) != table {
                let blank = if table.0.is_empty() { "" } else { "\n" };
                table = (of, mount);
                writeln!(
                    out,
                    "{blank}{}",
                    if of == "mount" { "[[mount]]".into() } else { format!("[{of}]") }
                )?;
            }
            let origin = if with_origin { format!("  # {origin}") } else { String::new() };
            writeln!(out, "{name} = {value}{origin}")?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints every key of the configuration.
pub fn config_reference(global: &Global) -> Outcome {
    let key = |k: &Key| serde_json::json!({ "name": k.name, "default": k.default, "reason": k.reason });
    let keys: Vec<_> = config::keys().map(key).collect();
    print(global, &keys, |out| write!(out, "{}", config::reference_toml()))?;
    Ok(ExitCode::SUCCESS)
}

/// Becomes a keeper.
pub fn keeper(state_dir: &Path, limit_bytes: u64, pages: &str) -> Outcome {
    forebay_store::keeper::run(state_dir, limit_bytes, pages == "huge").map_err(|e| e.to_string())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pfs_is_given_with_or_without_a_label() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let text = root.display().to_string();
        let last = root.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(parse_pfs(&text).unwrap(), MountConfig::new(&last, &root));
        assert_eq!(parse_pfs(&format!("lustre={text}")).unwrap(), MountConfig::new("lustre", &root));
        assert!(parse_pfs("/nowhere/at/all").unwrap_err().contains("--pfs /nowhere"));
    }
}
