//! `forebay lab` without the rest of Forebay, for the tests of this crate: `slowfs slowfs --backing
//! ... --mount ...`.

use std::process::ExitCode;

use clap::Parser;
use forebay_lab::cli::{LabCommand, run};

#[derive(Parser)]
struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    match run(&Lab::parse().command, false) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
