//! `sim explain` for shared burst buffers: why a step was let in or had to wait, and why nodes were
//! given or refused.
//!
//! The scheduler's record has a reason for each grant, but a step that waits leaves no record:
//! nothing was done. So the trace is gone through from the start, who waits and who holds which
//! nodes is followed, and at the end of each round of decisions those who came and were not let in
//! are entries too.

use std::collections::BTreeMap;

use forebay_policy::access::Reason;
use serde::Deserialize;
use serde_json::Value;

use super::replay::Line;
use crate::burst::{Setup, ranges};
use crate::report::number;

/// A decision, or a wait.
pub struct Entry {
    pub t_ns: u64,
    pub what: &'static str,
    pub job: String,
    pub step: String,
    pub why: String,
    /// What was seen, and what was done.
    pub seen: Vec<String>,
    pub done: Vec<String>,
}

struct Step {
    job: usize,
    index: u64,
    nodes: Vec<u32>,
    alone_ns: u64,
    asked_ns: u64,
    /// Whether it is known that it waits.
    told: bool,
}

struct Held {
    token: u64,
    step: u64,
    nodes: Vec<u32>,
    from_ns: u64,
    to_ns: Option<u64>,
    renewed_ns: u64,
}

struct Reader<'a> {
    setup: &'a Setup,
    /// Job and index of each step, from the notes.
    named: BTreeMap<u64, (usize, u64)>,
    waiting: BTreeMap<u64, Step>,
    held: Vec<Held>,
    in_round: bool,
    entries: Vec<Entry>,
}

/// The decisions and waits of a trace, in the order in which they came.
pub fn entries(setup: &Setup, lines: &[Line]) -> Vec<Entry> {
    let mut reader = Reader {
        setup,
        named: BTreeMap::new(),
        waiting: BTreeMap::new(),
        held: Vec::new(),
        in_round: false,
        entries: Vec::new(),
    };
    let mut last_ns = 0;
    for line in lines {
        if !(line.who == "access" && line.action.is_some()) {
            reader.close_round(last_ns);
        }
        last_ns = line.t_ns;
        reader.take(line);
    }
    reader.close_round(last_ns);
    reader.entries
}

fn seconds(ns: u64) -> String {
    number(ns as f64 * 1e-9)
}

fn gigabytes(v: &Value) -> String {
    number(v.as_f64().unwrap_or(0.0) * 1e-9)
}

fn node_list(nodes: &[u32]) -> String {
    let runs = ranges(nodes);
    let words: Vec<String> = runs.iter().map(|&(a, b)| crate::burst::view::node_range(a, b)).collect();
    format!("{} {}", if nodes.len() == 1 { "node" } else { "nodes" }, words.join(","))
}

fn nodes_of(v: &Value) -> Vec<u32> {
    v.as_array().into_iter().flatten().filter_map(|n| n.as_u64().map(|n| n as u32)).collect()
}

