//! Numbers, sizes and times for people.

use std::time::Duration;

/// A number with separators: `12,345,678`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A size in the largest binary unit: `1.5 KiB`.
pub fn bytes(number: u64) -> String {
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut at = 0;
    while value >= 1024.0 && at + 1 < unit.len() {
        value /= 1024.0;
        at += 1;
    }
    if at == 0 { format!("{number} B") } else { format!("{value:.1} {}", unit[at]) }
}

/// A time in seconds, milliseconds or microseconds: `1.5 ms`.
pub fn seconds(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sizes_and_times_are_written_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 5 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!(
            [20, 1_500, 2_500_000].map(Duration::from_micros).map(seconds),
            ["20 us", "1.5 ms", "2.5 s"]
        );
    }
}
