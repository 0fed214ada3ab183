//! Figures as SVG, written by hand.
//!
//! Four kinds are needed: grouped bars, lines, timelines and a heat map. A plotting library would
//! bring fonts, a rasteriser and a few dozen crates for that, and Python would have to be there
//! with its own; these files need nothing, are the same bytes for the same numbers, keep their text
//! as text, and print at any size.
//!
//! The palette is Okabe and Ito's (2008), which people with colour-blindness can tell apart.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

mod axis;
pub mod bars;
pub mod heat;
pub mod lines;
mod svg;
pub mod timeline;

/// A figure and what it shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The figure.
    pub svg: String,
    /// What is drawn, as rows.
    pub csv: String,
}

impl Figure {
    /// Writes the figure to `path` and its data beside it, to the same name and `.csv`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, path: &Path, what: &'static str) -> Result<()> {
        fs::write(path, &self.svg).map_err(Error::io(what, path))?;
        let mut data = path.as_os_str().to_owned();
        data.push(".csv");
        fs::write(&data, &self.csv).map_err(Error::io("write the figure's data to", Path::new(&data)))
    }
}

/// Colours of series, in order; reused from the start when there are more.
pub const PALETTE: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#555555"];

/// The colour of series `i`.
pub fn colour(i: usize) -> &'static str {
    PALETTE[i % PALETTE.len()]
}
