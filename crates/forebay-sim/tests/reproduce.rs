//! The reproduction as a whole: what it promises to show, it shows, in the same bytes every time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use forebay_sim::report::{Record, Report};
use forebay_sim::reproduce::{PARTS, reproduce};

/// Results that are known not to be as they should be; the report says why. Whoever improves one
/// takes it off this list.
const NOT_MET: [&str; 0] = [];

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entry = |e: std::io::Result<fs::DirEntry>| {
        let path = e.expect("an entry").path();
        (path.file_name().expect("a name").to_string_lossy().into_owned(), fs::read(&path).expect("a file"))
    };
    fs::read_dir(dir).expect("the report's directory").map(entry).collect()
}

#[test]
fn all_is_as_it_should_be_but_for_what_is_known() {
    let run = || {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut report = Report::new(dir.path(), "test").expect("it can be made");
        reproduce("all", &mut report).expect("it runs");
        files(dir.path())
    };
    let first = run();
    assert!(first == run(), "two runs differ");
    let records: Vec<Record> = serde_json::from_slice(&first["summary.json"]).expect("a summary");
    for part in PARTS {
        let prefix = format!("{}/", part.name);
        assert!(records.iter().any(|r| r.id.starts_with(&prefix)), "{} has no results", part.name);
    }
    let not_met: Vec<&str> = records.iter().filter(|r| !r.met).map(|r| r.id.as_str()).collect();
    assert_eq!(not_met, NOT_MET);
    // Figures that the report shows are there.
    let markdown = String::from_utf8(first["report.md"].clone()).expect("text");
    for part in markdown.split("](").skip(1) {
        let name = part.split(')').next().expect("a link");
        assert!(first.contains_key(name), "{name} is missing");
    }
}

#[test]
fn an_unknown_part_is_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut report = Report::new(dir.path(), "test").expect("it can be made");
    let error = reproduce("elay", &mut report).expect_err("there is no such part").to_string();
    assert!(error.starts_with("nothing to reproduce is called 'elay'; there are eley, "), "{error}");
}
