//! `forebay-lab`: a cluster with a real parallel file system on one machine, and a slow file
//! system, for tests and experiments. `forebay lab` runs it.

use clap::{CommandFactory, Parser, Subcommand};
use forebay_lab::cli::{LabCommand, run};
use std::process::ExitCode;

/// Start test fixtures: a cluster on one machine, a slow parallel file system
#[derive(Parser)]
#[command(
    name = "forebay-lab",
    bin_name = "forebay lab",
    version,
    propagate_version = true,
    max_term_width = 110
)]
struct Cli {
    /// Write JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is only one of it")]
enum Command {
    #[command(flatten)]
    Lab(LabCommand),
    /// Print the man page
    #[command(hide = true)]
    Man,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Lab(command) => run(command, cli.json).map_err(|e| e.to_string()),
        Command::Man => {
            clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout()).map_err(|e| e.to_string())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("forebay: {message}");
            ExitCode::from(1)
        }
    }
}
