//! A slow file system as a child process, for tests and benchmarks.
//!
//! A child and not a thread: a process that uses its own FUSE mount can deadlock with itself (at
//! exit, in a page fault), and a test wants to kill the server too. The program is whatever
//! understands `lab slowfs ...` (or `slowfs ...`), see [`find_program`].

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::LabError;
use crate::slowfs::{Config, Stats, remote};

/// How long a child may take to unmount and end before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A running slow file system. Dropping it stops it: SIGTERM, then SIGKILL and a lazy unmount.
#[derive(Debug)]
pub struct SlowFsProcess {
    child: Option<Child>,
    mount: PathBuf,
}

impl SlowFsProcess {
    /// Starts `program` with `prefix` (such as `["lab"]`) and the arguments for `config`; returns
    /// once it is mounted.
    ///
    /// # Errors
    /// If the program cannot be started or does not get ready, with what it wrote to stderr.
    pub fn start(program: &Path, prefix: &[&str], config: &Config) -> Result<Self, LabError> {
        let mut command = Command::new(program);
        command.args(prefix).arg("slowfs").args(arguments(config));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error| LabError::io(format!("cannot start {}", program.display()), error);
        let mut child = command.spawn().map_err(failed)?;
        let mut first = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut first).map_err(failed)?;
        }
        let mut started = Self { child: Some(child), mount: config.mount.clone() };
        if first.trim() == "ready" {
            return Ok(started);
        }
        let why = started.child.as_mut().map(words).unwrap_or_default();
        Err(LabError::new(format!("{} did not get ready: {why}", program.display())))
    }

    /// Where it is mounted.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// The server's process, for callers that want to kill or measure it.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// The errors of [`remote::stats`].
    pub fn stats(&self) -> Result<Stats, LabError> {
        remote::stats(&self.mount)
    }

    /// Sets faults, `none` to clear them.
    ///
    /// # Errors
    /// The errors of [`remote::set_fault`].
    pub fn fault(&self, spec: &str) -> Result<(), LabError> {
        remote::set_fault(&self.mount, spec)
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// If it did not end in time (it is killed then) or ended with an error.
    pub fn stop(mut self) -> Result<(), LabError> {
        match self.end() {
            Some(Ok((status, _))) if status.success() => Ok(()),
            Some(Ok((status, why))) => {
                Err(LabError::new(format!("the slow file system ended with {status}: {why}")))
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Ends it; returns how it ended, and its messages.
    fn end(&mut self) -> Option<Result<(ExitStatus, String), LabError>> {
        let mut child = self.child.take()?;
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            // Fails only if it has ended already, which is the aim.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            match child.try_wait() {
                Ok(Some(status)) => return Some(Ok((status, words(&mut child)))),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Some(Err(LabError::io("cannot wait for the slow file system", error))),
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
        Some(Err(LabError::new(format!(
            "the slow file system did not end within {STOP_DEADLINE:?} and was killed"
        ))))
    }
}

impl Drop for SlowFsProcess {
    fn drop(&mut self) {
        // `stop` is the way to learn of errors.
        let _ = self.end();
    }
}

/// What an ended child has written to stderr.
fn words(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = &mut child.stderr {
        // An unreadable message counts as none; the exit status is what matters.
        let _ = stderr.read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).trim().to_string()
}

/// A program that serves `lab slowfs`: `$FOREBAY_BIN`, or `forebay` beside the running test or
/// benchmark (cargo puts test programs into `target/<profile>/deps`).
pub fn find_program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("FOREBAY_BIN") {
        return Some(program.into());
    }
    let here = std::env::current_exe().ok()?;
    here.ancestors().skip(1).take(2).map(|dir| dir.join("forebay")).find(|program| program.is_file())
}

/// The command line that describes `config`.
pub fn arguments(config: &Config) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--backing".into(), config.backing.clone().into()];
    let mut value = |name: &str, value: OsString| args.extend([name.into(), value]);
    value("--mount", config.mount.clone().into());
    value("--servers", config.servers.to_string().into());
    let rate = config.rate_bytes_per_s.map_or_else(|| "unlimited".into(), |rate| format!("{rate}B/s"));
    value("--rate", rate.into());
    value("--stripe", config.stripe_bytes.to_string().into());
    value("--latency", format!("{}ns", config.latency_ns).into());
    value("--attr-ttl", format!("{}ns", config.attr_ttl_ns).into());
    value("--stamps", config.stamps.name().into());
    if let Some(bytes) = config.read_ahead_bytes {
        value("--read-ahead", bytes.to_string().into());
    }
    args.extend(config.allow_other.then(|| "--allow-other".into()));
    args.extend(config.direct_io.then(|| "--direct-io".into()));
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{LabCommand, SlowfsArgs};
    use clap::Parser;

    #[derive(Parser)]
    struct Lab {
        #[command(subcommand)]
        command: LabCommand,
    }

    fn parsed(config: &Config) -> SlowfsArgs {
        let line = ["forebay".into(), "slowfs".into()].into_iter().chain(arguments(config));
        match Lab::try_parse_from(line).unwrap().command {
            LabCommand::Slowfs(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_says_what_the_configuration_says() {
        let plain = Config::new("/b", "/m");
        assert_eq!(parsed(&plain).config(), plain);
        let every = Config {
            servers: 7,
            rate_bytes_per_s: None,
            stripe_bytes: 12_345,
            latency_ns: 1_234_567,
            read_ahead_bytes: Some(1 << 22),
            attr_ttl_ns: 5,
            stamps: crate::slowfs::Stamps::Still,
            allow_other: true,
            direct_io: true,
            ..plain
        };
        assert_eq!(parsed(&every).config(), every);
    }

    #[test]
    fn bare_arguments_give_the_default_configuration() {
        let line = ["forebay", "slowfs", "--backing", "/b", "--mount", "/m"];
        let LabCommand::Slowfs(args) = Lab::try_parse_from(line).unwrap().command else {
            panic!("not slowfs")
        };
        assert_eq!(args.config(), Config::new("/b", "/m"));
    }
}
