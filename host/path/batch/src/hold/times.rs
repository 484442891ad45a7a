//! The times of held rows, which the journal does not have: a hand-over passes them on, so that the rows stay held.

use super::HeldRows;
use afterbay_events::HoldEnd;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The times of the rows of one request that one plugin holds. Times are microseconds from the hand-over on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldTimes {
    request: u64,
    /// The plugin's name.
    pub plugin: String,
    /// For each row, the time until it leaves if nothing releases it earlier.
    rows_us: Vec<u64>,
    released: usize,
    release_us: u64,
    hold_us: u64,
    /// The word of the [`HoldEnd`], once all rows are to leave.
    end: Option<String>,
    ends_request: bool,
}

impl HeldRows {
    /// The times of all held rows.
    pub fn times(&self, now: Instant) -> Vec<HoldTimes> {
        let until =
            |at: Instant| u64::try_from(at.saturating_duration_since(now).as_micros()).unwrap_or(u64::MAX);
        let all = self.by_request.iter();
        let all = all.flat_map(|(number, request)| request.of_plugins.iter().map(move |it| (*number, it)));
        let times = all.map(|(request, hold)| HoldTimes {
            request,
            plugin: hold.plugin.to_string(),
            rows_us: hold.deadlines.iter().map(|at| until(*at)).collect(),
            released: hold.released,
            release_us: until(hold.release_deadline),
            hold_us: until(hold.hold_deadline),
            end: hold.end.map(|end| end.word().to_owned()),
            ends_request: hold.ends_request,
        });
        let mut times: Vec<HoldTimes> = times.collect();
        times.sort_by_key(|times| times.request);
        times
    }

    /// Sets the times of recovered rows. The rows of a plugin that `stays` does not name, and rows without times, leave at once:
    /// nothing would release them.
    pub fn restore(&mut self, times: &[HoldTimes], now: Instant, stays: impl Fn(&str) -> bool) {
        let by_hold: HashMap<(u64, &str), &HoldTimes> =
            times.iter().map(|times| ((times.request, times.plugin.as_str()), times)).collect();
        self.change_all(|request, hold| {
            let times = by_hold.get(&(request, &hold.plugin[..]));
            let is_whole =
                |times: &&&HoldTimes| times.rows_us.len() == hold.rows.len() && stays(&hold.plugin);
            let Some(times) = times.filter(is_whole) else {
                hold.end.get_or_insert(HoldEnd::Start);
                return;
            };
            // A time past what a clock can show is no time of this program.
            let at = |us| now.checked_add(Duration::from_micros(us)).unwrap_or(now);
            hold.deadlines = times.rows_us.iter().map(|us| at(*us)).collect();
            hold.released = times.released.min(hold.rows.len());
            (hold.release_deadline, hold.hold_deadline) = (at(times.release_us), at(times.hold_us));
            hold.end = times.end.as_deref().map(end_of);
            hold.ends_request = times.ends_request;
        });
    }
}

/// The end with this word. A word of another version ends the hold as a start does.
fn end_of(word: &str) -> HoldEnd {
    use HoldEnd::{Call, Columns, Instance, Last, Room, Start, Stop, Time, Verdict};
    let all = [Verdict, Time, Last, Instance, Room, Columns, Start, Stop, Call];
    all.into_iter().find(|end| end.word() == word).unwrap_or(HoldEnd::Start)
}
