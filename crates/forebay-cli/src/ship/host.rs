//! One storage server of a shipped application: `forebay ship-host`, which the launcher starts.
//!
//! Two processes watch each other. The *guard* creates the control group with the smallest limits,
//! starts an agent, if none runs, and a worker of Spark in it, and ends everything when its
//! standard input ends: then the submitter has ended, even by SIGKILL. The *controller* moves the
//! limits. If the controller dies, the guard sets the smallest limits and starts another one. If
//! the guard dies, the controller ends the group. So raised limits never outlive both observers
//! unless somebody kills both at the same time, which leaves `forebay ship stop`.

use super::slice::{Limits, Slice, enter, number_of};
use super::watch::{Watch, is_counted};
use crate::Outcome;
use crate::cli::{HostAction, ShipHostArgs};
use forebay_agent::Config;
use forebay_agent::config::ShipConfig;
use forebay_client::{Client, ClientConfig};
use forebay_policy::isolation::{self, Action, Isolation};
use forebay_policy::machine::{Machine, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two samples of the storage daemon.
const PERIOD: Duration = Duration::from_millis(250);

/// Time between two looks of the guard.
const LOOK: Duration = Duration::from_millis(50);

/// How long after its death a controller is started again.
const RESTART: Duration = Duration::from_secs(1);

/// How long worker, executors and agent have for their own end.
const GRACE: Duration = Duration::from_secs(5);

/// How long an agent may take to start.
const AGENT_TIME: Duration = Duration::from_secs(60);

/// Heap of Spark's worker, which does no work itself.
const WORKER_HEAP: &str = "256m";

/// Carries out the hidden command.
pub fn host(args: &ShipHostArgs) -> Outcome {
    if let HostAction::Stop = args.action {
        return stop(args.name.as_deref());
    }
    let (config, _) = Config::load(args.config.as_deref())?;
    let name = args.name.as_deref().ok_or("ship-host: --name is missing")?;
    let place = Place {
        slice: Slice::named(name)?,
        limits: limits(&config.ship)?,
        directory: config.ship.work_dir.join(name),
        config,
        has_started_agent: AtomicBool::new(false),
    };
    match args.action {
        HostAction::Control => place.control(),
        _ => place.guard(args),
    }
}

/// What the operator allows.
fn limits(ship: &ShipConfig) -> Result<Limits, String> {
    Ok(Limits {
        cores: ship.cores,
        memory_bytes: ship.memory_bytes,
        cpu_weight: ship.cpu_weight,
        io_weight: ship.io_weight,
        io_rate_bytes_per_s: ship.io_rate_bytes_per_s,
        disks: ship.disks.iter().map(|disk| number_of(disk)).collect::<Result<_, _>>()?,
    })
}

/// Ends shipped applications on this server: one, or all.
fn stop(name: Option<&str>) -> Outcome {
    let slices = Slice::all();
    let mut problems = Vec::new();
    for slice in slices.iter().filter(|slice| name.is_none_or(|name| is_of(slice.name(), name))) {
        match slice.end(GRACE) {
            Ok(()) => println!("ended {}", slice.name()),
            Err(why) => problems.push(why),
        }
    }
    if problems.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(problems.join("; ")) }
}

/// Whether the group called `group` is of the application `name`: more than one server may be on
/// this machine, in containers.
fn is_of(group: &str, name: &str) -> bool {
    group.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Reports an event to the submitter, which may be gone. One that does not read misses it: the
/// limits move all the same.
fn report(event: &serde_json::Value) {
    let out = io::stdout();
    let mut ready = [PollFd::new(&out, PollFlags::OUT)];
    // A pipe that can be written to has room for a line.
    if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
        let _ = writeln!(out.lock(), "{event}").and_then(|()| out.lock().flush());
    }
}

/// Whether standard input has ended or been silent for too long, or a signal has come.
struct Ended(Arc<AtomicBool>);

