//! `forebay model`: quick questions to the models, answered without a scenario.

use std::io::Write;

use clap::{Args, Subcommand};
use forebay_model::overlap::{self, Flow};

use super::{say, table};
use crate::error::{Error, Result};
use crate::report::number;

/// The models that can be asked.
#[derive(Subcommand, Debug)]
pub enum ModelCommand {
    /// One HPC phase and one prefetch asked for at the same moment: what each action does
    Interference(InterferenceArgs),
}

/// Options of `interference`.
#[derive(Args, Debug)]
pub struct InterferenceArgs {
    /// I/O time of the phase alone, in seconds
    #[arg(long, value_name = "S")]
    io: f64,
    /// Time of the prefetch alone, in seconds
    #[arg(long, value_name = "S")]
    prefetch: f64,
    /// Compute that hides the prefetch, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    compute: f64,
    /// By how much the prefetch stretches the phase
    #[arg(long, value_name = "I")]
    i_hpc: f64,
    /// By how much the phase stretches the prefetch
    #[arg(long, value_name = "I")]
    i_bd: f64,
    /// How much longer than alone the phase may take, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    qos: f64,
}

pub fn model(command: &ModelCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        ModelCommand::Interference(args) => interference(args, out),
    }
}

fn interference(a: &InterferenceArgs, out: &mut dyn Write) -> Result<()> {
    let times = a.io > 0.0 && a.prefetch > 0.0 && a.compute >= 0.0 && a.qos >= 0.0;
    let factors = a.i_hpc >= 1.0 && a.i_bd >= 1.0;
    if !(times && factors) {
        return Err(Error::Usage(
            "times must be positive, compute and qos not negative, and interference factors at least 1"
                .into(),
        ));
    }
    let deadline_s = a.io * (1.0 + a.qos / 100.0);
    let ends = |delay_s: f64| {
        overlap::integrate(
            Flow { start_s: 0.0, alone_s: a.io, factor: a.i_hpc },
            Flow { start_s: delay_s, alone_s: a.prefetch, factor: a.i_bd },
        )
    };
    // The end of the phase falls as the delay grows, so the least delay that is in time is found by halving.
    let (mut early_s, mut late_s) = (0.0, a.io);
    for _ in 0..60 {
        let middle_s = 0.5 * (early_s + late_s);
        if ends(middle_s).0 <= deadline_s { late_s = middle_s } else { early_s = middle_s }
    }
    let row = |name: &str, delay_s: f64| {
        let (io_s, prefetch_s) = ends(delay_s);
        let met = if io_s <= deadline_s * (1.0 + 1e-12) { "yes" } else { "no" };
        let cost_s = overlap::cost_s(prefetch_s, a.compute);
        vec![name.into(), number(delay_s), number(io_s), number(prefetch_s), number(cost_s), met.into()]
    };
    say(out, &format!("deadline of the phase: {} s", number(deadline_s)))?;
    let rows = [row("No Action", 0.0), row("Full Delay", a.io), row("Partial Delay", late_s)];
    table(out, &["action", "delay_s", "phase_ends_s", "prefetch_ends_s", "cost_s", "in_time"], &rows)
}
