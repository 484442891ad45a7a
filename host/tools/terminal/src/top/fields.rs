//! Values of the admin address as cells: the name of a field says its unit and its tone, so that a field that this version does not
//! know is shown, too.

use chrono::{DateTime, FixedOffset, Local};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most characters of a text that is shown. A line of a terminal is shorter; the rest costs time and shows nothing.
const CHARS_MAX: usize = 2000;

/// Most items of a list that are shown.
const ITEMS_MAX: usize = 8;

/// The causes of ends that should not happen.
const FAILURES: [&str; 4] = ["watchdog", "fault", "engine_error", "lost"];

/// The meaning of a text, from which its colour follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Warn,
    Bad,
    /// A highlighted word.
    Marked,
    /// Less important.
    Faint,
    /// More important.
    Strong,
}

/// A text that is safe for a terminal, with its tone.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

/// The time zone in which times are shown. It is given, so that a test owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(pub(crate) FixedOffset);

impl Clock {
    /// The zone of this machine.
    pub(crate) fn local() -> Clock {
        Clock(*Local::now().offset())
    }

    /// The date and the time of day of an RFC 3339 text, `2026-11-25 22:41:05.120`. A text that is no time stays as it is.
    pub(crate) fn date(self, rfc3339: &str) -> String {
        match DateTime::parse_from_rfc3339(rfc3339) {
            Ok(time) => time.with_timezone(&self.0).format("%Y-%m-%d %H:%M:%S%.3f").to_string(),
            Err(_) => safe(rfc3339),
        }
    }

    /// The day and the time of day without the parts of a second, `11-25 22:41:05`.
    pub(crate) fn day(self, rfc3339: &str) -> String {
        let date = self.date(rfc3339);
        let short = date.get(5..19).filter(|_| date.len() == 23);
        short.map_or(date.clone(), str::to_owned)
    }

    /// The time of day, `22:41:05.120`.
    pub(crate) fn time(self, rfc3339: &str) -> String {
        let date = self.date(rfc3339);
        date.split_once(' ').map_or(date.clone(), |(_, time)| time.to_owned())
    }
}

/// The field of an object at the first of these paths, `a/b|c`, that has a value.
pub(crate) fn field<'v>(object: &'v Value, paths: &str) -> &'v Value {
    let at = |path| object.pointer(&format!("/{path}"));
    paths.split('|').filter_map(at).find(|value| !is_empty(value)).unwrap_or(&Value::Null)
}

/// A field of the name `path` as a cell.
pub(crate) fn cell(path: &str, value: &Value, clock: Clock) -> Cell {
    Cell { text: text(path, value, clock), tone: tone(path, value) }
}

/// Whether there is nothing to show.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn text(path: &str, value: &Value, clock: Clock) -> String {
    match value {
        _ if is_empty(value) => "-".to_owned(),
        Value::Null => String::new(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.to_owned(),
        // A list of requests may go back for days.
        Value::String(text) if path == "first_time" || path == "last_time" => clock.day(text),
        Value::String(text) if path.ends_with("time") => clock.time(text),
        Value::String(text) if path.ends_with("state") => safe(&text.replace('_', " ")),
        Value::String(text) => safe(text),
        Value::Number(number) => figure(path, number.as_f64().unwrap_or_default()),
        // A list of things with a state is shown as the number of each state.
        Value::Array(items) if items[0]["state"].is_string() => {
            let mut states: BTreeMap<&str, usize> = BTreeMap::new();
            items
                .iter()
                .filter_map(|item| item["state"].as_str())
                .for_each(|it| *states.entry(it).or_default() += 1);
            let each = states
                .into_iter()
                .map(|(state, count)| format!("{count} {}", safe(&state.replace('_', " "))));
            each.collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) => {
            let more = if items.len() > ITEMS_MAX { " …" } else { "" };
            let each = items.iter().take(ITEMS_MAX).map(|item| text(path, item, clock));
            each.collect::<Vec<_>>().join(", ") + more
        }
        Value::Object(_) => members(path, value, clock).join(", "),
    }
}

/// The members of an object that have a value, each with its name.
pub(crate) fn members(path: &str, object: &Value, clock: Clock) -> Vec<String> {
    let fields = object.as_object().into_iter().flatten().filter(|(_, value)| !is_empty(value));
    let member = |(name, value): (&String, &Value)| {
        let shown = name.trim_end_matches("_seconds").replace('_', " ");
        format!("{} {}", safe(&shown), text(&format!("{path}/{name}"), value, clock))
    };
    fields.map(member).collect()
}

