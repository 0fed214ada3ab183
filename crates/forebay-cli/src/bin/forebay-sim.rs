//! `forebay-sim`: the simulator, the models and the replay of records, for those who plan and
//! study. `forebay sim`, `forebay model` and `forebay replay` run it.

use clap::{CommandFactory, Parser, Subcommand};
use forebay_sim::cli::{ModelArgs, SimArgs, SimCommand, model, sim};
use std::io::{self, Write};
use std::process::ExitCode;

/// Simulate the effect of a policy on a cluster
#[derive(Parser)]
#[command(
    name = "forebay-sim",
    bin_name = "forebay sim",
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
enum Command {
    #[command(flatten)]
    Sim(SimCommand),
    /// Compute a figure from a model
    Model(ModelArgs),
    /// Print the man page
    #[command(hide = true)]
    Man,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut text = Vec::new();
    let done = match cli.command {
        Command::Sim(command) => sim(&SimArgs { command }, cli.json, &mut text).map_err(|e| e.to_string()),
        Command::Model(args) => model(&args, cli.json, &mut text).map_err(|e| e.to_string()),
        Command::Man => clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(|e| e.to_string()),
    };
    // A closed pipe is not an error: the reader has seen enough.
    let written =
        done.and_then(|()| match io::stdout().write_all(&text).and_then(|()| io::stdout().flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(format!("cannot write to standard output: {e}"))
            }
            _ => Ok(()),
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("forebay: {message}");
            ExitCode::from(1)
        }
    }
}
