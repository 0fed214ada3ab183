//! Runs the burst detector and the predictor on traces of I/O, for `make bench-predict`.
//!
//! Reads lines `start end bytes` (seconds from any origin, bytes) of one call or one phase each, in
//! the order of their starts. Prints a line for each burst that has ended: its number, its start,
//! and the prediction after it: period, start of the next (seconds) and confidence, or `-` if there
//! is none. The last line has the time of one update in nanoseconds.

use forebay_policy::phases::bursts::{Burst, Bursts, MAX_GAP_NS};
use forebay_policy::phases::predict::{Prediction, Predictor};
use std::error::Error;
use std::io::{Read, stdin};
use std::time::Instant;

const NS: f64 = 1e9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let calls = text.lines().map(parse).collect::<Result<Vec<_>, _>>()?;
    let bursts = bursts(&calls);
    let mut predictor = Predictor::new();
    for (number, burst) in bursts.iter().enumerate() {
        predictor.burst(burst);
        let start_s = burst.start_ns as f64 / NS;
        println!("{number} {start_s:.6} {}", text_of(predictor.next(burst.end_ns)));
    }
    println!("update_ns {:.0}", update_ns(&bursts));
    Ok(())
}

fn parse(line: &str) -> Result<Burst, Box<dyn Error>> {
    let mut fields = line.split_whitespace().map(str::parse::<f64>);
    let mut field = || fields.next().ok_or_else(|| format!("{line:?} is not `start end bytes`"));
    let (start_s, end_s, bytes) = (field()??, field()??, field()??);
    Ok(Burst { start_ns: (start_s * NS) as u64, end_ns: (end_s * NS) as u64, bytes: bytes as u64 })
}

fn bursts(calls: &[Burst]) -> Vec<Burst> {
    let mut detector = Bursts::new();
    let mut found = Vec::new();
    for call in calls {
        found.extend(detector.interval(*call));
        // Reports without progress, as an agent's polls are.
        while let Some(burst) = detector.quiet(call.start_ns) {
            found.push(burst);
        }
    }
    let end_ns = calls.last().map_or(0, |call| call.end_ns) + 2 * MAX_GAP_NS;
    while let Some(burst) = detector.quiet(end_ns) {
        found.push(burst);
    }
    found
}

fn text_of(prediction: Option<Prediction>) -> String {
    prediction.map_or("- - -".into(), |p| {
        format!("{:.6} {:.6} {:.3}", p.period_ns as f64 / NS, p.start_ns as f64 / NS, p.confidence)
    })
}

/// Mean over many passes: detector, predictor and prediction of one burst.
fn update_ns(bursts: &[Burst]) -> f64 {
    const UPDATES: usize = 100_000;
    let passes = UPDATES / bursts.len().max(1) + 1;
    let begin = Instant::now();
    for _ in 0..passes {
        let (mut detector, mut predictor) = (Bursts::new(), Predictor::new());
        for burst in bursts {
            if let Some(ended) = detector.interval(*burst) {
                predictor.burst(&ended);
                std::hint::black_box(predictor.next(ended.end_ns));
            }
        }
    }
    begin.elapsed().as_nanos() as f64 / (passes * bursts.len().max(1)) as f64
}