impl Ended {
    fn watch(silence: Option<Duration>) -> Result<Self, String> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::flag::register(signal, ended.clone()).map_err(|e| e.to_string())?;
        }
        let of_input = ended.clone();
        let read = move || {
            let (mut some, input) = ([0; 64], io::stdin());
            let silence = silence.map(|silence| Timespec { tv_sec: silence.as_secs() as i64, tv_nsec: 0 });
            // A submitter of an earlier version says nothing at all.
            let mut limit = None;
            // A read that fails is an end as well.
            while poll(&mut [PollFd::new(&input, PollFlags::IN)], limit.as_ref()).is_ok_and(|count| count > 0)
                && matches!(input.lock().read(&mut some), Ok(bytes) if bytes > 0)
            {
                limit = silence;
            }
            of_input.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().name("input".into()).spawn(read).map_err(|e| e.to_string())?;
        Ok(Ended(ended))
    }

    fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The application's place on this server.
struct Place {
    slice: Slice,
    limits: Limits,
    /// Its local files.
    directory: PathBuf,
    config: Config,
    /// Whether the agent was started here: then it ends with the group, and its memory with it.
    has_started_agent: AtomicBool,
}

impl Place {
    fn guard(&self, args: &ShipHostArgs) -> Outcome {
        let ended = Ended::watch(Some(super::SILENCE))?;
        let ship = &self.config.ship;
        let _one = self.only_one(args)?;
        if Watch::new(&ship.daemons, &ship.disks).look() == Some(isolation::Event::Unreadable) {
            let (host, names) = (args.host.as_deref().unwrap_or("here"), ship.daemons.join(", "));
            eprintln!("forebay: {host}: none of {names} runs (ship.daemons): analytics stay at ship.floor");
        }
        if self.slice.exists() {
            self.slice.end(Duration::ZERO)?;
        }
        let outcome =
            self.slice.create(&self.limits, self.config.ship.floor).and_then(|()| self.follow(args, &ended));
        let removed = self.remove();
        outcome.and(removed).map(|()| ExitCode::SUCCESS)
    }

