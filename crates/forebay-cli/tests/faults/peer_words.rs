//! Peers that do not keep to what is promised, one played by the test: what arrives after the
//! deadline is not believed, and what was lent is released when the deadline passes.

use crate::cluster::{Cluster, EXTENT, NodeSetup};
use crate::common::{MIB, PAGE, assert_content, pfs_with, wait_for};
use forebay_client::Client;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_wire::peer::{PEER_PROTOCOL, PageRef, PeerReply, PeerRequest, Role, Wanted};
use forebay_wire::{FileRef, JobName, frame};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEED: u64 = 301;
const SIZE: u64 = 4 * EXTENT;
const DEADLINE_MS: u64 = 600;

/// `mount.small_page_size`.
const SMALL: u64 = 16 << 10;

/// A node that owns everything, played by `serve`: it gets each connection after the greeting.
fn played_owner(cluster: &mut Cluster, serve: impl Fn(TcpStream) + Send + Sync + 'static) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut members = cluster.members();
    members[0].capacity_bytes = 0;
    let mut owner = members[0].clone();
    (owner.name, owner.capacity_bytes) = ("played".into(), MIB);
    owner.address = listener.local_addr().unwrap().to_string();
    members.push(owner);
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || {
                let Ok(PeerRequest::Hello { .. }) = frame::receive(&mut socket) else { return };
                let welcome = PeerReply::Welcome { protocol: PEER_PROTOCOL, refusal: String::new() };
                if frame::send(&mut socket, &welcome).is_ok() {
                    serve(socket);
                }
            });
        }
    });
    cluster.send_view(0, members);
}

fn one_node(pfs: &Path) -> Cluster {
    Cluster::start(1, &NodeSetup { deadline_ms: DEADLINE_MS, ..NodeSetup::new(pfs) })
}

#[test]
fn what_comes_after_the_deadline_is_not_believed() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let mut cluster = one_node(pfs.path());
    static LIES: AtomicU64 = AtomicU64::new(0);
    played_owner(&mut cluster, |mut socket| {
        while let Ok(PeerRequest::Page { page, from, .. }) = frame::receive(&mut socket) {
            let received = Instant::now();
            let start = u64::from(page.page) * page.page_bytes + from;
            // Half of it in time, and right; then, as if it had been evicted meanwhile, zeros.
            let half = page.page_bytes / 2;
            let _ = frame::send(&mut socket, &PeerReply::Piece { len: page.page_bytes - from });
            let _ = socket.write_all(&crate::common::content(SEED, start, half as usize));
            std::thread::sleep(
                (received + Duration::from_millis(DEADLINE_MS)).duration_since(Instant::now()),
            );
            LIES.fetch_add(1, Ordering::Relaxed);
            let _ = socket.write_all(&vec![0; (page.page_bytes - from - half) as usize]);
        }
    });
    cluster.read_on(&[0], 3, &path, SEED);
    wait_for("the owner has lied", || LIES.load(Ordering::Relaxed) > 0);
    let node = &cluster.nodes[0];
    assert!(node.counter("peer_late_total") > 0);
    assert_eq!(node.counter("pages_from_peers_total"), 0);
    // What is in the tier now stays right.
    cluster.read_on(&[0], 1, &path, SEED);
}

#[test]
fn nonsense_of_a_peer_costs_it_its_connection_and_the_reader_nothing() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    static TALKS: AtomicU64 = AtomicU64::new(0);
    for nonsense in 0..6 {
        let mut cluster = one_node(pfs.path());
        let before = TALKS.load(Ordering::Relaxed);
        played_owner(&mut cluster, move |mut socket| {
            let Ok(PeerRequest::Page { page, .. }) = frame::receive(&mut socket) else { return };
            TALKS.fetch_add(1, Ordering::Relaxed);
            let reply = match nonsense {
                0 => PeerReply::Piece { len: page.page_bytes + 1 },
                1 => PeerReply::Piece { len: 0 },
                2 => PeerReply::Piece { len: 4095 },
                3 => PeerReply::Fetched { fetched_bytes: 1 },
                4 => PeerReply::Welcome { protocol: 0, refusal: "no".into() },
                _ => {
                    let _ = socket.write_all(&[0xff; 64]);
                    return;
                }
            };
            let _ = frame::send(&mut socket, &reply);
            let _ = socket.write_all(&[0x55; 8192]);
        });
        cluster.read_on(&[0], 2, &path, SEED);
        wait_for(&format!("somebody has listened to {nonsense}"), || TALKS.load(Ordering::Relaxed) > before);
        let node = &cluster.nodes[0];
        assert!(node.counter("peer_broken_total") + node.counter("peer_late_total") > 0);
        assert_eq!((node.counter("pages_from_peers_total"), node.counter("pages_failed_total")), (0, 0));
    }
}

