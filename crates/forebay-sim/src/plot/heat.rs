//! A heat map: a value over two axes of categories, such as throughput over data size and skip
//! size.

use super::svg::{Anchor, Canvas};
use crate::csv::csv;
use crate::figure::Figure;
use crate::report::number;

/// A heat map.
pub struct Heat<'a> {
    /// Above the figure.
    pub title: &'a str,
    /// Names of the columns, and what they are.
    pub columns: Vec<String>,
    /// Below the columns.
    pub x_label: &'a str,
    /// Names of the rows from top to bottom.
    pub rows: Vec<String>,
    /// Beside the rows.
    pub y_label: &'a str,
    /// `values[row][column]`, positive; coloured by their logarithm.
    pub values: Vec<Vec<f64>>,
}

impl Heat<'_> {
    /// The figure, and its values.
    pub fn figure(&self) -> Figure {
        let cells = |(row, values): (&String, &Vec<f64>)| -> Vec<Vec<String>> {
            let cell =
                |(column, value): (&String, &f64)| vec![row.clone(), column.clone(), value.to_string()];
            self.columns.iter().zip(values).map(cell).collect()
        };
        let rows: Vec<Vec<String>> = self.rows.iter().zip(&self.values).flat_map(cells).collect();
        Figure { svg: self.svg(), csv: csv(&[self.y_label, self.x_label, "value"], &rows) }
    }

    fn svg(&self) -> String {
        let (cell_width, cell_height, left, top) = (58.0, 26.0, 92.0, 34.0);
        let width = left + cell_width * self.columns.len() as f64 + 16.0;
        let height = top + cell_height * self.rows.len() as f64 + 48.0;
        let logs = || self.values.iter().flatten().map(|v| v.max(f64::MIN_POSITIVE).ln());
        let (low, high) = (logs().fold(f64::INFINITY, f64::min), logs().fold(f64::NEG_INFINITY, f64::max));
        let mut canvas = Canvas::new(width, height);
        canvas.text((left, 18.0), self.title, 14.0, Anchor::Start);
        for (r, name) in self.rows.iter().enumerate() {
            let y = top + r as f64 * cell_height;
            canvas.text((left - 6.0, y + 17.0), name, 11.0, Anchor::End);
            for (c, value) in self.values[r].iter().enumerate() {
                let x = left + c as f64 * cell_width;
                let part = (value.max(f64::MIN_POSITIVE).ln() - low) / (high - low).max(1e-12);
                let tip = format!("{} / {}: {}", name, self.columns[c], number(*value));
                canvas.rect(x, y, cell_width - 1.0, cell_height - 1.0, &shade(part), &tip);
                canvas.text((x + cell_width / 2.0, y + 17.0), &number(*value), 10.0, Anchor::Middle);
            }
        }
        let bottom = top + cell_height * self.rows.len() as f64;
        for (c, name) in self.columns.iter().enumerate() {
            let x = left + (c as f64 + 0.5) * cell_width;
            canvas.text((x, bottom + 15.0), name, 11.0, Anchor::Middle);
        }
        canvas.text(((left + width) / 2.0, height - 10.0), self.x_label, 12.0, Anchor::Middle);
        canvas.upright_text((16.0, (top + bottom) / 2.0), self.y_label, 12.0);
        canvas.finish()
    }
}

/// From pale yellow (0) to orange-red (1); dark enough at neither end to hide black text.
fn shade(part: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * part.clamp(0.0, 1.0)).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(255.0, 240.0), mix(250.0, 110.0), mix(220.0, 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_have_the_extreme_colours() {
        let Figure { svg, csv } = Heat {
            title: "t",
            columns: vec!["a".into(), "b".into()],
            x_label: "x",
            rows: vec!["r".into()],
            y_label: "y",
            values: vec![vec![1.0, 100.0]],
        }
        .figure();
        assert_eq!(csv, "y,x,value\nr,a,1\nr,b,100\n");
        assert!(svg.contains(&shade(0.0)) && svg.contains(&shade(1.0)));
        assert_eq!(svg.matches("<title>").count(), 2);
    }
}