    /// The limits are for all analytics on this server, and so is the agent: a second application
    /// has to wait. The lock is held until this process ends.
    fn only_one(&self, args: &ShipHostArgs) -> Result<File, String> {
        let path = self.config.ship.work_dir.join(format!("{}.lock", args.host.as_deref().unwrap_or("host")));
        let failed = |e: io::Error| format!("cannot lock {}: {e}", path.display());
        std::fs::create_dir_all(&self.config.ship.work_dir).map_err(failed)?;
        let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(Errno::WOULDBLOCK) => Err(format!(
                "another application runs on {}: wait for its end, or use other servers (--host)",
                args.host.as_deref().unwrap_or("this server")
            )),
            Err(e) => Err(failed(e.into())),
        }
    }

    /// Ends the group and removes the local files.
    fn remove(&self) -> Result<(), String> {
        self.slice.end(GRACE)?;
        if self.has_started_agent.load(Ordering::Relaxed) {
            self.drop_tier();
        }
        match std::fs::remove_dir_all(&self.directory) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {e}; remove it by hand", self.directory.display()))
            }
            _ => Ok(()),
        }
    }

    /// An agent that ends leaves its tier in memory for the next one, and there is none.
    fn drop_tier(&self) {
        let dropped = std::env::current_exe().and_then(|own| {
            let mut command = Command::new(own);
            command.args(["down", "--drop", "--state-dir"]).arg(&self.config.state_dir);
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
        });
        let dropped =
            dropped.ok().and_then(|mut child| super::wait_until(&mut child, Instant::now() + 4 * GRACE));
        if !dropped.is_some_and(|status| status.success()) {
            eprintln!("forebay: the agent's memory stays: `forebay down --drop` releases it");
        }
    }

    fn follow(&self, args: &ShipHostArgs, ended: &Ended) -> Result<(), String> {
        let mut controller = Some(self.start_controller(args)?);
        let result = self.run_worker(args, ended, &mut controller);
        // First, so that it does not move the limits of a group that ends.
        if let Some(mut controller) = controller {
            let _ = controller.kill();
            let _ = controller.wait();
        }
        result
    }

    fn run_worker(
        &self,
        args: &ShipHostArgs,
        ended: &Ended,
        controller: &mut Option<Child>,
    ) -> Result<(), String> {
        self.start_agent(args, ended)?;
        let mut worker = self.start_worker(args)?;
        report(&serde_json::json!({ "event": "started", "cores": self.limits.cores }));
        let mut died = Instant::now();
        while !ended.has_come() {
            if let Some(Ok(Some(status))) = controller.as_mut().map(Child::try_wait) {
                // What it had raised is lowered before anything else.
                self.slice.limit(&self.limits, self.config.ship.floor)?;
                report(&serde_json::json!({ "event": "controller", "status": status.to_string() }));
                (*controller, died) = (None, Instant::now());
            }
            if controller.is_none() && died.elapsed() >= RESTART {
                *controller = Some(self.start_controller(args)?);
            }
            if let Ok(Some(status)) = worker.try_wait() {
                return Err(format!("the Spark worker has ended ({status}){}", last_words(&self.directory)));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn start_controller(&self, args: &ShipHostArgs) -> Result<Child, String> {
        let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(own);
        command.args(["ship-host", "control", "--name", self.slice.name()]);
        command.args(args.config.iter().flat_map(|config| [Path::new("--config"), config]));
        let started = command.stdin(Stdio::piped()).spawn();
        started.map_err(|e| format!("cannot start the controller: {e}"))
    }

    /// Starts an agent in the group, unless one answers.
    fn start_agent(&self, args: &ShipHostArgs, ended: &Ended) -> Result<(), String> {
        let socket = self.config.socket();
        let client = Client::new(ClientConfig {
            socket: Some(socket.clone()),
            quiet: true,
            ..ClientConfig::from_env()
        });
        if client.admin().status().is_ok() || self.config.mounts.is_empty() {
            return Ok(());
        }
        let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(own);
        command.arg("agent").args(args.config.iter().flat_map(|config| [Path::new("--config"), config]));
        let mut agent = self.start_inside(command, "agent")?;
        self.has_started_agent.store(true, Ordering::Relaxed);
        let began = Instant::now();
        while began.elapsed() < AGENT_TIME && !ended.has_come() {
            if client.admin().status().is_ok() {
                report(&serde_json::json!({ "event": "agent" }));
                return Ok(());
            }
            if let Ok(Some(status)) = agent.try_wait() {
                return Err(format!("the agent has ended ({status}){}", last_words(&self.directory)));
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("the agent does not answer at {} after {} s", socket.display(), AGENT_TIME.as_secs()))
    }

    fn start_worker(&self, args: &ShipHostArgs) -> Result<Child, String> {
        let ship = &self.config.ship;
        let missing = |what: &str| format!("ship-host: --{what} is missing");
        let home =
            ship.spark_home.as_ref().or(args.spark_home.as_ref()).ok_or_else(|| missing("spark-home"))?;
        let master = args.master.as_deref().ok_or_else(|| missing("master"))?;
        let host = args.host.as_deref().ok_or_else(|| missing("host"))?;
        let spark_class = home.join("bin/spark-class");
        if !spark_class.is_file() {
            return Err(format!("there is no {}: set ship.spark_home", spark_class.display()));
        }
        let mut command = match ship.user.as_str() {
            "" if rustix::process::geteuid().is_root() => {
                return Err("executors would have the rights of root: set ship.user".into());
            }
            "" | "root" => Command::new(&spark_class),
            user => {
                let mut command = Command::new("runuser");
                command.args(["-u", user, "--"]).arg(&spark_class);
                command
            }
        };
        let memory_mib = super::heap_mib(ship);
        command.args(["org.apache.spark.deploy.worker.Worker", "--host", host]);
        command.args(["--cores", &super::slots(ship).to_string(), "--memory", &format!("{memory_mib}m")]);
        command.args(["--webui-port", "0"]).arg("--work-dir").arg(self.directory.join("work")).arg(master);
        command.env("SPARK_HOME", home).env("SPARK_LOCAL_HOSTNAME", host);
        command.env("SPARK_DAEMON_MEMORY", WORKER_HEAP).env("SPARK_LOCAL_DIRS", self.directory.join("local"));
        command.env("FOREBAY_SOCKET", self.config.socket()).env_remove("MASTER");
        self.start_inside(command, "worker")
    }

    /// Starts a program in the group. What it prints goes to a file of its own.
    fn start_inside(&self, mut command: Command, what: &str) -> Result<Child, String> {
        let failed = |e: io::Error| format!("cannot start the {what}: {e}");
        self.make_directory().map_err(failed)?;
        let log = File::create(self.directory.join(format!("{what}.log"))).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log).current_dir("/");
        let mut doors = self.slice.doors().map_err(failed)?;
        // SAFETY: writes to open files, which are the child's own.
        unsafe { command.pre_exec(move || enter(&mut doors)) };
        command.spawn().map_err(failed)
    }

    /// The directory of local files, which belongs to the user of the executors.
    fn make_directory(&self) -> io::Result<()> {
        for directory in [self.directory.clone(), self.directory.join("work"), self.directory.join("local")] {
            std::fs::create_dir_all(&directory)?;
            let user = &self.config.ship.user;
            if !user.is_empty() && user != "root" {
                let status = Command::new("chown").arg(user).arg(&directory).status()?;
                if !status.success() {
                    return Err(io::Error::other(format!("chown {user} {}: {status}", directory.display())));
                }
            }
        }
        Ok(())
    }

    /// Moves the limits until the guard ends, and the group with it.
    fn control(&self) -> Outcome {
        // Its guard says nothing.
        let ended = Ended::watch(None)?;
        let ship = &self.config.ship;
        if !is_counted() {
            report(&serde_json::json!({ "event": "blind", "why": "the kernel has no /proc/self/schedstat" }));
        }
        let mut machine = Isolation::new(isolation::Config {
            floor: ship.floor,
            disk_slow_ns: ship.disk_slow_ms * 1_000_000,
            disk_queue: ship.disk_queue,
            ..isolation::Config::default()
        });
        let mut watch = Watch::new(&ship.daemons, &ship.disks);
        let began = Instant::now();
        while !ended.has_come() && self.slice.exists() {
            let now = Nanos(began.elapsed().as_nanos() as u64);
            let mut actions: Vec<Action> = Vec::new();
            machine.on_deadline(now, &mut actions);
            if let Some(event) = watch.look() {
                machine.handle(now, event, &mut actions);
                for action in &actions {
                    self.slice.limit(&self.limits, action.share)?;
                    let unix_ms = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |at| at.as_millis());
                    let cores = action.share * self.limits.cores;
                    report(&serde_json::json!({
                        "event": "limit", "unix_ms": unix_ms as u64, "share": action.share, "cores": cores,
                        "why": action.why, "heard": event,
                    }));
                }
            }
            std::thread::sleep(PERIOD);
        }
        if self.slice.exists() {
            self.slice.limit(&self.limits, ship.floor)?;
            eprintln!("forebay: the guard of {} has ended: ending its processes", self.slice.name());
            self.remove()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What a program of the group said last.
fn last_words(directory: &Path) -> String {
    let said = ["worker", "agent"].iter().find_map(|what| {
        let text = std::fs::read_to_string(directory.join(format!("{what}.log"))).ok()?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        (!lines.is_empty()).then(|| lines[lines.len().saturating_sub(5)..].join("\n  "))
    });
    said.map_or_else(String::new, |said| format!("; it said:\n  {said}"))
}
