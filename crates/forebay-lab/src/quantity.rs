//! Sizes, rates and durations as people write them.
//!
//! One table of units serves sizes and rates: powers of ten (`kB`, `MB`, `GB`, `TB`) and of two
//! (`KiB` ... `TiB`; `K`, `M` and `G` for short). What the agent's configuration accepts means the
//! same here. A bare number is bytes, or seconds. Case matters only where it must not: `mb`
//! is accepted as `MB`, but nothing is ever read as bits. Numbers may have a fraction (`0.2ms`,
//! `1.5GiB`).

/// A rate: bytes per second, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bytes per second; `None` is no limit. Never zero.
    pub bytes_per_s: Option<u64>,
}

const SIZE_UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

const DURATION_UNITS: &[(&str, u64)] =
    &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("", 1_000_000_000)];

/// Parses a size: `4096`, `1MiB`, `1.5GB`. The result is in bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    scaled(text, SIZE_UNITS)
        .ok_or_else(|| format!("`{text}` is not a size; write for example 4096, 64KiB or 1.5GB"))
}

/// Parses a rate: `50MB/s`, `1GiB/s`, `200MB` (per second), `unlimited`. Zero is refused: it would
/// never end.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    if text.trim().eq_ignore_ascii_case("unlimited") {
        return Ok(Rate { bytes_per_s: None });
    }
    let amount = text.trim().strip_suffix("/s").unwrap_or(text.trim());
    match scaled(amount, SIZE_UNITS) {
        Some(0) => Err(format!(
            "rate `{text}` is zero and nothing would ever arrive; write `unlimited` for no limit"
        )),
        Some(bytes_per_s) => Ok(Rate { bytes_per_s: Some(bytes_per_s) }),
        None => Err(format!("`{text}` is not a rate; write for example 50MB/s, 1GiB/s or unlimited")),
    }
}

/// Parses a duration: `0.2ms`, `30s`, `5` (seconds). The result is in nanoseconds.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    scaled(text, DURATION_UNITS)
        .ok_or_else(|| format!("`{text}` is not a duration; write for example 0.2ms, 50us or 30s"))
}

/// Formats a size or a rate for people, in powers of ten: `50 MB`.
pub fn show_bytes(bytes: u64) -> String {
    for (unit, scale) in [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)] {
        if bytes >= scale {
            let value = format!("{:.1}", bytes as f64 / scale as f64);
            return format!("{} {unit}", value.strip_suffix(".0").unwrap_or(&value));
        }
    }
    format!("{bytes} B")
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale); // exact: a float would lose the low bytes of large sizes
    }
    let value = number.parse::<f64>().ok()? * scale as f64;
    (value.is_finite() && value < u64::MAX as f64).then_some(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_both_bases() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("1MiB"), Ok(1 << 20));
        assert_eq!(parse_bytes("1.5GB"), Ok(1_500_000_000));
        assert_eq!(parse_bytes(" 2 TiB "), Ok(2 << 40));
        assert!(parse_bytes("1Mib/s").is_err());
        assert!(parse_bytes("-1").is_err());
        assert!(parse_bytes("").is_err());
        assert!(parse_bytes("99999999999TiB").is_err());
    }

    #[test]
    fn rates_with_and_without_a_second() {
        assert_eq!(parse_rate("50MB/s").unwrap().bytes_per_s, Some(50_000_000));
        assert_eq!(parse_rate("10kB/s").unwrap().bytes_per_s, Some(10_000));
        assert_eq!(parse_rate("1MiB").unwrap().bytes_per_s, Some(1 << 20));
        assert_eq!(parse_rate("Unlimited").unwrap().bytes_per_s, None);
        assert!(parse_rate("0MB/s").unwrap_err().contains("zero"));
        assert!(parse_rate("fast").is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration_ns("0.2ms"), Ok(200_000));
        assert_eq!(parse_duration_ns("30s"), Ok(30_000_000_000));
        assert_eq!(parse_duration_ns("5"), Ok(5_000_000_000));
        assert!(parse_duration_ns("1min").is_err());
    }

    #[test]
    fn shown_for_people() {
        assert_eq!(show_bytes(50_000_000), "50 MB");
        assert_eq!(show_bytes(1_500), "1.5 kB");
        assert_eq!(show_bytes(7), "7 B");
    }
}
