//! The facts of a batch's tokens beside their ids.

use crate::batch::Batch;
use crate::facts::{Drafts, RoutedExperts, SamplingMask, WeightSpan};
use afterbay_types::TopLogprobs;

impl Batch {
    /// Appends the logprob of each new id of a row. False, with `out` unchanged: the row has not one for each id.
    pub fn logprobs(&self, row: u32, out: &mut Vec<f32>) -> bool {
        let (before, tokens) = (out.len(), self.tokens(row) as usize);
        let is_whole = self.at(row).is_some_and(|engine| engine.logprobs(row, out));
        let is_whole = is_whole && out.len() == before + tokens;
        if !is_whole {
            out.truncate(before);
        }
        is_whole
    }

    /// Appends the most probable tokens in the place of each new id of a row. False, with `out` unchanged: the row has not one
    /// place for each id.
    pub fn top_logprobs(&self, row: u32, out: &mut TopLogprobs) -> bool {
        let (before, tokens) = (out.ends.len(), self.tokens(row) as usize);
        let read = self.at(row).and_then(|engine| engine.top_logprobs(row, out));
        let is_whole = read.is_some() && out.ends.len() == before + tokens;
        if !is_whole {
            out.truncate(before);
        }
        is_whole
    }

    /// Tokens of the request so far that the engine counts as reasoning, if it counts them.
    pub fn reasoning_tokens(&self, row: u32) -> Option<u64> {
        self.at(row)?.reasoning_tokens(row)
    }

    /// The request's tokens of a draft model so far. Some engines say them in a request's last row only.
    pub fn drafts(&self, row: u32) -> Drafts {
        self.at(row).map_or_else(Drafts::default, |engine| engine.drafts(row))
    }

    /// The versions of the weights of all the request's tokens so far. Only of an engine that says them, in a request's last row.
    pub fn weight_spans(&self, row: u32) -> Option<Vec<WeightSpan>> {
        self.at(row)?.weight_spans(row)
    }

    /// The tokens that each new token of a row was sampled from, if the request asked for them.
    pub fn sampling_mask(&self, row: u32) -> Option<SamplingMask> {
        self.at(row)?.sampling_mask(row)
    }

    /// The experts that tokens were routed to, if the request asked for them.
    pub fn routed_experts(&self, row: u32) -> Option<RoutedExperts> {
        self.at(row)?.routed_experts(row)
    }
}
