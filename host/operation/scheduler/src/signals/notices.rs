//! The changes of the sources, in a bounded queue. The binary makes events of them.

use std::collections::VecDeque;

use crate::signals::bounds::NOTICES_MAX;
use crate::signals::snapshot::SourceKind;

/// A change of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceNotice {
    /// The kind of the source.
    pub source: SourceKind,
    /// The source's file, or the words for frames.
    pub name: String,
    /// The change.
    pub change: SourceChange,
}

/// A change of a source's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// The source can be read, for the first time or again.
    Found,
    /// The source cannot be read: it does not exist, or its writer has stopped.
    Lost {
        /// The reason.
        why: String,
    },
    /// The source gives invalid data.
    Invalid {
        /// The value, and the expected one.
        why: String,
    },
    /// The last reading is too old.
    Stale {
        /// The age of the reading in nanoseconds.
        age_ns: u64,
    },
    /// The source is no longer stale.
    Fresh,
    /// The queue of notices was full, and these notices were dropped.
    NoticesMissed {
        /// The number of notices.
        notices: u64,
    },
}

/// A bounded queue of notices. If it is full, further notices are counted, and one notice reports their
/// number.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    queue: VecDeque<SourceNotice>,
    missed: u64,
}

impl Notices {
    pub(crate) fn push(&mut self, notice: SourceNotice) {
        // The last place is reserved for the notice with the count.
        if self.queue.len() < NOTICES_MAX - 1 && self.missed == 0 {
            self.queue.push_back(notice);
            return;
        }
        self.missed += 1;
        let counted = SourceNotice { change: SourceChange::NoticesMissed { notices: self.missed }, ..notice };
        if self.missed == 1 {
            self.queue.push_back(counted);
        } else if let Some(last) = self.queue.back_mut() {
            *last = counted;
        }
    }

    pub(crate) fn take(&mut self) -> Vec<SourceNotice> {
        self.missed = 0;
        std::mem::take(&mut self.queue).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_beyond_the_bound_are_replaced_by_their_count() {
        let notice =
            || SourceNotice { source: SourceKind::Frames, name: "x".into(), change: SourceChange::Found };
        let mut notices = Notices::default();
        for _ in 0..NOTICES_MAX + 7 {
            notices.push(notice());
        }
        let taken = notices.take();
        assert_eq!(taken.len(), NOTICES_MAX);
        assert_eq!(taken.last().unwrap().change, SourceChange::NoticesMissed { notices: 8 });
        notices.push(notice());
        assert_eq!(notices.take(), [notice()]);
    }
}
