//! The tables `[metrics]` and `[console]`: what is served over HTTP, and to whom.

use super::table::{Entry, Key, address, keys};
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

keys! {
    METRICS: WebConfig {
        /// IP:PORT at which this process serves metrics in the formats of OpenMetrics and
        /// Prometheus, at /metrics: those of its agent, of its coordinator, or of both. An address
        /// that is not on loopback needs metrics.tls, metrics.token_file or both; port 0 takes a
        /// free one, which the log names. Empty: no metrics.
        "metrics.listen" => listen = r#""""#, address();
        /// Directory with node.pem and node.key, such as that of cluster.tls: metrics are served
        /// over TLS 1.3. Clients show no certificate. Empty: plain HTTP.
        "metrics.tls" => tls = r#""""#, path();
        /// File with a token of at least 16 characters, readable by its owner only: requests need
        /// the header `Authorization: Bearer TOKEN`. Empty: anybody who reaches the port may read
        /// the metrics.
        "metrics.token_file" => token_file = r#""""#, path();
    }
}

keys! {
    CONSOLE: WebConfig {
        /// IP:PORT at which the coordinator of this process serves the web console; `forebay up
        /// --console` sets it too. An address that is not on loopback needs console.tls and
        /// console.token_file. Empty: no console.
        "console.listen" => listen = r#""""#, address();
        /// Directory with node.pem and node.key, as metrics.tls.
        "console.tls" => tls = r#""""#, path();
        /// File with a token, as metrics.token_file. Open the console as
        /// https://HOST:PORT/#token=TOKEN. Empty: every user of this machine may read the console.
        "console.token_file" => token_file = r#""""#, path();
    }
}

impl WebConfig {
    /// Sets the address of `table`; an empty one serves nothing.
    ///
    /// # Errors
    /// It is not an address, or it is one that others reach without what `table` needs for that.
    pub fn listen_on(&mut self, table: &str, text: &str) -> Result<(), String> {
        self.listen = match text {
            "" => None,
            text => Some(address(&format!("{table}.listen"), text)?),
        };
        self.validate(table)
    }

    /// Whether nobody is served who should not be.
    pub(super) fn validate(&self, table: &str) -> Result<(), String> {
        let (has_tls, has_token) = (self.tls.is_some(), self.token_file.is_some());
        // The console shows names of jobs and users of the whole cluster.
        let (enough, needs) = match table {
            "console" => (has_tls && has_token, "console.tls and console.token_file".to_owned()),
            _ => (has_tls || has_token, format!("{table}.tls, {table}.token_file or both")),
        };
        match self.listen.filter(|address| !address.ip().is_loopback() && !enough) {
            Some(address) => Err(format!(
                "{table}.listen = \"{address}\" is open to other machines, which needs {needs}; `forebay init` makes certificates"
            )),
            None => Ok(()),
        }
    }
}
