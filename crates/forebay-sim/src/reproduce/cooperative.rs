//! Cooperative checkpointing: Herault, Robert, Bouteiller, Arnold, Ferreira, Bosilca and Dongarra,
//! *Optimal Cooperative Checkpointing for Shared High-Performance Computing Platforms*, IPDPSW
//! 2018, and *Checkpointing Strategies for Shared High-Performance Computing Platforms*, IJNC 2019.
//! The seven strategies on Cielo, and ours beside them.

use crate::error::Result;
use crate::estimate::Estimate;
use crate::parallel::{in_parallel, threads};
use crate::plot::lines::Lines;
use crate::random::platforms::Made;
use crate::report::{Record, Report};
use crate::waste::cielo::cielo;
use crate::waste::{Platform, STRATEGIES, Window};

const DAY_S: f64 = 86_400.0;
/// Bandwidths: the paper's range, and its ends for nodes.
const BANDWIDTHS_GB_PER_S: [u32; 3] = [40, 80, 160];
const MTBF_YEARS: [u32; 3] = [2, 10, 50];
const SEEDS: u64 = 4;
/// The target of our waste, as a multiple of the bound.
const MOST: f64 = 1.1;

/// A strategy on a platform: waste, and its multiple of the bound, over all seeds.
struct Means {
    waste: Estimate,
    of_bound: Estimate,
}

/// All strategies on a platform, in their order.
fn all(platform: &Platform) -> Result<Vec<Means>> {
    let means = |i: usize| -> Result<Means> {
        let window = |seed| Window { seed, from_s: 5.0 * DAY_S, for_s: 30.0 * DAY_S };
        let made = |seed| Made::of(platform, &STRATEGIES[i], &window(seed));
        let made = (0..SEEDS).map(made).collect::<Result<Vec<_>>>()?;
        let of = |of: fn(&Made) -> f64| Estimate::of(&made.iter().map(of).collect::<Vec<_>>());
        Ok(Means { waste: of(|made| 100.0 * made.outcome.waste()), of_bound: of(Made::of_bound) })
    };
    in_parallel(STRATEGIES.len(), threads(None), means).into_iter().collect()
}

fn place(name: &str) -> usize {
    STRATEGIES.iter().position(|strategy| strategy.name == name).unwrap_or(0)
}

/// Adds the part to the report.
///
/// # Errors
/// If a run does not end or a figure cannot be written.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Cooperative checkpointing: waste of platform time");
    report.text(include_str!("cooperative.md"));
    let by_bandwidth = BANDWIDTHS_GB_PER_S.map(|gb| (gb, cielo(gb.into(), 2.0)));
    let measured = figure(report, "bandwidth", "bandwidth of the PFS (GB/s)", &by_bandwidth)?;
    for ((gb, _), means) in by_bandwidth.iter().zip(&measured) {
        table(report, *gb, means);
        judge(report, *gb, means);
    }
    let by_failures = MTBF_YEARS.map(|years| (years, cielo(40.0, years.into())));
    figure(report, "failures", "mean time between failures of a node (years)", &by_failures)?;
    Ok(())
}

/// Waste over what the platforms differ by.
fn figure(
    report: &mut Report,
    name: &str,
    x_label: &str,
    platforms: &[(u32, Platform)],
) -> Result<Vec<Vec<Means>>> {
    let measured = platforms.iter().map(|(_, platform)| all(platform)).collect::<Result<Vec<_>>>()?;
    let line = |i: usize| {
        let points =
            platforms.iter().zip(&measured).map(|((x, _), means)| (f64::from(*x), means[i].waste.mean));
        (STRATEGIES[i].name.to_owned(), points.collect())
    };
    let mut series: Vec<(String, Vec<(f64, f64)>)> = (0..STRATEGIES.len()).map(line).collect();
    let bound = |(x, platform): &(u32, Platform)| {
        (f64::from(*x), 100.0 * crate::waste::bound::printed(&platform.jobs(&platform.counts())))
    };
    series.push(("bound".into(), platforms.iter().map(bound).collect()));
    let title = "Waste of platform time on Cielo (%)";
    let lines = Lines { title, x_label, y_label: "waste (%)", log_x: true, series, marks: vec![] };
    report.figure(&format!("cooperative-{name}.svg"), &lines.figure(), title)?;
    Ok(measured)
}

fn table(report: &mut Report, gb: u32, means: &[Means]) {
    report.heading(3, &format!("{gb} GB/s"));
    let row = |(strategy, means): (&crate::waste::Strategy, &Means)| {
        [vec![strategy.name.to_owned()], means.waste.cells(1).to_vec(), means.of_bound.cells(3).to_vec()]
            .concat()
    };
    let rows: Vec<Vec<String>> = STRATEGIES.iter().zip(means).map(row).collect();
    report.table(&["strategy", "waste (%)", "low", "high", "of the bound", "low", "high"], &rows);
}

/// Judges the paper's ranking: periods by Young and Daly, then an order, then jobs that compute
/// until it is their turn, and then the order by waste.
fn judge(report: &mut Report, gb: u32, means: &[Means]) {
    let waste = |name: &str| means[place(name)].waste.mean;
    let better = |id: &str, pairs: &[(&str, &str)]| {
        let change = |(a, b): &(&str, &str)| 100.0 * (waste(a) / waste(b) - 1.0);
        let worst = pairs.iter().map(change).fold(f64::MIN, f64::max);
        let words: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} against {b}")).collect();
        let id = format!("cooperative/{gb}/{id}");
        Record::direction(id, worst, "% waste", "below 0", worst < 0.0).note(words.join(", "))
    };
    let mut records = vec![
        better(
            "daly",
            &[
                ("oblivious-daly", "oblivious-fixed"),
                ("ordered-daly", "ordered-fixed"),
                ("ordered-nb-daly", "ordered-nb-fixed"),
            ],
        ),
        better("ordered", &[("ordered-daly", "oblivious-daly")]),
        better("not-blocking", &[("ordered-nb-daly", "ordered-daly"), ("ordered-nb-fixed", "ordered-fixed")]),
        better("least-waste", &[("least-waste", "ordered-nb-daly")]),
    ];
    for name in ["memory", "two-copies"] {
        let ours = &means[place(name)].of_bound;
        let (id, target) = (format!("cooperative/{gb}/{name}"), format!("at most {MOST}"));
        records.push(Record::checked(id, ours.mean, "of the bound", target, ours.mean <= MOST).over(ours));
    }
    report.records(records);
}
