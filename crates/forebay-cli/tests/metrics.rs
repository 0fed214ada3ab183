//! The metrics of a running agent can be scraped and parsed, in both formats, and say what
//! `forebay status` says. Wrong requests are answered or dropped, and the port goes on serving.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod node;

use node::Node;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that serves metrics, and where.
fn node() -> (Node, String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    std::fs::write(&config, "[metrics]\nlisten = \"127.0.0.1:0\"\n[tier]\ncapacity = \"64MiB\"\n").unwrap();
    let node = Node::start(&["--config", config.to_str().unwrap()]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = node.log();
        let line = log.lines().find(|line| line.contains("metrics are served"));
        if let Some(address) = line.and_then(|line| line.split("127.0.0.1:").nth(1)) {
            let port: String = address.chars().take_while(char::is_ascii_digit).collect();
            return (node, format!("127.0.0.1:{port}"), directory);
        }
        assert!(Instant::now() < deadline, "{log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Samples by name and labels; the syntax is checked line by line.
fn parse(text: &str, is_open: bool) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut types = BTreeMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            match words[0] {
                "TYPE" => {
                    assert!(["gauge", "counter"].contains(&words[2]), "{line}");
                    assert!(types.insert(words[1].to_owned(), words[2].to_owned()).is_none(), "{line}");
                }
                "HELP" | "UNIT" => assert!(types.contains_key(words[1]), "{line}"),
                "EOF" => assert!(is_open),
                other => panic!("{other}: {line}"),
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let bare = name.split('{').next().unwrap();
        assert!(bare.starts_with("forebay_"), "{line}");
        let family = match is_open {
            true => bare.strip_suffix("_total").filter(|f| types.contains_key(*f)).unwrap_or(bare),
            false => bare,
        };
        let kind = types.get(family).unwrap_or_else(|| panic!("no type: {line}"));
        assert_eq!(kind == "counter", bare.ends_with("_total"), "{line}");
        assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line}");
    }
    samples
}

#[test]
fn metrics_say_what_status_says() {
    let (node, address, _config) = node();
    std::fs::write(node.pfs().join("a"), vec![7; 300_000]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // A file that was written just now is not cached yet.
    while node.client().admin().status().unwrap().resident_bytes == 0 {
        assert!(Instant::now() < deadline, "nothing was cached");
        let out = std::process::Command::new(node::FOREBAY)
            .args(["--socket", node.socket().to_str().unwrap(), "cat"])
            .arg(node.pfs().join("a"))
            .output()
            .unwrap();
        assert_eq!(out.stdout.len(), 300_000);
    }
    for (accept, is_open) in [("text/plain", false), ("application/openmetrics-text; version=1.0.0", true)] {
        let answer = ask(&address, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(head.contains(accept), "{head}");
        assert_eq!(body.ends_with("# EOF\n"), is_open);
        let samples = parse(body, is_open);
        let status = node.client().admin().status().unwrap();
        assert_eq!(samples["forebay_capacity_bytes"], status.capacity_bytes as f64);
        let memory = node.client().admin().memory().unwrap();
        assert_eq!(samples["forebay_tier_max_bytes"], memory.max_bytes as f64);
        assert_eq!(samples["forebay_memory_target_ratio"], 0.95);
        assert!((300_000.0..=64e6 * 1.05).contains(&samples["forebay_tier_bytes"]), "{samples:?}");
        let of_node = |what: &str| samples[&format!("forebay_memory_{what}_bytes{{place=\"node\"}}")];
        assert!(of_node("used") > 0.0 && of_node("used") < of_node("total"), "{samples:?}");
        assert_eq!(of_node("total"), memory.places[0].total_bytes as f64);
        assert_eq!(samples["forebay_mount_up{mount=\"pfs\"}"], 1.0);
        assert_eq!(samples["forebay_coordinator_connected"], 1.0);
        assert_eq!(samples["forebay_cluster_members"], 1.0);
        assert!(samples["forebay_opens_total"] >= 1.0, "{samples:?}");
        assert!(samples["forebay_fetched_bytes_total"] >= 300_000.0, "{samples:?}");
        for (name, _) in &status.counters {
            let bare = format!("forebay_{}", name.strip_suffix("_total").unwrap_or(name));
            let is_there = samples.contains_key(&bare) || samples.contains_key(&format!("{bare}_total"));
            assert!(is_there || samples.contains_key(&format!("forebay_{name}")), "{name} is missing");
        }
    }
}

#[test]
fn wrong_requests_do_no_harm() {
    let (_node, address, _config) = node();
    assert!(ask(&address, "GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(&address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    // Nobody reads so much of a request; the connection is closed.
    let mut stream = TcpStream::connect(&address).unwrap();
    let _ = (0..64).try_for_each(|_| stream.write_all(&[b'x'; 1024]));
    drop(stream);
    drop(TcpStream::connect(&address).unwrap());
    assert!(ask(&address, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    let head = ask(&address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}
