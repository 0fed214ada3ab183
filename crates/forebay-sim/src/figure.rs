//! A figure in the form in which it is written: what `plot` draws, and reports show.

use std::fs;
use std::path::Path;

use crate::csv;
use crate::error::{Error, Result};

/// A figure and what it shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The figure.
    pub svg: String,
    /// What is drawn, as rows.
    pub csv: String,
}

impl Figure {
    /// Writes the figure to `path`, and its data next to it, under the same name with `.csv` added.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, path: &Path, what: &'static str) -> Result<()> {
        fs::write(path, &self.svg).map_err(Error::io(what, path))?;
        let mut data = path.as_os_str().to_owned();
        data.push(".csv");
        csv::write_text(Path::new(&data), "write the figure's data to", &self.csv)
    }
}
