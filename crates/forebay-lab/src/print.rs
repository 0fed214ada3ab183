//! What the programs print.

use crate::LabError;
use std::io::{self, Write};

/// Writes a value to standard output.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), LabError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| LabError::io("cannot write JSON", error))?;
    writeln!(io::stdout(), "{text}").map_err(|error| LabError::io("cannot write to stdout", error))
}
