//! Restores the state of an earlier run's live requests that only the frames in the journal have.

use super::{Ledger, Request};
use crate::hold::HeldRows;
use crate::records::Records;
use crate::{FrameDecoder, ReaderKey};
use afterbay_journal::{
    BacklogFrame, BacklogItem, BacklogReader, FrameNo, JournalRequest, JournalWriter, LiveRequest, Outcome,
    RequestNo, Verdict,
};
use afterbay_wire::{BarrierKind, Batch, DecodedFrame};
use std::collections::HashMap;

impl Ledger {
    /// Restores the scheduler's count at the last row of each request with gaps, so that a gap of an earlier run is not reported
    /// again. If the row cannot be read, the count stays at the tokens received.
    pub fn restore_counts(
        &mut self,
        live: &[LiveRequest],
        writer: &JournalWriter,
        decode: &mut FrameDecoder,
    ) {
        let live = live.iter().filter(|live| live.info.gaps > 0).collect();
        self.read_rows(
            live,
            |live| live.info.last_frame,
            writer,
            decode,
            |request, row| {
                if let Some(count) = row.batch.completion_tokens(row.index) {
                    request.scheduler_count = count;
                    request.missing = count.saturating_sub(request.received);
                }
            },
        );
    }

    /// Restores from the first row of each request which sink reads the request, and whether the request skips the detokenizer.
    /// A request whose row cannot be read does not skip the detokenizer. A request without a row has its sink from its record.
    pub fn restore_first_rows(
        &mut self,
        live: &[LiveRequest],
        writer: &JournalWriter,
        decode: &mut FrameDecoder,
    ) {
        let has_skipped_sink = self.routing.skipped.is_some();
        let mut held = HashMap::new();
        let first_frame = |live: &LiveRequest| live.info.first_frame;
        let with_rows = live.iter().filter(|live| live.info.rows > 0).collect();
        self.read_rows(with_rows, first_frame, writer, decode, |request, row| {
            request.read_first_row(row.batch, row.index);
            // Another engine's front end waits for it, which the next row names.
            request.has_row = request.before == 0;
            if !has_skipped_sink {
                return;
            }
            let verdict = |verdict| {
                let actions = &row.outcome.actions;
                let first = actions.partition_point(|action| action.row < row.index);
                let mut of_row = actions[first..].iter().take_while(|action| action.row == row.index);
                of_row.find(|action| action.verdict == verdict)
            };
            request.skip_plugin = verdict(Verdict::SkipText).map(|action| action.plugin[..].into());
            if request.skip_plugin.is_none() && verdict(Verdict::Hold).is_some() {
                held.insert(request.handle.number(), (request.handle, row.outcome.frame));
            }
        });
        self.restore_skips(held, writer);
        self.restore_from_records(live, writer, decode);
    }

    /// Restores which sink reads each request that has no row, and the length of the prompt of each that waits for an engine.
    fn restore_from_records(
        &mut self,
        live: &[LiveRequest],
        writer: &JournalWriter,
        decode: &mut FrameDecoder,
    ) {
        let awaits =
            |live: &LiveRequest| self.requests.get(live.request).is_some_and(|request| request.awaits_engine);
        let is_wanted =
            |live: &&LiveRequest| live.info.record_frame.0 > 0 && (live.info.rows == 0 || awaits(live));
        let mut live: Vec<&LiveRequest> = live.iter().filter(is_wanted).collect();
        live.sort_by_key(|live| live.info.record_frame);
        let mut backlog = writer.backlog(FrameNo(0));
        for LiveRequest { request, info, .. } in live {
            let Some((DecodedFrame::Barrier(barrier), _)) =
                read_frame(&mut backlog, info.record_frame, decode)
            else {
                continue;
            };
            if let BarrierKind::Request { record: Ok(record) } = &barrier.kind
                && let Some(request) = self.requests.get_mut(*request)
            {
                request.prompt_tokens = record.prompt_tokens.unwrap_or(request.prompt_tokens);
                if info.rows == 0 {
                    request.reader = ReaderKey::of_record(record);
                }
            }
        }
    }

