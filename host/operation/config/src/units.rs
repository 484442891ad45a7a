//! Sizes and durations: parsed from the config, and printed in messages.

use std::fmt;
use std::time::Duration;

/// A number of bytes. `Display` writes the largest unit that divides it: `64MiB`.
pub(crate) struct Size(pub u64);
/// A duration. `Display` writes the largest unit that divides it: `50ms`.
pub(crate) struct Time(pub Duration);

pub(crate) const SIZE_UNITS: &str =
    "a whole number of bytes, or with KiB, MiB, GiB, TiB, KB, MB, GB or TB, like \"64MiB\"";
pub(crate) const TIME_UNITS: &str = "whole numbers with us, ms, s, m, h or d, like \"50ms\" or \"1h30m\"";

const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];
/// In nanoseconds, longest first: units are written in this order, as in `1h30m`.
const TIMES: [(&str, u64); 6] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];

/// Parses a size like `64MiB` or `1048576`. `None` if the text is not a size or exceeds `u64`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let unit = unit.trim_start_matches(' ');
    let scale = if unit.is_empty() { 1 } else { SIZES.iter().find(|(name, _)| *name == unit)?.1 };
    number.checked_mul(scale)
}

/// Parses a duration like `50ms` or `1h30m`. `None` if the text is not a duration. Units descend, each at most once.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut nanos, mut units) = (text, 0u64, &TIMES[..]);
    loop {
        let (number, tail) = split_number(rest)?;
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let at = units.iter().position(|(name, _)| *name == &tail[..end])?;
        nanos = nanos.checked_add(number.checked_mul(units[at].1)?)?;
        (rest, units) = (&tail[end..], &units[at + 1..]);
        if rest.is_empty() {
            break;
        }
    }
    Some(Duration::from_nanos(nanos))
}

/// A duration on the command line, written as in the configuration.
///
/// # Errors
/// A sentence for the user.
pub fn duration_argument(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} is no duration; 10s, 500ms and 1h30m are"))
}

/// A size in bytes on the command line, written as in the configuration.
///
/// # Errors
/// A sentence for the user.
pub fn size_argument(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("{text:?} is no size; 64MiB and 65536 are"))
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole =
            SIZES.iter().find(|(name, scale)| name.len() != 2 && self.0 > 0 && self.0.is_multiple_of(*scale));
        let (name, scale) = whole.unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match TIMES.iter().find(|(_, scale)| nanos > 0 && nanos.is_multiple_of(u128::from(*scale))) {
            Some((name, scale)) => write!(f, "{}{name}", nanos / u128::from(*scale)),
            None => write!(f, "{nanos}ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_bytes_or_has_a_unit() {
        let sizes = [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("64KiB", 65_536),
            ("64 MiB", 67_108_864),
            ("1MB", 1_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        assert_eq!(parse_size("16777215TiB"), Some(u64::MAX - (1 << 40) + 1));
        for text in
            ["", "B", "-1", "+1", "1.5GiB", "1mib", "1 MiB ", "1MiB2", "16777216TiB", "99999999999999999999"]
        {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn a_duration_has_units_in_descending_order() {
        let times =
            [("0s", 0), ("100us", 100), ("2ms", 2_000), ("1s500ms", 1_500_000), ("1h30m", 5_400_000_000)];
        for (text, micros) in times {
            assert_eq!(parse_duration(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5s", "1m1h", "1s1s", "1 s", "1s ", "1min", "213504d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_bound_is_shown_as_it_would_be_written() {
        for text in ["0B", "1B", "1023B", "64KiB", "3MiB", "256GiB", "1TiB"] {
            assert_eq!(parse_size(text).map(|bytes| Size(bytes).to_string()).as_deref(), Some(text));
        }
        for text in ["1us", "1500ms", "90m", "2h", "3650d"] {
            assert_eq!(parse_duration(text).map(|time| Time(time).to_string()).as_deref(), Some(text));
        }
        assert_eq!(Time(Duration::from_nanos(1)).to_string(), "1ns");
    }
}
