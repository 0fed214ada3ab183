//! `ship`: a Spark application whose tasks run on the storage servers that hold its input.
//!
//! The command starts a master of Spark here and, through the operator's launcher, a guard on each
//! storage server ([`host`]), which starts a worker in a control group. Then it runs the program
//! with the options that send tasks to their stripes, and ends everything with it. Each guard ends
//! with its standard input, so that nothing outlives this process, however it ends.

pub mod host;
mod slice;
mod watch;

use crate::Outcome;
use crate::cli::{ShipArgs, ShipCommand};
use forebay_agent::Config;
use forebay_agent::config::ShipConfig;
use forebay_pfs::Traits;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long master and workers may take to start: virtual machines on servers whose processors are
/// busy.
const START_TIME: Duration = Duration::from_secs(300);

/// How long the guards may take to end everything.
const END_TIME: Duration = Duration::from_secs(30);

/// How often guards hear that this node is alive, and after which silence they end everything: a
/// program that is suspended says nothing either.
const SAY_ALIVE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(600);

/// Time between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);

/// Heap of Spark's master.
const MASTER_HEAP: &str = "512m";

/// How long a task waits for a slot at its stripe. Longer than Spark's default: elsewhere its input
/// crosses the network, which shipping is to avoid.
const LOCALITY_WAIT: &str = "60s";

/// Tasks that run at a time on a storage server.
fn slots(ship: &ShipConfig) -> u64 {
    (ship.cores.ceil() as u64).max(1)
}

/// Heap of the executor on a storage server: half of the memory. A quarter is for an agent.
fn heap_mib(ship: &ShipConfig) -> u64 {
    (ship.memory_bytes >> 20) / 2
}

/// Carries out `forebay ship`.
pub fn ship(args: &ShipArgs) -> Outcome {
    let (config, _) = Config::load(args.config.as_deref())?;
    let hosts = hosts(&config.ship, &args.host)?;
    match &args.command {
        Some(ShipCommand::Stop { name }) => stop(args, &config.ship, &hosts, name.as_deref()),
        None => run(args, &config, &hosts),
    }
}

/// The servers: those that are named, or all.
fn hosts(ship: &ShipConfig, named: &[String]) -> Result<Vec<String>, String> {
    if let Some(other) = named.iter().find(|host| !ship.hosts.contains(host)) {
        let allowed =
            if ship.hosts.is_empty() { "is empty".into() } else { format!("has {}", ship.hosts.join(", ")) };
        return Err(format!("--host {other}: ship.hosts {allowed}"));
    }
    match (ship.hosts.is_empty(), named.is_empty()) {
        (true, _) => Err("ship.hosts is empty: list the storage servers that may run executors".into()),
        (_, true) => Ok(ship.hosts.clone()),
        (_, false) => Ok(named.to_vec()),
    }
}

/// The command line that has `host` run this program with `words`.
fn launched(ship: &ShipConfig, host: &str, words: &[String]) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let own = own.to_str().ok_or_else(|| format!("{} is not UTF-8", own.display()))?.to_owned();
    let whole: Vec<&str> = std::iter::once(own.as_str()).chain(words.iter().map(String::as_str)).collect();
    // A remote shell would split or expand anything else.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,@+".contains(c);
    if let Some(word) = whole.iter().find(|word| !word.chars().all(is_plain)) {
        return Err(format!(
            "{word:?} cannot be passed to the launcher: use names without blanks and special characters"
        ));
    }
    let mut parts = ship.launch.split_whitespace();
    let mut command = Command::new(parts.next().unwrap_or("ssh"));
    for part in parts {
        match part {
            "{command}" => command.args(&whole),
            part => command.arg(part.replace("{host}", host)),
        };
    }
    Ok(command)
}

