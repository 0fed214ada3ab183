//! The agent, its PFS and its clients.

use crate::faulty::Faulty;
use forebay_agent::{Agent, Closer, Config, CoordinatorAddress};
use forebay_client::{Client, ClientConfig, File, Load};
use forebay_pfs::Source;
use forebay_wire::Status;
use forebay_wire::link::Security;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Smallest page there is: many pages in small files.
pub const PAGE: u64 = 64 << 10;

/// Fetch threads of an agent, and so reads that may be under way.
pub const THREADS: usize = 4;

/// Long enough for any machine; a test that comes here has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that immediately caches what it sees.
pub struct Node {
    pub pfs: TempDir,
    pub source: Arc<Faulty>,
    state: TempDir,
    agent: Option<(Arc<forebay_agent::stop::Stop>, JoinHandle<()>)>,
}

impl Node {
    /// A node on an empty PFS.
    pub fn new() -> Self {
        Self::with("", |_| {})
    }

    /// The same with more lines of the mount's table, and a PFS that `prepare` has changed before
    /// the agent sees it.
    pub fn with(mount: &str, prepare: impl FnOnce(&Faulty)) -> Self {
        let [pfs, state] = [(); 2].map(|()| tempfile::tempdir_in("/dev/shm").unwrap());
        let at = state.path();
        let page = if mount.contains("page_size") { "" } else { "page_size = \"64KiB\"\n" };
        let config = format!(
            "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"96MiB\"\nbacking = \"directory\"\ndirectory = {:?}\n\
             [memory]\npolicy = \"static\"\n\
             [[mount]]\nlabel = \"pfs\"\nroot = {:?}\nfetch_threads = {THREADS}\n\
             stamp_granularity_ms = 0\n{page}{mount}\n",
            at.join("state"),
            at.join("tier"),
            pfs.path()
        );
        let config = Config::parse(&config).unwrap();
        // Nobody is there.
        let coordinator_at = CoordinatorAddress::Remote(vec!["127.0.0.1:1".into()], Security::Loopback);
        let root = pfs.path().canonicalize().unwrap();
        let source = Arc::new(Faulty::new(&root, std::fs::metadata(&root).unwrap().dev()));
        // The agent measures the stamps as it starts.
        prepare(&source);
        let make = |_: &Path, _| -> Arc<dyn Source> { source.clone() };
        let agent = Agent::start_on(config, None, coordinator_at, Closer::absent().unwrap(), &make).unwrap();
        let stop = agent.stop();
        let running = std::thread::spawn(move || agent.run().unwrap());
        let node = Node { pfs, source, state, agent: Some((stop, running)) };
        node.await_status("its time stamps are known", |status| {
            !status.mounts[0].stamps.contains("being measured")
        });
        node
    }

    /// A file of content `seed`.
    pub fn file(&self, name: &str, seed: u64, len: u64) -> PathBuf {
        let path = self.pfs.path().join(name);
        std::fs::write(&path, content(seed, 0, len as usize)).unwrap();
        path
    }

    pub fn client(&self) -> Client {
        self.client_with(PATIENCE)
    }

    /// A client that waits for the agent for `deadline` before it reads the PFS itself.
    pub fn client_with(&self, deadline: Duration) -> Client {
        let socket = Some(self.state.path().join("state/agent.sock"));
        Client::new(ClientConfig { socket, deadline, quiet: true, ..ClientConfig::default() })
    }

    /// Loads files; returns the load once it has ended.
    pub fn load(&self, paths: &[&Path]) -> Load {
        let mut load = self.client().load(0).unwrap();
        paths.iter().for_each(|path| load.add(path).unwrap());
        load.flush().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !load.poll(Duration::from_secs(1)).unwrap().idle {
            assert!(Instant::now() < deadline, "the load does not end");
        }
        load
    }

    pub fn status(&self) -> Status {
        self.client().admin().status().unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let status = self.status();
        status.counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    #[track_caller]
    pub fn await_status(&self, what: &str, done: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.client().admin().status().is_ok_and(|status| done(&status)) {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Where reads began, in their order.
    pub fn read_offsets(&self) -> Vec<u64> {
        self.source.reads().iter().map(|read| read.offset).collect()
    }
}

impl Node {
    /// Ends the agent, and waits until it has ended.
    pub fn end(&mut self) {
        if let Some((stop, running)) = self.agent.take() {
            stop.stop();
            let ended = running.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the agent has not ended well");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.source.heal();
        self.source.release();
        self.end();
    }
}

/// The bytes of content `seed` at `offset`: each shows its content and its place.
pub fn content(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ seed.wrapping_mul(0xbf58_476d_1ce4_e5b9))
            as u8
    };
    (offset..offset + len as u64).map(byte).collect()
}

/// Reads `len` bytes at `offset`.
pub fn read(file: &File, offset: u64, len: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    let n = file.read_at(&mut bytes, offset)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Waits until `done` says so.
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
