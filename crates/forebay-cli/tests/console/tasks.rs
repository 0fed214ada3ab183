//! Tasks of an operator who has no manual, in a real browser, on a cluster with three real agents
//! and real jobs along with the played nodes.

use crate::driver::{Browser, link, titled};
use crate::kit::{Daemon, FOREBAY, MIB, Process, forebay, succeeded};
use crate::{Coordinator, JOBS, Played, browser};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A name that a page, a shell or an address could mistake for something else.
const HOSTILE: &str = "<img src=x onerror=document.title=1>'$(touch \"$MARK\")&token=x#%41";

/// Each Spark application has an agent, and the HPC job has one.
const PLAYED: usize = JOBS as usize + 1;

const NEIGHBOUR: &str = "neighbour";

/// Three agents with tiers of different sizes, and two jobs that read at 4 MiB/s.
struct Cluster {
    _played: Played,
    _jobs: Vec<Process>,
    agents: Vec<Daemon>,
    coordinator: Coordinator,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, TOKEN).unwrap();
        std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let coordinator = Coordinator::start(&format!("token_file = {token:?}\n"));
        std::fs::create_dir(dir.path().join("pfs")).unwrap();
        let agent = |name: &str, mib| agent(dir.path(), &coordinator.address, name, mib);
        let agents = vec![agent("large", 128), agent("middle", 96), agent("small", 48)];
        for daemon in &agents {
            daemon.wait_for("its mount is measured", |agent| {
                agent.status().is_some_and(|s| s.cluster.connected && s.mounts.iter().all(|m| m.cached))
            });
        }
        let jobs = [NEIGHBOUR, HOSTILE].map(|name| reads(&dir, &agents[2], name));
        let _played = Played::start(&coordinator.address, PLAYED);
        Cluster { _played, _jobs: jobs.into(), agents, coordinator, dir }
    }
}

/// A job that reads for two minutes.
fn reads(dir: &tempfile::TempDir, agent: &Daemon, name: &str) -> Process {
    let command = |args: &[&str]| {
        let mut command = forebay(args);
        command.env("FOREBAY_SOCKET", agent.socket()).env("FOREBAY_JOB_NAME", name);
        command
    };
    succeeded(&mut command(&["limit", name, "4MiB/s"]));
    let file = dir.path().join("pfs").join(if name == HOSTILE { "a" } else { "b" });
    File::create(&file).unwrap().set_len(512 * MIB).unwrap();
    let mut cat = command(&["cat"]);
    cat.arg(file).stdout(Stdio::null()).stderr(Stdio::null());
    Process(cat.spawn().unwrap())
}

/// Each agent has a mount of its own, so that it reads itself what its programs request.
fn agent(dir: &Path, coordinator: &str, name: &str, mib: u64) -> Daemon {
    let (at, pfs) = (dir.join(name), dir.join("pfs"));
    std::fs::create_dir_all(at.join("tier")).unwrap();
    let (state, tier): (PathBuf, PathBuf) = (at.join("state"), at.join("tier"));
    let config = format!(
        "[agent]\nstate_dir = {state:?}\n[tier]\nbacking = \"directory\"\ndirectory = {tier:?}\ncapacity = \"{mib}MiB\"\n\
         [cluster]\nnode = \"{name}\"\ncoordinator = \"{coordinator}\"\nlisten = \"127.0.0.1:0\"\n\
         [[mount]]\nlabel = \"{name}\"\nroot = {pfs:?}\n"
    );
    Daemon::start(forebay(&[]), "agent", &at, &config)
}

/// The tasks follow one another in one window, as those of a person do.
#[test]
fn tasks_of_an_operator_without_a_manual() {
    let Some(program) = browser() else { return };
    let cluster = Cluster::start();
    let mut page = Browser::start(&program, &cluster.dir.path().join("browser"));
    opens_without_a_token_and_learns_what_to_do(&mut page, &cluster.coordinator.console);
    finds_the_node_with_least_memory_free(&mut page);
    sees_the_rates_of_a_job_and_of_its_neighbour(&mut page);
    copies_the_command_that_limits_the_job(&mut page, &cluster);
    goes_back(&mut page);
    opens_pages_of_other_kinds_of_jobs(&mut page);
    opens_addresses_by_hand(&mut page);
    assert_eq!(page.value("document.images.length"), 0, "a name has become an element");
}

