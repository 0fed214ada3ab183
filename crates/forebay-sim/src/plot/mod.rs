//! Figures as SVG, written by hand.
//!
//! Five kinds are needed: grouped bars, boxes, lines, timelines and a heat map. A plotting library
//! would add fonts, a rasteriser and a few dozen crates for that, and Python would have to be
//! installed with its own; these files need nothing, are the same bytes for the same numbers, keep
//! their text as text, and print at any size.
//!
//! The palette is Okabe and Ito's (2008), which people with colour-blindness can distinguish.

mod axis;
pub mod bars;
pub mod boxes;
pub mod heat;
pub mod lines;
mod svg;
pub mod timeline;

/// Colours of series, in order; reused from the start when there are more.
pub const PALETTE: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#555555"];

/// The colour of series `i`.
pub fn colour(i: usize) -> &'static str {
    PALETTE[i % PALETTE.len()]
}
