//! A timeline: rows of coloured spans over time, as in Gantt charts.

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

/// A timeline.
pub struct Timeline<'a> {
    /// Above the figure.
    pub title: &'a str,
    /// Names of the rows from top to bottom.
    pub rows: Vec<String>,
    /// Name and colour of each kind of span.
    pub kinds: Vec<(&'a str, &'a str)>,
    /// What to draw; later spans over earlier ones.
    pub spans: Vec<Span>,
    /// Part of the time that is shown, in seconds.
    pub window_s: (f64, f64),
}

impl Timeline<'_> {
    /// The figure, and all spans, those outside the window too.
    pub fn figure(&self) -> Figure {
        let row = |span: &Span| {
            let kind = self.kinds[span.kind].0.to_owned();
            let [from_s, to_s] = [span.from_s, span.to_s].map(|s| format!("{s:.9}"));
            vec![self.rows[span.row].clone(), kind, from_s, to_s, span.tip.clone()]
        };
        let rows: Vec<Vec<String>> = self.spans.iter().map(row).collect();
        Figure { svg: self.svg(), csv: csv(&["row", "kind", "from_s", "to_s", "what"], &rows) }
    }

    fn svg(&self) -> String {
        let (width, row_height, left, top) = (920.0, 30.0, 130.0, 52.0);
        let bottom = top + row_height * self.rows.len() as f64;
        let right = width - 20.0;
        let mut canvas = Canvas::new(width, bottom + 44.0);
        canvas.text((left, 18.0), self.title, 14.0, Anchor::Start);
        canvas.legend((left, 38.0), &self.kinds);
        let (from, to) = self.window_s;
        let x = |t: f64| left + (t.clamp(from, to) - from) / (to - from).max(1e-9) * (right - left);
        for tick in ticks(from, to).into_iter().filter(|t| (from..=to).contains(t)) {
            canvas.line((x(tick), top), (x(tick), bottom + 4.0), "#ddd", 1.0);
            canvas.text((x(tick), bottom + 17.0), &number(tick), 11.0, Anchor::Middle);
        }
        canvas.text(((left + right) / 2.0, bottom + 36.0), "time (s)", 12.0, Anchor::Middle);
        for (i, name) in self.rows.iter().enumerate() {
            let y = top + (i as f64 + 0.65) * row_height;
            canvas.text((left - 8.0, y), name, 12.0, Anchor::End);
        }
        for span in self.spans.iter().filter(|s| s.to_s > from && s.from_s < to) {
            let y = top + span.row as f64 * row_height + 4.0;
            let (a, b) = (x(span.from_s), x(span.to_s));
            canvas.rect(a, y, (b - a).max(0.5), row_height - 8.0, self.kinds[span.kind].1, &span.tip);
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_outside_the_window_are_left_out() {
        let span = |from_s, to_s| Span { row: 0, from_s, to_s, kind: 0, tip: "tip".into() };
        let figure = Timeline {
            title: "t",
            rows: vec!["r".into()],
            kinds: vec![("k", "#123456")],
            spans: vec![span(0.0, 5.0), span(20.0, 30.0)],
            window_s: (0.0, 10.0),
        }
        .figure();
        assert_eq!(figure.svg.matches("<title>").count(), 1);
        assert!(figure.csv.ends_with("r,k,20.000000000,30.000000000,tip\n"), "{}", figure.csv);
    }
}
