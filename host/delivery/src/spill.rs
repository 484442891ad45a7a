//! Frames that wait for one sink in the journal and nowhere else: a sink that is away costs disk, not memory.
//!
//! Owns where they begin and end. They have been through the plugins: what is read back is the frame, what was done with it,
//! and the bytes that were made of it. They come back in order, a frame at a time, when there is room for them again.

use afterbay_batch::{Destination, FrameDecoder, Persisted, SettledContent};
use afterbay_journal::{
    BacklogFrame, BacklogItem, BacklogReader, FrameNo, ReadError, StoredReplacement, Verdict,
    is_release_marker,
};
use afterbay_journal::{Outcome, Passage};
use afterbay_outbox::Frame;
use afterbay_wire as wire;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};

/// Frames that wait in the journal.
pub struct Spill {
    backlog: BacklogReader,
    first: FrameNo,
    /// The last of them.
    through: FrameNo,
    frames: usize,
    bytes: u64,
    /// Those among them that went unkept (`on_error = "forward"`): the journal has only their numbers.
    unpersisted: VecDeque<Frame>,
}

/// A frame that comes back.
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub enum Back {
    /// Out of the journal.
    Read(BacklogFrame),
    /// Out of memory: the journal never had it.
    Unkept(Frame),
}

impl Spill {
    /// Begins with what `backlog`, which tells outcomes, reads next.
    pub fn new(backlog: BacklogReader) -> Spill {
        let first = backlog.position();
        Spill { backlog, first, through: FrameNo(0), frames: 0, bytes: 0, unpersisted: VecDeque::new() }
    }

    /// What an earlier run has left, up to and with this frame.
    pub fn of_earlier_run(backlog: BacklogReader, through: FrameNo) -> Spill {
        let spill = Spill::new(backlog);
        let frames = through.0.saturating_sub(spill.first.0) + 1;
        Spill { through, frames: usize::try_from(frames).unwrap_or(usize::MAX), ..spill }
    }

    /// A further frame waits.
    pub fn push(&mut self, persisted: &Persisted, frame: impl FnOnce() -> Frame) {
        if persisted.frame() > self.through {
            self.through = persisted.frame();
            self.frames += 1;
        }
        match persisted.is_in_journal() {
            true => self.bytes += persisted.bytes().len() as u64,
            false => self.unpersisted.push_back(frame()),
        }
    }

    /// Frames, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.frames, self.bytes)
    }

    /// The first that may still be read.
    pub fn first(&self) -> FrameNo {
        self.first.max(self.backlog.position())
    }

    /// Whether memory holds any of them.
    pub fn has_unkept(&self) -> bool {
        !self.unpersisted.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.unpersisted.is_empty() && self.backlog.position() > self.through
    }

    /// The next frame. `None`: it is not to be had now. An error names frames that are missing, or the disk's trouble.
    pub fn next(&mut self) -> Result<Option<Back>, ReadError> {
        loop {
            let position = self.backlog.position().0;
            if let Some(frame) = self.unpersisted.pop_front_if(|frame| frame.number < position) {
                self.frames = self.frames.saturating_sub(1);
                return Ok(Some(Back::Unkept(frame)));
            }
            if self.is_empty() {
                return Ok(None);
            }
            match self.backlog.next()? {
                None => return Ok(None),
                // Those that this run let go on are in memory.
                Some(BacklogItem::Skipped(..)) => {}
                Some(BacklogItem::Frame(frame)) => {
                    self.frames = self.frames.saturating_sub(1);
                    self.bytes = self.bytes.saturating_sub(frame.bytes.len() as u64);
                    return Ok(Some(Back::Read(frame)));
                }
            }
        }
    }
}

/// What leaves of a frame that has been through the plugins before.
pub fn again(frame: &BacklogFrame, decode: &mut FrameDecoder) -> SettledContent {
    if is_release_marker(&frame.bytes) && !is_passed_on(frame) {
        return released(frame, decode);
    }
    // Also of a frame that was refused, whatever it is.
    if frame.outcome.as_deref().is_some_and(|outcome| outcome.passage == Passage::Dropped) {
        return SettledContent::Nothing;
    }
    let came = match decode.decode_bytes(frame.bytes.clone()) {
        wire::DecodedFrame::Batch(batch) => batch,
        wire::DecodedFrame::Barrier(barrier) => return replaced(frame, &barrier, decode),
    };
    let Some(outcome) = frame.outcome.as_deref().filter(|outcome| !outcome.requests.is_empty()) else {
        // It had no numbers, or the journal lost what was done with it: it goes on as it came.
        let requests = vec![0; came.rows() as usize].into();
        return SettledContent::Rows { batch: came, requests, alone: true, redirected: Vec::new() };
    };
    let numbers = outcome.requests.iter().map(|request| request.0);
    match outcome.changed.clone().map(|bytes| decode.decode_bytes(bytes)) {
        Some(wire::DecodedFrame::Batch(changed)) => {
            let by_rid: HashMap<&[u8], (u32, u64)> = came.rid_bytes().zip((0..).zip(numbers)).collect();
            let requests =
                changed.rid_bytes().map(|rid| by_rid.get(rid).map_or(0, |known| known.1)).collect();
            let redirected = ways(outcome);
            let left = |(row, rid)| {
                let came = by_rid.get(rid)?.0;
                Some((row, redirected.iter().find(|(redirected, _)| *redirected == came)?.1.clone()))
            };
            let redirected = match redirected.is_empty() {
                true => Vec::new(),
                false => (0..).zip(changed.rid_bytes()).filter_map(left).collect(),
            };
            let cumulative = cumulative(outcome);
            let is =
                |rid: &[u8]| by_rid.get(rid).is_some_and(|(came, _)| cumulative.binary_search(came).is_ok());
            let rows = match cumulative.is_empty() {
                true => Vec::new(),
                false => {
                    (0..).zip(changed.rid_bytes()).filter_map(|(row, rid)| is(rid).then_some(row)).collect()
                }
            };
            let alone = !changed.has_text_rids();
            SettledContent::Rows { requests, batch: changed.with_cumulative(rows), alone, redirected }
        }
        Some(wire::DecodedFrame::Barrier(changed)) => written(changed.bytes()),
        None => SettledContent::Rows {
            alone: !came.has_text_rids(),
            batch: came,
            requests: numbers.collect(),
            redirected: ways(outcome),
        },
    }
}

