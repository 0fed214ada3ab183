//! A program that takes memory at a given rate: this one, started again with `--hog`.

use super::clock::now_ns;
use super::group::Group;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::process::Stdio;
use std::time::Duration;

/// Bytes between two looks at the clock.
const STEP_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// A burst that came to its end.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// When it took its first page, by the clock that all processes share, in ns.
    pub first_ns: u64,
    /// When it took its last page, by the same clock.
    pub last_ns: u64,
    /// When it released all of them, by the same clock.
    pub end_ns: u64,
}

/// Takes `bytes` in the group and keeps them for `hold`; `None` if the kernel has killed it.
pub fn run(group: &Group, bytes: u64, rate: f64, hold: Duration) -> Result<Option<Burst>, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let order = format!("{bytes} {rate} {}", hold.as_millis());
    let mut command = group.command(&program);
    command.args(["--hog", &order]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let done = command.output().map_err(|e| format!("cannot start the hog: {e}"))?;
    let said = String::from_utf8_lossy(&done.stdout);
    let times: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match times[..] {
        [first_ns, last_ns, end_ns] if done.status.success() => Ok(Some(Burst { first_ns, last_ns, end_ns })),
        _ if std::os::unix::process::ExitStatusExt::signal(&done.status) == Some(9) => Ok(None),
        _ => Err(format!("the hog failed: {:?} {said}", done.status)),
    }
}

/// What `--hog` does: `order` is bytes, bytes per second, and how long to keep them in ms.
pub fn take(order: &str) -> Result<(), String> {
    let words: Vec<&str> = order.split(' ').collect();
    let [bytes, rate, hold_ms] = words[..] else { return Err(format!("not an order: {order:?}")) };
    let bytes: usize = bytes.parse().map_err(|e| format!("{bytes}: {e}"))?;
    let rate: f64 = rate.parse().map_err(|e| format!("{rate}: {e}"))?;
    let hold_ms: u64 = hold_ms.parse().map_err(|e| format!("{hold_ms}: {e}"))?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping of its own, at an address that the kernel chooses.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }
        .map_err(|e| format!("cannot map {bytes} bytes: {e}"))?;
    // With small pages the kernel gives out 2 GB/s at most.
    // SAFETY: the mapping above, of which nothing is used yet.
    let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
    // SAFETY: the mapping above lives until the process ends, and nobody else has it.
    let memory = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes) };
    let first_ns = now_ns();
    for (i, step) in memory.chunks_mut(STEP_BYTES).enumerate() {
        let due_ns = first_ns + ((i * STEP_BYTES) as f64 / rate * 1e9) as u64;
        let ahead_ns = due_ns.saturating_sub(now_ns());
        if ahead_ns > 0 {
            std::thread::sleep(Duration::from_nanos(ahead_ns));
        }
        step.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    }
    let last_ns = now_ns();
    std::thread::sleep(Duration::from_millis(hold_ms));
    println!("{first_ns} {last_ns} {}", now_ns());
    Ok(())
}
