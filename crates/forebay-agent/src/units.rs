//! Sizes, rates and times as people write them: `16GiB`, `50MB/s`, `20ms`.

use std::fmt;

/// Units with their factors. SI and IEC are distinguished: storage is sold in the one and memory in
/// the other.
const UNITS: [(&str, u64); 13] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("B", 1),
];

/// Parses `4096`, `20KiB`, `1.5GB`, `2G` (as `2GiB`).
///
/// # Errors
/// A sentence that names the text and what is allowed.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let found = UNITS.iter().find_map(|(unit, factor)| Some((trimmed.strip_suffix(unit)?, *factor)));
    let (number, factor) = found.unwrap_or((trimmed, 1));
    let wrong = || format!("{text:?} is not a size; write for example 512MiB, 16GiB or 20000");
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let bytes = number * factor as f64;
    if !(bytes.is_finite() && (0.0..=u64::MAX as f64 / 2.0).contains(&bytes)) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Parses a rate: a size with its unit, with or without `/s`; `unlimited` is no limit (0). A number
/// alone is refused: someone who writes 100 rarely means a hundred bytes per second.
///
/// # Errors
/// As [`parse_bytes`].
pub fn parse_rate(text: &str) -> Result<u64, String> {
    match text.trim() {
        "unlimited" | "none" => Ok(0),
        rate => {
            let size = rate.strip_suffix("/s").unwrap_or(rate);
            let bytes =
                parse_bytes(size).ok().filter(|b| *b > 0 && !size.ends_with(|c: char| c.is_ascii_digit()));
            bytes.ok_or_else(|| {
                format!("{text:?} is not a rate; write it with its unit, for example 200MB/s, 1GiB/s, or unlimited")
            })
        }
    }
}

/// A size or a share of something: `16GiB` or `25%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// Hundredths of the whole, above 0 and at most 100.
    Percent(f64),
}

impl Amount {
    /// Parses either form.
    ///
    /// # Errors
    /// As [`parse_bytes`]; or a percentage outside of 0 to 100.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.trim().strip_suffix('%') {
            None => parse_bytes(text).map(Amount::Bytes),
            Some(number) => match number.trim().parse::<f64>() {
                Ok(p) if p > 0.0 && p <= 100.0 => Ok(Amount::Percent(p)),
                _ => Err(format!("{text:?} is not a share; write for example 25%")),
            },
        }
    }

    /// The amount in bytes, of `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(p) => (whole as f64 * p / 100.0) as u64,
        }
    }
}

/// Writes bytes as people read them: `1.5 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = match self.0 {
            0..=1023 => return write!(f, "{} B", self.0),
            1024..=1_048_575 => ("KiB", 10),
            1_048_576..=1_073_741_823 => ("MiB", 20),
            1_073_741_824..=1_099_511_627_775 => ("GiB", 30),
            _ => ("TiB", 40),
        };
        let value = self.0 as f64 / (1u64 << factor) as f64;
        let digits = if value < 10.0 { 2 } else { 1 };
        write!(f, "{value:.digits$} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rates_and_shares() {
        assert_eq!(parse_bytes("1.5GB"), Ok(1_500_000_000));
        assert_eq!(parse_bytes(" 2 MiB "), Ok(2 << 20));
        assert_eq!(parse_bytes("3G"), Ok(3 << 30));
        assert_eq!(parse_bytes("77"), Ok(77));
        assert!(parse_bytes("-1").unwrap_err().contains("\"-1\" is not a size"));
        assert!(parse_bytes("1e300GiB").is_err() && parse_bytes("").is_err() && parse_bytes("NaN").is_err());
        assert_eq!(parse_rate("200MB/s"), Ok(200_000_000));
        assert_eq!(parse_rate("unlimited"), Ok(0));
        for none in ["0", "0MB/s", "100", "100/s", "-1MB/s", "MB/s", ""] {
            assert!(parse_rate(none).is_err(), "{none}");
        }
        assert_eq!(Amount::parse("25%").map(|a| a.of(400)), Ok(100));
        assert!(Amount::parse("0%").is_err() && Amount::parse("101%").is_err());
    }

    #[test]
    fn people_read_sizes() {
        let shown: Vec<_> = [0, 1023, 1024, 1536 << 20, 20 << 40].map(|b| Human(b).to_string()).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "1.50 GiB", "20.0 TiB"]);
    }
}
