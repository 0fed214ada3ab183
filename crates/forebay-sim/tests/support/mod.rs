//! `forebay sim` in the process of a test.

use clap::Parser;
use forebay_sim::cli::{SimArgs, sim};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    sim: SimArgs,
}

/// What the command prints, or its error.
pub fn cli(args: &[&str], json: bool) -> Result<String, String> {
    let line = Line::try_parse_from([&["sim"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    sim(&line.sim, json, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).expect("text"))
}
