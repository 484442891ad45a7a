//! Set of frame numbers, stored as runs: a million consecutive frames cost as much as one frame.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::bounds::RUNS_MAX;
use crate::position::FrameNo;

/// Set of frame numbers in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(FrameNo, u64)>", into = "Vec<(FrameNo, u64)>")]
pub struct FrameSet {
    /// Ascending, with a gap between any two runs.
    runs: VecDeque<FrameRun>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameRun {
    first: u64,
    /// Number after the last frame of the run.
    end: u64,
}

impl From<FrameSet> for Vec<(FrameNo, u64)> {
    fn from(frames: FrameSet) -> Vec<(FrameNo, u64)> {
        frames.runs().collect()
    }
}

impl From<Vec<(FrameNo, u64)>> for FrameSet {
    fn from(runs: Vec<(FrameNo, u64)>) -> FrameSet {
        let mut frames = FrameSet::default();
        runs.into_iter().for_each(|(first, count)| frames.insert_run(first.0, count));
        frames
    }
}

impl FrameSet {
    /// Smallest frame number.
    pub fn first(&self) -> Option<FrameNo> {
        self.runs.front().map(|run| FrameNo(run.first))
    }

    /// Largest frame number.
    pub fn last(&self) -> Option<FrameNo> {
        self.runs.back().map(|run| FrameNo(run.end - 1))
    }

    /// Number of frames. Takes time proportional to the number of runs.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.first).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether `frame` is in the set.
    pub fn contains(&self, frame: FrameNo) -> bool {
        let at = self.index_after(frame.0);
        at.checked_sub(1).is_some_and(|at| self.runs[at].end > frame.0)
    }

    /// Iterates over the frame numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = FrameNo> {
        self.runs.iter().flat_map(|run| (run.first..run.end).map(FrameNo))
    }

    /// Iterates over the runs: first frame, and number of frames.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = (FrameNo, u64)> {
        self.runs.iter().map(|run| (FrameNo(run.first), run.end - run.first))
    }

    /// Index of the first run that begins after `frame`.
    fn index_after(&self, frame: u64) -> usize {
        match self.runs.back() {
            // Most frames are appended at the end.
            Some(last) if last.first <= frame => self.runs.len(),
            _ => self.runs.partition_point(|run| run.first <= frame),
        }
    }

    pub(crate) fn insert(&mut self, frame: u64) {
        self.insert_run(frame, 1);
    }

    /// Adds a run that does not overlap the set.
    pub(crate) fn insert_run(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        let at = self.index_after(first);
        let touches = at.checked_sub(1).filter(|&before| self.runs[before].end >= first);
        match touches {
            Some(before) => self.runs[before].end = self.runs[before].end.max(end),
            None => self.runs.insert(at, FrameRun { first, end }),
        }
        let at = touches.unwrap_or(at);
        if let Some(next) = self.runs.get(at + 1).copied().filter(|next| next.first <= self.runs[at].end) {
            self.runs[at].end = self.runs[at].end.max(next.end);
            self.runs.remove(at + 1);
        }
    }

    /// Adds the frames of another set.
    pub(crate) fn extend(&mut self, other: &FrameSet) {
        other.runs().for_each(|(first, count)| self.insert_run(first.0, count));
    }

    /// Removes a frame. Returns whether the frame was in the set.
    pub(crate) fn remove(&mut self, frame: u64) -> bool {
        let at = match self.runs.front() {
            // Most frames are removed from the front.
            Some(first) if first.first <= frame && frame < first.end => 0,
            _ => match self.index_after(frame).checked_sub(1).filter(|&at| self.runs[at].end > frame) {
                Some(at) => at,
                None => return false,
            },
        };
        let run = &mut self.runs[at];
        match (run.first == frame, run.end == frame + 1) {
            (true, true) => drop(self.runs.remove(at)),
            (true, false) => run.first += 1,
            (false, true) => run.end -= 1,
            (false, false) => {
                let rest = FrameRun { first: frame + 1, end: std::mem::replace(&mut run.end, frame) };
                self.runs.insert(at + 1, rest);
            }
        }
        true
    }

    /// Removes all frames up to `frame`.
    pub(crate) fn remove_through(&mut self, frame: u64) {
        while self.runs.pop_front_if(|run| run.end <= frame + 1).is_some() {}
        if let Some(first) = self.runs.front_mut() {
            first.first = first.first.max(frame + 1);
        }
    }

    /// Drops the oldest run if there are more than `RUNS_MAX`. Returns its first frame and its length.
    pub(crate) fn drop_oldest_run(&mut self) -> Option<(FrameNo, u64)> {
        let oldest = if self.runs.len() > RUNS_MAX { self.runs.pop_front() } else { None };
        oldest.map(|run| (FrameNo(run.first), run.end - run.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_set_holds_what_a_plain_set_holds() {
        let (mut runs, mut plain) = (FrameSet::default(), std::collections::BTreeSet::new());
        let mut seed = 7u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let frame = 1 + (seed >> 33) % 60;
            if seed >> 63 == 0 {
                assert_eq!(runs.contains(FrameNo(frame)), plain.contains(&frame));
                if plain.insert(frame) {
                    runs.insert(frame);
                }
            } else {
                assert_eq!(runs.remove(frame), plain.remove(&frame));
            }
            assert!(runs.iter().map(|frame| frame.0).eq(plain.iter().copied()));
            assert_eq!(
                (runs.len(), runs.first().map(|first| first.0), runs.last().map(|last| last.0)),
                (plain.len() as u64, plain.first().copied(), plain.last().copied())
            );
            assert!(runs.runs.iter().zip(runs.runs.iter().skip(1)).all(|(one, next)| one.end < next.first));
        }
    }
}
