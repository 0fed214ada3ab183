//! What a sample says about the mean behind it: 95 % confidence intervals, and whether a difference
//! is significant.
//!
//! The systems or seeds of a sample are independent, so the interval is Student's, and a paired
//! difference is significant if its interval excludes zero (the paired t test at 5 %). Ratios are
//! compared by their logarithms: a system that takes twice as long and one that takes half as long
//! cancel each other.

use serde::Serialize;

/// A mean and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean of the sample.
    pub mean: f64,
    /// Ends of the interval; `None` for a sample of one, which says nothing about its spread.
    pub interval: Option<(f64, f64)>,
    /// Size of the sample.
    pub count: usize,
}

/// What an interval says about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// All pairs are equal.
    None,
    /// Significantly below.
    Lower,
    /// Significantly above.
    Higher,
    /// The interval contains zero.
    NotSignificant,
    /// One pair is not a sample.
    TooFew,
}

impl Difference {
    /// The word for a table.
    pub fn word(self) -> &'static str {
        match self {
            Difference::None => "equal",
            Difference::Lower => "lower",
            Difference::Higher => "higher",
            Difference::NotSignificant => "not significant",
            Difference::TooFew => "too few",
        }
    }
}

/// 97.5 % quantiles of Student's distribution, from one degree of freedom on.
const T_QUANTILES: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// The quantile; beyond the table, the expansion of Cornish and Fisher in the normal quantile: off
/// by less than 0.001.
fn t_quantile(degrees: usize) -> f64 {
    if let Some(quantile) = T_QUANTILES.get(degrees.saturating_sub(1)) {
        return *quantile;
    }
    let (z, n) = (1.959_964_f64, degrees as f64);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n)
}

impl Estimate {
    /// The mean of `values`, which are independent of each other.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let interval = (count > 1).then(|| {
            let error = (spread / (count - 1) as f64 / count as f64).sqrt();
            let half = t_quantile(count - 1) * error;
            (mean - half, mean + half)
        });
        Estimate { mean, interval, count }
    }

    /// The geometric mean of `ratios`, as a change in percent.
    pub fn change_percent(ratios: &[f64]) -> Self {
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        Estimate::of(&logs).map(|log| 100.0 * log.exp_m1())
    }

    /// The change in percent from the sum of `base` to that of `values`, which are paired: the
    /// ratio estimator, with the variance of its residuals.
    pub fn change_of_sums_percent(values: &[f64], base: &[f64]) -> Self {
        let (sum, base_sum) = (values.iter().sum::<f64>(), base.iter().sum::<f64>());
        let (ratio, mean) = (sum / base_sum, base_sum / base.len().max(1) as f64);
        let residuals: Vec<f64> =
            values.iter().zip(base).map(|(v, b)| ratio + (v - ratio * b) / mean).collect();
        Estimate::of(&residuals).map(|ratio| 100.0 * (ratio - 1.0))
    }

    /// The same estimate on another scale; `of` must increase.
    fn map(self, of: impl Fn(f64) -> f64) -> Self {
        let interval = self.interval.map(|(low, high)| (of(low), of(high)));
        Estimate { mean: of(self.mean), interval, count: self.count }
    }

    /// Whether a mean difference, or a change in percent, is significant.
    pub fn difference(&self) -> Difference {
        match self.interval {
            None => Difference::TooFew,
            Some((0.0, 0.0)) => Difference::None,
            Some((_, high)) if high < 0.0 => Difference::Lower,
            Some((low, _)) if low > 0.0 => Difference::Higher,
            Some(_) => Difference::NotSignificant,
        }
    }

    /// Whether the whole interval is below `limit`.
    pub fn below(&self, limit: f64) -> bool {
        self.interval.is_some_and(|(_, high)| high < limit)
    }

    /// Mean, low and high end as cells of a table; ends are `-` for a sample of one.
    pub fn cells(&self, decimals: usize) -> [String; 3] {
        let cell = |value: f64| {
            let text = format!("{value:.decimals$}");
            let zero = text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.');
            if zero { text.trim_start_matches('-').into() } else { text }
        };
        let end = |of: fn((f64, f64)) -> f64| self.interval.map_or("-".into(), |ends| cell(of(ends)));
        [cell(self.mean), end(|ends| ends.0), end(|ends| ends.1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::rng::Rng;

    #[test]
    fn an_interval_by_hand() {
        // Deviation 1, error 1 / sqrt(3), 4.303 of it.
        let got = Estimate::of(&[1.0, 2.0, 3.0]);
        let (low, high) = got.interval.expect("three values");
        assert!((got.mean - 2.0).abs() < 1e-12 && (high - 4.484).abs() < 1e-3 && (low + 0.484).abs() < 1e-3);
    }

    #[test]
    fn quantiles_beyond_the_table_are_those_of_printed_tables() {
        for (degrees, printed) in
            [(11, 2.201), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (120, 1.980)]
        {
            assert!((t_quantile(degrees) - printed).abs() < 1e-3, "{degrees}: {}", t_quantile(degrees));
        }
    }

    /// Of 2,000 samples of ten, about 95 % of the intervals contain the mean behind them.
    #[test]
    fn intervals_cover_the_mean_as_often_as_they_say() {
        let mut rng = Rng::new(5);
        let mut sample = || (0..10).map(|_| rng.unit() + rng.unit()).collect::<Vec<_>>();
        let covered =
            (0..2000).filter(|_| Estimate::of(&sample()).interval.is_some_and(|(l, h)| l < 1.0 && 1.0 < h));
        let percent = covered.count() as f64 / 20.0;
        assert!((93.5..96.5).contains(&percent), "{percent}");
    }

    #[test]
    fn twice_and_half_cancel_each_other() {
        let got = Estimate::change_percent(&[2.0, 0.5]);
        assert!(got.mean.abs() < 1e-12);
        assert_eq!(got.difference(), Difference::NotSignificant);
    }

    #[test]
    fn differences_in_words() {
        let of = |values: &[f64]| Estimate::of(values).difference().word();
        let got = [of(&[1.0]), of(&[0.0; 3]), of(&[-3.0, -2.9, -3.1]), of(&[2.0; 4]), of(&[-1.0, 1.1])];
        assert_eq!(got, ["too few", "equal", "lower", "higher", "not significant"]);
    }

    #[test]
    fn a_change_of_sums_is_that_of_the_sums() {
        let got = Estimate::change_of_sums_percent(&[9.0, 18.0, 28.0], &[10.0, 20.0, 30.0]);
        assert!((got.mean - 100.0 * (55.0 / 60.0 - 1.0)).abs() < 1e-9);
        assert!(got.below(0.0) && !got.below(-8.0));
    }
}
