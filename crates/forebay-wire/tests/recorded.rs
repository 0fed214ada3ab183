//! What goes over the wire is what was recorded for the number of the protocol.
//!
//! `recorded/KIND-NUMBER.txt` has one message a line, as its name and its bytes. A message that is
//! encoded in another way under the same number fails here: give the protocol its next number, run
//! the test with `FOREBAY_RECORD=1`, and commit the new file beside the old ones.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use forebay_pfs::FileVersion;
use forebay_wire::cluster::{
    Answer, CLUSTER_PROTOCOL, DirtyFile, FileRef, Health, Question, ToAgent, ToCoordinator,
};
use forebay_wire::peer::{PEER_PROTOCOL, PageRef, PeerReply, PeerRequest, Role, Wanted};
use forebay_wire::{
    Declared, Hello, HpcPhase, HpcStatus, JobName, LoadProgress, MAGIC, NodeHealth, NodeInfo, Overview,
    PROTOCOL, PageRun, Refusal, Reply, Request, Status, Welcome,
};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

const VERSION: FileVersion = FileVersion { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };

/// A node with a value in each field.
fn node() -> NodeHealth {
    let health = Health {
        version: "v".into(),
        clock_ns: 1,
        capacity_max_bytes: 2,
        capacity_bytes: 3,
        huge_pages: "h".into(),
        memory_problems: vec!["m".into()],
        mounts: vec![("l".into(), true, false, 4, 5)],
        avoided: vec!["a".into()],
        certificate_days: Some(6),
        open_files_max: 7,
        to_peers_bytes: 8,
        parked_files: 9,
        oldest_dirty_ms: 10,
        copies_missed: 11,
        failing: vec![("f".into(), 12)],
    };
    NodeHealth {
        name: "n".into(),
        role: forebay_wire::Role::Dedicated,
        extents: vec![("l".into(), 13)],
        silent_ms: 14,
        health: Some((15, Box::new(health))),
    }
}

struct Recorded(String);

impl Recorded {
    fn add(mut self, name: &str, message: &impl Serialize) -> Self {
        let bytes = postcard::to_stdvec(message).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.0, "{name} {hex}").unwrap();
        self
    }

    /// Compares with what was recorded for `number`.
    fn compare_with_recorded(self, kind: &str, number: u32) {
        let name = format!("tests/recorded/{kind}-{number}.txt");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
        if std::env::var_os("FOREBAY_RECORD").is_some() && !path.exists() {
            std::fs::write(&path, &self.0).unwrap();
        }
        let before = std::fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{name}: {e}; FOREBAY_RECORD=1 records this version"));
        for (now, before) in self.0.lines().zip(before.lines()) {
            assert_eq!(now, before, "{kind}: another encoding needs another number than {number}");
        }
        assert_eq!(self.0.lines().count(), before.lines().count(), "{name}");
    }
}

#[test]
fn messages_of_clients() {
    Recorded(String::new())
        .add("Hello", &Hello { magic: MAGIC, protocol: PROTOCOL, want_ring: true })
        .add("Welcome", &Welcome { protocol: PROTOCOL, protocol_fits: false, message: "no".into() })
        .add("FileVersion", &VERSION)
        .add("Mounts", &Request::Mounts)
        .add("Open", &Request::Open)
        .add(
            "Fetch",
            &Request::Fetch {
                version: VERSION,
                copy: 5,
                offset: 6,
                len: 7,
                deadline_ms: 8,
                ahead: vec![PageRun { first_page: 9, pages: 10 }],
            },
        )
        .add("Missed", &Request::Missed { version: VERSION, page: 5, bytes: 6 })
        .add("PinPages", &Request::PinPages { copy: 1, first_page: 2, pages: 3 })
        .add("StageCommit", &Request::StageCommit { version: VERSION })
        .add("Status", &Request::Status)
        .add("HpcOpen", &Request::HpcOpen(Declared::default()))
        .add("OpenNewest", &Request::OpenNewest)
        .add("GuestCall", &Request::GuestCall(forebay_wire::GuestCall::Stat))
        .add("SetJob", &Request::SetJob("job".into()))
        .add("LastLog", &Request::LastLog)
        .add("AskCoordinator", &Request::AskCoordinator(Question::Plans { most: 1 }))
        .add("Refused", &Reply::Refused(Refusal::StampsUnproved))
        .add("Failed", &Reply::Failed { errno: 5, message: "m".into() })
        .add("Done", &Reply::Done)
        .add("Load", &Reply::Load(LoadProgress::default()))
        .add("Status", &Reply::Status(Box::default()))
        .add("Overview", &Reply::Answered(Box::new(Answer::Overview(Overview::default()))))
        .add("HpcJobs", &Reply::HpcJobs(vec![HpcStatus::default()]))
        .add("Text", &Reply::Text("t".into()))
        .add("Health", &Reply::Answered(Box::new(Answer::Health(vec![node()]))))
        .add("status", &Status::default())
        .compare_with_recorded("client", PROTOCOL);
}

