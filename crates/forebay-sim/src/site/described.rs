//! The scenario as TOML. Beside each value is its source; what could not be known has its default.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write as _};

use forebay_policy::planner;

use super::recorded::{Attempt, Hpc, Job, Member, Phase, Recorded, Stage, bytes_of};

/// Members with less are members for their programs, and not for their tier.
const LEAST_TIER_BYTES: u64 = 1 << 20;
/// Bandwidth of a file system that was not measured.
const DEFAULT_BYTES_PER_S: f64 = 1e9;
/// Bytes that clients send at a time, and most pieces of all phases: each is an event.
const WRITE_BYTES: u64 = 4 << 20;
const MAX_PIECES: f64 = 4e6;
/// More servers of stripes than this are left out: the file would be as long as the log.
const MAX_STRIPES: usize = 10_000;
/// Most processes of an HPC job.
const MAX_PROCESSES: u64 = 65_536;
/// The least fraction of its run time that a task computes.
const LEAST_COMPUTE: f64 = 0.1;

/// The profile that `forebay profile` measured, and how the scenario names its file.
pub struct Profile {
    /// A path.
    pub name: String,
    /// What it says.
    pub config: planner::Config,
}

/// A scenario, and what its jobs were in the log.
pub struct Described {
    /// TOML.
    pub text: String,
    /// Name, and number of the recorded job and stage, of each `[[job]]`.
    pub jobs: Vec<(String, usize, usize)>,
    /// Name, and number of the recorded job, of each `[[hpc]]`.
    pub hpc: Vec<(String, usize)>,
    /// The moment of the log at which the scenario begins, in ns.
    pub from_ns: u64,
}

/// Lines of TOML.
struct Text(String);

impl Text {
    fn section(&mut self, header: &str) {
        let _ = write!(self.0, "\n{header}\n");
    }

    fn value(&mut self, key: &str, value: impl Display, source: &str) {
        let _ = writeln!(self.0, "{:<39} # {source}", format!("{key} = {value}"));
    }

    /// Writes a value that is not known: without it the scenario has its default.
    fn unknown(&mut self, key: &str, default: impl Display, why: &str) {
        let _ = writeln!(
            self.0,
            "{:<39} # not known, this is the default: {why}",
            format!("# {key} = {default}")
        );
    }

    fn note(&mut self, text: &str) {
        let _ = writeln!(self.0, "# {text}");
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

fn seconds(ns: u64) -> String {
    format!("{:.6}", ns as f64 * 1e-9)
}

fn list(times_ns: impl Iterator<Item = u64>) -> String {
    format!("[{}]", times_ns.map(seconds).collect::<Vec<_>>().join(", "))
}

/// The value in the middle.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Describes what was recorded. `command` is named in the first line.
pub fn describe(recorded: &Recorded, profile: Option<&Profile>, command: &str) -> Described {
    let ready = recorded.jobs.iter().flat_map(|job| &job.stages).map(|stage| stage.ready_ns);
    let from_ns = ready.chain(recorded.hpc.iter().map(|hpc| hpc.joined_ns)).min().unwrap_or(0);
    let mut site = Site {
        recorded,
        profile,
        from_ns,
        nodes: nodes(recorded),
        servers: servers(recorded),
        bytes_per_s: DEFAULT_BYTES_PER_S,
        names: BTreeSet::new(),
        text: Text(format!(
            "# A site, as it was recorded and measured. {command}\n# Times count from second {:.3} of the log on.\nkind = \"world\"\n",
            from_ns as f64 * 1e-9
        )),
    };
    site.cluster();
    site.planner();
    site.file_system();
    let jobs = site.jobs();
    let hpc = site.hpc_jobs();
    site.faults();
    Described { text: site.text.0, jobs, hpc, from_ns }
}

/// Members that have a tier.
fn nodes(recorded: &Recorded) -> Vec<&str> {
    let is_node = |member: &Member| {
        let most = member.capacities.iter().map(|(_, bytes)| *bytes).max();
        most.unwrap_or(member.node.capacity_bytes) >= LEAST_TIER_BYTES
    };
    recorded.nodes.iter().filter(|(_, member)| is_node(member)).map(|(name, _)| name.as_str()).collect()
}

/// Servers that the layouts of files name, in the order of their names.
fn servers(recorded: &Recorded) -> Vec<&str> {
    let layouts = recorded.jobs.iter().flat_map(|job| &job.layouts);
    let names: BTreeSet<&str> = layouts.flat_map(|(_, servers)| servers.iter().map(String::as_str)).collect();
    names.into_iter().collect()
}

/// What is described, and the state of the description.
struct Site<'a> {
    recorded: &'a Recorded,
    profile: Option<&'a Profile>,
    from_ns: u64,
    nodes: Vec<&'a str>,
    servers: Vec<&'a str>,
    /// Bandwidth of the file system.
    bytes_per_s: f64,
    names: BTreeSet<String>,
    text: Text,
}

impl Site<'_> {
    /// A name that no other job has.
    fn name(&mut self, wanted: String) -> String {
        let wanted = if wanted.is_empty() { "job".into() } else { wanted };
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let names = &self.names;
        let name = std::iter::once(wanted.clone()).chain(numbered).find(|name| !names.contains(name));
        let name = name.unwrap_or(wanted);
        self.names.insert(name.clone());
        name
    }

