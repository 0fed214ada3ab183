//! `GET /metrics`: what this process reports of its agent, of its coordinator, or of both, for
//! Prometheus and other readers of its formats.
//!
//! The agent is asked over its socket as by any program, so its metrics show nothing that `forebay
//! status` does not, and hold no lock of the agent. The coordinator's thread is asked between two
//! events.

mod agent;
mod coordinator;
mod page;

use crate::web::{Request, Response, Service};
use agent::Snapshot;
pub use agent::help;
use forebay_client::{Client, ClientConfig};
use forebay_coordinator::Reports;
use forebay_coordinator::report::Since;
use page::{Format, Page};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for the coordinator.
const ASK_TIME: Duration = Duration::from_secs(5);

/// The metrics of this process.
pub struct Metrics {
    agent: Option<Client>,
    coordinator: Option<Reports>,
}

impl Metrics {
    /// The metrics of the agent behind `socket` and of the coordinator of this process, as far as
    /// they exist.
    pub fn new(socket: Option<PathBuf>, coordinator: Option<Reports>) -> Self {
        let client = |socket| {
            let config = ClientConfig { socket: Some(socket), quiet: true, ..ClientConfig::from_env() };
            Client::new(config)
        };
        Metrics { agent: socket.map(client), coordinator }
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// The agent or the coordinator does not answer.
    pub fn text(&self) -> io::Result<String> {
        self.page(Format::Plain)
    }

    fn page(&self, format: Format) -> io::Result<String> {
        let mut page = Page::new(format);
        if let Some(client) = &self.agent {
            let failed = |e: io::Error| io::Error::new(e.kind(), format!("the agent does not answer: {e}"));
            snapshot(client).map_err(failed)?.write(&mut page);
        }
        if let Some(coordinator) = &self.coordinator {
            // Metrics have no use for single entries of the plan log.
            let since = Since { revision: u64::MAX, sample_ms: Some(u64::MAX), node: None };
            coordinator::write(&coordinator.ask(since, ASK_TIME)?, &mut page);
        }
        Ok(page.end())
    }
}

impl Service for Metrics {
    const TABLE: &'static str = "metrics";

    fn needs_token(&self, _path: &str) -> bool {
        true
    }

    fn answer(&self, request: &Request) -> Response {
        if request.path != "/metrics" {
            return Response::text("404 Not Found", "the metrics are at /metrics");
        }
        let is_open = request.accept.contains("application/openmetrics-text");
        let format = if is_open { Format::OpenMetrics } else { Format::Plain };
        match self.page(format) {
            Ok(text) => Response::ok(format.content_type(), text),
            Err(e) => Response::text("503 Service Unavailable", e.to_string()),
        }
    }
}

fn snapshot(client: &Client) -> io::Result<Snapshot> {
    let status = client.admin().status()?;
    let memory = client.admin().memory()?;
    // The coordinator may be unreachable; the agent's own metrics are available all the same.
    let jobs = if status.cluster.connected { client.jobs().ok() } else { None };
    Ok(Snapshot { status, memory, jobs })
}
