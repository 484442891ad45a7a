//! The rate limit of the log. It logs the first few events of a key, then one line every ten seconds with their number.
//! Counts and recorders get every event.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::Event;

/// The time for which similar events are gathered into one line.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The most keys known at once. Past this, all events of one kind share a key.
pub const KEYS_MAX: usize = 1024;

/// A line to log: the event, and the number of events if the line is a summary.
pub(crate) type Line = (Event, Option<u64>);

#[derive(Default)]
pub(crate) struct Limiter {
    keys: HashMap<(usize, String), Window>,
}

struct Window {
    ends: Instant,
    told: u64,
    /// The number of events that are not logged yet. `last` is the latest of them.
    held: u64,
    last: Option<Event>,
}

impl Limiter {
    /// The line to log now for this event, if any.
    pub(crate) fn admit(&mut self, event: Event, now: Instant) -> Option<Line> {
        let key = self.place((event.index(), event.key()));
        let window =
            self.keys.entry(key).or_insert(Window { ends: now + WINDOW, told: 0, held: 0, last: None });
        if now >= window.ends {
            let held = std::mem::take(&mut window.held);
            window.ends = now + WINDOW;
            if held > 0 {
                window.last = None;
                return Some((event, Some(held + 1)));
            }
            window.told = 0;
        }
        if window.told < event.first() {
            window.told += 1;
            return Some((event, None));
        }
        window.held += 1;
        window.last = Some(event);
        None
    }

    /// The summaries of the windows that have ended. Forgets keys without events. Call it about once a second.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        self.keys.retain(|_, window| {
            if now < window.ends {
                return true;
            }
            let Some(last) = window.last.take() else { return false };
            lines.push((last, Some(std::mem::take(&mut window.held))));
            window.ends = now + WINDOW;
            true
        });
        lines
    }

    /// The key, or that of all events of its kind if there is no room for it: [`Limiter::tick`] makes room.
    fn place(&self, key: (usize, String)) -> (usize, String) {
        let has_room = self.keys.len() < KEYS_MAX || self.keys.contains_key(&key);
        if has_room { key } else { (key.0, String::new()) }
    }
}

#[cfg(test)]
mod tests;
