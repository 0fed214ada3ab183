//! `sim site`.

use super::{Output, say, show, write};
use crate::csv;
use crate::error::{Error, Result};
use crate::kinds::Done;
use crate::scenario::{File, profile};
use crate::site::described::{Profile, describe};
use crate::site::{compared, recorded};
use crate::trace::Trace;
use clap::Args;
use std::path::{Path, PathBuf};

/// Options of `site`.
#[derive(Args, Debug)]
pub struct SiteArgs {
    /// Decision log of the coordinator (decisions-*.log), and perhaps of an agent (node-*.log),
    /// which has the sizes of what is fetched; repeatable
    #[arg(long = "log", value_name = "FILE", required = true)]
    logs: Vec<PathBuf>,
    /// Profile of the file system, as `forebay profile` has written it
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Write the scenario to this file, and print how far it is from the log
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write what was recorded, beside what is simulated, as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// The profile, and how a scenario in the directory of `scenario` refers to it.
fn measured(path: &Path, scenario: &Path) -> Result<Profile> {
    let config = profile::read(path)?;
    let full = |path: &Path| path.canonicalize().map_err(Error::io("find", path));
    let at = full(path)?;
    let beside = scenario.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = match at.strip_prefix(full(beside)?) {
        Ok(name) => name.to_path_buf(),
        Err(_) => at,
    };
    Ok(Profile { name: name.to_string_lossy().into_owned(), config })
}

/// Describes a site.
pub fn site(args: &SiteArgs, out: &mut Output<'_>) -> Result<()> {
    let recorded = recorded::read(&args.logs)?;
    let path = args.out.as_deref().unwrap_or(Path::new("site.toml"));
    let profile = args.profile.as_deref().map(|profile| measured(profile, path)).transpose()?;
    let described = describe(&recorded, profile.as_ref(), &csv::command());
    if let Some(path) = &args.out {
        write(path, "write the scenario to", &described.text)?;
    }
    let scenario = File::parse(path, &described.text)?.scenario()?;
    let Done::World(outcome) = scenario.run(&mut Trace::off())? else {
        unreachable!("the scenario of a site is of kind world")
    };
    let table = compared::table(&recorded, &described, &outcome);
    if let Some(path) = &args.csv {
        table.write(path)?;
    }
    match (&args.out, out.json) {
        (None, true) => {
            out.value(&serde_json::json!({ "scenario": described.text, "compared": table.objects() }))
        }
        (None, false) => {
            say(out, described.text.trim_end())?;
            table.csv().lines().try_for_each(|line| say(out, &format!("# {line}")))
        }
        (Some(_), _) => show(out, &table),
    }
}