#[test]
fn messages_of_agents_and_coordinators() {
    let file = || DirtyFile { mount: "pfs".into(), ino: 7 };
    Recorded(String::new())
        .add(
            "Join",
            &ToCoordinator::Join {
                protocol: CLUSTER_PROTOCOL,
                node: NodeInfo { name: "n".into(), ..NodeInfo::default() },
                incarnation: 1,
                attempt: 2,
                term: 3,
            },
        )
        .add(
            "Heartbeat",
            &ToCoordinator::Heartbeat {
                weight_bytes: 1,
                capacity_bytes: 2,
                resident_bytes: 3,
                fetched_bytes: 4,
            },
        )
        .add("Leave", &ToCoordinator::Leave)
        .add("Dirty", &ToCoordinator::Dirty { ask: 1, file: file() })
        .add("Health", &ToCoordinator::Health(node().health.unwrap().1))
        .add("Ask", &ToCoordinator::Ask { ask: 1, question: Question::Log { filter: "f".into(), by: 2 } })
        .add(
            "Welcome",
            &ToAgent::Welcome {
                protocol: CLUSTER_PROTOCOL,
                refusal: "r".into(),
                heartbeat_ms: 1,
                term: 2,
                leader: "l".into(),
            },
        )
        .add("Heard", &ToAgent::Heard)
        .add("Pace", &ToAgent::Pace { hpc: 1, permille: 2 })
        .add("Holder", &ToAgent::Holder { ask: 1, node: "n".into(), before: "b".into() })
        .add("Limits", &ToAgent::Limits(Vec::new()))
        .add("Answered", &ToAgent::Answered { ask: 1, answer: Answer::Log(Ok("info".into())) })
        .compare_with_recorded("cluster", CLUSTER_PROTOCOL);
}

#[test]
fn messages_of_peers() {
    let file = || FileRef { mount: "pfs".into(), path: b"a/b".to_vec(), version: VERSION };
    let page = || PageRef { file: file(), page_bytes: 4096, page: 5 };
    Recorded(String::new())
        .add("Hello", &PeerRequest::Hello { protocol: PEER_PROTOCOL, node: "n".into() })
        .add(
            "Page",
            &PeerRequest::Page {
                page: page(),
                from: 1,
                wanted: Wanted::Now,
                role: Role::Owner,
                job: JobName::default(),
                deadline_ms: 2,
            },
        )
        .add("Taken", &PeerRequest::Taken)
        .add("Check", &PeerRequest::Check { file: file(), page_bytes: 4096, pages: vec![1, 2] })
        .add("Phases", &PeerRequest::Phases { lease_ms: 1, phases: Vec::<HpcPhase>::new() })
        .add("Welcome", &PeerReply::Welcome { protocol: PEER_PROTOCOL, refusal: "r".into() })
        .add("Missing", &PeerReply::NotYet)
        .add("Refused", &PeerReply::Refused("r".into()))
        .compare_with_recorded("peer", PEER_PROTOCOL);
}
