//! A frame with a y axis (and, for lines, an x axis) and the mapping from values to pixels.

use super::svg::{Anchor, Canvas};
use crate::report::number;

/// Plot area inside the figure, and the range of values that it shows.
pub struct Frame {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    pub y_min: f64,
    pub y_max: f64,
}

/// A step of 1, 2 or 5 times a power of ten that gives four to nine ticks over `span`.
pub fn step(span: f64) -> f64 {
    let rough = (span / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(10.0 * power)
}

/// Ticks that cover `min` to `max`, both ends included.
pub fn ticks(min: f64, max: f64) -> Vec<f64> {
    let step = step(max - min);
    let (first, last) = ((min / step).floor() as i64, (max / step).ceil() as i64);
    (first..=last).map(|i| i as f64 * step).collect()
}

impl Frame {
    /// A frame in a figure of `width` x `height` that shows at least `y_min` to `y_max`.
    pub fn new(width: f64, height: f64, y_min: f64, y_max: f64) -> Self {
        let all = ticks(y_min, if y_max > y_min { y_max } else { y_min + 1.0 });
        Frame {
            left: 62.0,
            right: width - 16.0,
            top: 48.0,
            bottom: height - 48.0,
            y_min: all.first().copied().unwrap_or(0.0),
            y_max: all.last().copied().unwrap_or(1.0),
        }
    }

    pub fn y(&self, value: f64) -> f64 {
        self.bottom - (value - self.y_min) / (self.y_max - self.y_min) * (self.bottom - self.top)
    }

    pub fn draw(&self, canvas: &mut Canvas, title: &str, y_label: &str) {
        canvas.text((self.left, 18.0), title, 14.0, Anchor::Start);
        canvas.upright_text((16.0, (self.top + self.bottom) / 2.0), y_label, 12.0);
        for tick in ticks(self.y_min, self.y_max) {
            let y = self.y(tick);
            canvas.line((self.left, y), (self.right, y), "#ddd", 1.0);
            canvas.text((self.left - 6.0, y + 4.0), &number(tick), 11.0, Anchor::End);
        }
        let zero = self.y(0.0_f64.clamp(self.y_min, self.y_max));
        canvas.line((self.left, zero), (self.right, zero), "#222", 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(0.0, 103.0), [0.0, 50.0, 100.0, 150.0]);
        assert_eq!(ticks(-0.3, 1.0), [-0.5, 0.0, 0.5, 1.0]);
    }
}
