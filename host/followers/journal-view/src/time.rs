//! The times of a journal as text.

use chrono::{
    DateTime, Local, LocalResult, NaiveDate, NaiveDateTime, NaiveTime, SecondsFormat, TimeZone, Utc,
};

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

/// Parses a time: RFC 3339, local `2026-11-20 14:00:00`, an age (`10m`, `2h`), or the begin of a local day (`2026-11-20`, `today`,
/// `yesterday`). Returns Unix nanoseconds.
///
/// # Errors
/// The text is no time, or the time is before 1970 or after 2262. The error is a sentence.
pub fn parse_time(text: &str) -> Result<u64, String> {
    if let Some(age) = afterbay_config::parse_duration(text) {
        let then = Utc::now() - chrono::Duration::from_std(age).map_err(|error| error.to_string())?;
        return unix_ns(&then);
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return unix_ns(&time);
    }
    given_time(text, Local::now().date_naive()).map_or_else(
        || {
            Err(format!(
                "{text:?} is no time; 2026-11-20T14:00:00Z, \"2026-11-20 14:00:00\", 2026-11-20, yesterday and 10m (ago) are"
            ))
        },
        |time| match Local.from_local_datetime(&time) {
            LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => unix_ns(&time),
            LocalResult::None => Err(format!("{text:?} does not exist in the local time zone")),
        },
    )
}

/// A local time. A day stands for its begin.
fn given_time(text: &str, today: NaiveDate) -> Option<NaiveDateTime> {
    let day = match text {
        "today" => Some(today),
        "yesterday" => today.pred_opt(),
        text => NaiveDate::parse_from_str(text, "%Y-%m-%d").ok(),
    };
    let time = || NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").ok();
    day.map(|day| day.and_time(NaiveTime::MIN)).or_else(time)
}

fn unix_ns<Z: TimeZone>(time: &DateTime<Z>) -> Result<u64, String> {
    let nanos = time.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok());
    nanos.ok_or_else(|| "before 1970 or after 2262".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_its_begin_and_yesterday_is_the_day_before() {
        let today = NaiveDate::from_ymd_opt(2026, 3, 1).unwrap();
        let time = |text: &str| given_time(text, today).map(|time| time.to_string());
        assert_eq!(time("today").unwrap(), "2026-03-01 00:00:00");
        assert_eq!(time("yesterday").unwrap(), "2026-02-28 00:00:00");
        assert_eq!(time("2026-11-27").unwrap(), "2026-11-27 00:00:00");
        assert_eq!(time("2026-11-27 14:30:00").unwrap(), "2026-11-27 14:30:00");
        assert_eq!(time("2026-11-31"), None);
        assert!(parse_time("tomorrow").unwrap_err().contains("yesterday"), "names what is a time");
    }
}
