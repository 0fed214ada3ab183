//! Prefetch requests that are paused, by a coordinator that the test plays.

use crate::common::{Agent, MIB, PATIENCE, Setup, SlowFs, assert_content, make_file, wait_for};
use crate::coordinator::SEED;
use forebay_client::{HpcJob, HpcJobOptions};
use forebay_wire::cluster::{
    CLUSTER_PROTOCOL, Part, PrefetchRequest, RequestProgress, ToAgent, ToCoordinator,
};
use forebay_wire::framed::{Arrived, Framed};
use forebay_wire::link::{Listener, Security};
use forebay_wire::peer::{PEER_PROTOCOL, PageRef, PeerReply, PeerRequest, Role, Wanted};
use forebay_wire::{FileRef, JobName, frame};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A coordinator of one agent.
struct Coordinator {
    link: Framed,
    progress: RequestProgress,
    /// Where the agent serves peers.
    peer_address: String,
}

impl Coordinator {
    /// Waits for an agent, and welcomes it.
    fn meet(listener: &Listener) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match listener.accept() {
                Ok(socket) => break listener.prove(socket, deadline).unwrap(),
                Err(e) => assert!(Instant::now() < deadline, "no agent comes: {e}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let progress =
            RequestProgress { request: 1, fetched_bytes: 0, resident_bytes: 0, failed_bytes: 0, done: false };
        let mut met =
            Coordinator { link: Framed::new(stream).unwrap(), progress, peer_address: String::new() };
        met.say(&ToAgent::Welcome {
            protocol: CLUSTER_PROTOCOL,
            refusal: String::new(),
            heartbeat_ms: 1000,
            term: 0,
            leader: String::new(),
        });
        met
    }

    fn say(&mut self, message: &ToAgent) {
        self.link.send(message).unwrap();
        wait_for("it is said", || self.link.flush().unwrap());
    }

    fn pace(&mut self, threads: u32) {
        self.say(&ToAgent::Adjust { request: 1, threads, rate_bytes_per_s: 0 });
    }

    /// Takes in what the agent says, and answers its heartbeats.
    fn listen(&mut self) {
        assert_ne!(self.link.receive().unwrap(), Arrived::Closed, "the agent has gone");
        let mut heard = false;
        while let Some(message) = self.link.next_message::<ToCoordinator>().unwrap() {
            match message {
                ToCoordinator::Progress(progress) => self.progress = progress,
                ToCoordinator::Heartbeat { .. } => heard = true,
                ToCoordinator::Join { node, .. } => self.peer_address = node.address,
                _ => {}
            }
        }
        if heard {
            self.say(&ToAgent::Heard);
        }
    }
}

const BYTES: u64 = 64 * MIB;

/// An agent of the slow file system, on which there is a file, and its coordinator. A phase that
/// nothing disturbs is over: the next may begin at any time.
fn start_after_a_phase(slow: &SlowFs) -> (Coordinator, Agent, HpcJob) {
    make_file(&slow.behind("data"), SEED, BYTES);
    let listener = Security::Loopback.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap();
    let more = format!("[cluster]\nlisten = \"127.0.0.1:0\"\ncoordinator = \"{address}\"\n");
    let setup = Setup { page: 2 * MIB, stamps: "trust", more, ..Setup::new(&slow.mount()) };
    let starting = std::thread::spawn(move || Agent::start(setup));
    let coordinator = Coordinator::meet(&listener);
    let agent = starting.join().unwrap();
    let writer = agent.client().open_hpc_job(&HpcJobOptions::named("writer")).unwrap();
    writer.phase_begin(MIB, Duration::ZERO).unwrap();
    writer.phase_end().unwrap();
    (coordinator, agent, writer)
}

/// When a request is paused it stops at the end
/// of a chunk of 256 KiB, as a phase has begun; and no byte is read twice.
#[test]
fn pages_of_a_paused_request_stop_in_their_middle() {
    let Some(slow) = SlowFs::start() else { return };
    let (mut coordinator, agent, writer) = start_after_a_phase(&slow);
    let client = agent.client();

    let file: FileRef = client.file_ref(slow.at("data")).unwrap();
    let before = slow.stats().read_bytes;
    let read = || slow.stats().read_bytes - before;
    let parts = vec![Part { file: 0, offset: 0, len: BYTES }];
    let request = PrefetchRequest {
        request: 1,
        threads: 2,
        rate_bytes_per_s: 0,
        ahead: false,
        job: JobName::default(),
        files: vec![file],
        parts,
    };
    coordinator.say(&ToAgent::Fetch(request));
    let mut stopped_at = Vec::new();
    for _ in 0..10 {
        let at = read();
        wait_for("the prefetch is under way", || {
            coordinator.listen();
            read() > at + MIB
        });
        coordinator.pace(0);
        // Chunks that are under way end, and the agent reports its progress five times a second.
        let mut last = (u64::MAX, 0);
        wait_for("nothing more is read or reported", || {
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                coordinator.listen();
                std::thread::sleep(Duration::from_millis(10));
            }
            let now = (coordinator.progress.fetched_bytes, read());
            std::mem::replace(&mut last, now) == now
        });
        stopped_at.push((coordinator.progress.fetched_bytes, read()));
        assert!(read() < BYTES, "it was not paused: {stopped_at:?}");
        if stopped_at.iter().any(|(whole, read)| whole < read) {
            break;
        }
        coordinator.pace(2);
    }
    let (whole, all) = stopped_at.last().unwrap();
    assert!(whole < all, "pages were read to their end: {stopped_at:?}");
    // A reader does not wait for the request to continue.
    let mut bytes = vec![0; BYTES as usize];
    let reading = std::thread::spawn({
        let (client, path) = (agent.client(), slow.at("data"));
        move || client.open(path).unwrap().read_at(&mut bytes, 0).unwrap()
    });
    while !reading.is_finished() {
        coordinator.listen();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(reading.join().unwrap() as u64, BYTES);
    coordinator.pace(2);
    wait_for("the request ends", || {
        coordinator.listen();
        coordinator.progress.done
    });
    assert_eq!(read(), BYTES, "a byte was read twice");
    drop(writer);
}

/// A page that the test requests as a peer with a request of its own.
struct Asked {
    socket: TcpStream,
    page: PageRef,
}

impl Asked {
    fn greet(address: &str, page: PageRef) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        frame::send(&mut socket, &PeerRequest::Hello { protocol: PEER_PROTOCOL, node: "played".into() })
            .unwrap();
        let welcome = PeerReply::Welcome { protocol: PEER_PROTOCOL, refusal: String::new() };
        assert_eq!(frame::receive::<PeerReply>(&mut socket).unwrap(), welcome);
        Asked { socket, page }
    }

