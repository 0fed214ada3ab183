//! What may import what, and what may not be known at all to the crates that decide.
//!
//! The table below is the whole truth about the direction of imports; a crate that is not in it
//! fails, so that a new one has to be placed. The crates of the policy layer are pure: no I/O, no
//! clock, no threads, no order that depends on a random hash. `no_std` shuts out most of that, and
//! the compiler sees to it; the search for words below catches what an `extern crate std` would let
//! in again. (A build for a target that has no `std`, x86_64-unknown-none, would prove the same of
//! the outside crates; rustup does not install that target by itself, so it is not asked for here.)

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a crate of ours may import of ours. Dependencies of tests count as well.
enum May {
    /// These and no others.
    Import(&'static [&'static str]),
    /// All that is below it.
    ImportAll,
}

/// Crates of ours, from the bottom up. Some are not written yet; they are here so that their place
/// is known.
const LAYERS: &[(&str, May)] = &[
    // Policy: pure.
    ("forebay-model", May::Import(&[])),
    ("forebay-policy", May::Import(&["forebay-model"])),
    // The record of what machines hear and decide, written live and by the simulator.
    ("forebay-trace", May::Import(&["forebay-policy"])),
    // Simulation: the policies under virtual time.
    ("forebay-sim", May::Import(&["forebay-model", "forebay-policy", "forebay-trace"])),
    // Data: mechanism only.
    ("forebay-pfs", May::Import(&[])),
    ("forebay-wire", May::Import(&["forebay-pfs", "forebay-policy"])),
    ("forebay-store", May::Import(&["forebay-pfs", "forebay-wire"])),
    // Runtime: policies and mechanisms together. Client and agent know each other by `forebay-wire`
    // only.
    ("forebay-client", May::Import(RUNTIME)),
    ("forebay-agent", May::Import(RUNTIME)),
    ("forebay-coordinator", May::Import(RUNTIME)),
    // The lab's fixtures share nothing with what they test.
    ("forebay-lab", May::Import(&[])),
    // Bindings: thin, on the client core and the types it hands out. Python also has the simulator,
    // for notebooks.
    ("forebay-capi", May::Import(BINDING)),
    ("forebay-python", May::Import(&["forebay-client", "forebay-pfs", "forebay-wire", "forebay-sim"])),
    ("forebay-jni", May::Import(BINDING)),
    ("forebay-mount", May::Import(BINDING)),
    // Loaded into foreign programs.
    ("forebay-preload", May::Import(BINDING)),
    // The one program, and what measures it.
    ("forebay-cli", May::ImportAll),
    ("forebay-bench", May::ImportAll),
    // The chaos test uses what users have: the client and the program. Its criteria are its own.
    ("forebay-chaos", May::Import(&["forebay-client", "forebay-wire"])),
];

const RUNTIME: &[&str] =
    &["forebay-model", "forebay-policy", "forebay-trace", "forebay-pfs", "forebay-wire", "forebay-store"];
const BINDING: &[&str] = &["forebay-client", "forebay-pfs", "forebay-wire"];

/// The pure crates, and the outside crates they may use: data structures and data description,
/// usable without `std`.
const PURE: &[&str] = &["forebay-model", "forebay-policy"];
const PURE_OUTSIDE: &[&str] = &["hashbrown", "serde"];

/// What a pure crate must not name: the world, the clock, threads, and maps whose order differs
/// from run to run.
const IMPURE: &[&str] = &[
    "std::",
    "extern crate std",
    "SystemTime",
    "Instant",
    "thread::",
    "thread_local",
    "unsafe",
    "static mut",
    "println!",
    "HashMap",
    "HashSet",
    "RandomState",
    "libc",
];

/// What tests alone may import besides: an agent in one process with its clients.
const TESTS: &[(&str, &str)] = &[("forebay-agent", "forebay-client")];

struct Package {
    directory: PathBuf,
    /// Names with their kind: `None` for normal ones, `dev` or `build`.
    dependencies: Vec<(String, Option<String>)>,
}

fn packages() -> BTreeMap<String, Package> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let package = |p: &Value| {
        let manifest = PathBuf::from(text(&p["manifest_path"]));
        let dependency = |d: &Value| (text(&d["name"]), d["kind"].as_str().map(str::to_owned));
        let dependencies = p["dependencies"].as_array().expect("a list").iter().map(dependency).collect();
        (text(&p["name"]), Package { directory: manifest.parent().unwrap().to_owned(), dependencies })
    };
    metadata["packages"].as_array().expect("a list").iter().map(package).collect()
}