impl Reader<'_> {
    fn job_name(&self, job: usize) -> String {
        self.setup.jobs.get(job).map_or("?".into(), |j| j.name.clone())
    }

    fn step_name(&self, step: u64) -> String {
        let (job, index) = self.named.get(&step).copied().unwrap_or((usize::MAX, 0));
        format!("step {index} of {}", self.job_name(job))
    }

    fn holders(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|h| h.to_ns.is_none())
    }

    fn take(&mut self, line: &Line) {
        if let Some(note) = line.note.as_ref().filter(|n| n["is"] == "asks") {
            let job = line.who.strip_prefix("job/").and_then(|j| j.parse().ok()).unwrap_or(usize::MAX);
            let index = note["index"].as_u64().unwrap_or(0);
            self.named.insert(note["step"].as_u64().unwrap_or(0), (job, index));
        }
        match (line.who.as_str(), &line.event, &line.action) {
            ("access", Some(event), _) => self.told(line.t_ns, event),
            ("access", _, Some(action)) => self.acted(line.t_ns, action),
            ("allocation", _, Some(action)) => self.allocated(line.t_ns, action),
            _ => {}
        }
    }

    fn told(&mut self, t_ns: u64, event: &Value) {
        let id = |key: &str| event[key].as_u64().unwrap_or(0);
        match event["is"].as_str() {
            Some("arrives") => {
                let (job, index) = self.named.get(&id("step")).copied().unwrap_or((usize::MAX, 0));
                let (nodes, alone_ns) = (nodes_of(&event["nodes"]), id("alone_ns"));
                let step = Step { job, index, nodes, alone_ns, asked_ns: t_ns, told: false };
                self.waiting.insert(id("step"), step);
            }
            Some("leaves") => {
                self.waiting.remove(&id("step"));
            }
            Some("done") => self.end(id("token"), t_ns),
            _ => self.in_round |= event == "deadline",
        }
    }

    fn end(&mut self, token: u64, t_ns: u64) {
        if let Some(h) = self.held.iter_mut().find(|h| h.token == token && h.to_ns.is_none()) {
            h.to_ns = Some(t_ns);
        }
    }

    fn acted(&mut self, t_ns: u64, action: &Value) {
        let token = action["token"].as_u64().unwrap_or(0);
        match action["do"].as_str() {
            Some("grant") => self.granted(t_ns, token, action),
            Some("revoke") => self.revoked(t_ns, token),
            Some("share") => self.reshared(t_ns, token, action),
            Some("renewed") => {
                if let Some(h) = self.held.iter_mut().rev().find(|h| h.token == token) {
                    h.renewed_ns = t_ns;
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, t_ns: u64, token: u64, action: &Value) {
        let id = action["step"].as_u64().unwrap_or(0);
        let Some(step) = self.waiting.remove(&id) else { return };
        let mut seen = vec![
            format!("{}, {} s alone", node_list(&step.nodes), seconds(step.alone_ns)),
            format!("asked at {} s, waited {} s", seconds(step.asked_ns), seconds(t_ns - step.asked_ns)),
        ];
        seen.extend(self.in_its_way(&step, t_ns));
        seen.extend(self.others_that_wait(t_ns));
        let part = action["share"].as_f64().map_or("its part of the processes".into(), |s| {
            format!("{} % of the bandwidth of its nodes", number(100.0 * s))
        });
        let until = seconds(action["until"].as_u64().unwrap_or(0));
        let done = vec![format!("token {token}, with {part}; lost unless renewed by {until} s")];
        let entry = Entry {
            t_ns,
            what: "let in",
            job: self.job_name(step.job),
            step: step.index.to_string(),
            why: self.reason(&action["why"]),
            seen,
            done,
        };
        self.entries.push(entry);
        let Step { nodes, .. } = step;
        self.held.push(Held { token, step: id, nodes, from_ns: t_ns, to_ns: None, renewed_ns: t_ns });
    }

    fn reason(&self, why: &Value) -> String {
        match Reason::deserialize(why) {
            Ok(Reason::Unscheduled) => "the policy lets everything in at once".into(),
            Ok(Reason::First) => "its nodes are free, and nobody before it in the order waits".into(),
            Ok(Reason::NodesFree { ahead }) => {
                format!("its nodes are free, while {ahead} before it in the order wait for theirs")
            }
            Ok(Reason::Overdue) => {
                format!(
                    "it has waited longer than {} s, the patience",
                    seconds(self.setup.config.patience_ns)
                )
            }
            Ok(Reason::Guest { host }) => {
                let of =
                    self.held.iter().find(|h| h.token == host).map_or("?".into(), |h| self.step_name(h.step));
                format!("it is so short that {of} (token {host}) can give way for it")
            }
            Err(_) => format!("{why}"),
        }
    }

    /// What held its nodes from when it asked.
    fn in_its_way(&self, step: &Step, t_ns: u64) -> Vec<String> {
        let one_at_a_time = self.setup.access.starts_with("sys-");
        let during = |h: &&Held| h.from_ns < t_ns && h.to_ns.is_none_or(|to| to > step.asked_ns);
        let mut words = Vec::new();
        for h in self.held.iter().filter(during) {
            let common: Vec<u32> = h.nodes.iter().copied().filter(|n| step.nodes.contains(n)).collect();
            if common.is_empty() && !one_at_a_time {
                continue;
            }
            let (from, to) = (h.from_ns.max(step.asked_ns), h.to_ns.unwrap_or(t_ns).min(t_ns));
            let of = if common.is_empty() { "the system".into() } else { node_list(&common) };
            let when = match from == to {
                true => format!("at {} s", seconds(to)),
                false => format!("{} to {} s", seconds(from), seconds(to)),
            };
            words.push(format!("{when}: {of} held by {}, token {}", self.step_name(h.step), h.token));
        }
        words
    }

    fn others_that_wait(&self, t_ns: u64) -> Vec<String> {
        let other = |(id, s): (&u64, &Step)| {
            format!(
                "{} waits since {} s: {}",
                self.step_name(*id),
                seconds(s.asked_ns),
                self.obstacle(s, t_ns)
            )
        };
        self.waiting.iter().map(other).collect()
    }

    /// Why a step waits at this moment.
    fn obstacle(&self, step: &Step, t_ns: u64) -> String {
        let mut in_the_way = Vec::new();
        for h in self.holders() {
            let common: Vec<u32> = h.nodes.iter().copied().filter(|n| step.nodes.contains(n)).collect();
            if !common.is_empty() {
                in_the_way.push(format!("{} held by {}", node_list(&common), self.step_name(h.step)));
            }
        }
        if !in_the_way.is_empty() {
            return in_the_way.join(" and ");
        }
        if let Some(h) = self.holders().next().filter(|_| self.setup.access.starts_with("sys-")) {
            return format!("one step at a time, and {} writes", self.step_name(h.step));
        }
        let patience_ns = self.setup.config.patience_ns;
        let overdue = |s: &&Step| {
            let waited_ns = t_ns - s.asked_ns;
            patience_ns != u64::MAX
                && waited_ns >= patience_ns
                && s.nodes.iter().any(|n| step.nodes.contains(n))
        };
        match self.waiting.values().find(overdue) {
            Some(s) => {
                format!(
                    "its nodes are kept free for step {} of {}, which is overdue",
                    s.index,
                    self.job_name(s.job)
                )
            }
            None => "its turn has not come".into(),
        }
    }

    fn revoked(&mut self, t_ns: u64, token: u64) {
        let Some(at) = self.held.iter().position(|h| h.token == token) else { return };
        let h = &self.held[at];
        let (job, index) = self.named.get(&h.step).copied().unwrap_or((usize::MAX, 0));
        let entry = Entry {
            t_ns,
            what: "revoked",
            job: self.job_name(job),
            step: index.to_string(),
            why: format!(
                "it was not renewed since {} s, and a lease is {} s",
                seconds(h.renewed_ns),
                seconds(self.setup.config.lease_ns)
            ),
            seen: vec![format!(
                "token {token} on {}, granted at {} s",
                node_list(&h.nodes),
                seconds(h.from_ns)
            )],
            done: vec!["nodes refuse this token, and are given to the next".into()],
        };
        self.entries.push(entry);
        self.end(token, t_ns);
    }

    fn reshared(&mut self, t_ns: u64, token: u64, action: &Value) {
        let Some(h) = self.held.iter().find(|h| h.token == token) else { return };
        let share = action["share"].as_f64().unwrap_or(1.0);
        let (job, index) = self.named.get(&h.step).copied().unwrap_or((usize::MAX, 0));
        let why =
            if share < 1.0 { "it gives way to a guest" } else { "it shares its nodes with nobody any more" };
        let entry = Entry {
            t_ns,
            what: "share",
            job: self.job_name(job),
            step: index.to_string(),
            why: why.into(),
            seen: vec![format!("token {token} on {}", node_list(&h.nodes))],
            done: vec![format!("it has {} % of their bandwidth from now on", number(100.0 * share))],
        };
        self.entries.push(entry);
    }

    fn allocated(&mut self, t_ns: u64, action: &Value) {
        let job = action["job"].as_u64().map_or(usize::MAX, |j| j as usize);
        let spec = self.setup.jobs.get(job);
        let wanted = spec.map_or(String::new(), |j| {
            let nodes = j.nodes.map_or("as many nodes as the policy likes".into(), |n| format!("{n} nodes"));
            format!("{} GB a step, {nodes}", number(j.step_bytes as f64 * 1e-9))
        });
        let policy = &self.setup.allocation;
        let (what, why, done) = match action["do"].as_str() {
            Some("allocate") => {
                let nodes = nodes_of(&action["nodes"]);
                let reserved = gigabytes(&action["bytes_per_node"]);
                let why = format!("the choice of '{policy}'");
                ("nodes", why, format!("{}, {reserved} GB reserved on each", node_list(&nodes)))
            }
            _ => ("no nodes", action["why"].as_str().unwrap_or("?").into(), "it asks again".into()),
        };
        let (job, step) = (self.job_name(job), "-".into());
        self.entries.push(Entry { t_ns, what, job, step, why, seen: vec![wanted], done: vec![done] });
    }

    /// Whoever came before a round of decisions and is still there after it waits.
    fn close_round(&mut self, t_ns: u64) {
        if !std::mem::take(&mut self.in_round) {
            return;
        }
        let new: Vec<u64> = self.waiting.iter().filter(|(_, s)| !s.told).map(|(&id, _)| id).collect();
        for id in new {
            let step = &self.waiting[&id];
            let why = self.obstacle(step, t_ns);
            let seen = vec![format!("{}, {} s alone", node_list(&step.nodes), seconds(step.alone_ns))];
            let (job, index) = (self.job_name(step.job), step.index.to_string());
            let done = vec!["it waits; the entry in which it is let in has the rest".into()];
            self.entries.push(Entry { t_ns, what: "waits", job, step: index, why, seen, done });
            if let Some(step) = self.waiting.get_mut(&id) {
                step.told = true;
            }
        }
    }
}
