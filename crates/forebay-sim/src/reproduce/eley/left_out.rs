//! Table 5 again: each application with constants that were fitted on the other seven.
//!
//! The cells of Table 5 are not judged where constants were fitted on all of them. Here each column
//! is fitted eight times, on a grid of the constants that it determines, and predicts the
//! application that was left out.

use forebay_model::profile::Curve;

use super::Cell;
use super::system::{ALLOWANCES, APPLICATIONS, HPC, cell};
use super::tables::TABLE_5;
use crate::colocate::Setup;
use crate::error::Result;
use crate::parallel::{in_parallel, threads};
use crate::report::{Record, Report};

/// What is fitted on a column: interference factors of direct reads or of a prefetch by 8 nodes of
/// one thread, and the time to read a wave from the tier.
#[derive(Clone, Copy, Debug)]
struct Constants {
    i_hpc: f64,
    i_bd: f64,
    tier_read_s: f64,
}

/// A set of constants, and the mean map time of each application with them.
type Tried = (Constants, Vec<f64>);

impl Constants {
    /// The constants of direct reads; nothing is read from the tier.
    fn of_direct_reads() -> Vec<Constants> {
        grid(&[1.8, 2.0, 2.2], &[2.0, 2.2, 2.4], &[3.0])
    }

    fn of_prefetches() -> Vec<Constants> {
        grid(&[1.2, 1.3, 1.4], &[1.1, 1.2, 1.3], &[2.0, 3.0, 4.0])
    }

    fn put_into(self, setup: &mut Setup) {
        if setup.policy == "naive-bb" {
            (setup.true_direct.i_hpc, setup.true_direct.i_bd) = (self.i_hpc, self.i_bd);
            setup.planner.direct = setup.true_direct;
            return;
        }
        let i_hpc = |nodes: u16| 1.0 + (self.i_hpc - 1.0) * (f64::from(nodes) / 8.0).powi(6);
        let points: Vec<(u16, f64)> = (1..=8).map(|nodes| (nodes, i_hpc(nodes))).collect();
        setup.truth.i_hpc.at_one = i_hpc(1);
        setup.truth.i_hpc.nodes = Curve::relative(&points).expect("counts ascend, values are positive");
        setup.truth.i_bd.at_one = self.i_bd;
        setup.planner.profile = setup.truth.clone();
        setup.jobs[0].tier_read_ns = (self.tier_read_s * 1e9) as u64;
    }
}

fn grid(i_hpc: &[f64], i_bd: &[f64], tier_read_s: &[f64]) -> Vec<Constants> {
    let mut all = Vec::new();
    for &i_hpc in i_hpc {
        for &i_bd in i_bd {
            all.extend(tier_read_s.iter().map(|&tier_read_s| Constants { i_hpc, i_bd, tier_read_s }));
        }
    }
    all
}

fn mean_map_s(policy: &str, constants: Constants, app: usize) -> Result<f64> {
    let mut sum_s = 0.0;
    for hpc in 0..HPC.len() {
        let mut setup = cell(policy, hpc, app, ALLOWANCES[0]);
        constants.put_into(&mut setup);
        sum_s += Cell::of(setup)?.map_s();
    }
    Ok(sum_s / HPC.len() as f64)
}

/// Among what was tried, the set that fits the other applications best: the least sum of the
/// squares of relative errors.
fn fit<'a>(tried: &'a [Tried], printed_s: &[f64], left_out: usize) -> Option<&'a Tried> {
    let error = |(_, map_s): &Tried| -> f64 {
        let errors = map_s.iter().zip(printed_s).map(|(ours, printed)| (ours / printed - 1.0).powi(2));
        errors.enumerate().filter(|(app, _)| *app != left_out).map(|(_, error)| error).sum()
    };
    tried.iter().min_by(|a, b| error(a).total_cmp(&error(b)))
}

/// Adds the predictions to the report.
pub fn all(report: &mut Report) -> Result<()> {
    report.heading(3, "Table 5, each application predicted from the other seven");
    report.text(
        "Constants are fitted on seven applications of a column and predict the eighth. They are those of the column: interference of \
         direct reads (`naive-bb`), interference of prefetches and the time to read a wave from the tier (`no-action`). That the HPC job \
         begins with compute and that the last wave counts as a whole one are not fitted again.",
    );
    let mut records = Vec::new();
    for (policy, sets) in
        [("naive-bb", Constants::of_direct_reads()), ("no-action", Constants::of_prefetches())]
    {
        let printed_s =
            TABLE_5.map(|(naive, no_action)| if policy == "naive-bb" { naive } else { no_action });
        let map_s = |i: usize| -> Result<Tried> {
            let map_s = (0..APPLICATIONS.len()).map(|app| mean_map_s(policy, sets[i], app));
            Ok((sets[i], map_s.collect::<Result<_>>()?))
        };
        let tried = in_parallel(sets.len(), threads(None), map_s).into_iter().collect::<Result<Vec<_>>>()?;
        for (app, paper) in printed_s.into_iter().enumerate() {
            let Some((Constants { i_hpc, i_bd, tier_read_s }, map_s)) = fit(&tried, &printed_s, app) else {
                continue;
            };
            let id = format!("eley/table5-left-out/{policy}/{}", app + 1);
            let read = if policy == "naive-bb" { String::new() } else { format!(", {tier_read_s} s") };
            let note = format!("fitted on the others: I_hpc {i_hpc}, I_bd {i_bd}{read}");
            records.push(Record::print(id, paper, map_s[app], "s").note(note));
        }
    }
    report.records(records);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second set fits the first application, and the first set fits the others.
    #[test]
    fn an_application_is_not_fitted_on_itself() {
        let constants = |i_hpc| Constants { i_hpc, i_bd: 1.0, tier_read_s: 1.0 };
        let tried = [(constants(1.0), vec![50.0, 100.0, 100.0]), (constants(2.0), vec![100.0, 98.0, 98.0])];
        let chosen = |left_out| fit(&tried, &[100.0; 3], left_out).map(|(c, _)| c.i_hpc);
        assert_eq!([0, 1, 2].map(chosen), [Some(1.0), Some(2.0), Some(2.0)]);
    }
}
