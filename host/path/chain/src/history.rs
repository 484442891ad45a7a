//! The recent past of a plugin, for the operator: its reloads, and the rows on which a shadow and its live plugin differ.
//!
//! The entries are shared, so that a stream that reports its plugins copies no text.

use afterbay_runtime::Digest;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

/// Reloads that a plugin's history has at most. An earlier one leaves first.
pub const RELOADS_MAX: usize = 20;
/// Differences that a shadow's history has at most. An earlier one leaves first.
pub const DIFFERENCES_MAX: usize = 100;
/// Bytes of a rid that a history stores, which is the journal's limit.
const RID_BYTES_MAX: usize = 4096;
/// Bytes of any other text that a history stores.
const TEXT_BYTES_MAX: usize = 512;

/// A reload of a plugin: a new component, new settings, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reload {
    /// The time at which the new instance took over or was refused.
    pub at: SystemTime,
    /// The digest of the component before.
    pub from: Digest,
    /// The digest of the new component. `None` if the component was refused before its digest was known.
    pub to: Option<Digest>,
    /// The version that the new component gives itself. `None` if the component was refused before that was known.
    pub version: Option<String>,
    /// The reason why the new component was refused, at most 512 bytes. `None` if the new instance took over.
    pub refused: Option<String>,
}

/// A row on which a shadow and its live plugin decided differently. Neither decision has the ids of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The receive time of the row's frame.
    pub at: SystemTime,
    /// The row's request, at most 4,096 bytes.
    pub rid: String,
    /// The number of the row's frame.
    pub frame: u64,
    /// The live plugin's decision in words, at most 512 bytes. `nothing`: the live plugin had no verdict.
    pub live: String,
    /// The shadow's decision, likewise.
    pub shadow: String,
}

/// The last entries of one kind, the earliest first.
#[derive(Debug)]
pub(crate) struct Last<T, const MAX: usize>(VecDeque<Arc<T>>);

impl<T, const MAX: usize> Default for Last<T, MAX> {
    fn default() -> Last<T, MAX> {
        Last(VecDeque::new())
    }
}

impl<T, const MAX: usize> Last<T, MAX> {
    pub(crate) fn push(&mut self, entry: T) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(entry));
    }

    pub(crate) fn list(&self) -> Vec<Arc<T>> {
        self.0.iter().cloned().collect()
    }
}

impl Reload {
    /// Cuts the texts to their bounds.
    pub(crate) fn bounded(mut self) -> Reload {
        self.version.iter_mut().chain(&mut self.refused).for_each(|text| cut(text, TEXT_BYTES_MAX));
        self
    }
}

impl Difference {
    /// Cuts the texts to their bounds.
    pub(crate) fn bounded(mut self) -> Difference {
        cut(&mut self.rid, RID_BYTES_MAX);
        [&mut self.live, &mut self.shadow].into_iter().for_each(|text| cut(text, TEXT_BYTES_MAX));
        self
    }
}

fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_keeps_the_last_entries_and_cuts_long_texts() {
        let mut last = Last::<Difference, DIFFERENCES_MAX>::default();
        for frame in 0..250 {
            let difference = Difference {
                at: SystemTime::UNIX_EPOCH,
                rid: "é".repeat(3000),
                frame,
                live: "x".repeat(600),
                shadow: "nothing".to_owned(),
            };
            last.push(difference.bounded());
        }
        let frames: Vec<u64> = last.list().iter().map(|difference| difference.frame).collect();
        assert_eq!(frames, (150..250).collect::<Vec<u64>>());
        let first = &last.list()[0];
        assert_eq!((first.rid.len(), first.live.len(), &*first.shadow), (4096, 512, "nothing"));
    }
}
