//! What an earlier run left: which rows the reader has, and which are sent again out of the journal.
//!
//! Owns nothing but what the journal says of the sink. Where the last run was killed, the reader's own count settles what
//! became of the frames it was being sent; without a count they pass as taken, and are told as unconfirmed.

use crate::decode::{Decode, Decoded};
use crate::judge::CUMULATIVE;
use crate::keep::Kept;
use crate::ledger::Settled;
use afterbay_journal::reader::{Action, Outcome, Passage};
use afterbay_journal::{Backlogged, Credit, FrameNo, Recovered, RequestNo, Sent, Sink, Verdict, Writer};
use afterbay_outbox::Content;
use afterbay_sockets::bounds::{CREDIT_QUIET, CREDIT_STALL_MAX};
use afterbay_sockets::credit::{Look, Page, PageReader};
use afterbay_wire::{self as wire, Batch};
use bytes::Bytes;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A frame that has left and not been told of: at most a turn's, since what is told goes out with the next frame.
const UNTOLD_MAX: u64 = 16;

/// How the frames after [`Sink::through`] go on.
pub(crate) struct Resume {
    sink: Sink,
    /// Up to this frame nothing is to be done.
    done: FrameNo,
    /// The last frame of the earlier run.
    through: FrameNo,
    /// So many frames that are not accounted were received by the reader all the same.
    untold: u64,
    /// Frames of which nobody can say whether the reader has them, and which pass as taken.
    unconfirmed: u64,
}

/// What the reader's count says.
enum Count {
    /// So many counted frames were finished since the journal's word, and where it stands now.
    Since(u64, Credit),
    Unknown,
}

impl Resume {
    /// Finds out what the reader has of what it was sent. Waits while it still counts.
    pub(crate) fn new(
        mut sink: Sink,
        recovered: &Recovered,
        page: Option<&Path>,
        writer: &mut Writer,
        decode: &mut Decode,
    ) -> Resume {
        let through = recovered.last_frame;
        let may_be_out = sink.sent().len() > 0 || sink.through() < through;
        let mut credit = None;
        let count = match page {
            Some(page) if may_be_out => count(&sink, page),
            _ => Count::Unknown,
        };
        let (sequence, untold, unconfirmed) = match count {
            Count::Unknown => {
                let first = recovered.unfinished.first();
                let untold = if may_have_passed(&sink, first) { UNTOLD_MAX } else { 0 };
                let unconfirmed = sink.sent().len() as u64 + untold.min(recovered.unfinished.len());
                (sink.last_sent(), untold, unconfirmed)
            }
            Count::Since(finished, now) => {
                credit = Some(now);
                let mut left = finished;
                let mut sequence = sink.sequence();
                let sent: Vec<(u64, bool)> = sink
                    .sent()
                    .map(|(sequence, sent)| (sequence, is_counted(sent, writer, decode)))
                    .collect();
                for (sent, counted) in &sent {
                    if *counted && left == 0 {
                        break;
                    }
                    left -= u64::from(*counted);
                    sequence = *sent;
                }
                (sequence, left, 0)
            }
        };
        sink.take(sequence);
        writer.resume(sink.name(), sequence);
        // What was counted now must not be counted again by a next start.
        writer.taken_sent(sink.name(), sequence, sink.through(), credit);
        // Where it cannot be written the disk is failing, which `append` tells.
        let _written = writer.flush();
        Resume { done: sink.through(), sink, through, untold, unconfirmed }
    }

    /// For a reader that is another than the earlier run's: frames after `done` are accounted, and no more.
    pub(crate) fn of_another(done: FrameNo, through: FrameNo) -> Resume {
        Resume { sink: Sink::up_to("", through), done, through, untold: u64::MAX, unconfirmed: 0 }
    }

    /// The last frame that left.
    pub(crate) fn last_sent(&self) -> u64 {
        self.sink.last_sent()
    }

    /// Everything up to this frame is done with.
    pub(crate) fn done(&self) -> FrameNo {
        self.done
    }

    /// Frames of the earlier run that are read back.
    pub(crate) fn frames(&self) -> u64 {
        self.through.0.saturating_sub(self.done.0)
    }

    pub(crate) fn through(&self) -> FrameNo {
        self.through
    }

