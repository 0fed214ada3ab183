//! A tier, and a program that takes its memory, on a node with swap space on a zram device. A test
//! program of its own: while there is swap, nothing is killed that other tests want to see killed.

#![allow(clippy::unwrap_used, reason = "all of this program is tests, helpers included")]

#[path = "memory/common.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

#[path = "kit/mod.rs"]
mod kit;

use common::{CAPACITY, HOG, LIMIT, MIB, Tier, end_hog, group, start_hog, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A compressed device in memory with swap space on it; released at the end.
struct Swap {
    number: String,
    device: PathBuf,
}

impl Swap {
    /// # Errors
    /// Why this machine cannot have one.
    fn on(bytes: u64) -> Result<Self, String> {
        let why = |what: &str| format!("{what} (CONFIG_ZRAM, root)");
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add");
        let number = number.map_err(|e| why(&format!("no zram device can be added: {e}")))?.trim().to_owned();
        let device = PathBuf::from(format!("/dev/zram{number}"));
        let swap = Swap { number, device };
        std::fs::write(swap.setting("disksize"), bytes.to_string()).map_err(|e| why(&e.to_string()))?;
        wait_for("the device is there", || swap.device.exists().then_some(()));
        for program in ["mkswap", "swapon"] {
            let done = Command::new(program).arg(&swap.device).output();
            if !done.as_ref().is_ok_and(|out| out.status.success()) {
                return Err(why(&format!("{program}: {done:?}")));
            }
        }
        Ok(swap)
    }

    fn setting(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(format!("zram{}", self.number)).join(name)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.device).output();
        let _ = std::fs::write(self.setting("reset"), "1");
        let _ = std::fs::write("/sys/class/zram-control/hot_remove", &self.number);
    }
}

/// Takes memory when a test below calls it as a program of its own.
#[test]
fn hog() {
    common::be_hog();
}

/// One test, because swap is on or off for the whole machine.
#[test]
fn with_swap_on_zram_bytes_stay_right_and_beside_a_tier_that_gives_way_nothing_is_killed() {
    let Some(group) = group("swap") else { return };
    let swap = match Swap::on(1024 * MIB) {
        Ok(swap) => swap,
        Err(why) => return eprintln!("left out: {why}"),
    };
    // A tier that keeps its memory: the kernel writes what does not fit to swap. While both use
    // their memory it may kill the program all the same, once it finds only pages in use.
    let tier = Tier::start(&group, "static");
    let (hog, _) = start_hog(&group, HOG);
    assert!(group.swapped().unwrap() > 0, "nothing was swapped");
    tier.read();
    drop((hog, tier));
    let (before, kills) = (group.swapped().unwrap(), group.kills().unwrap());

    // A tier that gives way: the program gets its memory from the tier.
    let tier = Tier::start(&group, "forebay");
    let (hog, is_full) = start_hog(&group, HOG);
    assert!(is_full);
    assert!(tier.capacity() < LIMIT - HOG, "{}", tier.capacity());
    let swapped = group.swapped().unwrap().saturating_sub(before);
    assert!(swapped < HOG / 4, "{swapped} bytes were swapped beside a tier that gives way");
    tier.read();
    end_hog(hog);
    assert_eq!(group.kills().unwrap(), kills);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
    tier.fill();
    drop((tier, swap));
}
