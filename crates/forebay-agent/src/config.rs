//! The configuration: TOML files and variables, one validated structure, every key with its reason.
//!
//! Nothing is repaired silently: what does not fit is refused, naming the keys. Each key is defined
//! once, in the table of its section (`table.rs`); `forebay config reference` and
//! `docs/reference.toml` are made from these tables.

mod cluster;
pub mod layers;
mod memory;
mod mount;
pub mod reload;
mod ship;
mod table;
mod web;

pub use cluster::{ClusterConfig, FAIL_OVER_MAX};
pub use memory::{GAIN, MemoryConfig, PERIOD};
pub use mount::{MountConfig, PAGE_BYTES, SMALL_PAGE_BYTES};
pub use reload::Live;
pub use ship::ShipConfig;
pub use table::Key;
pub use web::WebConfig;

use crate::units::{Amount, Human};
use forebay_policy::eviction::EvictionKind;
use forebay_store::Backing;
use layers::{Given, Layer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::{Entry, at_line, default_of, keys, read, section};
use toml::de::{DeTable, DeValue};

section! {
    /// The configuration of an agent, validated.
    Config, AGENT_AND_TIER {
        /// Directory of the agent's socket, lock and mount point. /run/forebay for root; for others
        /// $XDG_RUNTIME_DIR/forebay or /tmp/forebay-UID, where clients look for it.
        "agent.state_dir" => state_dir: PathBuf = "", dir();
        /// Permission bits of the socket. Everybody may connect, because access to bytes depends on
        /// the descriptors that a user can open on the PFS, not on the socket. Use 0600 for an
        /// agent of your own.
        "agent.socket_mode" => socket_mode: u32 = r#""0666""#, parsed(mode);
        /// Limit on simultaneous connections. Each costs a thread and about 150 KiB; clients above
        /// the limit read the PFS.
        "agent.connections_max" => connections_max: usize = "1024", number(1..=1_000_000);
        /// Directory in which the agent records what its memory controller and its fetch scheduler
        /// hear and decide, for `forebay replay`: of each four files of at most 64 MiB, in a
        /// directory with the host's name; about 5 kB a second on a quiet node, and some hundred
        /// bytes for each page that is fetched. Empty: no record.
        "agent.decision_log" => decision_log: Option<PathBuf> = r#""""#, path();
        /// File for the audit log: who has executed which administrative command, when, and what
        /// came of it. At most 1 MiB, and the file before it with the ending .1. Empty: audit.log
        /// in the state directory.
        "agent.audit_log" => audit_log: Option<PathBuf> = r#""""#, path();
        /// The budget for everything the agent uses, including the cached pages: a size, or a share
        /// of the node's memory or control group limit, whichever is smaller. A quarter leaves
        /// compute its memory.
        "tier.capacity" => capacity: Amount = r#""25%""#, amount();
        /// Size of the tmpfs, and thus the limit of any capacity that is set while the agent runs.
        /// The kernel enforces it even if the agent miscounts its budget.
        "tier.limit" => limit: Amount = r#""90%""#, amount();
        /// Source of the tmpfs: mount (root), namespace (no root; a keeper process), directory (an
        /// existing tmpfs, usually without huge pages), or auto, the first that works.
        "tier.backing" => backing: Backing = r#""auto""#, choice();
        /// For backing = "directory": the directory; /dev/shm/forebay-UID if not given.
        "tier.directory" => directory: Option<PathBuf> = "", path();
        /// The policy that chooses pages to evict. The default has the best hit ratios over loops,
        /// skewed and scanning access; see docs/decisions/0003-default-eviction-policy.md.
        "tier.eviction" => eviction: EvictionKind = r#""default""#, parsed(eviction);
        /// A closed file of write-back does not wait for I/O phases of HPC jobs for longer: if the
        /// node fails, what is in its memory only is lost. Longer than most phases, and as long as
        /// a file may stay open before its writer continues on the file system.
        "tier.dirty_age_max_s" => dirty_age_max: Duration = "300", seconds(1..=86_400);
        /// Directory on a disk of this node for files of write-back whose programs want them to
        /// outlive a restart of the node (`--copies disk`). Empty: their programs wait for the file
        /// system instead.
        "tier.log" => log: Option<PathBuf> = r#""""#, path();
        /// Directory on a disk of this node, NVMe if there is one, for pages that the tier has no
        /// room for any more. They are read from there instead of the file system, as long as the
        /// disk is the faster one, also after a restart of the node. Empty: what is evicted is
        /// gone.
        "tier.disk" => disk: Option<PathBuf> = r#""""#, path();
        /// What may be in it at most. The oldest pages go first.
        "tier.disk_capacity" => disk_capacity_bytes: u64 = r#""64GiB""#, bytes(16<<20..=1<<50);
        /// Directory on a local disk for map outputs of Spark and MapReduce for which memory is
        /// short, in files without a name. Empty: the frameworks write such outputs themselves,
        /// and Spark's end with its executors.
        "tier.spill" => spill: Option<PathBuf> = r#""""#, path();
        /// The agent spills no more once this share of the disk is in use, by whatever files:
        /// others need the rest.
        "tier.spill_fill" => spill_fill: f64 = r#""90%""#, share(1.0..=100.0);
        /// Files that are written back belong to one set of checkpoints if less time passes between
        /// the last close and the next open. Longer than programs pause within a checkpoint, and
        /// shorter than between two of them.
        "tier.checkpoint_gap_ms" => checkpoint_gap: Duration = "5000", millis(1..=3_600_000);
        plus
        /// How the tier gives way to compute.
        memory: MemoryConfig;
        plus
        /// Where metrics are served, if they are.
        metrics: WebConfig;
        plus
        /// Where the console is served, if it is.
        console: WebConfig;
        plus
        /// The cluster this agent belongs to.
        cluster: ClusterConfig;
        plus
        /// Which analytics may run on storage servers.
        ship: ShipConfig;
        plus
        /// The PFS mounts; at least one.
        mounts: Vec<MountConfig>;
    }
}

/// Every key there is, table by table.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    fn of<S>(entries: &'static [Entry<S>]) -> impl Iterator<Item = &'static Key> {
        entries.iter().map(|entry| &entry.key)
    }
    let web = of(web::METRICS).chain(of(web::CONSOLE));
    of(AGENT_AND_TIER)
        .chain(of(memory::MEMORY))
        .chain(web)
        .chain(of(cluster::CLUSTER))
        .chain(of(ship::SHIP))
        .chain(of(mount::MOUNT))
}