fn opens_without_a_token_and_learns_what_to_do(page: &mut Browser, console: &str) {
    page.open(&format!("http://{console}/"));
    page.sees(&["a token is needed", "console.token_file", "#token=TOKEN"]);
    assert!(!page.text().contains("No nodes"), "the page says that nothing is where it knows nothing");
    let state = |text: &str| format!("document.getElementById('state').textContent === '{text}'");
    let (field, button) = ("document.getElementById('token')", "document.querySelector('#login button')");
    page.click(field, &format!("document.activeElement === {field}"));
    page.write("wrong");
    page.click(button, &state("the token is wrong"));
    page.click(field, &format!("document.activeElement === {field}"));
    page.value(&format!("{field}.select()"));
    page.write(TOKEN);
    page.click(button, &state("live"));
    page.sees(&["large", "node-010", &format!("{} nodes", PLAYED + 3)]);
    assert!(!page.text().contains("console.token_file"), "the question for the token stays");
}

fn finds_the_node_with_least_memory_free(page: &mut Browser) {
    let first = "document.querySelector('#nodes tbody a').textContent";
    page.click(
        "document.getElementById('order')",
        "document.activeElement === document.getElementById('order')",
    );
    assert_eq!(page.value(first), "large");
    page.key("ArrowDown", 40);
    page.key("Enter", 13);
    page.until(&format!("{first} === 'small'"));
    page.click("document.querySelector('#nodes tbody a')", &titled("Node small - Forebay"));
    page.sees(&["of 48.0 MiB", env!("CARGO_PKG_VERSION"), "Mounts", "cached", HOSTILE]);
}

fn sees_the_rates_of_a_job_and_of_its_neighbour(page: &mut Browser) {
    page.click(&link(HOSTILE), &titled(&format!("Job {HOSTILE} - Forebay")));
    page.sees(&["this job", NEIGHBOUR, "limit 4.0 MiB/s"]);
    // Both move something on the same server.
    let moves = "[...document.querySelectorAll('#job-servers tbody tr')].filter((row) =>
        row.cells[0].textContent === 'small' && /^[1-9].*\\/s$/.test(row.cells[3].textContent)).length === 2";
    page.until(moves);
}

fn copies_the_command_that_limits_the_job(page: &mut Browser, cluster: &Cluster) {
    let button = "document.getElementById('copy')";
    page.click(button, &format!("{button}.textContent === 'Copied'"));
    let command = page.value("navigator.clipboard.readText()").as_str().unwrap().to_owned();
    assert!(command.starts_with("forebay limit ") && command.ends_with(" 200MB/s"), "{command}");
    let mark = cluster.dir.path().join("mark");
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", Path::new(FOREBAY).parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).env("PATH", path).env("MARK", &mark);
    succeeded(shell.env("FOREBAY_SOCKET", cluster.agents[0].socket()));
    assert!(!mark.exists(), "the shell executes the name: {command}");
    page.sees(&["limit 191 MiB/s"]);
}

fn goes_back(page: &mut Browser) {
    page.value("history.back()");
    page.until(&titled("Node small - Forebay"));
    page.sees(&["of 48.0 MiB"]);
    page.value("history.back()");
    page.until(&titled("Forebay"));
    page.sees(&["node-010"]);
}

fn opens_pages_of_other_kinds_of_jobs(page: &mut Browser) {
    page.click(&link("app-01"), &titled("Job app-01 - Forebay"));
    page.sees(&["Spark application", "10/20 tasks done", "app-01 0.10", "No I/O phases"]);
    assert!(!page.text().contains("forebay limit"), "a limit of this name would have no effect");
    page.click(&link("All nodes and jobs"), &titled("Forebay"));
    page.click(&link("climate"), &titled("Job climate - Forebay"));
    page.sees(&["Latest I/O phase", "ended", "No waves", "full-delay"]);
    page.click(&link("All nodes and jobs"), &titled("Forebay"));
}

fn opens_addresses_by_hand(page: &mut Browser) {
    for (hash, title, sentence) in [
        ("node=middle", "Node middle", "No traffic"),
        ("node=gone", "Node gone", "No node of this name is a member now"),
        ("job=%3Cb%3Egone", "Job <b>gone", "knows no job of this name"),
    ] {
        page.value(&format!("void (location.hash = '{hash}')"));
        page.until(&titled(&format!("{title} - Forebay")));
        page.sees(&[title, sentence]);
    }
    page.click(&link("All nodes and jobs"), &titled("Forebay"));
}