    fn cluster(&mut self) {
        let (recorded, count) = (self.recorded, self.nodes.len().max(1));
        let end_ns = recorded.end_ns.max(self.from_ns + 1);
        let mean = |name: &&str| mean_capacity(&recorded.nodes[*name], (self.from_ns, end_ns));
        let means: Vec<u64> = self.nodes.iter().map(mean).collect();
        let tier_bytes = means.iter().map(|bytes| u128::from(*bytes)).sum::<u128>() / count as u128;
        let (least, most) = (means.iter().min().unwrap_or(&0), means.iter().max().unwrap_or(&0));
        let extents = self.nodes.iter().flat_map(|name| recorded.nodes[*name].node.keeps.values().copied());
        let extent_bytes = median(extents.collect());
        let (slots, names) = (self.slots(), self.nodes.join(", "));
        self.text.section("[cluster]");
        self.text.value("nodes", count, &format!("recorded: members with a tier: {names}"));
        match slots {
            Some(slots) => {
                let most = "recorded: slots of a job, or tasks at a time if more, divided by the nodes";
                self.text.value("slots", (slots as usize).div_ceil(count), most);
            }
            None => self.text.unknown("slots", 1, "no job has reported slots, and no task ran"),
        }
        let source = format!("recorded: mean over nodes ({least} to {most}) and time. What if: more memory");
        self.text.value("tier_bytes", tier_bytes.max(1), &source);
        match extent_bytes {
            Some(bytes) => self.text.value("extent_bytes", bytes, "recorded: as the members report"),
            None => self.text.unknown("extent_bytes", 128 << 20, "no member reports extents"),
        }
        match recorded.fetches {
            Some((threads, bytes)) => {
                self.text.value("page_bytes", bytes, "recorded: in the log of an agent");
                self.text.value("fetch_threads", threads, "recorded: in the log of an agent");
            }
            None => {
                let agent = "the log of an agent (agent.decision_log) has it";
                self.text.unknown("page_bytes", 2 << 20, agent);
                self.text.unknown("fetch_threads", 8, agent);
            }
        }
        self.text.unknown("locality_wait_s", 1, "the scheduler does not report it");
    }

