//! Rows that verdicts send to another sink than their reader, or past the detokenizer.
//!
//! Owns which requests skip the detokenizer, from their first row to their last. Reports verdicts that cannot be carried out.

use super::{Ledger, Request};
use crate::{ChainOutput, Destination, Row};
use afterbay_wire::{Batch, BatchKind};

impl Ledger {
    /// The rows that are not sent to their reader, with their destinations. A verdict that cannot be carried out is reported and
    /// removed from the verdicts.
    pub(super) fn redirect(&mut self, output: &mut ChainOutput) -> Vec<(u32, Destination)> {
        let mut redirected = Vec::new();
        for index in 0..output.accounted().rows().len() as u32 {
            let row = output.accounted().rows()[index as usize];
            let decision = output.decisions.get(index as usize);
            let wanted = decision.and_then(|decision| decision.destination.clone());
            let skip_plugin = self.requests.get(row.request).and_then(|request| request.skip_plugin.clone());
            if row.swallowed || (wanted.is_none() && skip_plugin.is_none()) {
                continue;
            }
            let refusal =
                wanted.as_ref().and_then(|wanted| self.refusal(wanted, &row, output.accounted().batch()));
            if let Some(why) = &refusal {
                let frame = output.accounted().persisted().frame();
                for plugin in output.verdicts.take_destinations(index) {
                    self.report_failed_verdict(&plugin, frame, why);
                }
            }
            match (wanted.filter(|_| refusal.is_none()), skip_plugin) {
                (Some(Destination::To(sink)), _) => redirected.push((index, Destination::To(sink))),
                (Some(Destination::SkipText), None) => {
                    let plugin = output.verdicts.destination_plugin(index);
                    if let (Some(plugin), Some(request)) = (plugin, self.requests.get_mut(row.request)) {
                        request.skip_plugin = Some(plugin.into());
                        redirected.push((index, Destination::SkipText));
                    }
                }
                // A verdict on an earlier row of the request applies.
                (_, Some(plugin)) if !output.is_held(index) => {
                    if output.verdicts.destination_plugin(index).is_none() {
                        output.verdicts.push_skip(index, &plugin, row.tokens);
                    }
                    redirected.push((index, Destination::SkipText));
                }
                _ => {}
            }
        }
        redirected
    }

    /// Why a row cannot go to this destination, as a sentence for the operator.
    fn refusal(&self, destination: &Destination, row: &Row, batch: &Batch) -> Option<String> {
        match destination {
            Destination::To(sink) if self.routing.routed(sink).is_some() => None,
            Destination::To(sink) => Some(format!("the stream has no sink {sink:?} of kind \"routed\"")),
            Destination::SkipText => self.skip_refusal(row, batch).map(str::to_owned),
        }
    }

    fn skip_refusal(&self, row: &Row, batch: &Batch) -> Option<&'static str> {
        let request = self.requests.get(row.request);
        if request.is_some_and(|request| request.skip_plugin.is_some()) {
            return None;
        }
        if self.routing.skipped.is_none() {
            return Some("the stream has no sink of kind \"skipped\"");
        }
        if batch.kind() != BatchKind::TokenId {
            return Some("the stream is not before a detokenizer");
        }
        // Earlier rows that are held are released with this row.
        let is_at_start = |request: &Request| row.first || !request.reader_has_row;
        (!request.is_some_and(is_at_start))
            .then_some("a request skips the detokenizer from its first row on, or not at all")
    }
}
