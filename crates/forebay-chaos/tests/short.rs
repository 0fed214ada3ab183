//! A short run of the chaos test, as a part of all tests. It fails on any wrong byte, lost record,
//! hang or leak; it need not have seen every kind of fault. `make chaos` is the long one.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `cargo test --workspace` has built it. To build it here would compile its dependencies again,
/// with other features.
fn forebay() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_forebay-chaos")).with_file_name("forebay");
    assert!(program.exists(), "{} is missing: run `cargo build -p forebay-cli` first", program.display());
    program
}

fn run(forebay: &Path, out: &Path, seconds: &str, round: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-chaos"))
        .args(["run", "--pfs", "ext4", "--seed", "1", "--seconds", seconds, "--round", round, "--short"])
        .arg("--forebay")
        .arg(forebay)
        .arg("--out")
        .arg(out)
        .output()
        .unwrap()
}

#[test]
fn half_a_minute_of_chaos_shows_no_wrong_byte_and_leaves_nothing() {
    let out = Path::new(env!("CARGO_BIN_EXE_forebay-chaos")).with_file_name("chaos");
    let run = run(&forebay(), &out, "30", "10");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    let count = |what: &str| -> u64 {
        let sum = said.lines().last().unwrap();
        let part = sum.split([';', ',']).find(|part| part.ends_with(what)).unwrap();
        part.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(count("violations"), 0, "{said}");
    assert!(count("reads verified") >= 1000 && count("kills") > 0, "{said}");
    assert!(count("of the tier") > 0, "{said}");
    // Others may not hold a write in its middle.
    assert!(count("long writes") > 0 || !rustix::process::geteuid().is_root(), "{said}");
}

/// Its agents take every file for too recently changed to be cached.
#[test]
fn a_run_whose_tier_keeps_nothing_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (program, out) = (dir.path().join("forebay"), dir.path().join("out"));
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = agent ] && ! grep -q stamp_granularity_ms \"$3\"; then\n\
             echo 'stamp_granularity_ms = 60000' >> \"$3\"\n\
         fi\n\
         exec {:?} \"$@\"\n",
        forebay()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = run(&program, &out, "4", "4");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("no read returned bytes of the tier") && said.contains(", 0 violations"), "{said}");
    assert_eq!(run.status.code(), Some(1), "{said}");
}