    /// Most slots of a job, or most tasks that ran at the same time if several jobs had more.
    fn slots(&self) -> Option<u32> {
        let jobs = self.recorded.jobs.iter();
        let reported = jobs.clone().map(|job| job.slots.iter().map(|(_, count)| count).sum::<u32>()).max();
        let attempts = jobs.flat_map(|job| &job.stages).flat_map(|stage| &stage.attempts);
        let ended = attempts.filter_map(|attempt| Some((attempt.begin_ns, attempt.end?.0)));
        // At the same moment, a task that ends makes room for one that begins.
        let mut changes: Vec<(u64, i32)> = ended.flat_map(|(from, to)| [(from, 1), (to, -1)]).collect();
        changes.sort_unstable();
        let running = changes.iter().scan(0, |sum, (_, change)| {
            *sum += change;
            Some(*sum)
        });
        let running = running.max().and_then(|most| u32::try_from(most).ok());
        reported.max(running).filter(|most| *most > 0)
    }

    fn planner(&mut self) {
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for job in &self.recorded.jobs {
            let planner = if job.planner.is_empty() { &self.recorded.planner } else { &job.planner };
            *bytes.entry(planner).or_default() += job.stages.iter().map(Stage::bytes).sum::<u64>();
        }
        let known = |name: &str| planner::POLICIES.iter().any(|(known, _)| *known == name);
        let most = bytes.iter().filter(|(name, _)| known(name)).max_by_key(|(_, bytes)| **bytes);
        self.text.section("[planner]");
        match most {
            Some((name, _)) if bytes.len() == 1 => {
                self.text.value("policy", quoted(name), "recorded. What if: another planner");
            }
            Some((name, _)) => {
                let source = "recorded: of several planners that of most bytes. What if: another planner";
                self.text.value("policy", quoted(name), source);
            }
            None if known(&self.recorded.planner) => {
                self.text.value(
                    "policy",
                    quoted(&self.recorded.planner),
                    "recorded: the coordinator's default",
                );
            }
            None => self.text.unknown("policy", "\"no-action\"", "the log names none that is known here"),
        }
        match (self.profile, &self.recorded.system) {
            (Some(profile), _) => {
                self.text.value("profile", quoted(&profile.name), "measured by forebay profile")
            }
            (None, Some(_)) => {
                self.text.note("The coordinator had a profile. Without --profile, planners here have none.");
            }
            (None, None) => {}
        }
    }

    fn file_system(&mut self) {
        let count = self.servers.len().max(1);
        let fastest = self.recorded.reads.iter().map(|(_, rate)| *rate).max().filter(|rate| *rate > 0);
        let (bytes_per_s, source) = match (self.profile, &self.recorded.system, fastest) {
            (Some(profile), ..) => (profile.config.pfs_bytes_per_s, "measured by forebay profile"),
            (None, Some(system), _) => (system.pfs_bytes_per_s, "measured: the coordinator's profile"),
            (None, None, Some(rate)) => {
                (rate as f64, "recorded: what agents read in the fastest second, a lower bound")
            }
            (None, None, None) => (DEFAULT_BYTES_PER_S, "not known, this is the default: 1 GB/s in all"),
        };
        self.bytes_per_s = bytes_per_s;
        self.text.section("[pfs]");
        if self.servers.is_empty() {
            let why = "not known, this is the default: no job has reported where its files lie";
            self.text.value("servers", 1, why);
        } else {
            let names = self.servers.join(", ");
            self.text.value("servers", count, &format!("recorded: in layouts of files: {names}"));
        }
        let source = format!("{source}; divided by the servers");
        self.text.value(
            "server_bytes_per_s",
            format!("{:.0}", (bytes_per_s / count as f64).max(1.0)),
            &source,
        );
        match self.stripe_bytes() {
            Some(bytes) => self.text.value("stripe_bytes", bytes, "recorded: of most files"),
            None => {
                self.text.value("layout_known", false, "recorded: no job has reported where its files lie")
            }
        }
        let phases = self.recorded.hpc.iter().flat_map(|hpc| hpc.phases.iter().map(|p| io_ns(hpc, p)));
        let phases_s = phases.map(|ns| ns as f64 * 1e-9).sum::<f64>();
        let write_bytes = (phases_s * bytes_per_s / MAX_PIECES) as u64;
        if write_bytes > WRITE_BYTES {
            let why = "chosen: phases in smaller pieces would take minutes to simulate";
            self.text.value("write_bytes", write_bytes, why);
        } else {
            self.text.unknown("write_bytes", WRITE_BYTES, "clients do not report it");
        }
        self.text.unknown("read_ahead_bytes", 128 << 10, "read_ahead_kb of the PFS client");
        self.text.note("Not known, and not modelled: links of nodes. Each server has one link.");
    }

