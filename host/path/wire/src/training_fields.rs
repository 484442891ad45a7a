//! The fields for training of a batch's rows.

use crate::batch::Batch;
use crate::training::{RoutedExperts, SamplingMask, WeightSpan};

impl Batch {
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