impl Default for Config {
    fn default() -> Self {
        Config { state_dir: default_state_dir(), ..Self::defaults() }
    }
}

/// `/run/forebay` for root, else `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID`.
pub fn default_state_dir() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/forebay");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("forebay"),
        _ => PathBuf::from(format!("/tmp/forebay-{}", uid.as_raw())),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("{text:?}: write octal digits, for example \"0666\""))
}

fn eviction(name: &str) -> Result<EvictionKind, String> {
    match name {
        "default" => Ok(EvictionKind::default()),
        name => name.parse().map_err(|e: forebay_policy::eviction::UnknownEvictionKind| e.to_string()),
    }
}

/// The label that a table of a mount gives.
fn label_of<'a>(table: &'a DeTable<'_>) -> &'a str {
    table.get("label").and_then(|label| label.get_ref().as_str()).unwrap_or("")
}

impl Config {
    /// Reads and validates the files at `path`, or those of the standard directory
    /// ([`layers::files`]), with the environment on top. Returns which keys are given, and where.
    ///
    /// # Errors
    /// One or more lines that name file or variable, key, value and what is allowed.
    pub fn load(path: Option<&Path>) -> Result<(Self, Vec<Given>), String> {
        let mut all = layers::files(path)?;
        all.extend(layers::variables(std::env::vars_os())?);
        Self::of(&all)
    }

