//! Numbers of requests.

use std::collections::BTreeMap;

/// Numbers of requests, as runs: nearly all numbers of a stream are recorded in the end.
#[derive(Clone, Debug, Default)]
pub struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    /// Adds a number. False if it is there already.
    pub fn insert(&mut self, number: u64) -> bool {
        let before = self.0.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| number <= last) {
            return false;
        }
        let first = match before {
            Some((first, last)) if last + 1 == number => first,
            _ => number,
        };
        let last = number.checked_add(1).and_then(|next| self.0.remove(&next)).unwrap_or(number);
        self.0.insert(first, last);
        true
    }

    /// The first and the last number of each run.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(first, last)| (*first, *last))
    }
}
