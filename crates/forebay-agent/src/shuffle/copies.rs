//! Second copies of map outputs, on other nodes.
//!
//! A copy is the whole output with its index, under the same name, and is removed with its
//! application or shuffle, like the first one: the node that keeps it asks the same origin. The
//! outputs of a node go to the next one on another host in the order of names, so each node keeps
//! about as much for others as they keep for it, and a reader that knows where an output was
//! written knows where to look for the copy.

use super::Shuffles;
use crate::counters::add;
use crate::fetch::peer_link::CopySent;
use crate::jobs::scratch_files::Scratch;
use crate::lock::lock;
use forebay_wire::NodeInfo;
use forebay_wire::shuffle::{App, Block, is_committed, output_name};
use std::io;
use std::time::{Duration, Instant};

/// Most nodes that are asked to keep a copy, or for one.
const SECOND_NODES_MAX: usize = 3;

/// How long a node may make no progress before it counts as not taking a copy.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long a copy waits for room; its sender waits a little longer.
const ROOM_MAX: Duration = Duration::from_secs(3);

impl Shuffles {
    /// Names of the nodes of these host names or IP addresses. `with_second`: including those that
    /// may keep second copies of what was written there; all nodes, if none of these hosts is in
    /// the cluster any more. `None`: this agent knows no node yet.
    pub fn nodes_at(&self, hosts: &[String], with_second: bool) -> Option<Vec<String>> {
        let view = self.cluster.view();
        let nodes = &view.cluster.nodes;
        if nodes.is_empty() {
            return (!self.cluster.has_others()).then(|| vec![self.node().to_owned()]);
        }
        let is_here = |node: &&NodeInfo| {
            let ip = node.address.rsplit_once(':').map(|(ip, _)| ip.trim_matches(['[', ']']));
            hosts.iter().any(|host| node.host.eq_ignore_ascii_case(host) || ip == Some(host))
        };
        let mut found: Vec<String> = nodes.iter().filter(is_here).map(|node| node.name.clone()).collect();
        if with_second {
            let more = match found.first() {
                Some(writer) => second_nodes(nodes, writer).take(SECOND_NODES_MAX).collect::<Vec<_>>(),
                None => nodes.iter().collect(),
            };
            let names = more.into_iter().map(|node| node.name.clone());
            let new: Vec<_> = names.filter(|name| !found.contains(name)).collect();
            found.extend(new);
        }
        Some(found)
    }

    /// Sends a committed output of this node to another one; returns the name of that node.
    ///
    /// # Errors
    /// No such output, or no node takes it.
    pub fn copy(&self, uid: u32, token: &str, (shuffle, map): (u32, u64)) -> io::Result<String> {
        let app = lock(&self.apps).get(token).filter(|app| app.uid == uid).map(|app| app.as_named(token));
        let app = app.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let whole = Block { shuffle, map, first: 0, end: 1, from: 0, most: 0 };
        let (file, ..) = self.blocks_here(uid, token, &[whole])?.remove(0);
        let bytes = rustix::fs::fstat(&file)?.st_size as u64;
        let view = self.cluster.view();
        let mut why = "the cluster has no other node that serves peers".to_owned();
        let can = |node: &&NodeInfo| !self.cluster.is_avoided(&node.name);
        for node in second_nodes(&view.cluster.nodes, self.node()).take(SECOND_NODES_MAX).filter(can) {
            let sent = self.at_peer(&node.name, Instant::now() + SILENCE_MAX, |link| {
                link.keep_output((&app, uid), (shuffle, map), (&file, bytes), SILENCE_MAX)
            });
            match sent {
                Ok(CopySent::Done) => {
                    add(&self.counters.shuffle_copied_bytes, bytes);
                    return Ok(node.name.clone());
                }
                Ok(CopySent::Refused(refusal)) => why = format!("node {}: {refusal}", node.name),
                Err(e) => {
                    self.cluster.avoid(&node.name);
                    why = format!("node {}: {e}", node.name);
                }
            }
        }
        add(&self.counters.shuffle_copies_missed_total, 1);
        Err(io::Error::new(io::ErrorKind::StorageFull, format!("no second copy of a map output: {why}")))
    }

    /// Makes room for a copy that another node sends.
    ///
    /// # Errors
    /// The application has ended, or there is none.
    pub fn begin_copy(&self, uid: u32, app: &App, bytes: u64) -> Result<Scratch, String> {
        self.join(uid, app).map_err(|e| e.to_string())?;
        self.room_for(uid, bytes, Instant::now() + ROOM_MAX).map_err(|e| e.to_string())
    }

    /// Keeps a copy that is whole.
    ///
    /// # Errors
    /// It is not, or its application has ended meanwhile.
    pub fn end_copy(
        &self,
        uid: u32,
        token: &str,
        (shuffle, map): (u32, u64),
        copy: Scratch,
    ) -> Result<(), String> {
        let is_whole = copy.file.for_reading().and_then(|(file, _)| is_committed(file));
        let mut jobs = lock(&self.files.by_token);
        let job = jobs.get_mut(token).filter(|job| job.uid == uid);
        let (Some(job), Ok(true)) = (job, is_whole) else {
            drop(jobs);
            self.files.give_up(uid, copy);
            return Err("it is not whole, or the application has ended".into());
        };
        let replaced = job.files.insert(output_name(shuffle, map), copy);
        drop(jobs);
        if let Some(replaced) = replaced {
            self.files.give_up(uid, replaced);
        }
        Ok(())
    }
}

/// Nodes that may keep copies of what `writer` has, the next one first, those on its host last.
fn second_nodes<'a>(nodes: &'a [NodeInfo], writer: &str) -> impl Iterator<Item = &'a NodeInfo> {
    let after = nodes.partition_point(|node| node.name.as_str() <= writer);
    let host = nodes.iter().find(|node| node.name == writer).map(|node| node.host.clone());
    let ring: Vec<_> = nodes[after..].iter().chain(&nodes[..after]).collect();
    let (near, far): (Vec<_>, Vec<_>) = ring.into_iter().partition(|node| Some(&node.host) == host.as_ref());
    let writer = writer.to_owned();
    far.into_iter().chain(near).filter(move |node| node.name != writer && !node.address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    fn node(name: &str, host: &str) -> NodeInfo {
        let address = "127.0.0.1:1".into();
        NodeInfo { name: name.into(), host: host.into(), address, ..NodeInfo::default() }
    }

    #[test]
    fn a_copy_goes_to_the_next_node_on_another_host() {
        let nodes = [node("a", "x"), node("b", "x"), node("c", "y"), node("d", "z")];
        let of = |writer| second_nodes(&nodes, writer).map(|node| node.name.as_str()).collect::<String>();
        assert_eq!((of("a"), of("b"), of("c")), ("cdb".into(), "cda".into(), "dab".to_owned()));
        assert_eq!(of("d"), "abc", "the ring is closed");
        assert_eq!(second_nodes(&nodes[..1], "a").count(), 0);
    }
}
