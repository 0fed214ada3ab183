//! The chaos test of the tier: real agents, a real coordinator and a real file system; writers that
//! change files in every way there is, readers that know what every byte may be, and faults in
//! between.
//!
//! `forebay-chaos run` starts rounds (`round`). In each, actors in processes of their own
//! (`writer`, `reader`, `appender`) work for some seconds and write down what they did and saw
//! (`record`), while agents, coordinator and actors are killed and stopped and run out of memory
//! and disk (`faults`). After it the logs of the writers are put together to what became of each
//! file (`history`), and each read is judged by that (`oracle`). Nothing is mocked and no content
//! is stored: each word of a file shows which write it came from (`content`).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts"))]

mod actor;
mod appender;
mod changes;
mod content;
mod faults;
mod history;
mod oracle;
mod random;
mod reader;
mod record;
mod report;
mod round;
mod run;
mod setup;
mod stage;
mod stall;
mod test_place;
mod troupe;
mod writer;

use actor::{Actor, Role};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about = "The chaos test of Forebay's tier", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the test
    Run(run::RunArgs),
    /// Be an actor of a round; started by `run`
    #[command(hide = true)]
    Act {
        /// File with its orders
        orders: PathBuf,
    },
}

fn act(orders: &Path) -> std::io::Result<()> {
    let actor = Actor::new(orders)?;
    match actor.orders.role {
        Role::Writer => writer::run(actor),
        Role::Appender => appender::run(actor),
        Role::Reader => reader::run(actor),
        Role::Check => reader::check(actor),
        Role::Setup => setup::run(actor),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Act { orders } => act(&orders).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("chaos: {e}");
            ExitCode::from(2)
        }
    }
}
