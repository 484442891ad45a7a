//! What changed about the sources, in a bounded queue, for the binary to make events of.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::bounds::NOTICES_MAX;
use crate::snapshot::SourceKind;

/// Something changed about a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// Which.
    pub source: SourceKind,
    /// Its file, endpoint or URL.
    pub name: String,
    /// What changed.
    #[serde(flatten)]
    pub change: Change,
}

/// What changed about a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// It can be read: for the first time, or again.
    Found,
    /// It cannot be had: not there, not reachable, too slow.
    Lost {
        /// In words.
        why: String,
    },
    /// It is there and what it says cannot be used.
    Invalid {
        /// In words: the value and what was expected.
        why: String,
    },
    /// Its last reading is too old to be used.
    Stale {
        /// Nanoseconds since it was measured.
        age_ns: u64,
    },
    /// It is no longer stale.
    Fresh,
    /// Messages of the publisher that never came: its sequence number jumped. What they said is superseded.
    Missed {
        /// How many.
        messages: u64,
    },
    /// The queue of notices was full, and these were not kept. Of any source.
    NoticesMissed {
        /// How many.
        notices: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: ", self.source, self.name)?;
        match &self.change {
            Change::Found => write!(f, "found"),
            Change::Lost { why } => write!(f, "not to be had: {why}"),
            Change::Invalid { why } => write!(f, "cannot be used: {why}"),
            Change::Stale { age_ns } => {
                write!(f, "stale, measured {:.1} s ago", Duration::from_nanos(*age_ns).as_secs_f64())
            }
            Change::Fresh => write!(f, "fresh again"),
            Change::Missed { messages } => write!(f, "{messages} messages did not come"),
            Change::NoticesMissed { notices } => write!(f, "{notices} notices were not kept"),
        }
    }
}

/// When it is full further notices are counted, not kept, and the count is told in their place.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    queue: VecDeque<Notice>,
    missed: u64,
}

impl Notices {
    pub(crate) fn push(&mut self, notice: Notice) {
        // One place is left for the count itself.
        if self.queue.len() < NOTICES_MAX - 1 && self.missed == 0 {
            self.queue.push_back(notice);
            return;
        }
        self.missed += 1;
        let counted = Notice { change: Change::NoticesMissed { notices: self.missed }, ..notice };
        if self.missed == 1 {
            self.queue.push_back(counted);
        } else if let Some(last) = self.queue.back_mut() {
            *last = counted;
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Notice> {
        self.missed = 0;
        std::mem::take(&mut self.queue).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_past_the_bound_are_counted_and_told_in_their_place() {
        let notice = || Notice { source: SourceKind::LoadStat, name: "x".into(), change: Change::Found };
        let mut notices = Notices::default();
        for _ in 0..NOTICES_MAX + 7 {
            notices.push(notice());
        }
        let taken = notices.take();
        assert_eq!(taken.len(), NOTICES_MAX);
        assert_eq!(taken.last().unwrap().change, Change::NoticesMissed { notices: 8 });
        notices.push(notice());
        assert_eq!(notices.take(), [notice()]);
    }
}
