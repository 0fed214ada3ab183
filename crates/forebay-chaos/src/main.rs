//! The chaos test of the tier: real agents, a real coordinator and a real file system; writers that
//! change files in every way there is, readers that know what every byte may be, and faults in
//! between.
//!
//! `forebay-chaos run` starts rounds (`round`). In each, actors in processes of their own
//! (`writer`, `reader`, `appender`) work for some seconds and write down what they did and saw
//! (`record`), while agents, coordinator and actors are killed and stopped and run out of memory
//! and disk (`faults`). After it the logs of the writers are put together to what became of each
//! file (`history`), and each read is judged by that (`oracle`). Nothing is mocked and no content
//! is stored: each word of a file tells which write it came from (`content`).

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

use actor::{Actor, ActorArgs};
use clap::{Parser, Subcommand};
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
    /// An actor of a round; started by `run`
    #[command(hide = true)]
    Writer(ActorArgs),
    #[command(hide = true)]
    Reader(ActorArgs),
    #[command(hide = true)]
    Appender(ActorArgs),
    #[command(hide = true)]
    Check(ActorArgs),
    #[command(hide = true)]
    Setup(ActorArgs),
}

fn main() -> ExitCode {
    let act = |args: ActorArgs, role: &str, play: fn(Actor) -> std::io::Result<()>| {
        Actor::new(args, role).and_then(play).map(|()| true)
    };
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Writer(args) => act(args, "writer", writer::run),
        Command::Reader(args) => act(args, "reader", reader::run),
        Command::Appender(args) => act(args, "appender", appender::run),
        Command::Check(args) => act(args, "check", reader::check),
        Command::Setup(args) => act(args, "setup", setup::run),
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
