//! The bounded queue of a socket's notices. The stream turns them into events.

use std::collections::VecDeque;

use crate::bounds::NOTICES_MAX;

/// A full queue drops and counts further notices, and a last notice gives their count.
#[derive(Debug)]
pub(crate) struct NoticeQueue<N> {
    queue: VecDeque<N>,
    missed: u64,
}

impl<N> NoticeQueue<N> {
    pub(crate) fn new() -> Self {
        NoticeQueue { queue: VecDeque::new(), missed: 0 }
    }

    pub(crate) fn push(&mut self, notice: N) {
        // After a drop, notices are dropped until the count is taken, so that the order stays true.
        if self.missed > 0 || self.queue.len() >= NOTICES_MAX {
            self.missed += 1;
        } else {
            self.queue.push_back(notice);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.missed == 0
    }

    pub(crate) fn any(&self, is_it: impl Fn(&N) -> bool) -> bool {
        self.queue.iter().any(is_it) || self.missed > 0
    }

    pub(crate) fn next(&mut self, missed: impl FnOnce(u64) -> N) -> Option<N> {
        match self.queue.pop_front() {
            None if self.missed > 0 => Some(missed(std::mem::take(&mut self.missed))),
            notice => notice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_past_the_bound_are_counted_and_reported_in_their_place() {
        let mut notices = NoticeQueue::new();
        for n in 0..NOTICES_MAX + 7 {
            notices.push(n as i64);
        }
        for n in 0..NOTICES_MAX {
            assert_eq!(notices.next(|_| -1), Some(n as i64));
        }
        notices.push(99);
        assert_eq!(notices.next(|missed| -(missed as i64)), Some(-8));
        assert_eq!(notices.next(|_| -1), None);
        notices.push(5);
        assert_eq!(notices.next(|_| -1), Some(5));
    }
}