/// What left in the place of a frame without rows that can be read: itself, or where a plugin must judge them, the end of their
/// requests.
fn replaced(frame: &BacklogFrame, barrier: &wire::Barrier, decode: &mut FrameDecoder) -> SettledContent {
    let ended = frame
        .outcome
        .as_deref()
        .and_then(|outcome| Some((outcome, decode.decode_bytes(outcome.changed.clone()?))));
    match ended {
        Some((outcome, wire::DecodedFrame::Batch(batch))) => SettledContent::Rows {
            alone: !batch.has_text_rids(),
            batch,
            requests: outcome.requests.iter().map(|request| request.0).collect(),
            redirected: Vec::new(),
        },
        Some((_, wire::DecodedFrame::Barrier(changed))) => written(changed.bytes()),
        None => SettledContent::from_barrier(barrier),
    }
}

/// What was written in the place of a frame, and by itself cannot be read: all of its rows are such.
fn written(bytes: &Bytes) -> SettledContent {
    SettledContent::Whole { bytes: bytes.clone(), counted: true, to_all: false }
}

/// The rows that did not go to their reader. Of several verdicts on one the last holds.
fn ways(outcome: &Outcome<'_>) -> Vec<(u32, Destination)> {
    let mut ways: Vec<(u32, Destination)> = Vec::new();
    for action in outcome.actions.iter() {
        let way = match action.verdict {
            Verdict::Route => Destination::To(action.text.to_string()),
            Verdict::SkipDetokenizing => Destination::SkipDetokenizer,
            _ => continue,
        };
        ways.pop_if(|(row, _)| *row == action.row);
        ways.push((action.row, way));
    }
    ways
}

/// It came from a scheduler, after all.
fn is_passed_on(frame: &BacklogFrame) -> bool {
    frame.outcome.as_deref().is_some_and(|outcome| matches!(outcome.passage, Passage::NotUnderstood(_)))
}

/// What went on with a frame of Afterbay's own: nothing where nothing of it is written.
fn released(frame: &BacklogFrame, decode: &mut FrameDecoder) -> SettledContent {
    let Some(outcome) = frame.outcome.as_deref() else { return SettledContent::Nothing };
    let Some(wire::DecodedFrame::Batch(batch)) =
        outcome.changed.clone().map(|bytes| decode.decode_bytes(bytes))
    else {
        return SettledContent::Nothing;
    };
    // All its rows left but those that wait again, in order.
    let waits = |row: u32| {
        let last = outcome.actions.iter().rfind(|action| action.row == row);
        last.is_some_and(|action| action.verdict == Verdict::Hold)
    };
    let left: Vec<_> = (0..).zip(outcome.requests.iter()).filter(|(row, _)| !waits(*row)).collect();
    let requests: Box<[u64]> = left.iter().map(|(_, request)| request.0).collect();
    let place = |row: u32| left.iter().position(|(left, _)| *left == row);
    let redirected = ways(outcome).into_iter().filter_map(|(row, way)| Some((place(row)? as u32, way)));
    let cumulative = cumulative(outcome).into_iter().filter_map(|row| Some(place(row)? as u32)).collect();
    SettledContent::Rows {
        redirected: redirected.collect(),
        requests,
        batch: batch.with_cumulative(cumulative),
        alone: false,
    }
}

/// The rows that were given all ids so far, ascending. Of several verdicts on one the last holds.
fn cumulative(outcome: &Outcome<'_>) -> Vec<u32> {
    let mut rows = Vec::new();
    for action in outcome.actions.iter() {
        let Some(replaced) = action.replaced() else { continue };
        rows.pop_if(|row| *row == action.row);
        if replaced == StoredReplacement::Cumulative {
            rows.push(action.row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::PluginAction;

    fn replaced(row: u32, text: String) -> PluginAction<'static> {
        let (plugin, ids) = ("p".into(), vec![7].into());
        PluginAction { row, plugin, verdict: Verdict::Replace, text: text.into(), ids, forwarded: 1 }
    }

    #[test]
    fn a_row_has_all_ids_so_far_if_the_last_plugin_to_replace_its_tokens_gave_it_them() {
        let all = |row| replaced(row, StoredReplacement::cumulative(3));
        let new = |row| replaced(row, String::new());
        let note = PluginAction { verdict: Verdict::Annotate, ..new(1) };
        let actions = vec![all(0), new(0), all(1), note, new(2), all(2), new(3), all(4), all(4)];
        let outcome = Outcome { actions: actions.into(), ..Outcome::new(FrameNo(1), 0, Passage::Changed) };
        assert_eq!(cumulative(&outcome), [1, 2, 4]);
    }
}
