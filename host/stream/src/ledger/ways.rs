//! Rows that do not go to their reader, as plugins say: to another sink, or past the detokenizer.
//!
//! Owns which requests skip the detokenizer, from their first row to their last, and what of a verdict cannot be done.

use super::{Ledger, Row};
use crate::actions::Actions;
use crate::judge::{Fate, Way};
use afterbay_config::Takes;
use afterbay_events::event::VerdictFailed;
use afterbay_journal as journal;
use afterbay_wire::{Batch, Edit, Kind, Tokens};

/// Where rows may go but to their reader.
#[derive(Default)]
pub(crate) struct Ways {
    routed: Vec<String>,
    past_detokenizer: bool,
}

impl Ways {
    /// By the sinks of the configuration.
    pub(crate) fn new<'a>(sinks: impl Iterator<Item = (&'a str, Takes)>) -> Ways {
        let mut ways = Ways::default();
        for (name, takes) in sinks {
            match takes {
                Takes::Share => {}
                Takes::Routed => ways.routed.push(name.to_owned()),
                Takes::Skipped => ways.past_detokenizer = true,
            }
        }
        ways
    }

    /// Whether some request may skip the detokenizer.
    pub(crate) fn has_past_detokenizer(&self) -> bool {
        self.past_detokenizer
    }
}

impl Ledger {
    pub(crate) fn with_ways(self, ways: Ways) -> Ledger {
        Ledger { ways, ..self }
    }

    /// Finds the live requests that have skipped the detokenizer in an earlier run: that stands beside their first rows.
    pub(crate) fn find_skipping(&mut self, live: &[journal::LiveRequest], writer: &journal::Writer) {
        let mut live: Vec<&journal::LiveRequest> = live.iter().collect();
        live.sort_by_key(|request| request.info.first_frame);
        for of_frame in live.chunk_by(|one, next| one.info.first_frame == next.info.first_frame) {
            let mut backlog = writer.backlog(of_frame[0].info.first_frame).with_outcomes();
            // One that cannot be read goes by the detokenizer, as it would without a plugin.
            let Ok(Some(journal::Backlogged::Frame(frame))) = backlog.next() else { continue };
            let Some(outcome) = frame.outcome else { continue };
            for request in of_frame {
                let number = request.request.number();
                let row = outcome.requests.iter().position(|of_row| *of_row == number);
                let skips = outcome.actions.iter().find(|action| {
                    action.verdict == journal::Verdict::SkipDetokenizing && Some(action.row as usize) == row
                });
                let slot = self.requests.find(request.info.rid.as_bytes());
                if let (Some(skips), Some(slot)) = (skips, slot)
                    && let Some(request) = self.requests.get_mut(slot)
                {
                    request.skips_by = Some(skips.plugin.as_str().into());
                }
            }
        }
    }

    /// The rows of a batch that do not go to their reader. What cannot be done is told, and taken out of the actions.
    pub(super) fn ways(
        &mut self,
        rows: &[Row],
        fates: &[Fate],
        batch: &Batch,
        frame: journal::FrameNo,
        actions: &mut Actions,
        held: &[u32],
    ) -> Vec<(u32, Way)> {
        let mut aside = Vec::new();
        for (index, row) in (0..).zip(rows).filter(|(_, row)| !row.swallowed) {
            let said = fates.get(index as usize).and_then(|fate| fate.way.as_ref());
            if said.is_none() && self.requests.get(row.slot).is_none_or(|request| request.skips_by.is_none())
            {
                continue;
            }
            let why = match said {
                Some(Way::To(sink)) if !self.ways.routed.contains(sink) => {
                    Some(format!("the stream has no sink {sink:?} of kind \"routed\""))
                }
                Some(Way::PastDetokenizer) => self.not_skipping(row, batch).map(str::to_owned),
                _ => None,
            };
            if let Some(why) = why {
                for plugin in actions.take_ways(index) {
                    let stream = self.telemetry.stream.clone();
                    let (plugin, why) = (plugin.as_str().into(), why.clone());
                    self.telemetry.publish(VerdictFailed { stream, plugin, frame: frame.0, why });
                }
            }
            let Some(request) = self.requests.get_mut(row.slot) else { continue };
            match said {
                Some(Way::To(sink)) if self.ways.routed.contains(sink) => {
                    aside.push((index, Way::To(sink.clone())));
                }
                Some(Way::PastDetokenizer) if request.skips_by.is_none() => {
                    if let Some(plugin) = actions.way_of(index) {
                        request.skips_by = Some(plugin.into());
                        aside.push((index, Way::PastDetokenizer));
                    }
                }
                // By the verdict on its first row.
                _ => {
                    let Some(plugin) = request.skips_by.as_ref().filter(|_| !held.contains(&index)) else {
                        continue;
                    };
                    if actions.way_of(index).is_none() {
                        actions.skip(index, plugin, row.tokens);
                    }
                    aside.push((index, Way::PastDetokenizer));
                }
            }
        }
        aside
    }

    /// Why a row's request cannot skip the detokenizer.
    fn not_skipping(&self, row: &Row, batch: &Batch) -> Option<&'static str> {
        let skips = self.requests.get(row.slot).is_some_and(|request| request.skips_by.is_some());
        if !self.ways.past_detokenizer {
            return Some("the stream has no sink of kind \"skipped\"");
        }
        if batch.kind() != Kind::TokenId {
            return Some("the stream is not before a detokenizer");
        }
        // What was held before it goes on with it.
        let is_first = row.first || self.requests.get(row.slot).is_some_and(|request| !request.reader_knows);
        (!is_first && !skips)
            .then_some("a request skips the detokenizer from its first row on, or not at all")
    }
}

/// As the rows stand in what leaves.
pub(super) fn left(aside: Vec<(u32, Way)>, edits: &[Edit]) -> Vec<(u32, Way)> {
    let gone =
        |row: u32| edits.iter().filter(move |edit| edit.tokens == Tokens::Drop && edit.row < row).count();
    let is_left = |row: u32| !edits.iter().any(|edit| edit.tokens == Tokens::Drop && edit.row == row);
    let left = aside.into_iter().filter(|(row, _)| is_left(*row));
    left.map(|(row, way)| (row - gone(row) as u32, way)).collect()
}
