//! Lines over a numeric x axis, linear or logarithmic.

use super::axis::{Frame, ticks};
use super::colour;
use super::svg::{Anchor, Canvas};
use crate::csv::csv;
use crate::figure::Figure;
use crate::report::number;

/// A line chart.
pub struct Lines<'a> {
    /// Above the figure.
    pub title: &'a str,
    /// Below the x axis, with its unit.
    pub x_label: &'a str,
    /// Beside the y axis, with its unit.
    pub y_label: &'a str,
    /// Whether x is shown on a logarithmic scale; then every x must be positive.
    pub log_x: bool,
    /// Name and points of each line, in ascending x.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
    /// Dashed horizontal lines with their names.
    pub marks: Vec<(String, f64)>,
}

/// A published point: number of its series, from 0, and where it is.
pub type Printed = (usize, (f64, f64));

/// What the legend calls the circles.
const PRINTED: &str = "printed";

impl Lines<'_> {
    /// The figure, and its points and marks; a mark has no x.
    pub fn figure(&self) -> Figure {
        self.figure_beside(&[])
    }

    /// Draws the same with hollow circles at published points. In the data, such a point is in the
    /// series `NAME (printed)`.
    pub fn figure_beside(&self, printed: &[Printed]) -> Figure {
        let points = |(name, points): &(String, Vec<(f64, f64)>)| -> Vec<Vec<String>> {
            points.iter().map(|(x, y)| vec![name.clone(), x.to_string(), y.to_string()]).collect()
        };
        let mark = |(name, y): &(String, f64)| vec![name.clone(), String::new(), y.to_string()];
        let mut rows: Vec<Vec<String>> = self.series.iter().flat_map(points).collect();
        rows.extend(printed.iter().map(|(series, (x, y))| {
            vec![format!("{} ({PRINTED})", self.series[*series].0), x.to_string(), y.to_string()]
        }));
        rows.extend(self.marks.iter().map(mark));
        Figure { svg: self.svg(printed), csv: csv(&["series", self.x_label, self.y_label], &rows) }
    }

    fn svg(&self, printed: &[Printed]) -> String {
        let (width, height) = (640.0, 340.0);
        let points = || self.series.iter().flat_map(|s| s.1.iter());
        let beside = || self.marks.iter().map(|m| m.1).chain(printed.iter().map(|p| p.1.1));
        let ys = || points().map(|p| p.1).chain(beside());
        let frame = Frame::new(width, height, ys().fold(0.0, f64::min), ys().fold(0.0, f64::max));
        let scale = |x: f64| if self.log_x { x.log10() } else { x };
        let x_min = points().map(|p| scale(p.0)).fold(f64::INFINITY, f64::min);
        let x_max = points().map(|p| scale(p.0)).fold(f64::NEG_INFINITY, f64::max).max(x_min + 1e-9);
        let x = |v: f64| frame.left + (v - x_min) / (x_max - x_min) * (frame.right - frame.left);
        let mut canvas = Canvas::new(width, height);
        frame.draw(&mut canvas, self.title, self.y_label);
        for tick in ticks(x_min, x_max).into_iter().filter(|t| (x_min..=x_max + 1e-9).contains(t)) {
            canvas.line((x(tick), frame.bottom), (x(tick), frame.bottom + 4.0), "#222", 1.0);
            let label = number(if self.log_x { 10f64.powf(tick) } else { tick });
            canvas.text((x(tick), frame.bottom + 17.0), &label, 11.0, Anchor::Middle);
        }
        canvas.text(((frame.left + frame.right) / 2.0, height - 10.0), self.x_label, 12.0, Anchor::Middle);
        let entries: Vec<(&str, &str)> =
            self.series.iter().enumerate().map(|(i, s)| (s.0.as_str(), colour(i))).collect();
        let end = canvas.legend((frame.left, 38.0), &entries);
        if !printed.is_empty() {
            canvas.ring((end + 5.0, 34.0), 4.0, "");
            canvas.text((end + 14.0, 38.0), PRINTED, 11.0, Anchor::Start);
        }
        for (i, (_, line)) in self.series.iter().enumerate() {
            let pixels: Vec<(f64, f64)> = line.iter().map(|p| (x(scale(p.0)), frame.y(p.1))).collect();
            canvas.polyline(&pixels, colour(i));
            if line.len() <= 40 {
                pixels.iter().for_each(|&p| canvas.circle(p, 2.5, colour(i)));
            }
        }
        for &(series, (at, value)) in printed {
            let tip = format!("{}: {} at {}, {PRINTED}", self.series[series].0, number(value), number(at));
            canvas.ring((x(scale(at)), frame.y(value)), 4.0, &tip);
        }
        for (name, value) in &self.marks {
            let y = frame.y(*value);
            canvas.dashed((frame.left, y), (frame.right, y), "#777");
            canvas.text((frame.right, y - 3.0), name, 10.0, Anchor::End);
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_points_are_circles_with_a_name_in_the_legend() {
        let lines = Lines {
            title: "t",
            x_label: "x",
            y_label: "y",
            log_x: false,
            series: vec![("s".into(), vec![(1.0, 0.0), (3.0, 1.0)])],
            marks: vec![],
        };
        let Figure { svg, csv } = lines.figure_beside(&[(0, (2.0, 0.75))]);
        assert_eq!(csv, "series,x,y\ns,1,0\ns,3,1\ns (printed),2,0.75\n");
        assert!(svg.contains("s: 0.75 at 2, printed") && svg.contains(">printed</text>"));
    }

    #[test]
    fn a_logarithmic_axis_is_even_in_decades() {
        let figure = Lines {
            title: "t",
            x_label: "x",
            y_label: "y",
            log_x: true,
            series: vec![("s".into(), vec![(1.0, 0.0), (10.0, 1.0), (100.0, 2.0)])],
            marks: vec![("m".into(), 0.5)],
        }
        .figure();
        assert_eq!(figure.csv, "series,x,y\ns,1,0\ns,10,1\ns,100,2\nm,,0.5\n");
        let points = figure.svg.split("points=\"").nth(1).and_then(|s| s.split('"').next()).expect("a line");
        let xs: Vec<f64> =
            points.split(' ').map(|p| p.split(',').next().expect("x").parse().expect("x")).collect();
        assert!((xs[1] - xs[0] - (xs[2] - xs[1])).abs() < 0.02, "{xs:?}");
    }
}
