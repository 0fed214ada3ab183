//! What is tested: a file system, a coordinator and an agent on each node, as processes of the real
//! program.

use crate::actor::place;
use crate::test_place::{Lab, Pfs, Place, run};
use forebay_client::{Client, ClientConfig};
use forebay_wire::Status;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nodes with an agent.
pub const NODES: u32 = 2;

/// Smallest page there is: many pages in small files.
const PAGE_SIZE: &str = "64KiB";

/// Capacity of each agent. Less than the files take together, so that there is always something to
/// evict.
pub const CAPACITY_MIB: u64 = 72;

/// Size of each agent's disk level: what is evicted goes through all of it in a round.
const DISK_MIB: u64 = 48;

/// An agent that is not ready by then never will be.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Size of the image of the file system, most of which is never written.
const IMAGE_BYTES: u64 = 2 << 30;

/// How the run was requested.
#[derive(Clone, Debug)]
pub struct Setup {
    pub forebay: PathBuf,
    /// Directory of sockets, tiers and the logs of a round: short, and in memory.
    pub dir: PathBuf,
    /// Directory of the image of the file system.
    pub disk: PathBuf,
    pub pfs: Pfs,
}

/// One node.
pub struct Node {
    pub dir: PathBuf,
    pub agent: Option<Child>,
    /// Whether faults leave it alone: it is down, stopped or short of something.
    pub busy: bool,
    cgroup: Option<PathBuf>,
    /// Number of agents on it that the kernel has killed for want of memory.
    oom_kills: u64,
    own_tmpfs: bool,
    /// Whether it has a mount of `forebay mount`.
    has_mount: bool,
    /// Pages that its agents had read from the disk level when they were last asked, by process.
    from_disk: BTreeMap<u32, u64>,
}

/// All that is tested. Dropping it ends and removes everything.
pub struct Stage {
    pub setup: Setup,
    pub nodes: Vec<Node>,
    pub coordinator: Option<Child>,
    /// Whether the file system is an image of the test's own, which can be full.
    pub mounted: bool,
    place: Place,
}

fn system(program: &str, args: &[&str]) -> io::Result<()> {
    run(Command::new(program).args(args)).map(|_| ())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A port that was free a moment ago.
fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = Pid::from_raw(pid as i32).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(kill_process(pid, signal)?)
}

