//! A short run of the chaos test, as a part of all tests. It fails on any wrong byte, lost record, hang or leak; it need not
//! have seen every kind of fault. `make chaos` is the long one.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use std::path::Path;
use std::process::Command;

#[test]
fn half_a_minute_of_chaos_shows_no_wrong_byte_and_leaves_nothing() {
    let chaos = Path::new(env!("CARGO_BIN_EXE_forebay-chaos"));
    // `cargo test --workspace` has built it. To build it here would compile its dependencies again, with other features.
    let program = chaos.with_file_name("forebay");
    assert!(program.exists(), "{} is missing: run `cargo build -p forebay-cli` first", program.display());
    let out = chaos.parent().unwrap().join("chaos");
    let run = Command::new(chaos)
        .args(["run", "--pfs", "ext4", "--seed", "1", "--seconds", "30", "--round", "10", "--short", "--out"])
        .arg(out)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    let count = |what: &str| -> u64 {
        let sum = said.lines().last().unwrap();
        let part = sum.split([';', ',']).find(|part| part.ends_with(what)).unwrap();
        part.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(count("violations"), 0, "{said}");
    assert!(count("reads verified") >= 1000 && count("kills") > 0, "{said}");
    // Others may not hold a write in its middle.
    assert!(count("long writes") > 0 || !rustix::process::geteuid().is_root(), "{said}");
}
