//! What values a quantity has over time, or over many things: mean, quantiles, the greatest.

use forebay_policy::machine::Nanos;
use serde::Serialize;

/// Parts of each doubling of a value and 0.001: how close quantiles are to values that were added.
const PARTS: f64 = 256.0;

/// Values with weights.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    weights: Vec<f64>,
    weight: f64,
    sum: f64,
    most: f64,
}

/// A [`Spread`] in four numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The weighted mean.
    pub mean: f64,
    /// Half of the weight has this value or less.
    pub median: f64,
    /// 99 % of the weight has this value or less.
    pub p99: f64,
    /// The greatest value.
    pub most: f64,
}

impl Spread {
    /// `value`, which is not negative, counts `weight` times.
    pub fn add(&mut self, value: f64, weight: f64) {
        if weight <= 0.0 {
            return;
        }
        let part = ((1.0 + value * 1e3).log2() * PARTS) as usize;
        if part >= self.weights.len() {
            self.weights.resize(part + 1, 0.0);
        }
        self.weights[part] += weight;
        self.weight += weight;
        self.sum += value * weight;
        self.most = self.most.max(value);
    }

    /// The sum of the weights.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The least value with at least this fraction of the weight at or below it, to 0.2 % and
    /// 0.001.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut left = self.weight * part;
        let at = self.weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        });
        let value = |at: usize| (((at as f64 + 0.5) / PARTS).exp2() - 1.0) * 1e-3;
        // The first part holds the zeros.
        at.filter(|at| *at > 0).map_or(0.0, value).min(self.most)
    }

    /// Summarises it in four numbers.
    pub fn summary(&self) -> Summary {
        Summary {
            mean: if self.weight > 0.0 { self.sum / self.weight } else { 0.0 },
            median: self.quantile(0.5),
            p99: self.quantile(0.99),
            most: self.most,
        }
    }
}

/// A quantity that changes over time.
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    value: f64,
    since: Nanos,
    spread: Spread,
}

impl Gauge {
    /// Adds `by` to the value from `now` on.
    pub fn change(&mut self, now: Nanos, by: f64) {
        self.spread.add(self.value, now.saturating_since(self.since) as f64 * 1e-9);
        // Sums of fractions may end a little below zero.
        (self.value, self.since) = ((self.value + by).max(0.0), now);
    }

    /// Its value now.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The values that it has had until `now`, weighted by time.
    pub fn until(mut self, now: Nanos) -> Spread {
        self.change(now, 0.0);
        self.spread
    }
}

/// Messages in each second.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    second: u64,
    count: f64,
    /// Messages that come every second.
    pub steady: Gauge,
    spread: Spread,
    sum: f64,
}

impl Messages {
    /// Adds `count` messages at `now`.
    pub fn add(&mut self, now: Nanos, count: f64) {
        self.go_on(now);
        self.count += count;
    }

    /// Adds `by` to the messages that come every second from `now` on.
    pub fn change(&mut self, now: Nanos, by: f64) {
        self.go_on(now);
        self.steady.change(now, by);
    }

    fn go_on(&mut self, now: Nanos) {
        let second = now.0 / 1_000_000_000;
        if second > self.second {
            self.close();
            self.spread.add(self.steady.value(), (second - self.second - 1) as f64);
            self.sum += self.steady.value() * (second - self.second - 1) as f64;
            self.second = second;
        }
    }

    fn close(&mut self) {
        let of_second = self.count + self.steady.value();
        self.spread.add(of_second, 1.0);
        self.sum += of_second;
        self.count = 0.0;
    }

    /// The sum over the seconds that are over at `now`.
    pub fn sum(&mut self, now: Nanos) -> f64 {
        self.go_on(now);
        self.sum
    }

    /// The counts of the seconds until `now`.
    pub fn until(mut self, now: Nanos) -> Spread {
        self.go_on(now);
        self.close();
        self.spread
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn messages_are_counted_by_the_second() {
        let mut messages = Messages::default();
        messages.change(Nanos(0), 2.0);
        messages.add(Nanos(S / 2), 5.0);
        messages.add(Nanos(S - 1), 1.0);
        messages.add(Nanos(4 * S), 3.0);
        assert_eq!(messages.sum(Nanos(5 * S)), 8.0 + 3.0 * 2.0 + 5.0);
        let spread = messages.until(Nanos(9 * S)).summary();
        assert_eq!((spread.most, spread.mean), (8.0, (8.0 + 8.0 * 2.0 + 5.0) / 10.0));
    }

    #[test]
    fn a_gauge_weighs_values_by_time() {
        let mut gauge = Gauge::default();
        gauge.change(Nanos(8 * S), 4.0);
        gauge.change(Nanos(10 * S), -4.0);
        let summary = gauge.until(Nanos(10 * S)).summary();
        assert_eq!((summary.mean, summary.median, summary.most), (0.8, 0.0, 4.0));
    }

    proptest! {
        #[test]
        fn quantiles_are_near_those_of_the_sorted_values(
            mut values in prop::collection::vec(0.0f64..1e6, 1..200), part in 0.0f64..1.0
        ) {
            let mut spread = Spread::default();
            values.iter().for_each(|value| spread.add(*value, 2.0));
            values.sort_by(f64::total_cmp);
            let exact = values[((part * values.len() as f64).ceil() as usize).max(1) - 1];
            let got = spread.quantile(part);
            // Rounding may choose the neighbour.
            let near = |exact: f64| (got - exact).abs() <= 0.002 * exact + 1e-3;
            let next = values[((part * values.len() as f64).ceil() as usize).min(values.len() - 1)];
            prop_assert!(near(exact) || near(next), "{got} for {exact}");
        }
    }
}