impl Stage {
    /// Mounts and starts what there is to test. As root the file system and the tiers have their
    /// own mounts, which can be full; otherwise they are directories.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn start(setup: Setup) -> io::Result<Stage> {
        std::fs::create_dir_all(&setup.dir)?;
        let place = Place::Local(free_port()?);
        let mut stage = Stage { nodes: Vec::new(), coordinator: None, mounted: false, place, setup };
        // Before a lab's nodes are made: they see what is mounted by then.
        for number in 0..NODES {
            let node = stage.make_node(number)?;
            stage.nodes.push(node);
        }
        match stage.setup.pfs {
            Pfs::Ext4 => stage.make_local()?,
            pfs => {
                let lab = Lab::up(&stage.setup.forebay, pfs, NODES, &stage.setup.dir)?;
                stage.place = Place::Lab(lab);
            }
        }
        stage.start_coordinator()?;
        for number in 0..NODES {
            let config = stage.config(number);
            std::fs::write(stage.nodes[number as usize].dir.join("config.toml"), config)?;
            stage.start_agent(number)?;
        }
        for number in 0..NODES {
            stage.wait_ready(number)?;
        }
        Ok(stage)
    }

    /// Mounts the file system with `forebay mount`, where that is possible.
    ///
    /// # Errors
    /// What the command reports.
    pub fn mount_on(&mut self, number: u32) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return Ok(());
        }
        let mount = self.mount_dir(number);
        std::fs::create_dir_all(&mount)?;
        let out = self.cli(number, &["mount", &text(&self.root()), &text(&mount)])?;
        if !out.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&out.stderr).into_owned()));
        }
        self.nodes[number as usize].has_mount = true;
        Ok(())
    }

    /// Unmounts it again.
    ///
    /// # Errors
    /// What the command reports.
    pub fn unmount_on(&mut self, number: u32) -> io::Result<()> {
        let Some(mount) = self.mount_of(number) else { return Ok(()) };
        let out = self.cli(number, &["umount", &text(&mount)])?;
        if !out.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&out.stderr).into_owned()));
        }
        self.nodes[number as usize].has_mount = false;
        // Other processes may have made mount namespaces meanwhile, each with a copy of it.
        for (pid, _) in processes_with(&mount) {
            let _ = signal(pid, Signal::KILL);
        }
        Ok(())
    }

    fn mount_dir(&self, number: u32) -> PathBuf {
        self.nodes[number as usize].dir.join("mount")
    }

    /// Where the node has mounted the file system with `forebay mount`.
    pub fn mount_of(&self, number: u32) -> Option<PathBuf> {
        self.nodes[number as usize].has_mount.then(|| self.mount_dir(number))
    }

    /// Directory of the files.
    pub fn root(&self) -> PathBuf {
        self.place.root(&self.setup.dir)
    }

    /// A command that runs a program on a node.
    pub fn on(&self, number: u32, program: &Path) -> Command {
        self.place.on(number, program)
    }

    /// As root, makes an image and mounts it; otherwise links to a directory on the disk of the
    /// reports.
    fn make_local(&mut self) -> io::Result<()> {
        let root = self.root();
        std::fs::create_dir_all(&root)?;
        self.mounted = self.mount().is_ok();
        if !self.mounted {
            let _ = std::fs::remove_file(self.image());
            std::fs::remove_dir(&root)?;
            std::fs::create_dir_all(self.plain_dir())?;
            std::os::unix::fs::symlink(std::fs::canonicalize(self.plain_dir())?, &root)?;
        }
        Ok(())
    }

    fn plain_dir(&self) -> PathBuf {
        self.setup.disk.join(format!("chaos-{}.files", std::process::id()))
    }

    fn image(&self) -> PathBuf {
        self.setup.disk.join(format!("chaos-{}.ext4", std::process::id()))
    }

    fn mount(&self) -> io::Result<()> {
        let image = self.image();
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        system("mkfs.ext4", &["-q", "-F", &text(&image)])?;
        system("mount", &["-o", "loop", &text(&image), &text(&self.root())])
    }

    fn make_node(&self, number: u32) -> io::Result<Node> {
        let dir = self.setup.dir.join(format!("n{number}"));
        std::fs::create_dir_all(dir.join("tier"))?;
        let size = format!("size={}m", CAPACITY_MIB * 2);
        let tier = text(&dir.join("tier"));
        let own_tmpfs = system("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &tier]).is_ok();
        let cgroup =
            PathBuf::from(format!("/sys/fs/cgroup/memory/forebay-chaos-{}-{number}", std::process::id()));
        let cgroup = std::fs::create_dir(&cgroup).is_ok().then_some(cgroup);
        Ok(Node {
            dir,
            agent: None,
            busy: false,
            cgroup,
            oom_kills: 0,
            own_tmpfs,
            has_mount: false,
            from_disk: BTreeMap::new(),
        })
    }

    fn config(&self, number: u32) -> String {
        let dir = &self.nodes[number as usize].dir;
        // An agent under the law `forebay` hardly ever meets its limit; the static ones are to meet
        // theirs.
        let law = if number.is_multiple_of(2) { "forebay" } else { "static" };
        format!(
            "[agent]\nstate_dir = {:?}\n\
             [tier]\ncapacity = \"{CAPACITY_MIB}MiB\"\nbacking = \"directory\"\ndirectory = {:?}\n\
             disk = {:?}\ndisk_capacity = \"{DISK_MIB}MiB\"\n\
             [memory]\npolicy = \"{law}\"\n\
             [cluster]\n{}peer_deadline_ms = 500\n\
             [[mount]]\nlabel = \"pfs\"\nroot = {:?}\npage_size = \"{PAGE_SIZE}\"\nextent_size = \"1MiB\"\n\
             fetch_threads = 4\nrandom_fill_percent = 20\n{}",
            dir.join("state"),
            dir.join("tier"),
            dir.join("level"),
            self.place.cluster(number),
            self.root(),
            self.place.mount_options(self.setup.pfs),
        )
    }

    pub fn start_coordinator(&mut self) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(self.setup.dir.join("coordinator.log"))?;
        let mut command = self.place.coordinator(&self.setup.forebay, &self.setup.dir)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        self.coordinator = Some(command.spawn()?);
        Ok(())
    }

    pub fn start_agent(&mut self, number: u32) -> io::Result<()> {
        let mut command = self.on(number, &self.setup.forebay);
        let node = &mut self.nodes[number as usize];
        let log = File::options().create(true).append(true).open(node.dir.join("log"))?;
        command.args(["agent", "--config"]).arg(node.dir.join("config.toml"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        command.env_remove("FOREBAY_SOCKET");
        let child = command.spawn()?;
        if let Some(group) = &node.cgroup {
            std::fs::write(group.join("cgroup.procs"), child.id().to_string())?;
        }
        node.agent = Some(child);
        Ok(())
    }

    pub fn socket(&self, number: u32) -> PathBuf {
        self.nodes[number as usize].dir.join("state/agent.sock")
    }

    pub fn client(&self, number: u32) -> Client {
        self.client_with(number, Duration::from_secs(20))
    }

    fn client_with(&self, number: u32, deadline: Duration) -> Client {
        let socket = Some(self.socket(number));
        Client::new(ClientConfig { socket, deadline, quiet: true, ..ClientConfig::default() })
    }

    pub fn status(&self, number: u32) -> io::Result<Status> {
        self.client(number).admin().status()
    }

    /// Notes what the agent has read from its disk level.
    pub fn note_from_disk(&mut self, number: u32, status: &Status) {
        let counter = |name: &str| status.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
        let pages = counter("pages_from_disk_total");
        self.nodes[number as usize].from_disk.insert(status.pid, pages);
    }

    /// Pages that agents have read from disk levels, at least: agents killed since they were last
    /// asked have read more.
    pub fn pages_from_disk(&self) -> u64 {
        self.nodes.iter().flat_map(|node| node.from_disk.values()).sum()
    }

    pub fn agent_pid(&self, number: u32) -> u32 {
        self.nodes[number as usize].agent.as_ref().map_or(0, Child::id)
    }

    pub fn is_ready(&self, number: u32) -> bool {
        // Short: an agent that has just been started has no socket yet, or answers.
        self.client_with(number, Duration::from_secs(2))
            .admin()
            .status()
            .is_ok_and(|s| s.pid == self.agent_pid(number))
    }

    pub fn wait_ready(&mut self, number: u32) -> io::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while !self.is_ready(number) {
            let ended =
                self.nodes[number as usize].agent.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = self.agent_log(number);
                return Err(io::Error::other(format!("agent {number} is not ready ({ended:?}):\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The end of an agent's log.
    pub fn agent_log(&self, number: u32) -> String {
        let log = std::fs::read_to_string(self.nodes[number as usize].dir.join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// The command line, directed at a node's agent.
    pub fn command(&self, number: u32, args: &[&str]) -> Command {
        let mut command = self.on(number, &self.setup.forebay);
        command
            .arg("--socket")
            .arg(self.socket(number))
            .args(args)
            .env("FOREBAY_SOCKET", self.socket(number))
            .env("FOREBAY_DEADLINE_MS", "3000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        command
    }

    pub fn cli(&self, number: u32, args: &[&str]) -> io::Result<Output> {
        self.command(number, args).stdout(Stdio::piped()).stderr(Stdio::piped()).output()
    }

    pub fn path(&self, path: u32) -> String {
        let (dir, name) = place(&self.root(), path);
        text(&dir.join(name))
    }

    /// Faults that need the test's own mounts and control groups, as far as it has them.
    pub fn possible(&self) -> Vec<&'static str> {
        let own = |n: &Node| (n.own_tmpfs, n.cgroup.is_some());
        let (tmpfs, cgroup) = self.nodes.first().map_or((false, false), own);
        let all = [(tmpfs, "tier full"), (cgroup, "memory limit"), (self.mounted, "file system full")];
        all.into_iter().filter_map(|(can, what)| can.then_some(what)).collect()
    }

    /// Takes all of the file system's space but a little; `None` where that would hurt others.
    pub fn fill_pfs(&self) -> Option<PathBuf> {
        if !self.mounted {
            return None;
        }
        let filler = self.root().join("filler");
        let room = rustix::fs::statvfs(self.root()).ok()?;
        let bytes = (room.f_bfree * room.f_bsize).saturating_sub(1 << 20);
        let file = File::create(&filler).ok()?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes.max(1)).ok()?;
        Some(filler)
    }

    /// Resizes a node's tmpfs to leave `room_bytes` of room, or to its usual size without them;
    /// returns `None` if the node has no tmpfs of its own, or if this fails.
    pub fn resize_tier(&self, number: u32, room_bytes: Option<u64>) -> Option<()> {
        let node = &self.nodes[number as usize];
        let tier = node.dir.join("tier");
        let used = rustix::fs::statvfs(&tier).ok().map(|s| (s.f_blocks - s.f_bfree) * s.f_bsize)?;
        let bytes = room_bytes.map_or(CAPACITY_MIB << 21, |room| used + room);
        let size = format!("remount,size={bytes}");
        (node.own_tmpfs && system("mount", &["-o", &size, &text(&tier)]).is_ok()).then_some(())
    }

    /// Limits the memory of a node's agent, its tier included, to what it has and `more_bytes`
    /// more; without them there is no limit. Returns how often a limit has been hit, or `None` if
    /// memory cannot be limited here.
    pub fn limit_memory(&self, number: u32, more_bytes: Option<u64>) -> Option<u64> {
        let group = self.nodes[number as usize].cgroup.as_ref()?;
        let read = |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let used = read("memory.usage_in_bytes")?;
        let limit = more_bytes.map_or("-1".to_owned(), |more| (used + more).to_string());
        std::fs::write(group.join("memory.limit_in_bytes"), limit).ok()?;
        read("memory.failcnt")
    }

    /// Returns whether the kernel has killed an agent of the node for want of memory since the last
    /// call.
    pub fn has_oom_kill(&mut self, number: u32) -> bool {
        let node = &mut self.nodes[number as usize];
        let Some(group) = &node.cgroup else { return false };
        let control = std::fs::read_to_string(group.join("memory.oom_control")).unwrap_or_default();
        let kills = control.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        let kills = kills.unwrap_or(0u64);
        kills > std::mem::replace(&mut node.oom_kills, kills)
    }

    /// Ends everything and returns what was left behind.
    pub fn end(mut self) -> Vec<String> {
        self.clear()
    }

    fn clear(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for number in 0..self.nodes.len() as u32 {
            if let Some(mount) = self.mount_of(number) {
                let _ = self.cli(number, &["umount", "--lazy", &text(&mount)]);
            }
        }
        let agents = self.nodes.iter_mut().filter_map(|n| n.agent.take());
        for mut child in agents.chain(self.coordinator.take()).collect::<Vec<_>>() {
            let _ = signal(child.id(), Signal::CONT);
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Place::Lab(lab) = &self.place
            && let Err(e) = lab.down()
        {
            left.push(e.to_string());
        }
        for node in &self.nodes {
            if node.own_tmpfs
                && let Err(e) = unmount(&node.dir.join("tier"))
            {
                left.push(e.to_string());
            }
            if let Some(group) = &node.cgroup
                && let Err(e) = patiently(|| std::fs::remove_dir(group))
            {
                left.push(format!("{}: {e}", group.display()));
            }
        }
        self.nodes.clear();
        if std::mem::take(&mut self.mounted)
            && let Err(e) = unmount(&self.root())
        {
            left.push(e.to_string());
        }
        let _ = std::fs::remove_file(self.image());
        let _ = std::fs::remove_dir_all(self.plain_dir());
        if let Err(e) = std::fs::remove_dir_all(&self.setup.dir)
            && e.kind() != io::ErrorKind::NotFound
        {
            left.push(format!("{}: {e}", self.setup.dir.display()));
        }
        left
    }
}

/// The processes that have this path in their command lines, with these command lines.
pub fn processes_with(path: &Path) -> Vec<(u32, String)> {
    let path = text(path);
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let line_of = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
    let found = all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = String::from_utf8_lossy(&line_of(pid)?).replace('\0', " ");
        line.contains(&path).then_some((pid, line))
    });
    found.collect()
}

fn unmount(dir: &Path) -> io::Result<()> {
    patiently(|| system("umount", &[&text(dir)]))
}

/// Tries until it succeeds: what was killed holds mounts and groups for a moment.
fn patiently(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(100)),
            other => return other,
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for left in self.clear() {
            eprintln!("chaos: left behind: {left}");
        }
    }
}
