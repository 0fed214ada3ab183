//! Hit ratios of every eviction policy on the same traces, beside LFU's and Belady's bound.
//!
//! `cargo run --release -p forebay-policy --example hit_ratio [-- --scale 1.0 --heard 1.0 --seed 0
//! --bytes] > table.txt`
//!
//! The table goes to standard output, the same figures as JSON to `target/hit_ratio.json` (`--json
//! FILE`). `--heard 0.25` drops three touches in four, as sampling does. `--bytes` prints byte hit
//! ratios. A `<` marks a policy that hits less than LRU or LFU there.

#[path = "support/mod.rs"]
mod support;

use forebay_policy::eviction::EvictionKind;
use std::process::ExitCode;

struct Options {
    scale: f64,
    seed: u64,
    heard: f64,
    bytes: bool,
    json: String,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { scale: 1.0, seed: 0, heard: 1.0, bytes: false, json: "target/hit_ratio.json".into() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--scale" => options.scale = value()?.parse().map_err(|error| format!("--scale: {error}"))?,
            "--heard" => options.heard = value()?.parse().map_err(|error| format!("--heard: {error}"))?,
            "--seed" => options.seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?,
            "--json" => options.json = value()?,
            "--bytes" => options.bytes = true,
            _ => {
                return Err(format!(
                    "unknown option {arg}; known: --scale, --heard, --seed, --bytes, --json"
                ));
            }
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    print!("{:<12} {:<40} {:>7}", "family", "trace", "opt");
    EvictionKind::ALL.iter().for_each(|kind| print!(" {:>9} ", kind.name()));
    println!(" {:>9} ", "lfu");
    let mut rows = Vec::new();
    for trace in support::all_traces(options.scale, options.seed) {
        let pick = |outcome: support::Outcome| match options.bytes {
            true => outcome.byte_hit_ratio,
            false => outcome.hit_ratio,
        };
        let of = |kind: EvictionKind| {
            let mut policy = kind.build(trace.capacity_bytes);
            pick(support::replay(&mut *policy, &trace, options.heard))
        };
        let lfu = ("lfu", pick(support::lfu(&trace, options.heard)));
        let ratios: Vec<(&str, f64)> =
            EvictionKind::ALL.iter().map(|&kind| (kind.name(), of(kind))).chain([lfu]).collect();
        let bar = ratios.iter().filter(|(name, _)| ["lru", "lfu"].contains(name)).map(|row| row.1);
        let bar = bar.fold(0.0, f64::max);
        let opt = pick(support::belady(&trace));
        print!("{:<12} {:<40} {opt:>7.4}", trace.family, trace.name);
        ratios.iter().for_each(|&(_, ratio)| print!(" {ratio:>9.4}{}", if ratio < bar { '<' } else { ' ' }));
        println!();
        let by_name: serde_json::Map<String, serde_json::Value> =
            ratios.iter().map(|&(name, ratio)| (name.into(), ratio.into())).collect();
        rows.push(serde_json::json!({
            "family": trace.family, "trace": trace.name, "uses": trace.uses.len(),
            "capacity_bytes": trace.capacity_bytes, "touches_heard": options.heard, "seed": options.seed,
            "measure": if options.bytes { "byte_hit_ratio" } else { "hit_ratio" },
            "opt": opt, "policies": by_name,
        }));
    }
    let text = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    std::fs::write(&options.json, text).map_err(|error| format!("cannot write {}: {error}", options.json))
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("hit_ratio: {message}");
            ExitCode::FAILURE
        }
    }
}