    /// As [`Config::load`], of one file alone.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_file(path: &Path) -> Result<Self, String> {
        Ok(Self::of(&layers::files(Some(path))?)?.0)
    }

    /// Parses and validates TOML text.
    ///
    /// # Errors
    /// One or more lines that name line, key, value and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let layer = Layer { origin: "text".into(), text: text.into(), is_variable: false };
        let config = Self::of(&[layer]).map(|(config, _)| config);
        config.map_err(|e| e.strip_prefix("text: ").map_or(e.clone(), str::to_owned))
    }

    fn of(layers: &[Layer]) -> Result<(Self, Vec<Given>), String> {
        // Names of its own only where no layer gives any.
        let mut config = Config { cluster: ClusterConfig::unnamed(), ..Config::default() };
        let mut given: BTreeMap<(String, String), Given> = BTreeMap::new();
        for layer in layers {
            let taken = config.take_layer(&layer.text, layer).or_else(|e| {
                let quoted = layer.quoted().ok_or_else(|| e.clone())?;
                let is_toml = DeTable::parse(&layer.text).is_ok();
                config.take_layer(&quoted, layer).map_err(|of_text| if is_toml { e } else { of_text })
            });
            for one in taken.map_err(|e| layer.error(&e))? {
                given.insert((one.mount.clone(), one.key.clone()), one);
            }
        }
        config.cluster = config.cluster.named();
        config.validate().map_err(|e| match layers {
            [layer] => layer.error(&e),
            _ => e,
        })?;
        Ok((config, given.into_values().collect()))
    }

    /// Takes `text`, which is `layer`'s.
    fn take_layer(&mut self, text: &str, layer: &Layer) -> Result<Vec<Given>, String> {
        let file = DeTable::parse(text).map_err(|e| e.to_string())?;
        let mut given = Vec::new();
        let of_earlier = self.mounts.len();
        for (name, value) in file.get_ref() {
            self.take(name.get_ref(), value.get_ref(), text, of_earlier)
                .map_err(|e| if e.starts_with("line ") { e } else { at_line(text, name.span().start, &e) })?;
            let tables = match value.get_ref() {
                DeValue::Array(tables) => {
                    tables.iter().filter_map(|table| table.get_ref().as_table()).collect()
                }
                value => Vec::from_iter(value.as_table()),
            };
            for table in tables {
                let mount = if name.get_ref() == "mount" { label_of(table) } else { "" };
                given.extend(table.iter().map(|(key, value)| Given {
                    mount: mount.to_owned(),
                    key: format!("{}.{}", name.get_ref(), key.get_ref()),
                    value: text[value.span()].to_owned(),
                    origin: layer.place(key.span().start),
                }));
            }
        }
        Ok(given)
    }

    /// Takes the table `name` of the file `text`. A mount with the label of one `of_earlier` files
    /// changes that one.
    fn take(&mut self, name: &str, value: &DeValue<'_>, text: &str, of_earlier: usize) -> Result<(), String> {
        let at = (name, text);
        match (name, value) {
            ("agent" | "tier", DeValue::Table(table)) => read(AGENT_AND_TIER, self, at, table),
            ("memory", DeValue::Table(table)) => read(memory::MEMORY, &mut self.memory, at, table),
            ("metrics", DeValue::Table(table)) => read(web::METRICS, &mut self.metrics, at, table),
            ("console", DeValue::Table(table)) => read(web::CONSOLE, &mut self.console, at, table),
            ("cluster", DeValue::Table(table)) => read(cluster::CLUSTER, &mut self.cluster, at, table),
            ("ship", DeValue::Table(table)) => read(ship::SHIP, &mut self.ship, at, table),
            ("mount", DeValue::Array(mounts)) => mounts.iter().try_for_each(|value| {
                let table = value.get_ref().as_table().ok_or("mount: write [[mount]] above its keys")?;
                let (earlier, label) = (&mut self.mounts[..of_earlier], label_of(table));
                if let Some(mount) = earlier.iter_mut().find(|mount| mount.label == label) {
                    return read(mount::MOUNT, mount, at, table);
                }
                self.mounts.push(MountConfig::new("", Path::new("")));
                self.mounts.last_mut().map_or(Ok(()), |mount| read(mount::MOUNT, mount, at, table))
            }),
            ("mount", DeValue::Table(_)) => {
                Err("each PFS is one of several: write [[mount]] in double brackets".to_owned())
            }
            _ => Err(format!(
                "{name}: the tables are [agent], [tier], [memory], [metrics], [console], [cluster], [ship] and [[mount]]"
            )),
        }
    }

    /// Checks what concerns more than one key.
    ///
    /// # Errors
    /// Names the keys that do not fit together.
    pub fn validate(&self) -> Result<(), String> {
        if self.directory.is_some() && !matches!(self.backing, Backing::Directory | Backing::Auto) {
            return Err("tier.directory is given, but tier.backing is not \"directory\"".into());
        }
        let (socket, most) = (self.socket(), 107);
        if socket.as_os_str().len() > most {
            return Err(format!(
                "agent.state_dir: {} has {} bytes, and the path of a socket at most {most}: give a shorter directory",
                socket.display(),
                socket.as_os_str().len()
            ));
        }
        self.metrics.validate("metrics")?;
        self.console.validate("console")?;
        self.cluster.validate()?;
        if self.console.listen.is_some()
            && !self.cluster.coordinator.is_empty()
            && self.cluster.etcd.is_empty()
        {
            return Err("console.listen is for the process of the coordinator, and cluster.coordinator names another: serve the \
                        console there"
                .into());
        }
        for (i, mount) in self.mounts.iter().enumerate() {
            mount.validate()?;
            for other in &self.mounts[..i] {
                if other.label == mount.label {
                    return Err(format!("mount.label = {:?} stands twice; labels must differ", mount.label));
                }
                if other.root == mount.root {
                    return Err(format!("mount.root = {:?} has two labels", mount.root));
                }
            }
        }
        Ok(())
    }

    /// Capacity and limit of the tier in bytes, on a node where `usable` bytes may be used.
    ///
    /// # Errors
    /// They do not fit the node or each other; says both numbers.
    pub fn sizes(&self, usable: u64) -> Result<(u64, u64), String> {
        let min = self.memory.min.of(usable);
        let (capacity, limit) = (self.capacity.of(usable), self.limit.of(usable));
        let more = |bytes: u64, of: &str| {
            format!(
                "tier.capacity = {capacity} ({}) is more than {of} {bytes} ({})",
                Human(capacity),
                Human(bytes)
            )
        };
        if capacity > usable {
            let whose = match crate::memory::group_limit() {
                Some(limit) => format!("the limit of the control group {}:", limit.group.display()),
                None => "this node's memory:".into(),
            };
            return Err(format!("{}; give the tier a part of it, for example \"25%\"", more(usable, &whose)));
        }
        if min > capacity {
            return Err(format!(
                "memory.min = {min} ({}) is more than tier.capacity = {capacity} ({})",
                Human(min),
                Human(capacity)
            ));
        }
        if capacity > limit {
            return Err(format!("{}; raise the limit or lower the capacity", more(limit, "tier.limit =")));
        }
        Ok((capacity, limit))
    }

    /// Path of the audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.audit_log.clone().unwrap_or_else(|| self.state_dir.join("audit.log"))
    }

    /// Path of the agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.state_dir.join("agent.sock")
    }
}

