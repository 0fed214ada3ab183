//! Boxes from the first to the third quartile, with the median, the mean and both ends.

use super::axis::Frame;
use super::colour;
use super::svg::{Anchor, Canvas};
use crate::csv::csv;
use crate::figure::Figure;
use crate::report::number;

/// A box plot.
pub struct Boxes<'a> {
    /// Above the figure.
    pub title: &'a str,
    /// Beside the y axis, with its unit.
    pub y_label: &'a str,
    /// Name and values of each box.
    pub series: Vec<(String, Vec<f64>)>,
    /// The greatest value that is shown; values above it end at the frame.
    pub most: f64,
    /// Dashed lines across, with their names.
    pub marks: Vec<(String, f64)>,
}

/// Least value, quartiles and greatest value; 0 if there are no values.
pub fn quartiles(values: &[f64]) -> [f64; 5] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * sorted.len().saturating_sub(1) as f64;
        let of = |i: f64| sorted.get(i as usize).copied().unwrap_or(0.0);
        of(place.floor()) + place.fract() * (of(place.ceil()) - of(place.floor()))
    };
    [0.0, 0.25, 0.5, 0.75, 1.0].map(at)
}

impl Boxes<'_> {
    /// The figure, and what its boxes show.
    pub fn figure(&self) -> Figure {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let boxes: Vec<([f64; 5], f64)> =
            self.series.iter().map(|(_, values)| (quartiles(values), mean(values))).collect();
        let columns = ["series", "least", "first quartile", "median", "third quartile", "greatest", "mean"];
        let numbers = |(q, mean): &([f64; 5], f64)| q.iter().chain([mean]).map(f64::to_string).collect();
        let rows: Vec<Vec<String>> = boxes.iter().map(numbers).collect();
        let named = |(s, row): (&(String, Vec<f64>), Vec<String>)| [vec![s.0.clone()], row].concat();
        let rows: Vec<Vec<String>> = self.series.iter().zip(rows).map(named).collect();
        Figure { svg: self.svg(&boxes), csv: csv(&columns, &rows) }
    }

    fn svg(&self, boxes: &[([f64; 5], f64)]) -> String {
        let (width, height) = (140.0 + 62.0 * boxes.len() as f64, 360.0);
        let top = boxes.iter().map(|b| b.0[4]).chain(self.marks.iter().map(|m| m.1)).fold(0.0, f64::max);
        let mut frame = Frame::new(width, height, 0.0, top.min(self.most));
        frame.bottom -= 12.0;
        let mut canvas = Canvas::new(width, height);
        frame.draw(&mut canvas, self.title, self.y_label);
        let place = (frame.right - frame.left) / boxes.len().max(1) as f64;
        let y = |value: f64| frame.y(value.min(frame.y_max));
        for (i, ((name, _), (q, mean))) in self.series.iter().zip(boxes).enumerate() {
            let (x, half) = (frame.left + (i as f64 + 0.5) * place, 0.28 * place);
            canvas.line((x, y(q[0])), (x, y(q[4])), "#222", 1.0);
            let tip = format!("{name}: {} to {}, median {}", number(q[1]), number(q[3]), number(q[2]));
            canvas.rect(x - half, y(q[3]), 2.0 * half, (y(q[1]) - y(q[3])).max(1.0), colour(i), &tip);
            canvas.line((x - half, y(q[2])), (x + half, y(q[2])), "#222", 2.0);
            canvas.circle((x, y(*mean)), 3.0, "#222");
            // Two lines of names, in turn: they are wider than boxes.
            let line = frame.bottom + 16.0 + 14.0 * (i % 2) as f64;
            canvas.text((x, line), name, 10.0, Anchor::Middle);
        }
        for (name, value) in &self.marks {
            canvas.dashed((frame.left, y(*value)), (frame.right, y(*value)), "#d55e00");
            canvas.text((frame.right, y(*value) - 3.0), name, 10.0, Anchor::End);
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_values() {
        assert_eq!(quartiles(&[4.0, 1.0, 2.0, 3.0]), [1.0, 1.75, 2.5, 3.25, 4.0]);
        assert_eq!((quartiles(&[7.0]), quartiles(&[])), ([7.0; 5], [0.0; 5]));
    }

    #[test]
    fn each_series_has_a_box_and_a_row() {
        let series = vec![("a".into(), vec![1.0, 2.0, 3.0]), ("b".into(), vec![9.0])];
        let marks = vec![("bound".into(), 1.0)];
        let Figure { svg, csv } = Boxes { title: "t", y_label: "y", series, most: 4.0, marks }.figure();
        let header = "series,least,first quartile,median,third quartile,greatest,mean\n";
        assert_eq!(csv, format!("{header}a,1,1.5,2,2.5,3,2\nb,9,9,9,9,9,9\n"));
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(svg.contains("stroke-dasharray"));
    }
}