/// A connection to a node as a peer has it.
fn as_peer(cluster: &Cluster) -> TcpStream {
    let mut socket = TcpStream::connect(&cluster.nodes[0].info.address).unwrap();
    let hello = PeerRequest::Hello { protocol: PEER_PROTOCOL, node: "played".into() };
    frame::send(&mut socket, &hello).unwrap();
    let welcome = frame::receive::<PeerReply>(&mut socket).unwrap();
    assert!(matches!(welcome, PeerReply::Welcome { refusal, .. } if refusal.is_empty()));
    socket
}

fn page_of(path: &Path, page: u32) -> PageRef {
    let facts = FileFacts::of(std::fs::File::open(path).unwrap().as_fd(), Revalidate::Force).unwrap();
    let file = FileRef { mount: "pfs".into(), path: b"f".to_vec(), version: facts.version };
    PageRef { file, page_bytes: PAGE, page }
}

fn ask(socket: &mut TcpStream, page: PageRef, deadline_ms: u32) {
    frame::send(
        socket,
        &PeerRequest::Page {
            page,
            from: 0,
            wanted: Wanted::Now,
            role: Role::Owner,
            job: JobName::default(),
            deadline_ms,
        },
    )
    .unwrap();
}

fn lent(client: &Client) -> u64 {
    let status = client.admin().status().unwrap();
    crate::common::counter(&status, "lent_bytes")
}

#[test]
fn a_page_is_lent_until_it_is_taken_and_no_longer_than_the_deadline() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = one_node(pfs.path());
    let client = cluster.nodes[0].client();
    cluster.read_on(&[0], 1, &path, SEED);

    let mut socket = as_peer(&cluster);
    ask(&mut socket, page_of(&path, 3), 30_000);
    assert_eq!(frame::receive::<PeerReply>(&mut socket).unwrap(), PeerReply::Piece { len: PAGE });
    assert_eq!(lent(&client), PAGE);
    // While it is on its way it stays where it is, and its bytes with it.
    client.admin().evict_all().unwrap();
    assert_eq!(client.admin().status().unwrap().resident_bytes, PAGE);
    let mut bytes = vec![0; PAGE as usize];
    socket.read_exact(&mut bytes).unwrap();
    assert_content(&bytes, SEED, 3 * PAGE);
    frame::send(&mut socket, &PeerRequest::Taken).unwrap();
    wait_for("it is let go", || lent(&client) == 0);
    client.admin().evict_all().unwrap();
    assert_eq!(client.admin().status().unwrap().resident_bytes, 0);

    // One that is never taken.
    cluster.read_on(&[0], 1, &path, SEED);
    ask(&mut socket, page_of(&path, 5), 300);
    assert_eq!(frame::receive::<PeerReply>(&mut socket).unwrap(), PeerReply::Piece { len: PAGE });
    wait_for("its deadline has passed", || lent(&client) == 0);
    // The connection was reset before, so that nothing that was still queued is mistaken for the
    // page.
    let mut rest = Vec::new();
    let end = socket.read_to_end(&mut rest).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "after {} bytes", rest.len());
}