/// The reference as a TOML file: every key with its reason and default, commented out.
pub fn reference_toml() -> String {
    let mut out = String::from(
        "# Every key of Forebay's configuration, with its default and its reason: what `forebay config\n# reference` prints.\n#\n",
    );
    for line in reload::in_words() {
        wrap(&line, 98).iter().for_each(|line| out.push_str(&format!("# {line}\n")));
    }
    let mut table = "";
    for key in keys() {
        let (in_table, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if in_table != table {
            table = in_table;
            let header = if table == "mount" { "[[mount]]".to_owned() } else { format!("[{table}]") };
            out.push_str(&format!("\n{header}\n"));
        }
        for line in wrap(key.reason, 98) {
            out.push_str(&format!("# {line}\n"));
        }
        let value = if key.default.is_empty() { "..." } else { key.default };
        out.push_str(&format!("# {name} = {value}\n"));
    }
    out
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].len() + word.len() >= width {
            lines.push(word.to_owned());
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_all_defaults_is_the_default() {
        let mut text = String::new();
        for key in keys().filter(|key| !key.default.is_empty()) {
            let (table, name) = key.name.split_once('.').unwrap();
            let table = if table == "mount" {
                "[[mount]]\nlabel=\"pfs\"\nroot=\"/pfs\"".into()
            } else {
                format!("[{table}]")
            };
            if !text.contains(&table) {
                text += &format!("{table}\n");
            }
            text += &format!("{name} = {}\n", key.default);
        }
        let mounts = vec![MountConfig::new("pfs", Path::new("/pfs"))];
        assert_eq!(Config::parse(&text).unwrap(), Config { mounts, ..Config::default() });
    }

    #[test]
    fn what_a_mount_was_configured_with_is_taken() {
        let text =
            "[[mount]]\nlabel=\"a\"\nroot=\"/b\"\nlayout=false\nkeep_page_cache=true\nmerge_gap=\"64KiB\"\n";
        let expected = MountConfig {
            layout: false,
            keep_page_cache: true,
            merge_gap_bytes: Some(64 << 10),
            ..MountConfig::new("a", Path::new("/b"))
        };
        assert_eq!(Config::parse(text).unwrap().mounts, [expected]);
    }

    #[test]
    fn a_node_is_known_by_its_own_name_unless_another_is_given() {
        let names = |text: &str| {
            let cluster = Config::parse(text).unwrap().cluster;
            (cluster.node, cluster.host)
        };
        assert_eq!(names("[cluster]\nnode=\"n\""), ("n".to_owned(), "n".to_owned()));
        assert_eq!(names("[cluster]\nnode=\"n\"\nhost=\"h\""), ("n".to_owned(), "h".to_owned()));
        let own = Config::default().cluster;
        assert!(!own.node.is_empty() && names("") == (own.node, own.host));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let refuse = |text: &str| Config::parse(text).unwrap_err();
        assert!(refuse("[tier]\ncapacity = \"lots\"").contains("tier.capacity: \"lots\" is not a size"));
        assert!(
            refuse("[tier]\neviction = \"random\"").contains("line 2: tier.eviction: no eviction policy")
        );
        assert!(refuse("[[mount]]\nlabel=\"a\"\nroot=\"b\"").contains("must be an absolute path"));
        assert!(refuse("[[mount]]\nlabel=\"a\"\nroot=\"/b\"\npage_size=\"3MiB\"").contains("power of two"));
        let small = |more: &str| refuse(&format!("[[mount]]\nlabel=\"a\"\nroot=\"/b\"\n{more}"));
        assert!(small("merge_gap=\"3MiB\"").contains("at most 2MiB"));
        assert!(small("merge_gap=\"far\"").contains("is not a size"));
        assert!(small("small_page_files=[\"t/*.parquet\"]").contains("without directories"));
        let twice = "[[mount]]\nlabel=\"a\"\nroot=\"/b\"\n[[mount]]\nlabel=\"a\"\nroot=\"/c\"\n";
        assert!(refuse(twice).contains("stands twice"));
        assert!(refuse("[tier]\nbacking=\"mount\"\ndirectory=\"/x\"").contains("tier.backing"));
        assert!(refuse("[cluster]\nlisten=\"10.0.0.1:7\"").contains("needs cluster.tls"));
        assert!(refuse("[cluster]\nlisten=\"here\"").contains("IP:PORT"));
        assert!(refuse("[metrics]\nlisten=\"here\"").contains("metrics.listen = \"here\": write IP:PORT"));
        assert!(
            refuse("[metrics]\nlisten=\"10.0.0.1:9\"")
                .contains("needs metrics.tls, metrics.token_file or both")
        );
        assert!(Config::parse("[metrics]\nlisten=\"10.0.0.1:9\"\ntoken_file=\"/t\"").is_ok());
        let half = "[console]\nlisten=\"10.0.0.1:9\"\ntls=\"/t\"";
        assert!(refuse(half).contains("needs console.tls and console.token_file"));
        assert!(Config::parse(&format!("{half}\ntoken_file=\"/t\"")).is_ok());
        assert!(refuse("[cluster]\nplanner=\"magic\"").contains("no-action"));
        assert!(
            refuse("[[mount]]\nlabel=\"a\"\nroot=\"/b\"\nextent_size=\"3MiB\"")
                .contains("multiple of page_size")
        );
        assert!(refuse("[memory]\npolicy=\"lru\"").contains("static, dynims, forebay"));
        assert!(refuse("[memory]\ntarget=\"30%\"").contains("from 50% to 99%"));
        assert!(refuse("[mount]\nlabel=\"a\"").contains("[[mount]] in double brackets"));
        assert!(
            refuse("[memory]\n\ngain=0.0")
                .contains("line 3: there is no key memory.gain; the keys are policy,")
        );
        assert!(refuse("[phases]").contains("line 1: phases: the tables are [agent]"));
        assert!(refuse("[[mount]]\nroot=\"/b\"").contains("needs a label"));
        assert!(refuse("[cluster]\npeer_deadline_ms=1").contains("= 1 must be from 10 to 600000"));
        assert!(refuse("[cluster]\nrole=\"king\"").contains("co-located"));
        assert!(refuse("[cluster]\ncoordinator_reports=\"1MiB\"").contains("must be at least 16MiB"));
        assert!(refuse("[memory]\nwatch=[\"a.slice\"]").contains("not the path of a control group"));
        assert!(refuse("[memory]\nwatch=[\"/a/../b\"]").contains("not the path of a control group"));
        assert!(refuse("[agent]\nsocket_mode=\"rw\"").contains("octal"));
    }
}
