//! What has to be installed, and its installation from Debian packages.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::lock;
use crate::LabError;

/// What every lab needs, as program and package.
pub const COMMON: &[(&str, &str)] = &[("ip", "iproute2"), ("tc", "iproute2"), ("sleep", "coreutils")];

/// The program that is asked whether a service may be started when a package is installed.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// No service may. The second line distinguishes the file from anybody else's: an installation that
/// was killed leaves it behind.
const POLICY_TEXT: &[u8] = b"#!/bin/sh\n\
    # forebay lab: no service is started while it installs packages; `forebay lab down` removes what was left of that\n\
    exit 101\n";

/// Where a program is: on the `PATH`, or among the daemons, which are not on every root's `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut dirs = std::env::split_paths(&path).chain(usual);
    dirs.find_map(|dir| Some(dir.join(program)).filter(|candidate| is_program(candidate)))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// A command for a program, wherever it is.
pub fn command(program: &str) -> Command {
    Command::new(find(program).unwrap_or_else(|| program.into()))
}

/// Checks that all `programs` exist, and installs missing ones if `install`.
///
/// # Errors
/// If packages are missing, with their names, or if they cannot be installed.
pub fn require(programs: &[(&str, &str)], install: bool) -> Result<(), LabError> {
    if install {
        clear_leftover();
    }
    let missing = missing(programs);
    if missing.is_empty() {
        return Ok(());
    }
    if !install {
        let named: Vec<_> =
            programs.iter().filter(|(program, _)| find(program).is_none()).map(|(p, _)| *p).collect();
        return Err(LabError::new(format!(
            "not installed: {}. Run `apt-get install --no-install-recommends {}`, or pass `--install`",
            named.join(", "),
            missing.join(" ")
        )));
    }
    self::install(&missing)?;
    let still = self::missing(programs);
    if still.is_empty() {
        return Ok(());
    }
    Err(LabError::new(format!("{} is installed, but its program is not there", still.join(" "))))
}

/// Installs packages; no daemon is started as a result.
///
/// # Errors
/// If apt-get does not exist or fails.
pub fn install(packages: &[&str]) -> Result<(), LabError> {
    eprintln!("installing {}", packages.join(" "));
    let _turn = lock::packages(true)?;
    let _quiet = NoServices::start(Path::new(POLICY))?;
    let arguments = ["install", "-q", "-y", "--no-install-recommends"];
    if apt(&arguments, packages)? {
        return Ok(());
    }
    // The lists may be old or, in a fresh container, missing.
    apt(&["update", "-q"], &[])?;
    if apt(&arguments, packages)? {
        return Ok(());
    }
    Err(LabError::new(format!("apt-get could not install {}; its output is above", packages.join(" "))))
}

/// Packages of the programs that are missing, each once.
fn missing<'a>(programs: &[(&str, &'a str)]) -> Vec<&'a str> {
    let mut packages: Vec<_> =
        programs.iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Runs apt-get with its output on standard error: standard output is for results. Returns whether
/// it succeeded.
fn apt(arguments: &[&str], packages: &[&str]) -> Result<bool, LabError> {
    let mut command = command("apt-get");
    command.args(arguments).args(packages).env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(std::process::Stdio::null()).stdout(io::stderr());
    let status = command.status().map_err(|e| {
        LabError::io(
            format!("cannot run apt-get; install what your distribution calls {}", packages.join(", ")),
            e,
        )
    })?;
    Ok(status.success())
}

/// Removes the file that keeps services from being started, if an installation of ours was
/// interrupted.
pub fn clear_leftover() {
    let policy = Path::new(POLICY);
    if !is_ours(policy) {
        return;
    }
    let cleared = lock::packages(false).and_then(|turn| match turn {
        Some(_turn) => remove_ours(policy),
        // A process that is installing at this moment removes it when that is done.
        None => Ok(()),
    });
    if let Err(why) = cleared {
        eprintln!("{why}; it prevents services from starting");
    }
}

fn is_ours(policy: &Path) -> bool {
    fs::read(policy).is_ok_and(|text| text == POLICY_TEXT)
}

/// Removes the file at `policy` only if it is exactly the one that we write.
fn remove_ours(policy: &Path) -> Result<(), LabError> {
    if !is_ours(policy) {
        return Ok(());
    }
    fs::remove_file(policy).map_err(|e| LabError::io(format!("cannot remove {}", policy.display()), e))
}

/// While this is held, installing a package starts no daemon: the lab runs its own, and one of the
/// package's would only interfere. Debian's policy has `policy-rc.d` for this; an existing one is
/// left alone, unless an earlier installation of ours has left it.
struct NoServices {
    /// The file to remove.
    ours: Option<PathBuf>,
}

impl NoServices {
    /// The caller holds the lock [`lock::packages`].
    fn start(policy: &Path) -> Result<Self, LabError> {
        let failed = |e: io::Error| LabError::io(format!("cannot write {}", policy.display()), e);
        remove_ours(policy)?;
        match File::options().write(true).create_new(true).open(policy) {
            Ok(mut file) => {
                let quiet = Self { ours: Some(policy.to_owned()) };
                file.write_all(POLICY_TEXT).map_err(failed)?;
                file.set_permissions(fs::Permissions::from_mode(0o755)).map_err(failed)?;
                Ok(quiet)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(Self { ours: None }),
            Err(e) => Err(failed(e)),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(policy) = &self.ours
            && let Err(e) = fs::remove_file(policy)
        {
            eprintln!("cannot remove {}, which prevents services from starting: {e}", policy.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_once_with_its_package() {
        let programs = [("sh", "dash"), ("no-such-program-1", "nothing"), ("no-such-program-2", "nothing")];
        assert_eq!(missing(&programs), ["nothing"]);
        let message = require(&programs, false).unwrap_err().to_string();
        assert!(message.contains("no-such-program-1, no-such-program-2"), "{message}");
        assert!(message.contains("apt-get install --no-install-recommends nothing`"), "{message}");
        assert!(message.contains("--install") && !message.contains("dash"), "{message}");
        assert!(require(&programs[..1], false).is_ok());
    }

    #[test]
    fn what_keeps_services_from_starting_goes_even_if_it_was_left_and_never_if_it_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let policy = dir.path().join("policy-rc.d");
        let killed = NoServices::start(&policy).unwrap();
        assert!(fs::read_to_string(&policy).unwrap().starts_with("#!/bin/sh\n# forebay lab: "));
        assert!(is_program(&policy));
        std::mem::forget(killed);
        drop(NoServices::start(&policy).unwrap());
        assert!(!policy.exists(), "a leftover does not count as ours");
        std::mem::forget(NoServices::start(&policy).unwrap());
        remove_ours(&policy).unwrap();
        assert!(!policy.exists());
        let changed = [POLICY_TEXT, b"# and more\n"].concat();
        for foreign in [&b"#!/bin/sh\nexit 101\n"[..], &changed[..]] {
            fs::write(&policy, foreign).unwrap();
            drop(NoServices::start(&policy).unwrap());
            remove_ours(&policy).unwrap();
            assert_eq!(fs::read(&policy).unwrap(), foreign);
        }
    }
}
