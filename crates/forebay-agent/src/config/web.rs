//! The tables `[metrics]` and `[console]`: what is served over HTTP, and to whom.

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where something is served over HTTP, and who may read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// The address; `None`: it is not served.
    pub listen: Option<SocketAddr>,
    /// Directory of the certificate; `None`: plain HTTP.
    pub tls: Option<PathBuf>,
    /// File with the token that requests need; `None`: none.
    pub token_file: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWeb {
    listen: Option<String>,
    tls: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl WebConfig {
    pub(super) fn take(&mut self, table: &str, raw: RawWeb) -> Result<(), String> {
        let named = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        (self.tls, self.token_file) = (named(raw.tls), named(raw.token_file));
        self.listen_on(table, raw.listen.as_deref().unwrap_or_default())
    }

    /// Sets the address of `table`; an empty one serves nothing.
    ///
    /// # Errors
    /// It is no address, or one that others reach without what `table` needs for that.
    pub fn listen_on(&mut self, table: &str, text: &str) -> Result<(), String> {
        self.listen = None;
        if text.is_empty() {
            return Ok(());
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| format!("{table}.listen = {text:?}: write IP:PORT, such as 127.0.0.1:9750"))?;
        let (has_tls, has_token) = (self.tls.is_some(), self.token_file.is_some());
        // The console shows names of jobs and users of the whole cluster.
        let (enough, needs) = match table {
            "console" => (has_tls && has_token, "console.tls and console.token_file".to_owned()),
            _ => (has_tls || has_token, format!("{table}.tls, {table}.token_file or both")),
        };
        if !address.ip().is_loopback() && !enough {
            return Err(format!(
                "{table}.listen = {text:?} is open to other machines, which needs {needs}; `forebay init` makes certificates"
            ));
        }
        self.listen = Some(address);
        Ok(())
    }
}