    /// Asks, and takes the answer on a thread of its own: whether the page came within a second.
    fn ask(&self) -> std::thread::JoinHandle<bool> {
        let (mut socket, page) = (self.socket.try_clone().unwrap(), self.page.clone());
        std::thread::spawn(move || {
            let number = u64::from(page.page);
            let bytes = page.page_bytes as usize;
            let request = PeerRequest::Page {
                page,
                from: 0,
                wanted: Wanted::Plan,
                role: Role::Owner,
                job: JobName::default(),
                deadline_ms: 1_000,
            };
            frame::send(&mut socket, &request).unwrap();
            let mut read = Vec::new();
            while read.len() < bytes {
                let len = match frame::receive::<PeerReply>(&mut socket).unwrap() {
                    PeerReply::Piece { len } => len as usize,
                    PeerReply::NotYet => return false,
                    other => panic!("{other:?}"),
                };
                let at = read.len();
                read.resize(at + len, 0);
                socket.read_exact(&mut read[at..]).unwrap();
            }
            frame::send(&mut socket, &PeerRequest::Taken).unwrap();
            assert_content(&read, SEED, number * bytes as u64);
            true
        })
    }
}

/// A node that has no request of its own fetches a page for one of another node. When all requests
/// of the cluster are paused, that page stops as well.
#[test]
fn a_page_for_a_paused_request_of_another_node_stops_in_its_middle() {
    let Some(slow) = SlowFs::start() else { return };
    let (mut coordinator, agent, writer) = start_after_a_phase(&slow);
    wait_for("the agent says where it serves peers", || {
        coordinator.listen();
        !coordinator.peer_address.is_empty()
    });

    let file: FileRef = agent.client().file_ref(slow.at("data")).unwrap();
    let before = slow.stats().read_bytes;
    let read = || slow.stats().read_bytes - before;
    let mut stopped_at = Vec::new();
    for page in 0..10 {
        let page = PageRef { file: file.clone(), page_bytes: 2 * MIB, page };
        let asked = Asked::greet(&coordinator.peer_address, page);
        let at = read();
        let answer = asked.ask();
        wait_for("the page is under way", || {
            coordinator.listen();
            read() > at
        });
        coordinator.say(&ToAgent::Pause { on: true });
        let mut last = u64::MAX;
        wait_for("nothing more is read", || {
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                coordinator.listen();
                std::thread::sleep(Duration::from_millis(10));
            }
            std::mem::replace(&mut last, read()) == read()
        });
        let has_come = answer.join().unwrap();
        stopped_at.push(read() - at);
        assert_eq!(has_come, read() - at == 2 * MIB, "{stopped_at:?}");
        coordinator.say(&ToAgent::Pause { on: false });
        while !has_come && !asked.ask().join().unwrap() {
            coordinator.listen();
        }
        assert_eq!(read(), at + 2 * MIB, "a byte was read twice");
        if !has_come {
            return drop(writer);
        }
    }
    panic!("pages were read to their end: {stopped_at:?}");
}
