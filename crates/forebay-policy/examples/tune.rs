#[path = "support/mod.rs"]
mod support;
use forebay_policy::eviction::*;
fn main() {
    let scale: f64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(0.25);
    print!("{:50} {:>6}", "", "opt");
    for v in EvictionKind::ALL {
        print!(" {:>10}", v.name());
    }
    println!();
    for trace in support::all_traces(scale) {
        let opt = support::belady(&trace).hit_ratio;
        print!("{:50} {:6.4}", format!("{} {}", trace.family, trace.name), opt);
        for c in EvictionKind::ALL {
            let mut policy = c.build(trace.capacity_bytes);
            let r = support::replay(&mut *policy, &trace).hit_ratio;
            print!(" {:10.4}", r);
        }
        println!();
    }
}
