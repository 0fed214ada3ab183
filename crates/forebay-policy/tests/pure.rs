//! The policy crates decide and do nothing else: no I/O, clock, threads or randomly seeded maps,
//! and no crate that has them.
//!
//! `no_std` makes the compiler refuse most of that. What it cannot see is somebody linking `std`
//! again, an exception by attribute, or a new dependency; this test reads the sources and manifests
//! for those.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 2] = ["forebay-model", "forebay-policy"];
/// What a policy crate may depend on: layers below, data description, and hash tables that are told
/// how to hash.
const ALLOWED: [&str; 3] = ["forebay-model", "serde", "hashbrown"];
const FORBIDDEN: [&str; 12] = [
    "std::",
    "extern crate std",
    "HashMap",
    "HashSet",
    "Instant",
    "SystemTime",
    "thread",
    "unsafe",
    "static mut",
    "thread_local",
    "println!",
    "RandomState",
];

fn crate_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a source directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// Code of the file without comments and without its test module, which comes last by custom.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let without_comment = |line: &str| line.split("//").next().unwrap_or_default().to_string();
    text.lines().map(without_comment).collect::<Vec<_>>().join("\n")
}

/// Forbidden words in `code`, standing by themselves (the `threads` of a prefetch are not threads
/// of ours).
fn offences(code: &str) -> Vec<&'static str> {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let stands_alone = |at: usize, word: &str| {
        let (before, after) = (code[..at].chars().next_back(), code[at + word.len()..].chars().next());
        !is_word(before) && (word.ends_with([':', '!']) || !is_word(after))
    };
    FORBIDDEN.into_iter().filter(|w| code.match_indices(w).any(|(at, _)| stands_alone(at, w))).collect()
}

#[test]
fn policy_crates_are_without_std_and_without_forbidden_words() {
    for name in CRATES {
        let dir = crate_dir(name);
        let lib = fs::read_to_string(dir.join("src/lib.rs")).expect("lib.rs");
        assert!(lib.contains("#![cfg_attr(not(test), no_std)]"), "{name} is not no_std");
        let mut files = Vec::new();
        sources(&dir.join("src"), &mut files);
        assert!(files.len() >= 5, "only {} files of {name} were found", files.len());
        for file in files {
            let found = offences(&code(&fs::read_to_string(&file).expect("a source file")));
            assert!(found.is_empty(), "{} uses {found:?}", file.display());
        }
    }
}

#[test]
fn policy_crates_depend_on_nothing_that_could_do_io() {
    for name in CRATES {
        let manifest = fs::read_to_string(crate_dir(name).join("Cargo.toml")).expect("a manifest");
        let section = manifest.split("[dependencies]").nth(1).expect("a section [dependencies]");
        let section = section.split("\n[").next().unwrap_or_default();
        let dependencies: Vec<&str> = section
            .lines()
            .filter(|l| !l.trim_start().starts_with('#') && l.contains('='))
            .filter_map(|l| l.split(['.', ' ', '=']).next())
            .collect();
        assert!(!dependencies.is_empty(), "the dependencies of {name} were not understood");
        for dependency in dependencies {
            assert!(ALLOWED.contains(&dependency), "{name} must not depend on {dependency}");
        }
    }
    // Those from outside without their std part (and, for hashbrown, without its default hasher),
    // for all who inherit them.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let workspace = fs::read_to_string(manifest).expect("the workspace's manifest");
    for outside in ["serde", "hashbrown"] {
        let start = format!("{outside} = ");
        let line = workspace.lines().find(|l| l.starts_with(&start)).expect("it is named there");
        assert!(line.contains("default-features = false"), "{line}");
    }
}

/// The scan finds what it looks for, and not what only looks like it.
#[test]
fn the_scan_itself_works() {
    assert_eq!(offences("use std::time::Instant;"), ["std::", "Instant"]);
    assert_eq!(offences("let x: HashMap<u8, u8>;"), ["HashMap"]);
    assert_eq!(offences("core::thread;"), ["thread"]);
    assert_eq!(offences("let threads = setting.max_threads;"), Vec::<&str>::new());
    let tested = "let threads = 1; // a thread of std::\n#[cfg(test)]\nmod tests {\nuse std::fs;\n}";
    assert!(offences(&code(tested)).is_empty());
}