fn stop(args: &ShipArgs, ship: &ShipConfig, hosts: &[String], name: Option<&str>) -> Outcome {
    let mut words = vec!["ship-host".to_owned(), "stop".into()];
    words.extend(name.iter().flat_map(|name| ["--name".into(), (*name).to_owned()]));
    words.extend(config_words(args.config.as_deref())?);
    let mut children = Vec::new();
    for host in hosts {
        let mut command = launched(ship, host, &words)?;
        let child = command.stdin(Stdio::null()).spawn();
        children.push((host, child.map_err(|e| format!("cannot run {:?}: {e}", command.get_program()))?));
    }
    let (mut failed, until) = (Vec::new(), Instant::now() + END_TIME);
    for (host, mut child) in children {
        match wait_until(&mut child, until) {
            Some(status) if status.success() => {}
            Some(status) => failed.push(format!("{host}: {status}")),
            None => failed.push(format!("{host} has not answered within {} s", END_TIME.as_secs())),
        }
    }
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(format!("ship stop: {}", failed.join("; "))) }
}

/// Waits for a child; one that continues to run is killed, and gives `None`.
fn wait_until(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
            Ok(Some(status)) => return Some(status),
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn config_words(config: Option<&Path>) -> Result<Vec<String>, String> {
    let Some(config) = config else { return Ok(Vec::new()) };
    let absolute = std::path::absolute(config).map_err(|e| format!("--config {}: {e}", config.display()))?;
    let text = absolute.to_str().ok_or_else(|| format!("--config {}: not UTF-8", config.display()))?;
    Ok(vec!["--config".into(), text.to_owned()])
}

/// What the processes of an application have in common.
struct Application<'a> {
    name: String,
    config: &'a Config,
    hosts: &'a [String],
    home: PathBuf,
    /// The address by which hosts reach this node.
    address: String,
    master_port: u16,
    page_port: u16,
}

fn run(args: &ShipArgs, config: &Config, hosts: &[String]) -> Outcome {
    if args.program.is_empty() {
        return Err("write the program behind `--`: forebay ship -- spark-submit job.py".into());
    }
    let ship = &config.ship;
    let home = ship.spark_home.clone().or_else(|| std::env::var_os("SPARK_HOME").map(PathBuf::from));
    let home = home.ok_or("where is Spark? Set ship.spark_home, or SPARK_HOME in the environment")?;
    if !ship.jar.is_file() {
        return Err(format!(
            "there is no plug-in at {}: build it with `make java`, and set ship.jar",
            ship.jar.display()
        ));
    }
    let own_name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let address = if ship.address.is_empty() { own_name() } else { ship.address.clone() };
    let application = Application {
        name: format!("{}-{}", own_name().replace('.', "-"), std::process::id()),
        config,
        hosts,
        home,
        master_port: free_port(&address)?,
        page_port: free_port(&address)?,
        address,
    };
    let record = args
        .record
        .as_ref()
        .map(|path| File::create(path).map_err(|e| format!("--record {}: {e}", path.display())));
    let signals = Signals::watch()?;
    application.run(args, record.transpose()?, &signals)
}

/// A port that is free now.
fn free_port(address: &str) -> Result<u16, String> {
    let failed = |e: io::Error| {
        format!("cannot listen on {address}: {e}; set ship.address to a name or address of this node")
    };
    Ok(TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()).map_err(failed)?.port())
}

/// Signals that end the application.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn watch() -> Result<Self, String> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::flag::register_usize(signal, last.clone(), signal as usize)
                .map_err(|e| e.to_string())?;
        }
        Ok(Signals(last))
    }

    fn check(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(format!("ended by signal {signal}")),
        }
    }

    /// As [`Signals::check`], while the program runs: what is typed at a terminal is for the
    /// program. Spark's shell ends a job with it.
    fn check_beside_program(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) as i32 {
            libc::SIGINT if io::stdin().is_terminal() => Ok(()),
            _ => self.check(),
        }
    }
}

