//! Where the test runs: on this machine's own disk, or on the nodes of a lab before a real parallel
//! file system.

use crate::oracle::Rules;
use clap::ValueEnum;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Memory for the data of a lab's servers.
const STORE: &str = "3GiB";

const MS: u64 = 1_000_000;

/// The file system below the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pfs {
    /// A local file system: ext4 in an image as root, else whatever the reports are on.
    Ext4,
    Moosefs,
    Glusterfs,
    Cephfs,
}

impl fmt::Display for Pfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pfs::Ext4 => "ext4",
            Pfs::Moosefs => "moosefs",
            Pfs::Glusterfs => "glusterfs",
            Pfs::Cephfs => "cephfs",
        })
    }
}

impl Pfs {
    /// What docs/semantics.md says about it.
    pub fn rules(self) -> Rules {
        let local = Rules {
            look_ns: 50 * MS,
            granularity_ns: 20 * MS,
            plain: true,
            lag_ns: 0,
            stamped_lag_ns: 0,
            one_kernel: true,
        };
        // A look trusts the node's attribute cache, which lasts a second.
        let remote = Rules { look_ns: 1100 * MS, plain: false, one_kernel: false, ..local };
        match self {
            Pfs::Ext4 => local,
            // Its clients report the stamps of a write about once a second. The promise is three
            // seconds.
            Pfs::Moosefs => Rules { granularity_ns: 2000 * MS, lag_ns: 3000 * MS, ..remote },
            Pfs::Glusterfs => Rules { lag_ns: 1000 * MS, stamped_lag_ns: 1000 * MS, ..remote },
            Pfs::Cephfs => remote,
        }
    }

    /// Agents before a shared file system keep only what nobody has changed for some seconds, so
    /// writers are slower there: the longest pause of one between two changes, and the shortest
    /// time between two changes of one file, in milliseconds.
    pub fn pace(self) -> (u64, u64) {
        match self {
            Pfs::Ext4 => (12, 0),
            Pfs::Moosefs => (500, 2100),
            Pfs::Glusterfs | Pfs::Cephfs => (500, 0),
        }
    }

    /// What programs cannot do there.
    pub fn without(self) -> &'static [&'static str] {
        match self {
            Pfs::Ext4 => &[],
            // Its clients keep reading what another client has truncated, even without Forebay.
            Pfs::Moosefs => &["truncate", "punch", "exchange", "lazy-mmap"],
            // A punched hole moves no time stamp there.
            Pfs::Glusterfs => &["punch", "exchange", "lazy-mmap"],
            // Its clients keep old bytes: a store to a mapping writes those of its page back, and a
            // look at what a change has left sees them.
            Pfs::Cephfs => &["exchange", "lazy-mmap", "mmap", "cached-look"],
        }
    }

    /// How long a run may use the same servers. CephFS deletes in the background: under this load
    /// its storage in the lab was full after 670 s, and from then on every call hung.
    pub fn longest_seconds(self) -> u64 {
        match self {
            Pfs::Cephfs => 500,
            _ => u64::MAX,
        }
    }

    /// Returns whether appenders on several nodes lose none of each other's records. On CephFS they
    /// lose some, even without Forebay.
    pub fn appends_from_all_nodes(self) -> bool {
        self != Pfs::Cephfs
    }

    /// Its description in the agents' configuration.
    fn mount_options(self) -> &'static str {
        match self {
            // Settled within a round, and yet longer than any overwrite takes, including stops of
            // its writer.
            Pfs::Moosefs => "stamp_granularity_ms = 2000\nsettle_ms = 5000\n",
            _ => "",
        }
    }

    /// Returns why it cannot be tested here, if it cannot.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Pfs::Ext4 => return None,
            Pfs::Moosefs => &["ip", "tc", "mfsmaster", "mfschunkserver", "mfsmount"],
            Pfs::Glusterfs => &["ip", "tc", "glusterfs", "glusterfsd"],
            Pfs::Cephfs => &["ip", "tc", "ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse"],
        };
        let found = |program: &&&str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let mut dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
            dirs.any(|dir| dir.join(program).exists())
        };
        let missing: Vec<_> = programs.iter().filter(|p| !found(p)).collect();
        if !missing.is_empty() {
            return Some(format!("{missing:?} are not installed"));
        }
        let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
        (!root).then(|| "it takes root and /dev/fuse".to_owned())
    }
}

/// The lab's name and its nodes' addresses.
#[derive(Clone, Debug)]
pub struct Lab {
    forebay: PathBuf,
    name: String,
    dir: PathBuf,
    head: String,
    compute: Vec<String>,
    certificates: PathBuf,
}

/// Runs a command; returns its output.
pub fn run(command: &mut Command) -> io::Result<String> {
    let out = command.stdin(Stdio::null()).output()?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => {
            Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim())))
        }
    }
}

