//! A timeline: rows of coloured spans over time, as in Gantt charts, and rows of levels, each in a
//! band of its own.

use super::axis::ticks;
use super::svg::{Anchor, Canvas};
use crate::csv::csv;
use crate::figure::Figure;
use crate::report::number;

/// A span of time in one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Index of its row.
    pub row: usize,
    /// Begin and end in seconds.
    pub from_s: f64,
    /// End in seconds.
    pub to_s: f64,
    /// Index into [`Timeline::kinds`].
    pub kind: usize,
    /// Shown when pointed at.
    pub tip: String,
}

/// A value that changes over time, in one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Index of its row.
    pub row: usize,
    /// Its band in the row, from 0 at the top, of as many as the row has. Levels in one band are
    /// drawn over each other.
    pub band: usize,
    /// Index into [`Timeline::kinds`].
    pub kind: usize,
    /// When it changes, in seconds and ascending, and its value from then on. It is 0 before.
    pub points: Vec<(f64, f64)>,
    /// The value that fills the band.
    pub full: f64,
    /// Shown when pointed at.
    pub tip: String,
}

/// A timeline.
#[derive(Default)]
pub struct Timeline<'a> {
    /// Above the figure.
    pub title: &'a str,
    /// Names of the rows from top to bottom.
    pub rows: Vec<String>,
    /// Name and colour of each kind of span and level.
    pub kinds: Vec<(&'a str, &'a str)>,
    /// What to draw; later spans over earlier ones.
    pub spans: Vec<Span>,
    /// Levels; later ones over earlier ones.
    pub levels: Vec<Level>,
    /// Part of the time that is shown, in seconds.
    pub window_s: (f64, f64),
}

/// Pixels.
const WIDTH: f64 = 920.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 52.0;
/// Heights: of a row with spans, of the gap between rows, and of a band.
const ROW: f64 = 30.0;
const GAP: f64 = 8.0;
const BAND: f64 = 15.0;
/// Width over which a level is averaged when drawn.
const STEP: f64 = 2.0;

