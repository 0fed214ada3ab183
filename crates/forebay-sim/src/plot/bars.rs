//! Grouped bars: one group per category, one bar per series.

use super::axis::Frame;
use super::colour;
use super::svg::{Anchor, Canvas};
use crate::csv::csv;
use crate::figure::Figure;
use crate::report::number;

/// A bar chart.
pub struct Bars<'a> {
    /// Above the figure.
    pub title: &'a str,
    /// Beside the y axis, with its unit.
    pub y_label: &'a str,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Name and one value per group; NaN leaves a gap.
    pub series: Vec<(String, Vec<f64>)>,
    /// Dashed lines across, with their names: deadlines, bounds.
    pub marks: Vec<(String, f64)>,
}

/// A value that a paper publishes for a bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Printed {
    /// Number of the bar's series, from 0.
    pub series: usize,
    /// Number of its group, from 0.
    pub group: usize,
    /// The published value.
    pub value: f64,
}

/// What the legend calls the circles.
const PRINTED: &str = "printed";

impl Bars<'_> {
    /// The figure, and its bars and marks; a mark is of no group, and a gap has no value.
    pub fn figure(&self) -> Figure {
        self.figure_beside(&[])
    }

    /// Draws the same with hollow circles at published values. In the data, such a value is in the
    /// series `NAME (printed)`.
    pub fn figure_beside(&self, printed: &[Printed]) -> Figure {
        let cell = |value: f64| if value.is_finite() { value.to_string() } else { String::new() };
        let bars = |(name, values): &(String, Vec<f64>)| -> Vec<Vec<String>> {
            let bar = |(group, value): (&String, &f64)| vec![name.clone(), group.clone(), cell(*value)];
            self.groups.iter().zip(values).map(bar).collect()
        };
        let mut rows: Vec<Vec<String>> = self.series.iter().flat_map(bars).collect();
        rows.extend(printed.iter().map(|p| {
            let name = format!("{} ({PRINTED})", self.series[p.series].0);
            vec![name, self.groups[p.group].clone(), p.value.to_string()]
        }));
        rows.extend(self.marks.iter().map(|(name, value)| vec![name.clone(), String::new(), cell(*value)]));
        Figure { svg: self.svg(printed), csv: csv(&["series", "group", self.y_label], &rows) }
    }

    fn svg(&self, printed: &[Printed]) -> String {
        let per_group = self.series.len().max(1) as f64;
        let width = (140.0 + self.groups.len() as f64 * (per_group * 13.0 + 18.0)).max(480.0);
        let height = 320.0;
        let values = || {
            let bars = self.series.iter().flat_map(|s| s.1.iter().copied());
            let beside = self.marks.iter().map(|m| m.1).chain(printed.iter().map(|p| p.value));
            bars.chain(beside).filter(|v| v.is_finite())
        };
        let frame = Frame::new(width, height, values().fold(0.0, f64::min), values().fold(0.0, f64::max));
        let mut canvas = Canvas::new(width, height);
        frame.draw(&mut canvas, self.title, self.y_label);
        let entries: Vec<(&str, &str)> =
            self.series.iter().enumerate().map(|(i, s)| (s.0.as_str(), colour(i))).collect();
        let end = canvas.legend((frame.left, 38.0), &entries);
        if !printed.is_empty() {
            canvas.ring((end + 5.0, 34.0), 4.0, "");
            canvas.text((end + 14.0, 38.0), PRINTED, 11.0, Anchor::Start);
        }
        let group_width = (frame.right - frame.left) / self.groups.len().max(1) as f64;
        let bar_width = group_width * 0.8 / per_group;
        for (g, name) in self.groups.iter().enumerate() {
            let x = frame.left + (g as f64 + 0.1) * group_width;
            for (s, (series, values)) in self.series.iter().enumerate() {
                let value = values[g];
                if value.is_finite() {
                    let (a, b) = (frame.y(value), frame.y(0.0));
                    let tip = format!("{name}, {series}: {}", number(value));
                    let left = x + s as f64 * bar_width;
                    canvas.rect(left, a.min(b), bar_width * 0.92, (a - b).abs(), colour(s), &tip);
                }
            }
            canvas.text((x + 0.4 * group_width, frame.bottom + 18.0), name, 11.0, Anchor::Middle);
        }
        for p in printed {
            let x = frame.left + (p.group as f64 + 0.1) * group_width + (p.series as f64 + 0.46) * bar_width;
            let (group, series) = (&self.groups[p.group], &self.series[p.series].0);
            let tip = format!("{group}, {series}: {} {PRINTED}", number(p.value));
            canvas.ring((x, frame.y(p.value)), 4.0, &tip);
        }
        for (name, value) in &self.marks {
            let y = frame.y(*value);
            canvas.dashed((frame.left, y), (frame.right, y), "#d55e00");
            canvas.text((frame.right, y - 3.0), name, 10.0, Anchor::End);
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_values_are_circles_with_a_name_in_the_legend() {
        let bars = Bars {
            title: "t",
            y_label: "s",
            groups: vec!["1".into(), "2".into()],
            series: vec![("x".into(), vec![1.0, 2.0])],
            marks: vec![],
        };
        let Figure { svg, csv } = bars.figure_beside(&[Printed { series: 0, group: 1, value: 2.5 }]);
        assert_eq!(csv, "series,group,s\nx,1,1\nx,2,2\nx (printed),2,2.5\n");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("2, x: 2.5 printed") && svg.contains(">printed</text>"));
        assert!(!bars.figure().svg.contains("<circle"));
    }

    #[test]
    fn every_value_has_its_bar_and_names_are_escaped() {
        let Figure { svg, csv } = Bars {
            title: "a < b",
            y_label: "s",
            groups: vec!["1".into(), "2".into()],
            series: vec![("x".into(), vec![1.0, 2.0]), ("y".into(), vec![3.0, f64::NAN])],
            marks: vec![("deadline".into(), 2.5)],
        }
        .figure();
        assert_eq!(svg.matches("<title>").count(), 3);
        assert_eq!(csv, "series,group,s\nx,1,1\nx,2,2\ny,1,3\ny,2,\ndeadline,,2.5\n");
        assert!(svg.contains("a &lt; b") && svg.contains("stroke-dasharray"));
    }
}