#[test]
fn an_owner_says_which_pages_it_has_and_fetches_none_for_it() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = one_node(pfs.path());
    let mut socket = as_peer(&cluster);
    let file = page_of(&path, 0).file;
    let mut missing = |file: &FileRef, page_bytes: u64, pages: &[u32]| {
        let check = PeerRequest::Check { file: file.clone(), page_bytes, pages: pages.to_vec() };
        frame::send(&mut socket, &check).unwrap();
        match frame::receive::<PeerReply>(&mut socket).unwrap() {
            PeerReply::Missing { pages } => pages,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(missing(&file, PAGE, &[0, 3]), [0, 3], "nothing is there");
    crate::cluster::read_piece(&cluster.nodes[0].client(), &path, SEED, 3 * PAGE, PAGE as usize);
    assert_eq!(missing(&file, PAGE, &[0, 3, 1 << 20]), [0, 1 << 20]);
    assert_eq!(missing(&file, 2 * PAGE, &[3]), [3], "pages of another size");
    let mut other = file.clone();
    other.version.mtime_ns -= 1;
    assert_eq!(missing(&other, PAGE, &[3]), [3], "another version");
    assert_eq!(cluster.nodes[0].status().resident_bytes, PAGE);
}

#[test]
fn an_owner_says_what_it_does_not_have() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = one_node(pfs.path());
    let mut socket = as_peer(&cluster);
    let mut answer = |page: PageRef| {
        ask(&mut socket, page, 30_000);
        frame::receive::<PeerReply>(&mut socket).unwrap()
    };
    let good = page_of(&path, 0);
    let refused = |reply: PeerReply| matches!(reply, PeerReply::Refused(_));
    assert!(refused(answer(PageRef { page_bytes: 2 * PAGE, ..good.clone() })));
    assert!(refused(answer(PageRef { page: 1 << 20, ..good.clone() })));
    let with = |change: &dyn Fn(&mut FileRef)| {
        let mut page = good.clone();
        change(&mut page.file);
        page
    };
    assert!(refused(answer(with(&|f| f.mount = "other".into()))));
    assert!(refused(answer(with(&|f| f.path = b"../f".to_vec()))));
    assert!(refused(answer(with(&|f| f.path.clear()))));
    assert_eq!(answer(with(&|f| f.path = b"gone".to_vec())), PeerReply::Changed);
    assert_eq!(answer(with(&|f| f.version.mtime_ns -= 1)), PeerReply::Changed);
    assert_eq!(cluster.nodes[0].status().files, 0, "something was cached for it");
}

fn small_page_of(path: &Path, page: u32) -> PageRef {
    let mut page = page_of(path, page);
    (page.file.path, page.page_bytes) = (b"f.parquet".to_vec(), SMALL);
    page
}

fn ask_for_run(socket: &mut TcpStream, first: PageRef, count: u32, deadline_ms: u32) -> PeerReply {
    let request =
        PeerRequest::Pages { first, count, wanted: Wanted::Now, job: JobName::default(), deadline_ms };
    frame::send(socket, &request).unwrap();
    frame::receive::<PeerReply>(socket).unwrap()
}

/// Takes what was announced, which begins at `page`; returns its length.
fn take(socket: &mut TcpStream, page: u32, reply: &PeerReply) -> u64 {
    let PeerReply::Piece { len } = reply else { panic!("{reply:?}") };
    let mut bytes = vec![0; *len as usize];
    socket.read_exact(&mut bytes).unwrap();
    assert_content(&bytes, SEED, u64::from(page) * SMALL);
    *len
}

