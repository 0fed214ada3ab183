//! `sim sweep`: a scenario over a grid of parameters.

use super::run::replicated;
use super::{Output, SweepArgs, show};
use crate::error::Result;
use crate::parallel::threads;
use crate::scenario::File;
use crate::study::{self, Axis};

pub fn sweep(args: &SweepArgs, out: &mut Output<'_>) -> Result<()> {
    let file = File::read(&args.scenario)?;
    let axes = args.grid.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>>>()?;
    let threads = threads(args.threads);
    if let Some(seeds) = args.seeds {
        let study = study::sweep_seeds(&file, &axes, seeds, threads)?;
        return replicated(&study, args.csv.as_deref(), out);
    }
    let rows = study::sweep(&file, &axes, threads)?;
    match &args.csv {
        Some(path) => rows.write(path),
        None => show(out, &rows),
    }
}