    /// The stripe size of most files.
    fn stripe_bytes(&self) -> Option<u64> {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        let layouts = self.recorded.jobs.iter().flat_map(|job| &job.layouts);
        layouts
            .filter(|(bytes, _)| *bytes > 0)
            .for_each(|(bytes, _)| *counts.entry(*bytes).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(bytes, _)| bytes)
    }

    fn jobs(&mut self) -> Vec<(String, usize, usize)> {
        let recorded = self.recorded;
        let mut described: Vec<(String, usize, usize)> = Vec::new();
        for (j, job) in recorded.jobs.iter().enumerate() {
            for (s, stage) in job.stages.iter().enumerate() {
                let of_stage = || format!("{} stage {}", job.name, stage.number);
                let name = self.name(if job.stages.len() == 1 { job.name.clone() } else { of_stage() });
                // The stage of the same job whose end came before it became ready.
                let before = described.iter().filter(|(_, of, _)| *of == j).filter_map(|(name, _, s)| {
                    let end_ns = job.stages[*s].end_ns().filter(|end_ns| *end_ns <= stage.ready_ns)?;
                    Some((end_ns, name.clone()))
                });
                let before = before.max();
                self.text.section("[[job]]");
                self.text.value("name", quoted(&name), "recorded");
                self.input(job, stage);
                self.compute(job, stage);
                match &before {
                    Some((end_ns, name)) => {
                        self.text.value("after", quoted(name), "recorded: it became ready after that stage");
                        self.text.value(
                            "starts_s",
                            seconds(stage.ready_ns - end_ns),
                            "recorded: after that end",
                        );
                    }
                    None => {
                        let starts = seconds(stage.ready_ns - self.from_ns);
                        self.text.value("starts_s", starts, "recorded: its splits were known");
                    }
                }
                self.text.unknown("output_bytes", 0, "jobs do not report what they write or shuffle");
                described.push((name, j, s));
            }
        }
        described
    }

    fn input(&mut self, job: &Job, stage: &Stage) {
        let (bytes, tasks) = (stage.bytes().max(1), stage.splits.len().max(1));
        let files: BTreeSet<u32> = stage.splits.iter().flat_map(|s| &s.parts).map(|part| part.file).collect();
        let source = format!("recorded: {tasks} splits of {} files", files.len());
        self.text.value("input_bytes", bytes, &source);
        if let Some((file_bytes, split_bytes)) = equal_sizes(job, stage, &files) {
            self.text.value("file_bytes", file_bytes, "recorded: of each file; the last may be shorter");
            self.text.value("split_bytes", split_bytes, "recorded: of each split");
            if let Some(servers) = self.layout(job, &files, file_bytes) {
                self.text.value("servers", servers, "recorded: of each stripe of each file");
            }
            return;
        }
        let split_bytes = bytes.div_ceil(tasks as u64);
        let of_file = (tasks as f64 / files.len().max(1) as f64).round().max(1.0) as u64;
        let sizes = || stage.splits.iter().map(bytes_of);
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        self.text.value(
            "file_bytes",
            split_bytes * of_file,
            "derived: equal files, in place of several sizes",
        );
        let source = format!("derived: the mean split, in place of {least} to {most} bytes");
        self.text.value("split_bytes", split_bytes, &source);
    }

