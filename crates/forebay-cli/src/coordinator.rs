//! `coordinator`: runs a coordinator in a process of its own.

use crate::Outcome;
use crate::cli::{CoordinatorArgs, Global};
use crate::console::Console;
use crate::metrics::Metrics;
use crate::out::print;
use crate::web;
use forebay_agent::config::layers::waiting;
use forebay_agent::{ClusterConfig, Config};
use forebay_coordinator::etcd::{Endpoint, Place, Tls};
use forebay_coordinator::members::Timing;
use forebay_coordinator::{Coordinator, Options, Profile};
use forebay_wire::link::Security;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the coordinator until a signal ends it.
pub fn coordinator(global: &Global, args: &CoordinatorArgs) -> Outcome {
    let (mut config, given) = Config::load(args.config.as_deref())?;
    if let Some(listen) = &args.listen {
        config.cluster.coordinator_listen = listen.clone();
    }
    if let Some(listen) = &args.console {
        config.console.listen_on("console", listen)?;
    }
    if config.cluster.coordinator_listen.is_empty() {
        return Err(
            "the coordinator has no address: give --listen IP:PORT, or cluster.coordinator_listen".into()
        );
    }
    crate::log::start_log();
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
        .map_err(|e| format!("cannot handle signals: {e}"))?;
    let coordinator = start(&config.cluster).map_err(|e| e.to_string())?;
    serve_web(&config, None, Some(&coordinator))?;
    if let Some(address) = coordinator.address() {
        let json = serde_json::json!({ "coordinator": address });
        print(global, &json, |out| writeln!(out, "coordinator listens on {address}"))?;
    }
    for signal in signals.forever() {
        if signal != libc::SIGHUP {
            break;
        }
        match Config::load(args.config.as_deref()) {
            Ok((_, now)) => {
                let later = waiting(&given, &now, &[]).join(", ");
                tracing::info!(at_the_next_start = later, "the configuration is read again");
            }
            Err(e) => tracing::error!("the configuration is not changed: {e}"),
        }
    }
    coordinator.stop();
    tracing::info!("coordinator has ended");
    Ok(ExitCode::SUCCESS)
}

/// Serves the metrics and the console of this process, as far as they are configured: of the agent
/// behind `socket`, and of the coordinator.
pub fn serve_web(
    config: &Config,
    socket: Option<PathBuf>,
    coordinator: Option<&Coordinator>,
) -> Result<(), String> {
    let reports = || coordinator.map(Coordinator::reports);
    web::start(&config.metrics, Metrics::new(socket, reports()))?;
    if let Some(reports) = reports() {
        web::start(&config.console, Console::new(reports, config.cluster.decision_log.clone()))?;
    }
    Ok(())
}

/// Starts a coordinator in this process; without an address, for this process alone.
pub fn start(config: &ClusterConfig) -> io::Result<Coordinator> {
    let listen = (!config.coordinator_listen.is_empty()).then(|| config.coordinator_listen.clone());
    Coordinator::start(Options {
        listen,
        security: Security::configured(config.tls.as_deref())?,
        timing: Timing::DEFAULT,
        planner: config.planner.clone(),
        profile: profile(config).map_err(io::Error::other)?,
        access: config.access.clone(),
        access_wait: config.access_wait,
        task_wait: config.task_wait,
        buffers_bytes: config.coordinator_buffers_bytes,
        reports_bytes: config.coordinator_reports_bytes,
        decision_log: config.decision_log.clone(),
        etcd: etcd(config)?,
    })
}

/// Where candidates are elected, if there are several.
fn etcd(config: &ClusterConfig) -> io::Result<Option<Place>> {
    if config.etcd.is_empty() {
        return Ok(None);
    }
    let endpoints = config.etcd.iter().map(|url| Endpoint::parse(url)).collect::<Result<_, _>>();
    let endpoints = endpoints.map_err(|e| io::Error::other(format!("cluster.etcd: {e}")))?;
    let tls = config.etcd_tls.as_deref().map(Tls::load).transpose();
    let tls = tls.map_err(|e| io::Error::other(format!("cluster.etcd_tls: {e}")))?;
    Ok(Some(Place { endpoints, tls, prefix: config.etcd_prefix.clone() }))
}

/// What `cluster.profile` says, if it names a file.
pub fn profile(config: &ClusterConfig) -> Result<Option<Profile>, String> {
    let read = |path| forebay_sim::scenario::profile::read(path).map_err(|e| format!("cluster.profile: {e}"));
    config.profile.as_deref().map(read).transpose()
}
