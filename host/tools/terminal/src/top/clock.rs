//! Times of the admin address, which are RFC 3339, as times of this machine's zone.

use chrono::{DateTime, FixedOffset, Local};

use crate::top::text::safe;

/// A time zone. It is given, so that a test owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(FixedOffset);

impl Clock {
    /// The zone of this machine.
    pub(crate) fn local() -> Clock {
        Clock(*Local::now().offset())
    }

    #[cfg(test)]
    pub(crate) fn utc() -> Clock {
        use chrono::Offset;
        Clock(chrono::Utc.fix())
    }

    /// The time of day, `22:41:05`. A text that is no time is shown as it is.
    pub(crate) fn time(self, rfc3339: Option<&str>) -> String {
        let Some(text) = rfc3339 else { return "-".to_owned() };
        match DateTime::parse_from_rfc3339(text) {
            Ok(time) => time.with_timezone(&self.0).format("%H:%M:%S").to_string(),
            Err(_) => safe(text),
        }
    }

    /// Date and time with milliseconds.
    pub(crate) fn date(self, rfc3339: &str) -> String {
        match DateTime::parse_from_rfc3339(rfc3339) {
            Ok(time) => time.with_timezone(&self.0).format("%Y-%m-%d %H:%M:%S%.3f").to_string(),
            Err(_) => safe(rfc3339),
        }
    }

    /// The seconds from one time to another. `None` if one of them is missing or no time.
    pub(crate) fn between(self, from: Option<&str>, to: Option<&str>) -> Option<f64> {
        let time = |text: &str| DateTime::parse_from_rfc3339(text).ok();
        let took = time(to?)? - time(from?)?;
        took.num_nanoseconds().map(|ns| ns as f64 / 1e9)
    }
}