/// A number in the unit of its field: `2.5 ms`, `1.5 KiB/s`, `104,221`, `12.3M`.
fn figure(path: &str, number: f64) -> String {
    let is_rate = path.contains("per_second") || path.contains("rates/");
    let is_time = (path.contains("seconds") || path.ends_with("_s")) && !is_rate;
    match number {
        0.0 => "0".to_owned(),
        _ if path.contains("bytes") && is_rate => format!("{}/s", crate::bytes(number.max(0.0) as u64)),
        _ if path.contains("bytes") => crate::bytes(number.max(0.0) as u64),
        _ if is_time && number >= 60.0 => long(number),
        _ if is_time => {
            let time = std::time::Duration::try_from_secs_f64(number);
            time.map_or_else(|_| "-".to_owned(), crate::seconds)
        }
        n if n < 9.95 && n.fract() != 0.0 => format!("{n:.2}"),
        n if n < 999_999.5 => crate::count(n.round() as u64),
        n if n < 1e9 => format!("{:.1}M", n / 1e6),
        n if n < 1e12 => format!("{:.1}G", n / 1e9),
        n => format!("{:.1}T", n / 1e12),
    }
}

fn tone(path: &str, value: &Value) -> Tone {
    let name = path.rsplit('/').next().unwrap_or(path);
    match (name, value) {
        (_, value) if is_empty(value) => Tone::Plain,
        ("name" | "rid" | "plugin" | "copy", _) => Tone::Strong,
        ("state", Value::String(state)) => state_tone(state),
        (_, Value::Array(items)) if items[0]["state"].is_string() => {
            let tones = items.iter().filter_map(|item| Some(state_tone(item["state"].as_str()?)));
            tones
                .max_by_key(|tone| [Tone::Warn, Tone::Bad].iter().position(|it| it == tone))
                .unwrap_or(Tone::Plain)
        }
        ("why" | "not_ready" | "error" | "refused" | "gap", _) => Tone::Bad,
        ("gaps" | "imbalances", Value::Number(count)) if count.as_f64() > Some(0.0) => Tone::Bad,
        ("spilled_frames", Value::Number(count)) if count.as_f64() > Some(0.0) => Tone::Warn,
        ("full_in_seconds", Value::Number(left)) if left.as_f64() < Some(3600.0) => Tone::Warn,
        ("faults", _) => Tone::Warn,
        ("requests_ended", causes) if FAILURES.iter().any(|cause| !causes[cause].is_null()) => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// The tone of the state of a sink, a plugin, a request or a copy.
fn state_tone(state: &str) -> Tone {
    match state {
        "keeping_up" | "working" => Tone::Good,
        "live" | "shadow" => Tone::Marked,
        "behind" | "abandoned" => Tone::Warn,
        "stalled" | "away" | "down" | "quarantined" | "failing" => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// A text that writes nothing but its own characters to a terminal ([`crate::escaped`]). Past 2,000 characters the text is cut.
pub(crate) fn safe(text: &str) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => crate::escaped(&text[..end]) + "…",
        None => crate::escaped(text),
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
    use serde_json::json;

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(safe(&"é\x1b".repeat(5000)), "é\\u{1b}".repeat(CHARS_MAX / 2) + "…");
    }

    #[test]
    fn the_name_of_a_field_says_its_unit() {
        let shown =
            |path: &str, value: Value| text(path, &value, Clock(FixedOffset::east_opt(3600).unwrap()));
        assert_eq!(shown("rates/rows", json!(104_220.6)), "104,221");
        assert_eq!(shown("rates/rows", json!(0.25)), "0.25");
        assert_eq!(shown("rows", json!(12_480_000)), "12.5M");
        assert_eq!(shown("first_token_seconds/p99", json!(0.0025)), "2.5 ms");
        assert_eq!(shown("uptime_seconds", json!(7500)), "2 h 05 m");
        assert_eq!(shown("bytes_per_second", json!(1536)), "1.5 KiB/s");
        assert_eq!(shown("first_time", json!("2026-11-25T23:40:01.000Z")), "11-26 00:40:01");
        assert_eq!(shown("time", json!("2026-11-25T22:40:01.000Z")), "23:40:01.000");
        assert_eq!(shown("verdicts", json!({"drop": 3, "finish": 1})), "drop 3, finish 1");
        assert_eq!(
            shown("sinks", json!([{"state": "away"}, {"state": "keeping_up"}])),
            "1 away, 1 keeping up"
        );
        assert_eq!(shown("faults", json!({})), "-");
        assert_eq!([5.9, 200.0, 273_600.0].map(long), ["5 s", "3 m 20 s", "3 d 04 h"]);
    }
}
