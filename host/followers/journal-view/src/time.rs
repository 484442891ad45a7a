//! The times of a journal as text.

use chrono::{DateTime, Local, SecondsFormat, Utc};

/// A time for a table: local, in milliseconds. Empty for 0, which means never.
pub fn local_time(unix_ns: u64) -> String {
    match moment(unix_ns) {
        Some(time) => time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S%.3f").to_string(),
        None => String::new(),
    }
}

/// A time for JSON: RFC 3339, in nanoseconds. `None` for 0, which means never.
pub fn json_time(unix_ns: u64) -> Option<String> {
    Some(moment(unix_ns)?.to_rfc3339_opts(SecondsFormat::Nanos, true))
}

fn moment(unix_ns: u64) -> Option<DateTime<Utc>> {
    let nanos = i64::try_from(unix_ns).ok().filter(|nanos| *nanos != 0)?;
    Some(DateTime::from_timestamp_nanos(nanos))
}