impl Timeline<'_> {
    /// The figure, and all spans and levels, including those outside the window.
    pub fn figure(&self) -> Figure {
        let cells = |row: usize, kind: usize, from_s: f64, to: String, what: String| {
            let (row, kind) = (self.rows[row].clone(), self.kinds[kind].0.to_owned());
            vec![row, kind, format!("{from_s:.9}"), to, what]
        };
        let span = |s: &Span| cells(s.row, s.kind, s.from_s, format!("{:.9}", s.to_s), s.tip.clone());
        let level = |l: &Level| -> Vec<Vec<String>> {
            let ends = l.points.iter().skip(1).map(|(at_s, _)| format!("{at_s:.9}"));
            let ends = ends.chain(std::iter::once(String::new()));
            let points = l.points.iter().zip(ends);
            points.map(|(&(at_s, value), to)| cells(l.row, l.kind, at_s, to, value.to_string())).collect()
        };
        let mut rows: Vec<Vec<String>> = self.spans.iter().map(span).collect();
        rows.extend(self.levels.iter().flat_map(level));
        Figure { svg: self.svg(), csv: csv(&["row", "kind", "from_s", "to_s", "what"], &rows) }
    }

    fn svg(&self) -> String {
        let bands = |row: usize| self.levels.iter().filter(|l| l.row == row).map(|l| l.band + 1).max();
        let height = |row: usize| bands(row).map_or(ROW, |bands| bands as f64 * BAND + GAP);
        let mut tops = vec![TOP];
        for row in 0..self.rows.len() {
            tops.push(tops[row] + height(row));
        }
        let bottom = tops[self.rows.len()];
        let mut canvas = Canvas::new(WIDTH, bottom + 44.0);
        canvas.text((LEFT, 18.0), self.title, 14.0, Anchor::Start);
        canvas.legend((LEFT, 38.0), &self.kinds);
        let (from, to) = self.window_s;
        let x = |t: f64| LEFT + (t.clamp(from, to) - from) / (to - from).max(1e-9) * (RIGHT - LEFT);
        for tick in ticks(from, to).into_iter().filter(|t| (from..=to).contains(t)) {
            canvas.line((x(tick), TOP), (x(tick), bottom + 4.0), "#ddd", 1.0);
            canvas.text((x(tick), bottom + 17.0), &number(tick), 11.0, Anchor::Middle);
        }
        canvas.text(((LEFT + RIGHT) / 2.0, bottom + 36.0), "time (s)", 12.0, Anchor::Middle);
        for (name, edges) in self.rows.iter().zip(tops.windows(2)) {
            canvas.text((LEFT - 8.0, (edges[0] + edges[1]) / 2.0 + 4.5), name, 12.0, Anchor::End);
        }
        for level in &self.levels {
            let base = tops[level.row] + GAP / 2.0 + (level.band + 1) as f64 * BAND - 1.0;
            canvas.area(&self.outline(level, base), self.kinds[level.kind].1, &level.tip);
        }
        for span in self.spans.iter().filter(|s| s.to_s > from && s.from_s < to) {
            let y = tops[span.row] + GAP / 2.0;
            let (a, b) = (x(span.from_s), x(span.to_s));
            canvas.rect(a, y, (b - a).max(0.5), ROW - GAP, self.kinds[span.kind].1, &span.tip);
        }
        canvas.finish()
    }

    /// The shape of a level above the line `base`.
    fn outline(&self, level: &Level, base: f64) -> Vec<(f64, f64)> {
        let (from, to) = self.window_s;
        let steps = ((RIGHT - LEFT) / STEP) as usize;
        let step_s = (to - from) / steps as f64;
        let mut outline = vec![(LEFT, base)];
        let (mut next, mut value) = (0, 0.0);
        for step in 0..steps {
            let (begin_s, end_s) = (from + step as f64 * step_s, from + (step + 1) as f64 * step_s);
            let (mut at_s, mut sum) = (begin_s, 0.0);
            while let Some(&(change_s, changed)) = level.points.get(next).filter(|(at_s, _)| *at_s < end_s) {
                let change_s = change_s.max(at_s);
                sum += value * (change_s - at_s);
                (at_s, value, next) = (change_s, changed, next + 1);
            }
            sum += value * (end_s - at_s);
            let share = (sum / step_s.max(1e-12) / level.full.max(1e-12)).clamp(0.0, 1.0);
            let (x, y) = (LEFT + step as f64 * STEP, base - share * (BAND - 2.0));
            outline.extend([(x, y), (x + STEP, y)]);
        }
        outline.push((LEFT + steps as f64 * STEP, base));
        // Points on a straight line add nothing.
        let mut kept: Vec<(f64, f64)> = Vec::with_capacity(outline.len());
        for point in outline {
            if let [.., (_, before), (_, last)] = kept[..]
                && (before - last).abs() < 0.05
                && (last - point.1).abs() < 0.05
            {
                kept.pop();
            }
            kept.push(point);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Timeline<'static> {
        let (rows, kinds) = (vec!["r".into()], vec![("k", "#123456")]);
        Timeline { title: "t", rows, kinds, window_s: (0.0, 10.0), ..Timeline::default() }
    }

    #[test]
    fn spans_outside_the_window_are_left_out() {
        let span = |from_s, to_s| Span { row: 0, from_s, to_s, kind: 0, tip: "tip".into() };
        let figure = Timeline { spans: vec![span(0.0, 5.0), span(20.0, 30.0)], ..empty() }.figure();
        assert_eq!(figure.svg.matches("<title>").count(), 1);
        assert!(figure.csv.ends_with("r,k,20.000000000,30.000000000,tip\n"), "{}", figure.csv);
    }

    #[test]
    fn a_level_is_as_high_as_its_part_of_what_fills_the_band() {
        let points = vec![(2.5, 4.0), (5.0, 1.0), (7.5, 0.0)];
        let level = Level { row: 0, band: 0, kind: 0, points, full: 4.0, tip: String::new() };
        let timeline = Timeline { levels: vec![level], ..empty() };
        let outline = timeline.outline(&timeline.levels[0], 100.0);
        let heights: Vec<f64> = outline.iter().map(|(_, y)| 100.0 - y).collect();
        let (all, quarter) = (BAND - 2.0, (BAND - 2.0) / 4.0);
        let about = |height: f64| heights.iter().filter(|h| (**h - height).abs() < 0.01).count();
        assert!(about(all) >= 2 && about(quarter) >= 2 && about(0.0) >= 2, "{heights:?}");
        let figure = timeline.figure();
        assert!(figure.csv.contains("r,k,5.000000000,7.500000000,1\n"), "{}", figure.csv);
        assert!(figure.csv.ends_with("r,k,7.500000000,,0\n"), "{}", figure.csv);
    }
}
