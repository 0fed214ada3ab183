//! `sim` and `model` of the `forebay` command by themselves:
//! `cargo run --release -p forebay-sim --example forebay_sim -- sim run scenario.toml`.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use forebay_sim::cli;

#[derive(Parser)]
#[command(name = "forebay", version, about = "What would a policy do to my cluster?")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate
    Sim(cli::SimArgs),
    /// Ask a model
    Model(cli::ModelArgs),
}

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let result = match Cli::parse().command {
        Command::Sim(args) => cli::sim(&args, &mut out),
        Command::Model(args) => cli::model(&args, &mut out),
    };
    match result.and_then(|()| {
        out.flush().map_err(forebay_sim::error::Error::io("write to", "the terminal".as_ref()))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {error}");
            ExitCode::FAILURE
        }
    }
}
