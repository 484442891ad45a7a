//! The rows of one frame as they were received and as they were sent on.

use afterbay_journal::reader::StreamReader;
use afterbay_journal::{Passage, PluginAction, Position, ReadError, is_release_marker};
use afterbay_wire::{Batch, DecodedFrame, Decoder, Finish, RoutedExperts, SamplingMask, WeightSpan};
use bytes::Bytes;

use super::types::EngineFacts;
use crate::sent::{Changed, SentIds, UNKNOWN_ID};

/// The contents of a frame with an outcome.
pub(crate) struct FrameContents {
    received: Received,
    changed: Changed,
}

enum Received {
    Batch(Box<Batch>),
    /// The rows have no content of their own.
    ReleaseMarker,
    /// The frame is not stored, or cannot be read or decoded.
    Unknown,
}

/// The content of a row.
#[derive(Default)]
pub(super) struct RowContent {
    /// One id for each token: [`UNKNOWN_ID`] if the journal does not have it.
    pub(super) ids: Vec<i64>,
    pub(super) is_absent: bool,
    /// One logprob for each id, or nothing.
    pub(super) logprobs: Vec<f32>,
    /// The fields for training, if they are wanted and the row is known.
    pub(super) training: Option<RowTraining>,
}

/// The fields of a row that only training needs.
pub(super) struct RowTraining {
    /// The versions of the weights of all ids so far.
    pub(super) weight_spans: Option<Vec<WeightSpan>>,
    /// The version that made the row's ids.
    pub(super) weight_version: Option<String>,
    pub(super) sampling_mask: Option<SamplingMask>,
    pub(super) routed_experts: Option<RoutedExperts>,
}

impl FrameContents {
    /// Reads the frame at `place`, and the frame that was sent in its place if rows of interest have an action. The outcome of the
    /// frame: its passage, the number of its rows, and the bytes that were sent in its place.
    ///
    /// # Errors
    /// The disk. A frame that is damaged or removed is no error.
    pub(crate) fn read(
        stream: &StreamReader,
        place: Option<&Position>,
        (passage, rows, changed): (&Passage<'_>, usize, Option<Bytes>),
        has_actions: bool,
        decoder: &mut Decoder,
    ) -> Result<FrameContents, ReadError> {
        let stored = match place.map(|place| stream.frame(place)) {
            Some(Ok(frame)) => Some(Bytes::from(frame.bytes)),
            Some(Err(error @ ReadError::Io(_))) => return Err(error),
            Some(Err(_)) | None => None,
        };
        let is_from_scheduler = matches!(passage, Passage::NotUnderstood(_));
        let received = match stored {
            Some(bytes) if is_release_marker(&bytes) && !is_from_scheduler => Received::ReleaseMarker,
            Some(bytes) => match decoder.decode(bytes) {
                DecodedFrame::Batch(batch) if batch.rows() as usize == rows => {
                    Received::Batch(Box::new(batch))
                }
                _ => Received::Unknown,
            },
            None => Received::Unknown,
        };
        // Rows without an action are in the frame itself.
        let is_needed = has_actions || !matches!(received, Received::Batch(_));
        let changed = changed.filter(|_| is_needed).map(|bytes| decoder.decode(bytes));
        Ok(FrameContents { received, changed: Changed::new(passage, changed) })
    }

    /// The content of a row that received so many tokens.
    pub(super) fn received(&self, row: u32, tokens: u32, out: &mut RowContent) {
        out.ids.clear();
        out.logprobs.clear();
        if let Received::Batch(batch) = &self.received {
            batch.row_ids(row, &mut out.ids);
            batch.logprobs(row, &mut out.logprobs);
        }
        out.is_absent = out.ids.len() != tokens as usize;
        if out.is_absent {
            out.logprobs.clear();
            out.ids.clear();
            out.ids.resize(tokens as usize, UNKNOWN_ID);
        }
    }

    /// The fields of a row that only training needs.
    pub(super) fn training(&self, row: u32) -> Option<RowTraining> {
        let Received::Batch(batch) = &self.received else { return None };
        Some(RowTraining {
            weight_spans: batch.weight_spans(row),
            weight_version: batch.weight_version(row).map(str::to_owned),
            sampling_mask: batch.sampling_mask(row),
            routed_experts: batch.routed_experts(row),
        })
    }

    /// The ids of a row that were sent on. `actions` are those on the row, which received so many tokens.
    pub(crate) fn sent(&self, rid: &str, actions: &[PluginAction<'_>], received: u32) -> SentIds {
        // A release marker's rows have no bytes of their own to send.
        if actions.is_empty() && matches!(self.received, Received::Batch(_)) {
            return SentIds::AsReceived;
        }
        self.changed.ids(rid, actions, received)
    }

    /// The ids of a row as they were received: [`UNKNOWN_ID`] for each that the journal does not have.
    pub(crate) fn received_ids(&self, row: u32, tokens: u32) -> Vec<i64> {
        let mut content = RowContent::default();
        self.received(row, tokens, &mut content);
        content.ids
    }

    /// The text of a row that was sent on, if its rows have texts. `actions` are those on the row.
    pub(crate) fn sent_text(&self, rid: &str, row: u32, actions: &[PluginAction<'_>]) -> Option<&str> {
        match (&self.received, &self.changed) {
            (Received::Batch(batch), Changed::AsReceived) => batch.text(row),
            (Received::Batch(batch), _) if actions.is_empty() => batch.text(row),
            (_, changed) => changed.text(rid),
        }
    }

    /// Adds the facts that a row has about its request.
    pub(super) fn facts(&self, row: u32, known: &mut Option<EngineFacts>) {
        let Received::Batch(batch) = &self.received else { return };
        let facts = known.get_or_insert_default();
        facts.engine = batch.engine().word();
        if facts.versions.is_none() {
            facts.versions = batch.versions().map(Into::into);
        }
        // An engine that goes on with a request counts the tokens before as a part of the prompt.
        facts.prompt_tokens = facts.prompt_tokens.or_else(|| batch.prompt_tokens(row));
        facts.cached_tokens = batch.cached_tokens(row).or(facts.cached_tokens);
        // These counts grow from row to row, and only first and last rows are read.
        if batch.finish(row) != Finish::Running {
            facts.reasoning_tokens = batch.reasoning_tokens(row);
            facts.drafts = batch.drafts(row);
        }
        facts.first_token_ns = facts.first_token_ns.or_else(|| batch.first_token_ns(row));
        if let Some(version) = batch.weight_version(row) {
            facts.weight_version = Some(version.into());
        }
    }
}