/// Why `importer` may not import `imported`, if it may not.
fn objection(importer: &str, imported: &str) -> Option<String> {
    let place = |name: &str| LAYERS.iter().position(|(known, _)| *known == name);
    let Some(at) = place(importer) else {
        return Some(format!("{importer} has no place: add it to LAYERS in {}", file!()));
    };
    if place(imported).is_none() {
        return Some(format!("{importer} imports {imported}, which has no place in LAYERS in {}", file!()));
    }
    let allowed = match LAYERS[at].1 {
        May::ImportAll => return None,
        May::Import(allowed) => allowed,
    };
    let allowed_in_words = if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") };
    (!allowed.contains(&imported))
        .then(|| format!("{importer} imports {imported}; it may import {allowed_in_words}"))
}

#[test]
fn imports_go_one_way() {
    let packages = packages();
    assert!(packages.len() >= 9, "the crates were not found: {:?}", packages.keys());
    let mut edges = 0;
    let mut objections = Vec::new();
    for (importer, package) in &packages {
        objections.extend(objection(importer, importer).filter(|why| why.contains("no place")));
        for (imported, kind) in package.dependencies.iter().filter(|(name, _)| name.starts_with("forebay")) {
            edges += 1;
            let is_for_tests =
                kind.as_deref() == Some("dev") && TESTS.contains(&(importer.as_str(), imported.as_str()));
            objections.extend(objection(importer, imported).filter(|_| !is_for_tests));
        }
    }
    assert!(edges >= 15, "only {edges} imports were found");
    assert!(objections.is_empty(), "\n{}", objections.join("\n"));
}

#[test]
fn the_table_has_no_way_back() {
    for (at, (importer, may)) in LAYERS.iter().enumerate() {
        if let May::Import(allowed) = may {
            for imported in *allowed {
                let below = LAYERS[..at].iter().any(|(name, _)| name == imported);
                assert!(below, "{importer} may import {imported}, which is not below it");
            }
        }
    }
    assert!(objection("forebay-policy", "forebay-store").is_some());
    assert!(objection("forebay-client", "forebay-agent").is_some());
    assert!(objection("forebay-new", "forebay-pfs").is_some());
}

/// Source files of a crate's library, without those that are compiled for tests only.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut tests_only = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for part in text.split("#[cfg(test)]\n").skip(1) {
                if let Some(name) = part.trim_start().strip_prefix("mod ").and_then(|m| m.split_once(';')) {
                    tests_only.push(directory.join(format!("{}.rs", name.0)));
                    tests_only.push(directory.join(name.0).join("mod.rs"));
                }
            }
            // Inline test modules are at the end of their file.
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            found.push((path, shipped));
        }
    }
    found.retain(|(path, _)| !tests_only.contains(path));
    found
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Whether `word` is in `line` by itself and not as a part of another word.
fn names(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && (word.ends_with([':', '!']) || !after.is_some_and(part_of_word))
    })
}

fn impurities(text: &str) -> Vec<(usize, &'static str)> {
    let lines = text.lines().enumerate();
    let found = lines.flat_map(|(number, line)| {
        let code = without_comment(line);
        IMPURE.iter().filter(move |word| names(code, word)).map(move |word| (number + 1, *word))
    });
    found.collect()
}

#[test]
fn those_who_decide_know_no_world_and_no_clock() {
    let packages = packages();
    let pure: Vec<_> = PURE.iter().filter_map(|name| Some((*name, packages.get(*name)?))).collect();
    assert!(pure.iter().any(|(name, _)| *name == "forebay-policy"), "forebay-policy was not found");
    for (name, package) in pure {
        for (dependency, kind) in &package.dependencies {
            let ours = dependency.starts_with("forebay");
            let allowed =
                ours || kind.as_deref() == Some("dev") || PURE_OUTSIDE.contains(&dependency.as_str());
            assert!(allowed, "{name} imports {dependency}; pure crates may use {PURE_OUTSIDE:?}");
        }
        let sources = sources(&package.directory.join("src"));
        let root = sources.iter().find(|(path, _)| path.ends_with("src/lib.rs")).expect("a lib.rs");
        assert!(root.1.contains("#![cfg_attr(not(test), no_std)]"), "{name} is not no_std");
        for (path, text) in &sources {
            let found = impurities(text);
            assert!(found.is_empty(), "{}: lines and words {found:?}", path.display());
        }
    }
}

/// For all crates that inherit them: without their `std` part and, for hashbrown, its default
/// hasher.
#[test]
fn outside_crates_of_the_policy_layer_have_no_std() {
    let workspace =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")).unwrap();
    for outside in PURE_OUTSIDE {
        let line = workspace.lines().find(|line| line.starts_with(&format!("{outside} = ")));
        assert!(line.is_some_and(|line| line.contains("default-features = false")), "{outside}: {line:?}");
    }
}

