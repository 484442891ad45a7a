//! Sent frames that are not taken yet, and the frame up to which everything is taken.

use std::collections::VecDeque;

/// The position of a frame among all that were pushed, from 0.
pub(crate) type FrameIndex = u64;

/// The frames from when they are pushed until they are taken.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    /// The number of each pushed frame in the journal, and the number of its parts (rows, or the whole) that are not taken.
    sources: VecDeque<(u64, u32)>,
    /// The index of `sources[0]`.
    first: FrameIndex,
    /// The sequence number of each sent frame, its source frames, and the number of parts from each.
    sent: VecDeque<(u64, Vec<(FrameIndex, u32)>)>,
    sequence: u64,
    /// The last taken number.
    taken: u64,
    /// Parts of the next frame were sent before, in frames up to this number.
    rest_of: Option<u64>,
    /// Everything up to this frame is taken.
    taken_through: u64,
}

impl Outstanding {
    pub(crate) fn new(sequence: u64, taken_through: u64) -> Outstanding {
        Outstanding { sequence, taken_through, ..Outstanding::default() }
    }

    /// Adds a frame of `parts` parts. A frame without parts is done as soon as all frames before it are.
    pub(crate) fn add(&mut self, frame: u64, parts: u32) -> FrameIndex {
        let frame_index = self.first + self.sources.len() as u64;
        let before = self.rest_of.take().filter(|sequence| *sequence > self.taken);
        if let Some(sequence) = before {
            // Later numbers before it belong to earlier frames, without which this one is not done either.
            self.sent.push_back((sequence, vec![(frame_index, 1)]));
        }
        self.sources.push_back((frame, parts + u32::from(before.is_some())));
        self.pass();
        frame_index
    }

    /// The next frame has one more part, which was sent with `sequence`.
    pub(crate) fn rest_of(&mut self, sequence: u64) {
        self.rest_of = Some(sequence);
    }

    /// Numbers a sent frame that has these parts of its source frames.
    pub(crate) fn send(&mut self, of: Vec<(FrameIndex, u32)>) -> u64 {
        self.sequence += 1;
        self.sent.push_back((self.sequence, of));
        self.sequence
    }

    /// Marks every sent frame up to `through` as taken.
    pub(crate) fn taken(&mut self, through: u64) {
        self.taken = self.taken.max(through);
        while let Some((_, of)) = self.sent.pop_front_if(|(sequence, _)| *sequence <= through) {
            for (frame_index, parts) in of {
                if let Some((_, open)) = self.source(frame_index) {
                    *open = open.saturating_sub(parts);
                }
            }
        }
        self.pass();
    }

    fn source(&mut self, frame_index: FrameIndex) -> Option<&mut (u64, u32)> {
        self.sources.get_mut(usize::try_from(frame_index.checked_sub(self.first)?).ok()?)
    }

    fn pass(&mut self) {
        while let Some((frame, _)) = self.sources.pop_front_if(|(_, open)| *open == 0) {
            self.first += 1;
            self.taken_through = frame;
        }
    }

    pub(crate) fn taken_through(&self) -> u64 {
        self.taken_through
    }
}
