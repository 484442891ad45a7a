//! Rows that do not go to their reader, as plugins say: to another sink, or past the detokenizer.
//!
//! Owns which requests skip the detokenizer, from their first row to their last and over a restart, and what of a verdict
//! cannot be done.

use super::{Ledger, Request, dropped};
use afterbay_batch::{Accounted, ChainOutput, Destination, FrameDecoder, RequestSlot, Row};
use afterbay_events::event::VerdictFailed;
use afterbay_journal::Outcome;
use afterbay_journal::{self as journal, BacklogFrame, BacklogItem, BacklogReader, FrameNo, Verdict};
use afterbay_wire::{self as wire, Batch, BatchKind, Edit};
use std::collections::HashMap;

impl Ledger {
    /// Reads what the first rows of an earlier run's requests say: whom they are for, and, beside them, whether they skip the
    /// detokenizer. What cannot be read stays unknown; then a request goes by the
    /// detokenizer, as it would without a plugin.
    pub fn read_beginnings(
        &mut self,
        live: &[journal::LiveRequest],
        writer: &journal::JournalWriter,
        decode: &mut FrameDecoder,
    ) {
        let mut live: Vec<&journal::LiveRequest> = live.iter().collect();
        live.sort_by_key(|request| request.info.first_frame);
        let mut held = HashMap::new();
        let mut backlog = writer.backlog(FrameNo(0)).with_outcomes();
        for of_frame in live.chunk_by(|one, next| one.info.first_frame == next.info.first_frame) {
            let Some((batch, outcome)) = read_batch(&mut backlog, of_frame[0].info.first_frame, decode)
            else {
                continue;
            };
            for request in of_frame {
                let number = request.request.number();
                let row =
                    (0..batch.rows()).zip(outcome.requests.iter()).find(|(_, of_row)| **of_row == number);
                let slot = self.requests.find(request.info.rid.as_bytes());
                let (Some((row, _)), Some(slot)) = (row, slot) else { continue };
                let Some(known) = self.requests.get_mut(slot) else { continue };
                known.first_row(&batch, row);
                if self.routing.skipped.is_none() {
                    continue;
                }
                let said = |verdict| {
                    outcome.actions.iter().find(|action| action.row == row && action.verdict == verdict)
                };
                known.skips_by = said(Verdict::SkipDetokenizing).map(|action| action.plugin[..].into());
                if known.skips_by.is_none() && said(Verdict::Hold).is_some() {
                    held.insert(number, (slot, request.info.first_frame));
                }
            }
        }
        self.find_skipping(held, writer);
    }

    /// Finds those that skip the detokenizer among requests whose first rows, in these frames, were held: it may have been said
    /// of a later row.
    fn find_skipping(
        &mut self,
        mut held: HashMap<journal::RequestNo, (RequestSlot, FrameNo)>,
        writer: &journal::JournalWriter,
    ) {
        let Some(first) = held.values().map(|(_, first)| *first).min() else { return };
        let mut backlog = writer.backlog(first).with_outcomes();
        while let (false, Ok(Some(next))) = (held.is_empty(), backlog.next()) {
            let BacklogItem::Frame(BacklogFrame { outcome: Some(outcome), .. }) = next else { continue };
            for action in outcome.actions.iter().filter(|action| action.verdict == Verdict::SkipDetokenizing)
            {
                let found = outcome.requests.get(action.row as usize).and_then(|number| held.remove(number));
                if let Some(request) = found.and_then(|(slot, _)| self.requests.get_mut(slot)) {
                    request.skips_by = Some(action.plugin[..].into());
                }
            }
        }
    }