    /// The server of each stripe of each file, if all of them are known.
    fn layout(&self, job: &Job, files: &BTreeSet<u32>, file_bytes: u64) -> Option<String> {
        let stripe_bytes = self.stripe_bytes()?;
        let mut lists = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let (stripe, servers) = job.layouts.get(*file as usize)?;
            let bytes = job.files.get(*file as usize)?.bytes;
            let is_last = number + 1 == files.len();
            if *stripe != stripe_bytes || servers.is_empty() || (bytes != file_bytes && !is_last) {
                return None;
            }
            // Layouts name the servers in turn.
            let stripes = bytes.div_ceil(stripe_bytes) as usize;
            let place = |name: &String| self.servers.iter().position(|known| known == name);
            let all = servers.iter().cycle().take(stripes).map(|name| place(name).map(|at| at.to_string()));
            lists.push(all.collect::<Option<Vec<_>>>()?);
        }
        let is_short = lists.iter().map(Vec::len).sum::<usize>() <= MAX_STRIPES;
        let text = lists.iter().map(|list| format!("[{}]", list.join(", "))).collect::<Vec<_>>().join(", ");
        is_short.then(|| format!("[{text}]"))
    }

    /// Processor time of a task. For a task that found all of its input in the tier, that is its
    /// run time.
    fn compute(&mut self, job: &Job, stage: &Stage) {
        let ended = || stage.attempts.iter().filter(|attempt| attempt.end.is_some_and(|(_, ok)| ok));
        let first = first_attempts(job, stage);
        let is_first = |attempt: &&Attempt| first.contains(&(attempt.task, attempt.begin_ns));
        let hits = |firsts: bool| -> Vec<u64> {
            let hits = ended().filter(|attempt| attempt.is_hit && is_first(attempt) == firsts);
            hits.map(|attempt| attempt.run_ns).collect()
        };
        let (later, earliest) = (hits(false), hits(true));
        let counts = (later.len(), earliest.len());
        match (median(later), median(earliest)) {
            (Some(ns), first_ns) => {
                let source =
                    format!("recorded: median of {} tasks that found their input in the tier", counts.0);
                self.text.value("task_cpu_s", seconds(ns), &source);
                if let Some(first_ns) = first_ns {
                    let source =
                        format!("recorded: median of {} first tasks of a slot that did so", counts.1);
                    self.text.value("first_task_cpu_s", seconds(first_ns), &source);
                }
            }
            (None, Some(ns)) => {
                let source =
                    format!("recorded: median of {} tasks that found their input in the tier", counts.1);
                self.text.value("task_cpu_s", seconds(ns), &source);
            }
            (None, None) => {
                let quickest = ended().map(|attempt| attempt.run_ns).min();
                let split_bytes = stage.bytes() / stage.splits.len().max(1) as u64;
                let reads_ns = split_bytes as f64 / self.bytes_per_s * 1e9;
                let cpu_ns = quickest.map_or(0.0, |ns| (ns as f64 - reads_ns).max(LEAST_COMPUTE * ns as f64));
                let source = match quickest {
                    Some(_) => {
                        "derived, no task found its input in the tier: the shortest run, less its reading"
                    }
                    None => "not known, this is the default: no task has ended",
                };
                self.text.value("task_cpu_s", seconds(cpu_ns as u64), source);
            }
        }
    }

    fn hpc_jobs(&mut self) -> Vec<(String, usize)> {
        let recorded = self.recorded;
        let least = recorded.hpc.iter().map(|hpc| u64::from(hpc.weight.max(1))).min().unwrap_or(1);
        let times = (self.servers.len().max(1) as u64).div_ceil(least);
        let mut described = Vec::new();
        for (h, hpc) in recorded.hpc.iter().enumerate() {
            let name = self.name(hpc.name.clone());
            let phases: Vec<&Phase> = hpc.phases.iter().filter(|phase| phase.end_ns.is_some()).collect();
            self.text.section(if phases.is_empty() { "# An HPC job without phases:" } else { "[[hpc]]" });
            if phases.is_empty() {
                self.text.note(&format!("name = {}", quoted(&name)));
                continue;
            }
            self.hpc(hpc, &phases, &name, times);
            described.push((name, h));
        }
        described
    }

    fn hpc(&mut self, hpc: &Hpc, phases: &[&Phase], name: &str, times: u64) {
        let declared = |of: fn(&Phase) -> bool| phases.iter().filter(|phase| of(phase)).count();
        let mean = |ns: u64| ns / phases.len() as u64;
        let io: Vec<u64> = phases.iter().map(|phase| io_ns(hpc, phase)).collect();
        let starts = |(i, phase): (usize, &&Phase)| {
            let before_ns = if i == 0 { Some(hpc.joined_ns) } else { phases[i - 1].end_ns };
            phase.begin_ns.saturating_sub(before_ns.unwrap_or(0))
        };
        let compute: Vec<u64> = phases.iter().enumerate().map(starts).collect();
        let text = &mut self.text;
        text.value("name", quoted(name), "recorded");
        text.value("starts_s", seconds(hpc.joined_ns - self.from_ns), "recorded: when it joined");
        text.value("phases", phases.len(), "recorded: those that have ended");
        let known = declared(|phase| phase.alone_ns.is_some());
        let source = format!("declared for {known} phases; others have the time that they took");
        text.value("io_each_s", list(io.iter().copied()), &source);
        text.value("compute_each_s", list(compute.iter().copied()), "recorded: from end to begin");
        let (io_ns, compute_ns) = hpc.declared_ns;
        // The shortest time that agents report means an unknown one.
        let or_mean = |ns: u64, recorded: &[u64]| match ns > 1_000_000 {
            true => (ns, "declared: what planners hear"),
            false => (mean(recorded.iter().sum()), "not declared: the mean, which planners hear here"),
        };
        let (io_ns, source) = or_mean(io_ns, &io);
        text.value("io_s", seconds(io_ns.max(1_000)), source);
        let (compute_ns, source) = or_mean(compute_ns, &compute);
        text.value("compute_s", seconds(compute_ns), source);
        let stretch = |phase: &&Phase| Some(phase.allowed_ns? as f64 / phase.alone_ns?.max(1) as f64 - 1.0);
        let stretches: Vec<f64> = phases.iter().filter_map(stretch).collect();
        let (allowance, source) = match stretches.is_empty() {
            true => (hpc.allowance, "declared by the job"),
            false => (stretches.iter().sum::<f64>() / stretches.len() as f64, "declared: mean of its phases"),
        };
        text.value("allowance_percent", format!("{:.4}", (100.0 * allowance).clamp(0.0, 1000.0)), source);
        let processes = (u64::from(hpc.weight.max(1)) * times).min(MAX_PROCESSES);
        let source = format!("declared: weight {}, times {times}: a phase alone has all servers", hpc.weight);
        text.value("processes", processes, &source);
        let bytes: u64 = phases.iter().filter_map(|phase| phase.bytes).sum();
        text.note(&format!(
            "Bytes follow from io_each_s and the bandwidth. {} of the phases have declared theirs, {bytes} in all.",
            declared(|phase| phase.bytes.is_some())
        ));
    }

    /// When the last task or phase ended.
    fn last_ns(&self) -> u64 {
        let stages = self.recorded.jobs.iter().flat_map(|job| &job.stages);
        let tasks = stages.flat_map(|stage| &stage.attempts).filter_map(|attempt| Some(attempt.end?.0));
        let phases = self.recorded.hpc.iter().flat_map(|hpc| &hpc.phases).filter_map(|phase| phase.end_ns);
        tasks.chain(phases).max().unwrap_or(0)
    }

    /// Nodes that were down while jobs ran.
    fn faults(&mut self) {
        let recorded = self.recorded;
        let since = |ns: u64| seconds(ns.saturating_sub(self.from_ns));
        let mut faults = Vec::new();
        for (number, name) in self.nodes.iter().enumerate() {
            let mut away_since = Some(0);
            for (at_ns, came) in &recorded.nodes[*name].came_and_went {
                match (*came, away_since) {
                    (true, Some(from_ns)) if *at_ns > self.from_ns => {
                        let for_ns = at_ns - from_ns.max(self.from_ns);
                        faults.push((number, name, since(from_ns), Some(seconds(for_ns))));
                    }
                    (false, None) => away_since = Some(*at_ns),
                    _ => {}
                }
                if *came {
                    away_since = None;
                }
            }
            // Daemons are stopped when all is done.
            let away_since = away_since.filter(|at_ns| *at_ns > 0 && *at_ns < self.last_ns());
            faults.extend(away_since.map(|at_ns| (number, name, since(at_ns), None)));
        }
        for (number, name, at_s, for_s) in faults {
            self.text.section("[[fault]]");
            self.text.value("node", number, &format!("recorded: {name} was away"));
            self.text.value("at_s", at_s, "recorded");
            if let Some(for_s) = for_s {
                self.text.value("for_s", for_s, "recorded: until it came back");
            }
        }
    }
}