    /// Frames of which nobody can say whether the reader has them. They are not sent again.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.unconfirmed
    }

    /// Whether a frame that no outcome is known of has been received by the reader.
    pub(crate) fn was_received(&mut self, decoded: &Decoded) -> bool {
        let is_received = self.untold > 0;
        self.untold -= u64::from(is_received && decoded.counted());
        is_received
    }

    /// What of an accounted frame the reader does not have.
    pub(crate) fn settle(&self, kept: Kept, outcome: &Outcome, decode: &mut Decode) -> Settled {
        let came = decode.look(kept.bytes.clone());
        let counted = came.counted();
        let content = match (&outcome.passage, came) {
            (Passage::Dropped, _) => Content::Nothing,
            (_, wire::Decoded::Barrier(barrier)) => self.whole(kept.frame, barrier.bytes().clone(), counted),
            (_, wire::Decoded::Batch(came)) => {
                let numbers = outcome.requests.iter().map(|request| request.0);
                match outcome.changed.clone().map(|bytes| decode.look(bytes)) {
                    Some(wire::Decoded::Batch(changed)) if is_cumulative(outcome) => {
                        self.whole(kept.frame, changed.bytes().clone(), true)
                    }
                    Some(wire::Decoded::Batch(changed)) => {
                        let by_rid: HashMap<&str, u64> = came.rids().zip(numbers).collect();
                        let numbers = changed.rids().map(|rid| by_rid.get(rid).copied().unwrap_or(0));
                        let numbers = numbers.collect();
                        self.rows(kept.frame, changed, numbers)
                    }
                    _ => self.rows(kept.frame, came, numbers.collect()),
                }
            }
        };
        Settled { kept, content }
    }

    fn whole(&self, frame: FrameNo, bytes: Bytes, counted: bool) -> Content {
        if self.sink.has_taken(frame) { Content::Nothing } else { Content::Whole { bytes, counted } }
    }

    fn rows(&self, frame: FrameNo, batch: Batch, requests: Box<[u64]>) -> Content {
        let is_left = |row: &u32| {
            let request = requests.get(*row as usize).copied().unwrap_or(0);
            !self.sink.has_taken_row(frame, RequestNo(request))
        };
        let left: Vec<u32> = (0..batch.rows()).filter(is_left).collect();
        if left.is_empty() {
            return Content::Nothing;
        }
        if left.len() == batch.rows() as usize {
            return Content::Rows { batch, requests };
        }
        let some = left.iter().map(|row| requests.get(*row as usize).copied().unwrap_or(0)).collect();
        match batch.take(&left) {
            Ok(batch) => Content::Rows { batch, requests: some },
            // Some of its rows left, so it could be taken apart before.
            Err(_) => Content::Whole { bytes: batch.bytes().clone(), counted: true },
        }
    }
}

/// Whether the first frame that is not accounted may have left as it came, without being told of: only where nothing
/// waited before it.
fn may_have_passed(sink: &Sink, unfinished: Option<FrameNo>) -> bool {
    let Some(before) = unfinished.map(|first| FrameNo(first.0.saturating_sub(1))) else { return false };
    let left_last = match sink.sent().last() {
        Some((_, Sent::Whole(frame))) => frame == before,
        Some((_, Sent::Rows(rows))) => rows.iter().any(|(_, frame)| *frame == before),
        None => false,
    };
    left_last || sink.has_taken(before)
}

/// All ids so far stand in each row: joined they would be there twice.
fn is_cumulative(outcome: &Outcome) -> bool {
    let is = |action: &Action| action.verdict == Verdict::Replace && action.text.starts_with(CUMULATIVE);
    outcome.actions.iter().any(is)
}

fn is_counted(sent: Sent<'_>, writer: &Writer, decode: &mut Decode) -> bool {
    let Sent::Whole(frame) = sent else { return true };
    match writer.backlog(frame).next() {
        Ok(Some(Backlogged::Frame(frame))) => decode.look(frame.bytes).counted(),
        _ => true,
    }
}

/// How many frames the reader has finished since the journal's word of it, once it has finished all it has.
fn count(sink: &Sink, page: &Path) -> Count {
    let Some(base) = sink.credit() else { return Count::Unknown };
    let at = |page: &Page| Credit { generation: page.generation, sent: page.count };
    let mut reader = PageReader::new(page);
    let begun = Instant::now();
    let mut last = (None, begun);
    loop {
        let now = Instant::now();
        match reader.look() {
            Look::Page(page) if page.generation == base.generation => {
                if last.0 != Some(page.count) {
                    last = (Some(page.count), now);
                }
                if now >= last.1 + CREDIT_QUIET || now >= begun + CREDIT_STALL_MAX {
                    return Count::Since(page.count.saturating_sub(base.sent), at(&page));
                }
            }
            // That reader is gone: its last word is in the page.
            Look::Page(page) if page.last_generation == base.generation => {
                return Count::Since(page.last_count.saturating_sub(base.sent), at(&page));
            }
            Look::Changing => {}
            _ => return Count::Unknown,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
