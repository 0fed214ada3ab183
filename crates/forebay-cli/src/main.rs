//! `forebay`: the program of nodes and users. Other programs are found next to it ([`beside`]).
//!
//! The command tree is in `cli`; each command has a file of its own that says what it does and how
//! it ends. Exit codes: 0 it is done; 1 it could not be done, for the reason printed; 2 the command
//! line is wrong.

mod beside;
mod broadcast;
mod bundle;
mod checkpoint;
mod cli;
mod console;
mod coordinator;
mod darshan;
mod dirty;
mod doctor;
mod evict;
mod files;
mod forward;
mod global;
mod init;
mod jobs;
mod layout;
mod limit;
mod load;
mod loadable;
mod log;
mod logging;
mod ls;
mod memory;
mod metrics;
mod mount;
mod out;
mod patterns;
mod plan;
mod preload;
mod profile;
mod program;
mod run;
mod served;
mod ship;
mod status;
mod top;
mod traffic;
mod transfer;
mod up;
mod verify;
mod web;

use cli::{CheckpointCommand, Cli, Command, ConfigCommand};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::from_args();
    match run_command(cli) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("forebay: {message}");
            ExitCode::from(1)
        }
    }
}

/// What a command comes to: an exit code, or a message that says what was tried and why it failed.
pub type Outcome = Result<ExitCode, String>;

fn run_command(cli: Cli) -> Outcome {
    let global = cli.global;
    match cli.command {
        Command::Up(args) => up::up(&global, args),
        Command::Agent(args) => up::agent(&args),
        Command::Coordinator(args) => coordinator::coordinator(&global, &args),
        Command::Down(args) => up::down(&global, &args),
        Command::Status(args) => status::status(&global, &args),
        Command::Jobs(args) => jobs::jobs(&global, &args),
        Command::Top(args) => top::top(&global, &args),
        Command::Plan(command) => plan::plan(&global, &command),
        Command::Ls(args) => ls::ls(&global, &args),
        Command::Stat(args) => ls::stat(&global, &args),
        Command::Load(args) if !args.nodes.is_empty() => broadcast::load(&global, &args),
        Command::Load(args) => load::load(&global, &args),
        Command::Evict(args) => evict::evict(&global, &args),
        Command::Limit(args) => limit::limit(&global, &args),
        Command::Log(args) => logging::log(&global, &args),
        Command::Bundle(args) => bundle::bundle(&global, &args),
        Command::Pin(args) => evict::pin(&global, &args, true),
        Command::Unpin(args) => evict::pin(&global, &args, false),
        Command::Capacity(args) => evict::capacity(&global, &args),
        Command::Memory => memory::memory(&global),
        Command::Cat(args) => transfer::cat(&global, &args),
        Command::Cp(args) => transfer::cp(&global, &args),
        Command::Verify(args) => verify::verify(&global, &args),
        Command::Dirty => dirty::dirty(&global),
        Command::Sync(args) => dirty::sync(&global, &args),
        Command::Rescue(args) => dirty::rescue(&global, &args),
        Command::Checkpoint(CheckpointCommand::Keep { sets, selector }) => {
            checkpoint::keep(&global, sets, &selector)
        }
        Command::Checkpoint(CheckpointCommand::List) => checkpoint::list(&global),
        Command::Checkpoint(CheckpointCommand::Newest { selector }) => checkpoint::newest(&global, &selector),
        Command::Layout(args) => layout::layout(&global, &args),
        Command::Run(args) => run::run(&global, &args),
        Command::Ship(args) => ship::ship(&args),
        Command::ShipHost(args) => ship::host::host(&args),
        Command::Mount(args) => mount::mount(&global, &args),
        Command::Umount(args) => mount::umount(&args),
        Command::Profile(args) => profile::profile(&global, &args),
        Command::ProfileWorker(args) => profile::worker(&args),
        Command::Init(args) => init::init(&global, &args),
        Command::Doctor(args) => doctor::doctor(&global, &args),
        Command::Config(ConfigCommand::Check { file }) => up::check_config(&global, &file),
        Command::Config(ConfigCommand::Show { config, origin }) => {
            up::config_show(&global, config.as_deref(), origin)
        }
        Command::Config(ConfigCommand::Reference) => up::config_reference(&global),
        Command::Beside(words) => beside::exec(&global, &words, cli::unknown),
        Command::Completions { shell } => cli::completions(shell),
        Command::Man { directory } => cli::man(directory.as_deref()),
        Command::Keeper { state_dir, limit_bytes, pages } => up::keeper(&state_dir, limit_bytes, &pages),
    }
}
