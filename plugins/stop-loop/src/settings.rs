//! The settings, and their limits.

use afterbay_plugin::window::Length;
use afterbay_plugin::{ConfigureError, bad_setting};
use schemars::JsonSchema;
use serde::Deserialize;

/// The most turns.
const TURNS_MAX: usize = 100;
/// The longest window.
const WINDOW_MAX: Length = Length::seconds(3_600);
/// The most requests.
const REQUESTS_MAX: u64 = 10_000;

/// The settings.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The consequence for a request in a loop: its end with the finish reason stop, its abort, or a note in the
    /// journal.
    pub(crate) action: Consequence,
    /// The turns of a loop before the consequence, 4 to 100.
    pub(crate) turns: usize,
    /// The share of requests in loops at which the stream is not ready. Without this setting, the stream stays
    /// ready.
    pub(crate) not_ready: Option<NotReady>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { action: Consequence::Finish, turns: 4, not_ready: None }
    }
}

/// The consequence for a request in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Consequence {
    /// The request ends with the finish reason stop.
    Finish,
    /// The request is aborted.
    Abort,
    /// The request continues, and the journal has a note.
    Annotate,
}

/// The share of requests in loops at which the stream is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NotReady {
    /// The share, more than 0 and at most 1.
    pub(crate) share: f64,
    /// The fewest ended requests in the window, 1 to 10,000.
    pub(crate) requests: u64,
    /// The window, 1 second to 1 hour.
    pub(crate) window: Length,
}

impl Default for NotReady {
    fn default() -> Self {
        Self { share: 0.5, requests: 20, window: Length::seconds(60) }
    }
}

impl Settings {
    /// Checks the limits.
    pub(crate) fn check(&self) -> Result<(), ConfigureError> {
        let turns = self.turns;
        if !(4..=TURNS_MAX).contains(&turns) {
            return Err(bad_setting("/turns", format!("is {turns}, must be from 4 to {TURNS_MAX}")));
        }
        let Some(NotReady { share, requests, window }) = self.not_ready else { return Ok(()) };
        if !(share > 0.0 && share <= 1.0) {
            return Err(bad_setting(
                "/not_ready/share",
                format!("is {share}, must be more than 0 and at most 1"),
            ));
        }
        if !(1..=REQUESTS_MAX).contains(&requests) {
            let message = format!("is {requests}, must be from 1 to {REQUESTS_MAX}");
            return Err(bad_setting("/not_ready/requests", message));
        }
        if window > WINDOW_MAX {
            return Err(bad_setting(
                "/not_ready/window",
                format!("is {window}, must be at most {WINDOW_MAX}"),
            ));
        }
        Ok(())
    }
}
