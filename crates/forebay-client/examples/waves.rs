//! An analytics job as a plug-in reports it, without Spark: tasks that read files in waves on
//! several nodes, again and again.
//!
//!     waves PLANNER COMPUTE_MS STOP SOCKET,SOCKET... FILE...
//!
//! A file is a task, and its node is the next in turn. Node `nI` is the agent of the I-th socket,
//! and runs two tasks at a time. When a round has ended, its files are evicted, from the page cache
//! too. Each round prints the bytes that came by prefetch and the bytes read. Ends after the round
//! in which the file STOP appears. What the agents refuse costs prefetches; a read that fails or
//! ends early is the end.

use forebay_client::{Client, ClientConfig, Job};
use forebay_wire::{JobUpdate, Part, Split};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SLOTS: u32 = 2;
const READ_BYTES: usize = 1 << 20;

struct Round<'a> {
    clients: &'a [Client],
    files: &'a [PathBuf],
    name: &'a str,
    job: Option<Job>,
    compute: Duration,
    /// The next task of each node.
    next: Mutex<Vec<u32>>,
}

fn client(socket: &str) -> Client {
    Client::new(ClientConfig { socket: Some(socket.into()), quiet: true, ..ClientConfig::default() })
}

impl Round<'_> {
    fn report(&self, update: JobUpdate) {
        // It costs the prefetch and nothing else.
        let _ = self.job.as_ref().map(|job| job.report(&[update]));
    }

    fn next_task(&self, node: usize) -> Option<u32> {
        let mut next = self.next.lock().ok()?;
        let task = next[node];
        next[node] += self.clients.len() as u32;
        ((task as usize) < self.files.len()).then_some(task)
    }

    /// Reads the files of the tasks that one slot runs; bytes.
    fn run_slot(&self, node: usize) -> io::Result<u64> {
        let mut bytes = 0;
        loop {
            let Some(task) = self.next_task(node) else { return Ok(bytes) };
            let begun = Instant::now();
            self.report(JobUpdate::TaskStarted { stage: 0, task, host: format!("n{node}") });
            while self.job.is_some() && !self.clients[node].task_may_read(self.name, 0, task).unwrap_or(true)
            {
            }
            bytes += read(&self.clients[node], &self.files[task as usize])?;
            std::thread::sleep(self.compute);
            let run_ms = begun.elapsed().as_millis() as u64;
            self.report(JobUpdate::TaskEnded { stage: 0, task, ok: true, run_ms });
        }
    }
}

fn read(client: &Client, path: &Path) -> io::Result<u64> {
    let file = client.open(path)?;
    let (mut buffer, mut at) = (vec![0; READ_BYTES], 0);
    loop {
        match file.read_at(&mut buffer, at)? {
            0 if at < file.size()? => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => return Ok(at),
            n => at += n as u64,
        }
    }
}

/// The job, with one stage that is ready.
fn begin(client: &Client, (name, planner): (&str, &str), nodes: usize, files: &[PathBuf]) -> io::Result<Job> {
    let job = client.begin_job(name, planner)?;
    let refs = files.iter().map(|file| client.file_ref(file)).collect::<io::Result<Vec<_>>>()?;
    let part = |file: usize| Part { file: file as u32, offset: 0, len: refs[file].version.size };
    let split = |file| Split { parts: vec![part(file)], preferred_node: format!("n{}", file % nodes) };
    let splits = (0..files.len()).map(split).collect();
    job.report(&[
        JobUpdate::TasksAsk,
        JobUpdate::Slots((0..nodes).map(|node| (format!("n{node}"), SLOTS)).collect()),
        JobUpdate::Files(refs),
        JobUpdate::Splits { stage: 0, splits },
        JobUpdate::StageReady { stage: 0 },
    ])?;
    Ok(job)
}

/// Bytes that came by prefetch, as far as the coordinator knows.
fn prefetched(client: &Client, name: &str) -> u64 {
    let jobs = client.jobs().unwrap_or_default();
    let job = jobs.iter().rfind(|job| job.name == name);
    let waves = job.into_iter().flat_map(|job| &job.stages).flat_map(|stage| &stage.waves);
    waves.map(|wave| wave.fetched_bytes).sum()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [planner, compute_ms, stop, sockets, files @ ..] = args.as_slice() else {
        return Err("usage: waves PLANNER COMPUTE_MS STOP SOCKET,SOCKET... FILE...".into());
    };
    let clients: Vec<Client> = sockets.split(',').map(client).collect();
    let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    let compute = Duration::from_millis(compute_ms.parse()?);
    for round in 0.. {
        if Path::new(stop).exists() {
            break;
        }
        let name = &format!("round-{round}");
        let job = begin(&clients[0], (name, planner), clients.len(), &files).ok();
        let next = Mutex::new((0..clients.len() as u32).collect());
        let round = Round { clients: &clients, files: &files, name, job, compute, next };
        let bytes = std::thread::scope(|scope| {
            let slots = (0..clients.len() * SLOTS as usize).map(|slot| slot / SLOTS as usize);
            let threads: Vec<_> = slots
                .map(|node| (&round, node))
                .map(|(round, node)| scope.spawn(move || round.run_slot(node)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a slot has panicked"))))
                .sum::<io::Result<u64>>()
        })?;
        println!("{} {bytes}", prefetched(&clients[0], name));
        for file in &files {
            // If an agent is away, the next round reads from memory.
            clients.iter().for_each(|client| drop(client.admin().evict(file)));
            rustix::fs::fadvise(std::fs::File::open(file)?, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
