//! Commands that are programs of their own: `forebay NAME` runs `forebay-NAME`, which is next to
//! this program or in PATH.

use crate::Outcome;
use crate::global::Global;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What the programs that come with this one do, as the help lists it: the command, the program,
/// and what goes before the arguments.
pub const PROGRAMS: [(&str, &str, Option<&str>, &str); 4] = [
    ("sim", "sim", None, "Simulate the effect of a policy on a cluster"),
    ("model", "sim", Some("model"), "Compute a figure from a model"),
    ("replay", "sim", Some("replay"), "Repeat recorded decisions, and compare them"),
    ("lab", "lab", None, "Start test fixtures: a cluster on one machine, a slow parallel file system"),
];

/// Returns the list for the end of the help.
pub fn help() -> String {
    let line = |(name, _, _, about): &(&str, &str, Option<&str>, &str)| format!("\n  {name:12} {about}");
    let lines: String = PROGRAMS.iter().map(line).collect();
    format!("Commands that are programs of their own:{lines}")
}

/// Becomes the program of the command `words[0]`; `unknown` ends this one if there is no such
/// command.
pub fn exec(global: &Global, words: &[OsString], unknown: fn(&OsStr) -> !) -> Outcome {
    let (name, arguments) = words.split_first().ok_or("no command")?;
    if name.is_empty() || name.as_bytes().contains(&b'/') {
        unknown(name);
    }
    let known = PROGRAMS.iter().find(|(command, ..)| name == command);
    let mut program = OsString::from("forebay-");
    program.push(known.map_or(name.as_os_str(), |(_, program, ..)| OsStr::new(program)));
    let own = std::env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name(&program)).filter(|path| path.is_file());
    let mut command = Command::new(beside.as_deref().unwrap_or(program.as_ref()).as_os_str());
    command.args(known.and_then(|(_, _, first, _)| *first));
    // Before the arguments, the last of which may be a program's.
    let says_so = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    command.args((global.json && !says_so).then_some("--json")).args(arguments);
    let e = command.exec();
    let program = program.display();
    if e.kind() == io::ErrorKind::NotFound && known.is_none() {
        unknown(name);
    }
    Err(match e.kind() {
        io::ErrorKind::NotFound => {
            format!("{program} is neither beside this program nor in PATH; install it with `make install`")
        }
        _ => format!("cannot run {program}: {e}"),
    })
}