/// A driver that asked a planner itself would be a second place that decides about stages.
#[test]
fn the_coordinator_reaches_planners_through_the_stage_machine_only() {
    let packages = packages();
    let sources = sources(&packages["forebay-coordinator"].directory.join("src"));
    let uses = |word: &str| sources.iter().filter(|(_, text)| text.contains(word)).count();
    assert!(uses("forebay_policy::stage") > 0, "the stage machine was not found in the coordinator");
    let decides = ["planner", "placement", "concurrency_window", "preferred_nodes", "eviction"]
        .map(|m| format!("forebay_policy::{m}"));
    for word in decides {
        assert_eq!(uses(&word), 0, "the coordinator imports {word}");
    }
}

/// The simulated worlds model flows, tasks and nodes; what to fetch, when and at what pace is the
/// machine's, as it is live. What a client of the cluster or an agent decides is in the policy
/// crate as well, and a world may ask for it where a client or an agent does.
#[test]
fn the_simulated_worlds_reach_planners_through_the_stage_machine_only() {
    let packages = packages();
    let decides = [
        "Planner",
        "Policy",
        "Board",
        "Plan",
        "PrefetchDistance",
        "placement",
        "concurrency_window",
        "preferred_nodes",
        "eviction",
        "server_queues",
        "WaveStarts",
    ];
    // File, word, and who decides that live.
    let permitted = [
        ("cluster/world/mod.rs", "placement", "a client names the owners of extents"),
        ("cluster/world/mod.rs", "preferred_nodes", "a client chooses the preferred nodes of splits"),
        ("cluster/world/pending.rs", "preferred_nodes", "of tasks, as that client has chosen"),
        ("cluster/world/tier_contents.rs", "eviction", "an agent chooses the pages to evict"),
        ("cluster/world/fetch.rs", "Plan", "an agent fetches for a request: an urgency"),
        ("cluster/world/faults.rs", "Plan", "the same"),
        ("colocate/observer.rs", "Board", "an agent's board of phases reports what the coordinator hears"),
        ("cluster/mod.rs", "placement", "of stripes on servers of the file system, in a setup"),
    ];
    for world in ["colocate", "cluster", "world"] {
        let sources = sources(&packages["forebay-sim"].directory.join("src").join(world));
        let sources: Vec<_> = sources.iter().filter(|(path, _)| !path.ends_with("bound.rs")).collect();
        let machine = if world == "world" { "crate::cluster" } else { "forebay_policy::stage" };
        assert!(sources.iter().any(|(_, text)| text.contains(machine)), "{world} does not use {machine}");
        for (path, text) in sources {
            for word in decides {
                let may = permitted.iter().any(|(file, of, _)| path.ends_with(file) && *of == word);
                let line = text.lines().find(|line| names(without_comment(line), word));
                assert!(may || line.is_none(), "{}: {word} in {line:?}", path.display());
            }
        }
    }
}

/// What a node fetches next, and when, is decided by its machine: agents and simulated nodes drive
/// the same one, and count nothing themselves.
#[test]
fn agents_and_simulated_nodes_fetch_as_the_node_machine_decides() {
    let packages = packages();
    let decides = [
        "token_bucket",
        "InFlight",
        "precedes",
        "rank",
        "request_threads",
        "short_request_threads",
        "short_reads",
    ];
    // Limits on how often programs may report, and on the rate of a job, which choose no fetch.
    let permitted = (["phases/change_limit.rs", "traffic/account.rs"], "token_bucket");
    for directory in ["forebay-agent/src", "forebay-sim/src/cluster", "forebay-sim/src/world"] {
        let (package, below) = directory.split_once('/').unwrap();
        let sources = sources(&packages[package].directory.join(below));
        let drives = |(_, text): &(PathBuf, String)| text.contains("forebay_policy::node");
        assert!(below == "src/world" || sources.iter().any(drives), "{directory} drives no node machine");
        for (path, text) in &sources {
            for word in decides {
                let may = permitted.0.iter().any(|end| path.ends_with(end)) && word == permitted.1;
                let line = text.lines().find(|line| names(without_comment(line), word));
                assert!(may || line.is_none(), "{}: {word} in {line:?}", path.display());
            }
        }
    }
}

#[test]
fn impurities_are_found_where_they_are() {
    let text = "use core::fmt; // no std::fmt here\nuse std::time::Instant;\nlet threads = map_of::<HashMap<u8, u8>>();\n";
    assert_eq!(impurities(text), [(2, "std::"), (2, "Instant"), (3, "HashMap")]);
    assert!(impurities("my_std::x(); Instantly; threads").is_empty());
}
