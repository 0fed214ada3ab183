//! Services: programs that are started on nodes, recorded, watched while the lab comes up, and end
//! with it.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use super::plan::{Node, Role};
use super::process::{ProcessId, wait_until};
use super::space;
use super::state::{Record, Service};
use crate::LabError;

/// Most lines of a log that are shown when its service has failed.
const LAST_WORDS_LINES: usize = 8;

/// A lab that services are being added to.
#[derive(Debug)]
pub struct Raising {
    /// The record of what has been started.
    pub record: Record,
    children: Vec<(String, Child)>,
}

impl Raising {
    /// Continues with `record`.
    pub fn new(record: Record) -> Self {
        Self { record, children: Vec::new() }
    }

    /// Names of the nodes of a kind.
    pub fn names(&self, role: Role) -> Vec<String> {
        let nodes = self.record.nodes.iter().filter(|node: &&Node| node.role == role);
        nodes.map(|node| node.name.clone()).collect()
    }

    /// Names of the nodes that mount the file system.
    pub fn mounting(&self) -> Vec<String> {
        let nodes = self.record.nodes.iter().filter(|node| self.record.mounts_on(node.role));
        nodes.map(|node| node.name.clone()).collect()
    }

    /// Names of the nodes that mount the file system and have an agent.
    pub fn clients(&self) -> Vec<String> {
        let nodes = self.record.nodes.iter().filter(|node: &&Node| node.role.is_client());
        nodes.map(|node| node.name.clone()).collect()
    }

    /// Starts a program on a node, to run until the lab ends, and records it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self, node: &str, service: &str, command: Command) -> Result<(), LabError> {
        let holder = self.record.holder(node)?;
        let door = self.record.cpu_door(node)?;
        let child = space::start(&self.record.place, node, holder, service, command, door)?;
        if let Some(process) = ProcessId::of(child.id()) {
            self.record.services.push(Service { name: service.to_owned(), node: node.to_owned(), process });
        }
        self.children.push((service.to_owned(), child));
        Ok(())
    }

    /// Waits until `service` is ready, as long as all that was started still runs.
    ///
    /// # Errors
    /// If a service has ended, or if it takes too long; with the end of the log of the service
    /// concerned.
    pub fn wait_for(
        &mut self,
        service: &str,
        patience: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), LabError> {
        let mut ended = None;
        let children = &mut self.children;
        let came = wait_until(patience, || {
            if ready() {
                return true;
            }
            ended = children.iter_mut().find_map(|(name, child)| match child.try_wait() {
                Ok(Some(status)) => Some((name.clone(), status)),
                _ => None,
            });
            ended.is_some()
        });
        match ended {
            Some((ended, status)) => Err(LabError::new(format!(
                "{ended} has ended ({status}){}",
                last_words(&self.record, &ended)
            ))),
            None if came => Ok(()),
            None => Err(LabError::new(format!(
                "{service} is not ready after {} s{}",
                patience.as_secs(),
                last_words(&self.record, service)
            ))),
        }
    }
}

/// The end of a service's log, as a text to put behind a message; the lab is cleared after an
/// error, including its logs.
fn last_words(record: &Record, service: &str) -> String {
    let text = fs::read_to_string(record.place.log(service)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST_WORDS_LINES)..];
    if last.is_empty() { String::new() } else { format!("; it said:\n  {}", last.join("\n  ")) }
}
