//! Sizes and durations as an operator writes them, and as a message gives them back.

use std::fmt;
use std::time::Duration;

/// Bytes that `Display` in the largest unit that holds them without a rest: `64MiB`.
pub(crate) struct Size(pub u64);
/// A time that `Display`s in the largest unit that holds it without a rest: `50ms`.
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
/// In nanoseconds, longest first: that is the order in which `1h30m` is written.
const TIMES: [(&str, u64); 6] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];

/// `None` where it is not a size or past `u64`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let unit = unit.trim_start_matches(' ');
    let scale = if unit.is_empty() { 1 } else { SIZES.iter().find(|(name, _)| *name == unit)?.1 };
    number.checked_mul(scale)
}

/// `None` where it is not a duration; units descend, each at most once.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
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
