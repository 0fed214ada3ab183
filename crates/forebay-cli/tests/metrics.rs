//! The metrics of an agent and of a coordinator can be scraped and parsed, in both formats, and say
//! what `forebay status` says and what happened. Wrong requests are answered or dropped, and
//! the port continues to serve. With a certificate and a token it serves nobody who does not have
//! both. The alert rules and the dashboard name no metric that does not exist.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use kit::{Daemon, Node, PATIENCE, address_in, forebay, succeeded, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// An agent that serves metrics, and where.
fn node() -> (Node, String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    let certificates = directory.path().join("certificates");
    succeeded(forebay(&["init"]).arg(&certificates).args(["--node", "n1=127.0.0.1"]));
    let text = "[metrics]\nlisten = \"127.0.0.1:0\"\n[tier]\ncapacity = \"64MiB\"\n";
    std::fs::write(&config, format!("{text}[cluster]\ntls = {:?}\n", certificates.join("n1"))).unwrap();
    let node = Node::start(&["--config", config.to_str().unwrap()]);
    let mut address = None;
    wait_for("metrics are served", || {
        address = address_in(&node.log(), "metrics are served");
        address.is_some()
    });
    (node, address.unwrap(), directory)
}

/// The samples now.
fn samples(address: &str) -> BTreeMap<String, f64> {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    parse(body, false)
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
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
    // A file that was written just now is not cached yet.
    wait_for("something is cached", || {
        let mut cat = node.forebay(&["cat"]);
        assert_eq!(cat.arg(node.pfs().join("a")).output().unwrap().stdout.len(), 300_000);
        node.client().admin().status().unwrap().resident_bytes > 0
    });
    for (accept, is_open) in [("text/plain", false), ("application/openmetrics-text; version=1.0.0", true)] {
        let answer =
            ask(&address, &format!("GET /metrics HTTP/1.1\r\nHost: localhost:1\r\nAccept: {accept}\r\n\r\n"));
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
    let page = ask(&address, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 403"), "a page of another site, whose name leads here: {page}");
    // Nobody reads this much of a request; the connection is closed.
    let mut stream = TcpStream::connect(&address).unwrap();
    let _ = (0..64).try_for_each(|_| stream.write_all(&[b'x'; 1024]));
    drop(stream);
    drop(TcpStream::connect(&address).unwrap());
    assert!(ask(&address, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    let head = ask(&address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn the_coordinator_counts_members_phases_and_its_own_work() {
    let (node, address, _config) = node();
    let client = node.client();
    let of = |name: &str| samples(&address)[&format!("forebay_coordinator_{name}")];
    wait_for("the node is a member", || of("members") == 1.0);
    assert!(of("views_total") >= 1.0 && of("connections") == 1.0);
    assert!(of("uptime_seconds") > of("busy_seconds_total") && of("busy_seconds_total") > 0.0);
    wait_for("its tier is known", || of("tiers_bytes") >= 64e6);
    assert_eq!(of("hpc_jobs{state=\"phase\"}") + of("hpc_jobs{state=\"compute\"}"), 0.0);
    let options = forebay_client::HpcJobOptions::named("climate");
    let job = client.open_hpc_job(&options).unwrap();
    wait_for("the job is known", || of("hpc_jobs{state=\"compute\"}") == 1.0);
    for (deadline, result) in [(Duration::from_secs(3600), "in_time"), (Duration::from_millis(1), "late")] {
        let ended = format!("phases_ended_total{{result=\"{result}\"}}");
        assert_eq!(of(&ended), 0.0);
        job.phase_begin(1 << 20, deadline).unwrap();
        if result == "in_time" {
            wait_for("the phase is known", || of("hpc_jobs{state=\"phase\"}") == 1.0);
            assert_eq!(of("hpc_jobs{state=\"compute\"}"), 0.0);
        }
        std::thread::sleep(Duration::from_millis(20));
        // The late one may have been disconnected by now.
        let _ = job.phase_end();
        wait_for("the phase has ended", || of(&ended) == 1.0);
    }
    drop(job);
    wait_for("the job is gone", || of("hpc_jobs{state=\"compute\"}") == 0.0);
    assert_eq!(of("requests_pending"), 0.0);
    assert_eq!(of("decisions_total{action=\"no_action\"}"), 0.0);
}

/// Names that begin like those of metrics.
fn named_in(text: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = text.match_indices("forebay_").map(|(at, _)| at);
    let starts = starts.filter(|at| !text[..*at].ends_with(is_of_name));
    starts.map(|at| text[at..].chars().take_while(|c| is_of_name(*c)).collect()).collect()
}

#[test]
fn alert_rules_and_dashboard_name_metrics_that_exist() {
    let (_node, address, _config) = node();
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/metrics");
    for (file, least) in [("alerts.yml", 10), ("dashboard.json", 25)] {
        let text = std::fs::read_to_string(format!("{files}/{file}")).unwrap();
        let named = named_in(&text);
        assert!(named.len() >= least, "{file} names only {named:?}");
        // A family without samples now is declared all the same, but that of a part which has just
        // started may come with the next scrape.
        wait_for(&format!("all that {file} names"), || {
            let body = ask(&address, "GET /metrics HTTP/1.1\r\n\r\n");
            let families = body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
            let declared: BTreeSet<&str> = families.collect();
            named.iter().all(|name| declared.contains(name.as_str()))
        });
    }
}

#[test]
fn alerts_fire_when_they_should_and_not_before() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/metrics/alerts.test.yml");
    match Command::new("promtool").args(["test", "rules", rules]).output() {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
        Err(_) => eprintln!("left out: no promtool here (package prometheus)"),
    }
}

/// What a Python client that trusts `ca` sees: the status and the body, or that it was refused.
fn over_tls(address: &str, ca: &Path, token: &str) -> String {
    const CLIENT: &str = "
import http.client, socket, ssl, sys
host, port = sys.argv[1].split(':')
context = ssl.create_default_context(cafile=sys.argv[2])
raw = socket.create_connection((host, int(port)), timeout=60)
connection = http.client.HTTPConnection(host, int(port), timeout=60)
connection.sock = context.wrap_socket(raw, server_hostname='n1')
for path in ['/metrics', '/metrics']:
    connection.request('GET', path, headers={'Authorization': 'Bearer ' + sys.argv[3]} if sys.argv[3] else {})
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
";
    let mut python = Command::new("python3");
    let out = python.args(["-c", CLIENT, address]).arg(ca).arg(token).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_coordinator_of_its_own_serves_over_tls_to_who_has_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = dir.path().join("certificates");
    succeeded(forebay(&["init"]).arg(&certificates).args(["--node", "n1=127.0.0.1"]));
    let token = "0123456789abcdef0123456789abcdef";
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, format!("{token}\n")).unwrap();
    std::fs::set_permissions(&token_file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let found = certificates.join("n1");
    let config = format!(
        "[metrics]\nlisten = \"127.0.0.1:0\"\ntls = {found:?}\ntoken_file = {token_file:?}\n[cluster]\n\
         coordinator_listen = \"127.0.0.1:0\"\n"
    );
    let coordinator = Daemon::start(forebay(&[]), "coordinator", dir.path(), &config);
    let address = coordinator.address_after("metrics are served");
    let ca = found.join("ca.pem");
    let answer = over_tls(&address, &ca, token);
    // Two requests on one connection.
    assert_eq!(answer.matches("200 # TYPE forebay_build_info gauge").count(), 2, "{answer}");
    assert!(answer.contains("forebay_coordinator_members 0"), "{answer}");
    assert!(!answer.contains("forebay_capacity_bytes"), "no agent is here: {answer}");
    for wrong in ["", "0123456789abcdef0123456789abcdee", "0123456789abcdef"] {
        let answer = over_tls(&address, &ca, wrong);
        assert!(answer.starts_with("401 ") && !answer.contains("forebay_"), "{answer}");
    }
    // A client that speaks no TLS gets nothing, and the port continues to serve.
    let mut plain = TcpStream::connect(&address).unwrap();
    plain
        .write_all(format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n").as_bytes())
        .unwrap();
    let mut got = Vec::new();
    let _ = plain.read_to_end(&mut got);
    assert!(!String::from_utf8_lossy(&got).contains("forebay_"), "{got:?}");
    assert!(over_tls(&address, &ca, token).starts_with("200 "));

    // A new token counts immediately. A new configuration is looked at, and ends nothing.
    std::fs::write(&token_file, "fedcba9876543210fedcba9876543210\n").unwrap();
    assert!(over_tls(&address, &ca, token).starts_with("401 "));
    std::fs::write(dir.path().join("config.toml"), config.clone() + "access_wait_s = 7\n").unwrap();
    succeeded(Command::new("kill").args(["-HUP", &coordinator.pid().to_string()]));
    coordinator.wait_for("it names what waits", |coordinator| {
        coordinator.log().contains("at_the_next_start=\"cluster.access_wait_s\"")
    });
    assert!(over_tls(&address, &ca, "fedcba9876543210fedcba9876543210").starts_with("200 "));
}

#[test]
fn a_port_that_others_reach_is_refused_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    let refused = |text: &str| {
        std::fs::write(&config, text).unwrap();
        let out = forebay(&["config", "check"]).arg(&config).output().unwrap();
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let words = refused("[metrics]\nlisten = \"0.0.0.0:9750\"\n");
    assert!(words.contains("needs metrics.tls, metrics.token_file or both"), "{words}");
    let words = refused("[console]\nlisten = \"[::]:9751\"\n");
    assert!(words.contains("needs console.tls and console.token_file"), "{words}");
    let out = forebay(&["up", "--console", "0.0.0.0:9751", "--pfs", "/tmp"]).output();
    let words = String::from_utf8(out.unwrap().stderr).unwrap();
    assert!(words.contains("needs console.tls and console.token_file"), "{words}");
}