    /// Restores which requests skip the detokenizer among those whose first rows were held in these frames: the verdict may be on a
    /// later row.
    fn restore_skips(
        &mut self,
        mut held: HashMap<RequestNo, (JournalRequest, FrameNo)>,
        writer: &JournalWriter,
    ) {
        let Some(first) = held.values().map(|(_, first)| *first).min() else { return };
        let mut backlog = writer.backlog(first).with_outcomes();
        while let (false, Ok(Some(next))) = (held.is_empty(), backlog.next()) {
            let BacklogItem::Frame(BacklogFrame { outcome: Some(outcome), .. }) = next else { continue };
            for action in outcome.actions.iter().filter(|action| action.verdict == Verdict::SkipText) {
                let found = outcome.requests.get(action.row as usize).and_then(|number| held.remove(number));
                if let Some(request) = found.and_then(|(handle, _)| self.requests.get_mut(handle)) {
                    request.skip_plugin = Some(action.plugin[..].into());
                }
            }
        }
    }

    /// Restores the counts of held tokens, and which requests have their last row held. The journal's list of live requests counts
    /// held tokens as forwarded, replaced or dropped. Removes the requests that have ended and have no held row.
    pub fn restore_held(&mut self, live: &[LiveRequest], held_rows: &HeldRows, records: &mut Records) {
        for LiveRequest { request, info, .. } in live {
            if let Some(restored) = self.requests.get_mut(*request) {
                // A request's rows are sent in order.
                let is_held = held_rows.first_frame(request.number().0) == Some(info.first_frame);
                restored.reader_has_row = info.rows > 0 && !is_held;
            }
        }
        let handles: Vec<JournalRequest> = self.requests.iter().map(|(handle, ..)| handle).collect();
        for handle in handles {
            let Some(request) = self.requests.get_mut(handle) else { continue };
            let number = request.number();
            request.is_last_held = held_rows.has_last_row(number);
            if request.is_finishing && !held_rows.has(number) {
                self.remove(handle, records);
                continue;
            }
            let held = held_rows.received_tokens(request.number());
            let mut rest = held;
            for count in [&mut request.forwarded, &mut request.replaced, &mut request.dropped] {
                let less = rest.min(*count);
                (*count, rest) = (*count - less, rest - less);
            }
            request.held = held;
            // The shift takes these tokens as dropped.
            request.count_shift += held as i64;
        }
    }

    /// Reads one row of each request back, from the frame that `frame_of` returns. Skips rows that cannot be read.
    fn read_rows(
        &mut self,
        mut live: Vec<&LiveRequest>,
        frame_of: impl Fn(&LiveRequest) -> FrameNo,
        writer: &JournalWriter,
        decode: &mut FrameDecoder,
        mut restore: impl FnMut(&mut Request, RowRead<'_>),
    ) {
        live.sort_by_key(|live| frame_of(live));
        let mut backlog = writer.backlog(FrameNo(0)).with_outcomes();
        for of_frame in live.chunk_by(|one, next| frame_of(one) == frame_of(next)) {
            let Some((DecodedFrame::Batch(batch), Some(outcome))) =
                read_frame(&mut backlog, frame_of(of_frame[0]), decode)
            else {
                continue;
            };
            // The first row of each request.
            let rows = (0..batch.rows()).zip(outcome.requests.iter()).rev();
            let rows: HashMap<RequestNo, u32> = rows.map(|(row, number)| (*number, row)).collect();
            for LiveRequest { request, .. } in of_frame {
                let Some(&index) = rows.get(&request.number()) else { continue };
                let Some(request) = self.requests.get_mut(*request) else { continue };
                restore(request, RowRead { index, batch: &batch, outcome: &outcome });
            }
        }
    }
}

/// A row of a live request that was read back.
struct RowRead<'a> {
    index: u32,
    batch: &'a Batch,
    outcome: &'a Outcome<'static>,
}

/// Reads a frame back, with its outcome if the backlog reads outcomes.
fn read_frame(
    backlog: &mut BacklogReader,
    frame: FrameNo,
    decode: &mut FrameDecoder,
) -> Option<(DecodedFrame, Option<Box<Outcome<'static>>>)> {
    backlog.pass_to(frame).ok()?;
    // A missing frame may have taken the reader past later frames that are missing, too.
    let next = if backlog.position() == frame { backlog.next().ok()?? } else { return None };
    let BacklogItem::Frame(BacklogFrame { bytes, outcome, .. }) = next else { return None };
    Some((decode.decode_bytes(bytes), outcome))
}
