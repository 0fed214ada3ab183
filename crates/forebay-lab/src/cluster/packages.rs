//! What has to be installed, and its installation from Debian packages.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabError;

/// What every lab needs, as program and package.
pub const COMMON: &[(&str, &str)] = &[("ip", "iproute2"), ("tc", "iproute2"), ("sleep", "coreutils")];

/// What asks whether a service may be started when a package is installed.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Where a program is: on the `PATH`, or where daemons are, which is not on every root's `PATH`.
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

/// Sees that all `programs` are there, and installs what is missing if `install`.
///
/// # Errors
/// Which packages are missing, or that they cannot be installed.
pub fn require(programs: &[(&str, &str)], install: bool) -> Result<(), LabError> {
    let missing = missing(programs);
    if missing.is_empty() {
        return Ok(());
    }
    if !install {
        let named: Vec<_> =
            programs.iter().filter(|(program, _)| find(program).is_none()).map(|(p, _)| *p).collect();
        return Err(LabError::new(format!(
            "not installed: {}. `apt-get install --no-install-recommends {}` brings it, and so does `--install`",
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

/// Installs packages; no daemon is started by that.
///
/// # Errors
/// That apt-get is not there or failed.
pub fn install(packages: &[&str]) -> Result<(), LabError> {
    eprintln!("installing {}", packages.join(" "));
    let _quiet = NoServices::start()?;
    let arguments = ["install", "-q", "-y", "--no-install-recommends"];
    if apt(&arguments, packages)? {
        return Ok(());
    }
    // The lists may be old or, in a fresh container, not there at all.
    apt(&["update", "-q"], &[])?;
    if apt(&arguments, packages)? {
        return Ok(());
    }
    Err(LabError::new(format!("apt-get could not install {}; what it said stands above", packages.join(" "))))
}

/// Packages of the programs that are not there, each once.
fn missing<'a>(programs: &[(&str, &'a str)]) -> Vec<&'a str> {
    let mut packages: Vec<_> =
        programs.iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Runs apt-get with what it says on standard error: standard output is for results. Whether it succeeded.
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

/// While this is held, installing a package starts no daemon: the lab runs its own, and one of the package's would only
/// be in the way. It is what Debian's policy has `policy-rc.d` for; where there is one already, it is left alone.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn start() -> Result<Self, LabError> {
        let failed = |e| LabError::io(format!("cannot write {POLICY}"), e);
        match File::options().write(true).create_new(true).open(POLICY) {
            Ok(mut file) => {
                file.write_all(b"#!/bin/sh\nexit 101\n").map_err(failed)?;
                file.set_permissions(fs::Permissions::from_mode(0o755)).map_err(failed)?;
                Ok(Self { ours: true })
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(Self { ours: false }),
            Err(e) => Err(failed(e)),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours
            && let Err(e) = fs::remove_file(POLICY)
        {
            eprintln!("cannot remove {POLICY}, which keeps services from being started: {e}");
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
}