impl Lab {
    /// Starts a lab with its file system; the agents are the test's own, so that it can kill them.
    ///
    /// # Errors
    /// If a part does not start.
    pub fn up(forebay: &Path, pfs: Pfs, nodes: u32, dir: &Path) -> io::Result<Lab> {
        let name = format!("chaos{}", std::process::id() % 10_000);
        let mut lab = Lab {
            forebay: forebay.to_owned(),
            dir: PathBuf::from(format!("/dev/shm/forebay-{name}")),
            name,
            head: String::new(),
            compute: Vec::new(),
            certificates: dir.join("certificates"),
        };
        let (pfs, nodes_text) = (pfs.to_string(), nodes.to_string());
        let args = [
            "--pfs",
            &pfs,
            "--nodes",
            &nodes_text,
            "--servers",
            "2",
            "--store",
            STORE,
            "--rate",
            "unlimited",
        ];
        run(lab.command("up").args(args).args(["--cpus", "unlimited", "--no-agents"]))?;
        if let Err(e) = lab.learn(nodes) {
            let _ = lab.down();
            return Err(e);
        }
        Ok(lab)
    }

    fn learn(&mut self, nodes: u32) -> io::Result<()> {
        let address = |node: &str| -> io::Result<String> {
            let said = run(&mut self.on(node, OsStr::new("getent"), &["hosts", node]))?;
            Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
        };
        let head = address("head")?;
        let compute = (0..nodes).map(|n| address(&node(n))).collect::<io::Result<Vec<_>>>()?;
        let mut init = Command::new(&self.forebay);
        init.arg("init").arg(&self.certificates).args(["--coordinator", "head:7850"]);
        init.arg("--node").arg(format!("head={head}"));
        for (n, address) in compute.iter().enumerate() {
            init.arg("--node").arg(format!("{}={address}:7851", node(n as u32)));
        }
        run(&mut init)?;
        (self.head, self.compute) = (head, compute);
        Ok(())
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.forebay);
        command.args(["lab", verb, "--name", &self.name]).current_dir("/");
        command
    }

    fn on(&self, node: &str, program: &OsStr, args: &[&str]) -> Command {
        let mut command = self.command("run");
        command.args(["--node", node, "--"]).arg(program).args(args);
        command
    }

    pub fn down(&self) -> io::Result<()> {
        run(&mut self.command("down")).map(|_| ())
    }
}

fn node(number: u32) -> String {
    format!("c{}", number + 1)
}

/// See the module.
#[derive(Clone, Debug)]
pub enum Place {
    /// The coordinator's port.
    Local(u16),
    Lab(Lab),
}

impl Place {
    /// A command that runs a program on a node. On a lab's node the process becomes the program, so
    /// that its number is the program's.
    pub fn on(&self, number: u32, program: &Path) -> Command {
        match self {
            Place::Local(_) => Command::new(program),
            Place::Lab(lab) => lab.on(&node(number), program.as_os_str(), &[]),
        }
    }

    /// The coordinator, where it runs.
    pub fn coordinator(&self, forebay: &Path, dir: &Path) -> io::Result<Command> {
        let config = dir.join("coordinator.toml");
        let (listen, tls) = match self {
            Place::Local(port) => (format!("127.0.0.1:{port}"), String::new()),
            Place::Lab(lab) => {
                (format!("{}:7850", lab.head), format!("tls = {:?}\n", lab.certificates.join("head")))
            }
        };
        std::fs::write(
            &config,
            format!("[cluster]\ncoordinator_listen = \"{listen}\"\nnode = \"head\"\n{tls}"),
        )?;
        let mut command = match self {
            Place::Local(_) => Command::new(forebay),
            Place::Lab(lab) => lab.on("head", forebay.as_os_str(), &[]),
        };
        command.args(["coordinator", "--config"]).arg(config);
        Ok(command)
    }

    /// The description of the cluster for an agent.
    pub fn cluster(&self, number: u32) -> String {
        let node = node(number);
        match self {
            Place::Local(port) => {
                format!("coordinator = \"127.0.0.1:{port}\"\nlisten = \"127.0.0.1:0\"\nnode = \"{node}\"\n")
            }
            Place::Lab(lab) => format!(
                "coordinator = \"{}:7850\"\nlisten = \"{}:7851\"\nnode = \"{node}\"\ntls = {:?}\n",
                lab.head,
                lab.compute[number as usize],
                lab.certificates.join(&node)
            ),
        }
    }

    /// Directory of the file system, as the nodes see it.
    pub fn root(&self, dir: &Path) -> PathBuf {
        match self {
            Place::Local(_) => dir.join("pfs"),
            Place::Lab(lab) => lab.dir.join("pfs"),
        }
    }

    pub fn mount_options(&self, pfs: Pfs) -> &'static str {
        pfs.mount_options()
    }
}