#[test]
fn adjacent_small_pages_are_one_answer_and_lent_until_they_are_taken() {
    let (pfs, path) = pfs_with("f.parquet", SEED, SIZE + 100);
    let cluster = one_node(pfs.path());
    let client = cluster.nodes[0].client();
    crate::cluster::read_piece(&client, &path, SEED, 3 * SMALL, 8 * SMALL as usize);
    let mut socket = as_peer(&cluster);
    let reply = ask_for_run(&mut socket, small_page_of(&path, 3), 8, 30_000);
    assert_eq!(lent(&client), 8 * SMALL);
    assert_eq!(take(&mut socket, 3, &reply), 8 * SMALL);
    frame::send(&mut socket, &PeerRequest::Taken).unwrap();
    wait_for("they are let go", || lent(&client) == 0);

    // Pages that are not there are fetched; what comes first is sent. The last page is shorter.
    let last = (SIZE / SMALL) as u32;
    for (first, count, bytes) in [(100, 128, 128 * SMALL), (last - 1, 2, SMALL + 100)] {
        let (mut page, mut came) = (first, 0);
        while came < bytes {
            let reply = ask_for_run(&mut socket, small_page_of(&path, page), count - (page - first), 30_000);
            came += take(&mut socket, page, &reply);
            frame::send(&mut socket, &PeerRequest::Taken).unwrap();
            page = first + (came / SMALL) as u32;
        }
        assert_eq!(came, bytes);
    }
    wait_for("all are let go", || lent(&client) == 0);

    for (first, count) in [(0, 0), (0, 129), (last, 2), (u32::MAX, 2)] {
        let reply = ask_for_run(&mut socket, small_page_of(&path, first), count, 30_000);
        assert!(matches!(reply, PeerReply::Refused(_)), "{count} pages from {first}: {reply:?}");
    }

    // Pages that are never taken.
    let reply = ask_for_run(&mut socket, small_page_of(&path, 3), 8, 300);
    assert_eq!(reply, PeerReply::Piece { len: 8 * SMALL });
    wait_for("their deadline has passed", || lent(&client) == 0);
    let end = socket.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

/// What a played owner answers to a request for adjacent pages: at most three of them.
fn some_of(socket: &mut TcpStream, first: &PageRef, count: u32) -> std::io::Result<()> {
    let len = u64::from(count.min(3)) * SMALL;
    frame::send(socket, &PeerReply::Piece { len })?;
    socket.write_all(&crate::common::content(SEED, u64::from(first.page) * SMALL, len as usize))
}

#[test]
fn an_owner_that_sends_some_of_the_pages_is_asked_for_the_rest() {
    let (pfs, path) = pfs_with("f.parquet", SEED, SIZE);
    let mut cluster = one_node(pfs.path());
    played_owner(&mut cluster, |mut socket| {
        loop {
            let sent = match frame::receive(&mut socket) {
                Ok(PeerRequest::Pages { first, count, .. }) => some_of(&mut socket, &first, count),
                Ok(PeerRequest::Page { page, from: 0, .. }) => some_of(&mut socket, &page, 1),
                Ok(PeerRequest::Taken) => Ok(()),
                _ => return,
            };
            if sent.is_err() {
                return;
            }
        }
    });
    crate::cluster::read_piece(&cluster.nodes[0].client(), &path, SEED, 0, MIB as usize);
    let node = &cluster.nodes[0];
    let pages = node.counter("pages_from_peers_total");
    assert!(pages >= MIB / SMALL, "{pages} pages");
    assert!(node.counter("peer_requests_total") >= pages.div_ceil(3));
    assert_eq!((node.counter("fetched_bytes"), node.counter("pages_failed_total")), (0, 0));
}

#[test]
fn nonsense_in_answer_to_adjacent_pages_costs_the_reader_nothing() {
    let (pfs, path) = pfs_with("f.parquet", SEED, SIZE);
    static TALKS: AtomicU64 = AtomicU64::new(0);
    for nonsense in 0..5 {
        let mut cluster = one_node(pfs.path());
        let before = TALKS.load(Ordering::Relaxed);
        played_owner(&mut cluster, move |mut socket| {
            let Ok(PeerRequest::Pages { count, .. }) = frame::receive(&mut socket) else { return };
            TALKS.fetch_add(1, Ordering::Relaxed);
            let reply = match nonsense {
                0 => PeerReply::Piece { len: (u64::from(count) + 1) * SMALL },
                1 => PeerReply::Piece { len: 0 },
                2 => PeerReply::Piece { len: SMALL + 4096 },
                3 => PeerReply::Fetched { fetched_bytes: 1 },
                // And then it is gone.
                _ => PeerReply::Piece { len: SMALL },
            };
            let _ = frame::send(&mut socket, &reply);
            let _ = socket.write_all(&[0x55; 8192]);
        });
        cluster.read_on(&[0], 2, &path, SEED);
        wait_for(&format!("somebody has listened to {nonsense}"), || TALKS.load(Ordering::Relaxed) > before);
        let node = &cluster.nodes[0];
        // The reader may have gone to the file system before the agent has understood the answer.
        wait_for(&format!("{nonsense} is not believed"), || {
            node.counter("peer_broken_total") + node.counter("peer_late_total") > 0
        });
        assert_eq!((node.counter("pages_from_peers_total"), node.counter("pages_failed_total")), (0, 0));
    }
}

#[test]
fn adjacent_pages_that_come_after_the_deadline_are_not_believed() {
    let (pfs, path) = pfs_with("f.parquet", SEED, SIZE);
    let mut cluster = one_node(pfs.path());
    static LIES: AtomicU64 = AtomicU64::new(0);
    played_owner(&mut cluster, |mut socket| {
        while let Ok(PeerRequest::Pages { first, count, .. }) = frame::receive(&mut socket) {
            let received = Instant::now();
            let len = u64::from(count) * SMALL;
            // The first page in time, and right; then, as if the others had been evicted, zeros.
            let _ = frame::send(&mut socket, &PeerReply::Piece { len });
            let start = u64::from(first.page) * SMALL;
            let _ = socket.write_all(&crate::common::content(SEED, start, SMALL as usize));
            std::thread::sleep(
                (received + Duration::from_millis(DEADLINE_MS)).duration_since(Instant::now()),
            );
            LIES.fetch_add(1, Ordering::Relaxed);
            let _ = socket.write_all(&vec![0; (len - SMALL) as usize]);
        }
    });
    cluster.read_on(&[0], 3, &path, SEED);
    wait_for("the owner has lied", || LIES.load(Ordering::Relaxed) > 0);
    let node = &cluster.nodes[0];
    assert!(node.counter("peer_late_total") > 0);
    assert_eq!(node.counter("pages_from_peers_total"), 0);
    cluster.read_on(&[0], 1, &path, SEED);
}
