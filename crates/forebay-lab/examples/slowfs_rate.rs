//! Does the limit hold, and what does it cost? Measures a slow file system with 1, 2, 4 and 8
//! streams, reads and writes, and without a limit, and prints a table; the figures in docs/lab.md
//! come from here.
//!
//! `cargo run --release -p forebay-lab --example slowfs_rate -- [MiB per measurement] [RATE per
//! server]` Needs root, /dev/fuse, twice the MiB of free memory, and the example `slowfs` of the
//! same build beside it.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use forebay_lab::fixture::SlowFsProcess;
use forebay_lab::quantity::parse_rate;
use forebay_lab::slowfs::Config;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const REQUEST_BYTES: usize = 1 << 20;
const SERVERS: u64 = 4;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let total_mib: usize = args.next().as_deref().unwrap_or("800").parse()?;
    let rate = parse_rate(args.next().as_deref().unwrap_or("50MB/s"))?;
    let root = Path::new("/dev/shm").join(format!("slowfs-rate-{}", std::process::id()));
    for dir in ["backing", "mount"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let mut config = Config::new(root.join("backing"), root.join("mount"));
    config.rate_bytes_per_s = rate.bytes_per_s;
    warm_up(&root.join("backing"), total_mib)?;
    println!("{total_mib} MiB a measurement, requests of 1 MiB, {SERVERS} servers");
    println!("{:<12} {:>8} {:>10} {:>8} {:>8}", "what", "streams", "MB/s", "ratio", "CPU %");
    let outcome = measure_all(&config, total_mib);
    fs::remove_dir_all(&root)?;
    outcome
}

/// Memory that a virtual machine has given back to its host is slow to touch for the first time;
/// that is not ours to measure.
fn warm_up(backing: &Path, total_mib: usize) -> Result<()> {
    let path = backing.join("warm-up");
    write_stream(path.clone(), 2 * total_mib)?;
    Ok(fs::remove_file(path)?)
}

fn measure_all(config: &Config, total_mib: usize) -> Result<()> {
    let slowfs = start(config)?;
    for streams in [1, 2, 4, 8] {
        measure(&slowfs, config, "write", streams, total_mib)?;
        measure(&slowfs, config, "read", streams, total_mib)?;
    }
    slowfs.stop()?;
    let unlimited = Config { rate_bytes_per_s: None, latency_ns: 0, ..config.clone() };
    let slowfs = start(&unlimited)?;
    for streams in [1, 2] {
        measure(&slowfs, &unlimited, "write", streams, total_mib)?;
        measure(&slowfs, &unlimited, "read", streams, total_mib)?;
    }
    slowfs.stop()?;
    Ok(())
}

fn start(config: &Config) -> Result<SlowFsProcess> {
    let program = std::env::current_exe()?.with_file_name("slowfs");
    Ok(SlowFsProcess::start(&program, &[], config)?)
}

fn measure(
    slowfs: &SlowFsProcess,
    config: &Config,
    what: &str,
    streams: usize,
    total_mib: usize,
) -> Result<()> {
    let requests = total_mib / streams;
    let (cpu_before, start) = (cpu_seconds(slowfs.pid())?, Instant::now());
    let threads: Vec<_> = (0..streams)
        .map(|i| {
            let path = slowfs.mount().join(format!("stream{i}"));
            let run = if what == "read" { read_stream } else { write_stream };
            thread::spawn(move || run(path, requests))
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a stream panicked")??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_percent = (cpu_seconds(slowfs.pid())? - cpu_before) / seconds * 100.0;
    let bytes_per_s = (requests * streams * REQUEST_BYTES) as f64 / seconds;
    let ratio = config.rate_bytes_per_s.map(|rate| format!("{:.3}", bytes_per_s / (rate * SERVERS) as f64));
    let label = if ratio.is_some() { what.to_string() } else { format!("{what} free") };
    let ratio = ratio.unwrap_or_default();
    println!("{label:<12} {streams:>8} {:>10.1} {ratio:>8} {cpu_percent:>8.1}", bytes_per_s / 1e6);
    Ok(())
}

fn write_stream(path: PathBuf, requests: usize) -> Result<()> {
    let (mut file, bytes) = (File::create(path)?, vec![7; REQUEST_BYTES]);
    for _ in 0..requests {
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

fn read_stream(path: PathBuf, requests: usize) -> Result<()> {
    let (mut file, mut bytes) = (File::open(path)?, vec![0; REQUEST_BYTES]);
    for _ in 0..requests {
        file.read_exact(&mut bytes)?;
    }
    Ok(())
}

/// User and system time of a process so far.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |field: usize| -> Result<f64> {
        Ok(after_name.split_whitespace().nth(field).ok_or("short /proc/PID/stat")?.parse()?)
    };
    // Fields 14 and 15 of proc(5), counted from behind the name.
    Ok((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
}