/// I/O time of a phase alone, as far as it is known: what was declared, or else what it took.
fn io_ns(hpc: &Hpc, phase: &Phase) -> u64 {
    phase.alone_ns.or(phase.took_ns()).unwrap_or(hpc.declared_ns.0).max(1_000)
}

/// Bytes of a member's tier, on average between two moments.
fn mean_capacity(member: &Member, (from_ns, to_ns): (u64, u64)) -> u64 {
    let mut before = member.node.capacity_bytes;
    if let Some((_, first)) = member.capacities.first() {
        before = *first;
    }
    let (mut since_ns, mut sum) = (from_ns, 0_u128);
    for (at_ns, bytes) in &member.capacities {
        let at_ns = (*at_ns).clamp(from_ns, to_ns);
        sum += u128::from(before) * u128::from(at_ns - since_ns);
        (since_ns, before) = (at_ns, *bytes);
    }
    sum += u128::from(before) * u128::from(to_ns - since_ns);
    (sum / u128::from(to_ns - from_ns)) as u64
}

/// Size of files and splits, if the simulator's equal ones are the recorded ones.
fn equal_sizes(job: &Job, stage: &Stage, files: &BTreeSet<u32>) -> Option<(u64, u64)> {
    let sizes: Vec<u64> =
        files.iter().map(|f| job.files.get(*f as usize).map(|f| f.bytes)).collect::<Option<_>>()?;
    let file_bytes = *sizes.first()?;
    let split_bytes = stage.splits.iter().map(bytes_of).max()?;
    let last = sizes.len() - 1;
    let of_file = |(i, bytes): (usize, &u64)| {
        (*bytes == file_bytes || (i == last && *bytes <= file_bytes))
            .then(|| bytes.div_ceil(split_bytes.max(1)))
    };
    let tasks: u64 = sizes.iter().enumerate().map(of_file).sum::<Option<u64>>()?;
    let is_one = |part: &forebay_policy::stage::event::Part| part.offset.is_multiple_of(split_bytes.max(1));
    let one_part_each = stage.splits.iter().all(|split| split.parts.len() == 1 && is_one(&split.parts[0]));
    let all = sizes.iter().sum::<u64>() == stage.bytes() && tasks == stage.splits.len() as u64;
    (one_part_each && all && split_bytes > 0).then_some((file_bytes, split_bytes))
}

/// The first attempts on each slot, by task and begin: a virtual machine compiles during them.
fn first_attempts(job: &Job, stage: &Stage) -> BTreeSet<(u32, u64)> {
    let is_first_stage = job.stages.first().is_some_and(|first| first.ready_ns == stage.ready_ns);
    let mut left: BTreeMap<&str, u32> = BTreeMap::new();
    if is_first_stage {
        job.slots.iter().for_each(|(host, count)| *left.entry(host).or_default() += count);
    }
    let mut begins: Vec<&Attempt> = stage.attempts.iter().collect();
    begins.sort_by_key(|attempt| attempt.begin_ns);
    let takes = |attempt: &&Attempt| match left.get_mut(attempt.host.as_str()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    };
    begins.into_iter().filter(takes).map(|attempt| (attempt.task, attempt.begin_ns)).collect()
}
