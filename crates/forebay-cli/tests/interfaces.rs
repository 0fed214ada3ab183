//! What sites depend on stays: configuration, commands, metrics and C interface of each released
//! version, as `interfaces/VERSION` recorded them, are still there (docs/stability.md).
//!
//! `FOREBAY_RECORD=1` records what the version of the workspace lacks. A release commits it.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use kit::{Node, address_in, forebay, succeeded, wait_for};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

const AT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interfaces");

/// Directories of the versions.
fn versions() -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(AT).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(
        all.iter().any(|version| version.ends_with(env!("CARGO_PKG_VERSION"))),
        "this version is missing"
    );
    all
}

/// Each version's lines of `file` are among those of today.
fn has_what_was_recorded(file: &str, now: &BTreeSet<String>) {
    let current = Path::new(AT).join(env!("CARGO_PKG_VERSION")).join(file);
    if std::env::var_os("FOREBAY_RECORD").is_some() {
        // The existing content stays: it may have been released.
        let before = fs::read_to_string(&current).unwrap_or_default();
        let all: BTreeSet<&str> = before.lines().chain(now.iter().map(String::as_str)).collect();
        fs::write(&current, all.into_iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    for version in versions() {
        let recorded = fs::read_to_string(version.join(file)).unwrap();
        assert!(recorded.lines().count() > 20, "{}: {file}", version.display());
        let gone: Vec<_> = recorded.lines().filter(|line| !now.contains(*line)).collect();
        assert!(gone.is_empty(), "{} has what is gone today: {gone:#?}", version.join(file).display());
    }
}

#[test]
fn configurations_of_earlier_versions_are_read() {
    for version in versions() {
        let file = version.join("forebay.toml");
        let text = fs::read_to_string(&file).unwrap();
        let given = text.lines().filter(|line| line.contains(" = ")).count();
        let mut show = forebay(&["config", "show", "--origin", "--config"]);
        let shown = succeeded(show.arg(&file));
        let from_file = shown.lines().filter(|line| line.contains(&format!("# {}", file.display())));
        assert_eq!(from_file.count(), given, "{shown}");
    }
}

/// Commands below `command`, and their options.
fn commands(command: &[&str], all: &mut BTreeSet<String>) {
    let help = succeeded(&mut forebay(&[command, &["--help"]].concat()));
    let (mut section, name) = ("", command.join(" "));
    for line in help.lines() {
        if line.ends_with(':') && !line.starts_with(' ') {
            section = line;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_entry = line.starts_with("  ") && !line.starts_with("       ");
        match (section, words.first()) {
            ("Commands:", Some(word))
                if line.starts_with("  ") && !line.starts_with("   ") && *word != "help" =>
            {
                all.insert(format!("forebay {name} {word}").replace("  ", " "));
                commands(&[command, &[*word]].concat(), all);
            }
            ("Options:", Some(_)) if is_entry => {
                let options = words.iter().take_while(|word| word.starts_with(['-', '<']));
                for option in options.filter(|word| word.starts_with("--")) {
                    all.insert(format!("forebay {name} {}", option.trim_end_matches(',')).replace("  ", " "));
                }
            }
            _ => {}
        }
    }
}

#[test]
fn commands_and_options_of_earlier_versions_exist() {
    let mut all = BTreeSet::new();
    commands(&[], &mut all);
    has_what_was_recorded("commands.txt", &all);
}

#[test]
fn metrics_of_earlier_versions_exist() {
    let dir = tempfile::tempdir().unwrap();
    succeeded(forebay(&["init"]).arg(dir.path().join("tls")).args(["--node", "n1=127.0.0.1"]));
    let config = dir.path().join("config.toml");
    let tls = dir.path().join("tls/n1");
    let text = "[metrics]\nlisten = \"127.0.0.1:0\"\n[tier]\ncapacity = \"64MiB\"\n[cluster]\n";
    fs::write(&config, format!("{text}tls = {tls:?}\n")).unwrap();
    let node = Node::start(&["--config", config.to_str().unwrap()]);
    let mut address = None;
    wait_for("metrics are served", || {
        address = address_in(&node.log(), "metrics are served");
        address.is_some()
    });
    let scrape = || {
        let mut stream = TcpStream::connect(address.as_ref().unwrap()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect()
    };
    // The metrics of jobs appear once the coordinator has answered.
    let mut all: BTreeSet<String> = scrape();
    wait_for("the coordinator has answered", || {
        all = scrape();
        all.iter().any(|name| name.starts_with("forebay_waves_input_bytes"))
    });
    has_what_was_recorded("metrics.txt", &all);
}

#[test]
fn functions_of_the_c_interface_of_earlier_versions_exist() {
    let header =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../forebay-capi/include/forebay.h"));
    let mut code = String::new();
    for (nth, part) in header.unwrap().split("/*").enumerate() {
        code += if nth == 0 { part } else { part.split_once("*/").unwrap().1 };
    }
    let code: Vec<&str> = code.lines().filter(|line| !line.starts_with('#')).collect();
    let declarations = code.join(" ");
    let declarations =
        declarations.split([';', '{', '}']).filter(|text| text.contains("forebay_") && text.contains('('));
    let all = declarations.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    has_what_was_recorded("functions.txt", &all);
}