    /// The rows of a batch that do not go to their reader. What cannot be done is told, and taken out of the actions.
    pub fn destinations(&mut self, output: &mut ChainOutput) -> Vec<(u32, Destination)> {
        let ChainOutput {
            accounted: Accounted { persisted, batch, rows, .. }, decisions, actions, held, ..
        } = output;
        let mut aside = Vec::new();
        for (index, row) in (0..).zip(rows.iter()).filter(|(_, row)| !row.swallowed) {
            let said = decisions.get(index as usize).and_then(|decision| decision.way.as_ref());
            let skips = self.requests.get(row.slot).is_some_and(|request| request.skips_by.is_some());
            if said.is_none() && !skips {
                continue;
            }
            let wrong = said.and_then(|way| self.wrong_way(way, row, batch));
            if let Some(why) = &wrong {
                for plugin in actions.take_ways(index) {
                    let stream = self.telemetry.stream.clone();
                    let (plugin, why) = (plugin.as_str().into(), why.clone());
                    self.telemetry.publish(VerdictFailed { stream, plugin, frame: persisted.frame.0, why });
                }
            }
            let Some(request) = self.requests.get_mut(row.slot) else { continue };
            match said.filter(|_| wrong.is_none()) {
                Some(Destination::To(sink)) => aside.push((index, Destination::To(sink.clone()))),
                Some(Destination::SkipDetokenizer) if request.skips_by.is_none() => {
                    if let Some(plugin) = actions.way_of(index) {
                        request.skips_by = Some(plugin.into());
                        aside.push((index, Destination::SkipDetokenizer));
                    }
                }
                // By the verdict on its first row.
                _ => {
                    let Some(plugin) = &request.skips_by else { continue };
                    if held.binary_search(&index).is_ok() {
                        continue;
                    }
                    if actions.way_of(index).is_none() {
                        actions.skip(index, plugin, row.tokens);
                    }
                    aside.push((index, Destination::SkipDetokenizer));
                }
            }
        }
        aside
    }

    /// Why a row cannot go this way, for people.
    fn wrong_way(&self, way: &Destination, row: &Row, batch: &Batch) -> Option<String> {
        match way {
            Destination::To(sink) if self.routing.routed(sink).is_some() => None,
            Destination::To(sink) => Some(format!("the stream has no sink {sink:?} of kind \"routed\"")),
            Destination::SkipDetokenizer => self.not_skipping(row, batch).map(str::to_owned),
        }
    }

    /// Why a row's request cannot skip the detokenizer.
    fn not_skipping(&self, row: &Row, batch: &Batch) -> Option<&'static str> {
        let request = self.requests.get(row.slot);
        // It goes on as it began.
        if request.is_some_and(|request| request.skips_by.is_some()) {
            return None;
        }
        if self.routing.skipped.is_none() {
            return Some("the stream has no sink of kind \"skipped\"");
        }
        if batch.kind() != BatchKind::TokenId {
            return Some("the stream is not before a detokenizer");
        }
        // What was held before it goes on with it.
        let may = |request: &Request| row.first || !request.reader_knows;
        (!request.is_some_and(may))
            .then_some("a request skips the detokenizer from its first row on, or not at all")
    }
}

/// Reads a batch back, and what was done with it.
pub fn read_batch(
    backlog: &mut BacklogReader,
    frame: FrameNo,
    decode: &mut FrameDecoder,
) -> Option<(Batch, Box<Outcome<'static>>)> {
    backlog.pass_to(frame).ok()?;
    // One that is missing takes those behind it that are missing, too.
    let next = if backlog.position() == frame { backlog.next().ok()?? } else { return None };
    let BacklogItem::Frame(BacklogFrame { bytes, outcome, .. }) = next else { return None };
    match decode.look(bytes) {
        wire::DecodedFrame::Batch(batch) => Some((batch, outcome?)),
        wire::DecodedFrame::Barrier(_) => None,
    }
}

/// As the rows stand in what leaves.
pub fn left(aside: Vec<(u32, Destination)>, edits: &[Edit]) -> Vec<(u32, Destination)> {
    let (mut gone, mut before) = (dropped(edits).peekable(), 0);
    let left = aside.into_iter().filter_map(|(row, way)| {
        while gone.next_if(|gone| *gone < row).is_some() {
            before += 1;
        }
        (gone.peek() != Some(&row)).then_some((row - before, way))
    });
    left.collect()
}
