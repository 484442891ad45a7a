//! Texts of others in a terminal: control characters are escaped, and lengths are bounded.

/// Most characters of a text that is shown. A line of a terminal is shorter; the rest costs time and shows nothing.
const CHARS_MAX: usize = 2000;

/// A text that writes nothing but its own characters to a terminal ([`crate::escaped`]). Past 2,000 characters the
/// text is cut.
pub(crate) fn safe(text: &str) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => crate::escaped(&text[..end]) + "…",
        None => crate::escaped(text),
    }
}

/// A rate as a number of at most 8 characters: `0.2`, `41`, `104,221`, `12.5M`.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() => "-".to_owned(),
        r if r <= 0.0 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        r if r < 999_999.5 => crate::count(r.round() as u64),
        r => format!("{:.1}M", r / 1e6),
    }
}

/// A number of at most 8 characters: `999,999`, `12.3M`, `4.1G`.
pub(crate) fn short_count(number: u64) -> String {
    match number {
        0..1_000_000 => crate::count(number),
        1_000_000..1_000_000_000 => format!("{:.1}M", number as f64 / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.1}G", number as f64 / 1e9),
        _ => format!("{:.1}T", number as f64 / 1e12),
    }
}

/// A number with its noun: `1 gap`, `2 gaps`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", crate::count(number), if number == 1 { "" } else { "s" })
}

/// A time that something took: `350 us`, `1.5 ms`, `2.5 s`.
pub(crate) fn seconds(seconds: Option<f64>) -> String {
    match seconds.and_then(|s| std::time::Duration::try_from_secs_f64(s).ok()) {
        Some(duration) => crate::seconds(duration),
        None => "-".to_owned(),
    }
}

/// A long time in its two largest units: `45 s`, `3 m 20 s`, `2 h 05 m`, `3 d 04 h`.
pub(crate) fn long(seconds: f64) -> String {
    let s = if seconds.is_finite() { seconds.max(0.0) as u64 } else { 0 };
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} m {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} m", s / 3600, s / 60 % 60),
        _ => format!("{} d {:02} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(safe(&"é\x1b".repeat(5000)), "é\\u{1b}".repeat(CHARS_MAX / 2) + "…");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0.0, 0.25, 41.4, 104_220.6, 12_480_000.0].map(rate),
            ["0", "0.2", "41", "104,221", "12.5M"]
        );
        assert_eq!(rate(f64::NAN), "-");
        assert_eq!([7, 999_999, 1_234_567, 2_000_000_000].map(short_count), ["7", "999,999", "1.2M", "2.0G"]);
        assert_eq!([5.9, 200.0, 7500.0, 273_600.0].map(long), ["5 s", "3 m 20 s", "2 h 05 m", "3 d 04 h"]);
        assert_eq!(seconds(Some(0.0025)), "2.5 ms");
        assert_eq!(seconds(Some(f64::NAN)), "-");
    }
}