/// A guard, started by its launcher.
struct Guard {
    host: String,
    child: Child,
    /// Its end ends the guard.
    input: Option<ChildStdin>,
}

/// A child of this process that ends with it, even by SIGKILL.
fn start(command: &mut Command) -> io::Result<Child> {
    let parent = std::process::id();
    // SAFETY: two system calls.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before.
            if libc::getppid() as u32 == parent { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
        });
    }
    command.spawn()
}

impl Application<'_> {
    fn run(&self, args: &ShipArgs, record: Option<File>, signals: &Signals) -> Outcome {
        let mut master = self.start_master()?;
        let mut guards = Vec::new();
        let outcome = self.run_on(args, record, signals, &mut master, &mut guards);
        let ended = end_all(guards);
        let _ = master.kill();
        let _ = master.wait();
        // The program's result is what the caller waits for.
        if let Err(why) = ended {
            eprintln!("forebay: {why}");
        }
        outcome
    }

    fn run_on(
        &self,
        args: &ShipArgs,
        record: Option<File>,
        signals: &Signals,
        master: &mut Child,
        guards: &mut Vec<Guard>,
    ) -> Outcome {
        self.await_workers(master, guards, signals, 0)?;
        let record = Arc::new(Mutex::new(record));
        for host in self.hosts {
            guards.push(self.start_guard(args, host, &record)?);
        }
        self.await_workers(master, guards, signals, self.hosts.len() as u64)?;
        eprintln!(
            "forebay: application {} has {} slots on {}",
            self.name,
            slots(&self.config.ship) * self.hosts.len() as u64,
            self.hosts.join(", ")
        );
        self.run_program(&args.program, signals, guards)
    }

    fn start_master(&self) -> Result<Child, String> {
        let spark_class = self.home.join("bin/spark-class");
        let mut command = Command::new(&spark_class);
        command.args(["org.apache.spark.deploy.master.Master", "--host", &self.address]);
        command.args(["--port", &self.master_port.to_string(), "--webui-port", &self.page_port.to_string()]);
        command.env("SPARK_HOME", &self.home).env("SPARK_DAEMON_MEMORY", MASTER_HEAP).env_remove("MASTER");
        // Its log would be lost in that of the program.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        start(&mut command)
            .map_err(|e| format!("cannot run {}: {e}; set ship.spark_home", spark_class.display()))
    }

    fn master_url(&self) -> String {
        format!("spark://{}:{}", self.address, self.master_port)
    }

    fn start_guard(
        &self,
        args: &ShipArgs,
        host: &str,
        record: &Arc<Mutex<Option<File>>>,
    ) -> Result<Guard, String> {
        let home = self.home.to_str().ok_or("SPARK_HOME is not UTF-8")?.to_owned();
        let name = format!("{}.{host}", self.name);
        let mut words = ["ship-host", "run", "--name", &name, "--host", host].map(str::to_owned).to_vec();
        words.extend(["--master".into(), self.master_url(), "--spark-home".into(), home]);
        words.extend(config_words(args.config.as_deref())?);
        let mut command = launched(&self.config.ship, host, &words)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A signal of the terminal is for this process, which ends them in order.
        command.process_group(0);
        let started = command.spawn();
        let mut child =
            started.map_err(|e| format!("cannot run {:?} (ship.launch): {e}", command.get_program()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        if let Some(output) = output {
            let (host, record) = (host.to_owned(), record.clone());
            let follow = move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(file) = &mut *lock(&record) {
                        // Nobody depends on the record.
                        let _ = writeln!(file, "{}", of_host(&host, &line));
                    }
                }
            };
            std::thread::Builder::new().name("guard".into()).spawn(follow).map_err(|e| e.to_string())?;
        }
        Ok(Guard { host: host.to_owned(), child, input })
    }

    /// Waits until the master answers and knows this many workers.
    fn await_workers(
        &self,
        master: &mut Child,
        guards: &mut [Guard],
        signals: &Signals,
        count: u64,
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut said = began;
        while self.workers() != Some(count) {
            say_alive(guards, &mut said);
            signals.check()?;
            check(guards)?;
            if let Ok(Some(status)) = master.try_wait() {
                return Err(format!(
                    "the Spark master has ended ({status}); it listens on {}, the name of this node or ship.address",
                    self.address
                ));
            }
            if began.elapsed() > START_TIME {
                return Err(format!(
                    "after {} s the Spark master has {} of {count} workers; do the storage servers reach {}?",
                    START_TIME.as_secs(),
                    self.workers().unwrap_or(0),
                    self.master_url()
                ));
            }
            // Each question takes the master's time.
            std::thread::sleep(10 * LOOK);
        }
        Ok(())
    }

    /// How many workers the master knows; `None` while it does not answer.
    fn workers(&self) -> Option<u64> {
        let address = (self.address.as_str(), self.page_port).to_socket_addrs().ok()?.next()?;
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET /json/ HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str::<serde_json::Value>(body).ok()?.get("aliveworkers")?.as_u64()
    }

    fn run_program(&self, line: &[OsString], signals: &Signals, guards: &mut [Guard]) -> Outcome {
        let mut command = Command::new(&line[0]);
        command.args(self.options()).args(&line[1..]).env("SPARK_HOME", &self.home).env_remove("MASTER");
        let mut program =
            start(&mut command).map_err(|e| format!("cannot run {}: {e}", line[0].to_string_lossy()))?;
        let mut said = Instant::now();
        loop {
            if let Some(status) = program.try_wait().map_err(|e| e.to_string())? {
                return Ok(code_of(status));
            }
            say_alive(guards, &mut said);
            if let Err(why) = signals.check_beside_program().and_then(|()| check(guards)) {
                // SAFETY: a plain system call on a child that was not waited for.
                unsafe { libc::kill(program.id() as i32, libc::SIGTERM) };
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(5) && matches!(program.try_wait(), Ok(None)) {
                    std::thread::sleep(LOOK);
                }
                let _ = program.kill();
                let _ = program.wait();
                return Err(why);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Options of `spark-submit`. Those of the user follow and win.
    fn options(&self) -> Vec<String> {
        let ship = &self.config.ship;
        let jar = ship.jar.display().to_string();
        let mut settings = vec![
            ("spark.driver.host", self.address.clone()),
            ("spark.executor.cores", slots(ship).to_string()),
            ("spark.executor.memory", format!("{}m", heap_mib(ship))),
            // Tasks wait for the executors of all servers, each of which has data.
            ("spark.cores.max", (slots(ship) * self.hosts.len() as u64).to_string()),
            ("spark.scheduler.minRegisteredResourcesRatio", "1.0".into()),
            ("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s".into()),
            ("spark.executor.extraClassPath", jar.clone()),
            ("spark.driver.extraClassPath", jar),
            ("spark.plugins", "io.forebay.spark.ForebayPlugin".into()),
            ("spark.hadoop.fs.forebay.locations", "storage".into()),
            ("spark.locality.wait", LOCALITY_WAIT.into()),
            ("spark.sql.files.maxPartitionBytes", self.split_bytes().to_string()),
        ];
        if ship.shuffle == "tier" {
            settings.push(("spark.shuffle.manager", "io.forebay.spark.shuffle.ForebayShuffleManager".into()));
        }
        let mut options = vec!["--master".to_owned(), self.master_url()];
        options.extend(
            settings.into_iter().flat_map(|(key, value)| ["--conf".into(), format!("{key}={value}")]),
        );
        options
    }

    /// Bytes of a split of a DataFrame, which Spark does not take from the block size of files.
    fn split_bytes(&self) -> u64 {
        let of_mount = |mount: &forebay_agent::MountConfig| {
            let chunk_bytes = Traits::of(&mount.root).chunk_bytes;
            chunk_bytes.map_or(mount.extent_bytes, |bytes| mount.extent_bytes.min(bytes))
        };
        self.config.mounts.iter().map(of_mount).min().unwrap_or(128 << 20)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// An event of a guard with the name of its host.
fn of_host(host: &str, line: &str) -> serde_json::Value {
    let mut event = serde_json::from_str(line).unwrap_or_else(|_| serde_json::json!({ "said": line }));
    if let Some(fields) = event.as_object_mut() {
        fields.insert("host".into(), host.into());
    }
    event
}

/// Now and then says to the guards that this node is alive: one that dies closes no connection.
fn say_alive(guards: &mut [Guard], said: &mut Instant) {
    if said.elapsed() >= SAY_ALIVE {
        *said = Instant::now();
        for input in guards.iter_mut().filter_map(|guard| guard.input.as_mut()) {
            // Whether a guard has ended is looked at elsewhere.
            let _ = input.write_all(b".").and_then(|()| input.flush());
        }
    }
}

/// Whether all guards run.
fn check(guards: &mut [Guard]) -> Result<(), String> {
    for guard in guards {
        if let Ok(Some(status)) = guard.child.try_wait() {
            return Err(format!(
                "storage server {} has ended its part ({status}); its reason is above",
                guard.host
            ));
        }
    }
    Ok(())
}

/// Has the guards end everything on their servers, and waits for them.
fn end_all(mut guards: Vec<Guard>) -> Result<(), String> {
    guards.iter_mut().for_each(|guard| drop(guard.input.take()));
    let (mut left, until) = (Vec::new(), Instant::now() + END_TIME);
    for guard in &mut guards {
        if wait_until(&mut guard.child, until).is_none() {
            left.push(guard.host.clone());
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} did not end within {} s; run `forebay ship stop`",
            left.join(", "),
            END_TIME.as_secs()
        )),
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ship() -> ShipConfig {
        ShipConfig { hosts: vec!["s1".into(), "s2".into()], ..ShipConfig::default() }
    }

    #[test]
    fn only_the_operators_servers_are_used() {
        assert_eq!(hosts(&ship(), &[]).unwrap(), ["s1", "s2"]);
        assert_eq!(hosts(&ship(), &["s2".into()]).unwrap(), ["s2"]);
        let other = hosts(&ship(), &["s3".into()]).unwrap_err();
        assert!(other.contains("--host s3") && other.contains("s1, s2"), "{other}");
        assert!(hosts(&ShipConfig::default(), &[]).unwrap_err().contains("ship.hosts is empty"));
    }

    #[test]
    fn the_launcher_gets_the_host_and_the_words_of_the_command() {
        let ship = ShipConfig { launch: "srun -w {host} --overlap {command}".into(), ..ship() };
        let command = launched(&ship, "s1", &["ship-host".into(), "stop".into()]).unwrap();
        let words: Vec<&str> = command.get_args().filter_map(|word| word.to_str()).collect();
        assert_eq!(
            (command.get_program().to_str(), &words[..3]),
            (Some("srun"), &["-w", "s1", "--overlap"][..])
        );
        assert_eq!(words[4..], ["ship-host", "stop"]);
        assert!(launched(&ship, "s1", &["a b".into()]).unwrap_err().contains("\"a b\""));
    }

    #[test]
    fn parts_of_a_core_are_one_slot() {
        let with = |cores| slots(&ShipConfig { cores, ..ship() });
        assert_eq!((with(0.25), with(1.0), with(1.5), with(8.0)), (1, 1, 2, 8));
        assert_eq!(heap_mib(&ship()), 1024);
    }

    #[test]
    fn events_carry_the_name_of_their_host() {
        assert_eq!(of_host("s1", r#"{"event":"started"}"#)["host"], "s1");
        assert_eq!(of_host("s1", "words")["said"], "words");
    }
}
