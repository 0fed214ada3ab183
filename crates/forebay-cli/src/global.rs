//! The options of every command.

use clap::Args;
use forebay_client::{Client, ClientConfig};
use std::path::{Path, PathBuf};

/// Options of every command. Clap passes them to all commands by name, so no command may reuse one
/// of these names.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Write JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// The agent's socket [default: that of this user's or of root's agent] [env: FOREBAY_SOCKET]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl Global {
    /// A client for this command.
    pub fn client(&self) -> Client {
        Client::new(self.client_config())
    }

    /// Where the agent is, and whether it is believed.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::from_env();
        if let Some(socket) = &self.socket {
            config.socket = (socket != Path::new("none")).then(|| socket.clone());
        }
        config
    }
}
