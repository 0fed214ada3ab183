//! What `forebay stat` shows of where a file is.

use crate::common::{Agent, MIB, SlowFs, make_file, text};
use std::path::Path;

#[test]
fn stat_names_all_servers_of_an_extent_that_is_striped_over_several() {
    let Some(slow) = SlowFs::start() else { return };
    let (one, three) = (slow.at("one"), slow.at("three"));
    make_file(&one, 1, MIB / 2);
    make_file(&three, 2, 5 * MIB / 2);
    let agent = Agent::on(&slow.mount());
    let servers = |path: &Path| {
        let out = agent.cli(&["--json", "stat", path.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let names: Vec<String> = serde_json::from_value(json[0]["extents"][0]["servers"].clone()).unwrap();
        let shown = text(&agent.cli(&["stat", path.to_str().unwrap()]).stdout);
        assert!(shown.contains(&format!("from {}\n", names.join(", "))), "{names:?} is shown as {shown}");
        names
    };
    assert_eq!(servers(&one).len(), 1);
    let mut names = servers(&three);
    names.dedup();
    assert_eq!(names.len(), 3, "stripes of 1 MiB are on {names:?}");
}
