//! Content of a request's rows, read from the stored frames.

use crate::sent::Changed;
use afterbay_journal::reader::{JournalRow, RequestHistory, StreamCoverage, StreamReader};
use afterbay_journal::{FrameNo, Position};
use afterbay_wire::{Batch, DecodedFrame, Drafts, Layouts, RequestRecord, TopLogprobs};
use serde_json::{Map, Value, json};
use std::cell::OnceCell;

/// The received content of a row.
#[derive(Debug)]
pub struct Content {
    /// Token ids.
    pub ids: Vec<i64>,
    /// Only rows behind a detokenizer have a text.
    pub text: Option<String>,
    /// The facts that the engine says of the tokens.
    pub facts: TokenFacts,
}

/// The facts that an engine says of a row's tokens. Counts are of the request so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenFacts {
    /// The logprob of each id. Empty if the row has not one for each.
    pub logprobs: Vec<f32>,
    /// The most probable tokens in the place of each id. No place if the row has not one for each.
    pub top_logprobs: TopLogprobs,
    /// Tokens of the prompt from the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Tokens of reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Tokens of a draft model.
    pub drafts: Drafts,
    /// The version of the weights.
    pub weight_version: Option<String>,
}

impl TokenFacts {
    fn read(batch: &Batch, row: u32) -> TokenFacts {
        let mut facts = TokenFacts {
            cached_tokens: batch.cached_tokens(row),
            reasoning_tokens: batch.reasoning_tokens(row),
            drafts: batch.drafts(row),
            weight_version: batch.weight_version(row).map(str::to_owned),
            ..TokenFacts::default()
        };
        batch.logprobs(row, &mut facts.logprobs);
        batch.top_logprobs(row, &mut facts.top_logprobs);
        facts
    }

    /// The facts that the engine says, as JSON.
    pub fn json(&self) -> Value {
        let mut json = Map::new();
        let mut say = |name: &str, value: Value| {
            if !value.is_null() {
                json.insert(name.to_owned(), value);
            }
        };
        say("logprobs", json!(Some(&self.logprobs).filter(|logprobs| !logprobs.is_empty())));
        let places: Vec<Vec<_>> = self.top_logprobs.places().map(Iterator::collect).collect();
        say(
            "top_logprobs",
            json!(Some(places).filter(|places| places.iter().any(|place| !place.is_empty()))),
        );
        say("cached_tokens", json!(self.cached_tokens));
        say("reasoning_tokens", json!(self.reasoning_tokens));
        say("drafted_tokens", json!(self.drafts.drafted));
        say("accepted_tokens", json!(self.drafts.accepted));
        say("weight_version", json!(self.weight_version));
        json.into()
    }

    /// Adds the facts of a later row, in which counts are newer.
    fn update(&mut self, later: &TokenFacts) {
        self.logprobs.extend(&later.logprobs);
        self.cached_tokens = later.cached_tokens.or(self.cached_tokens);
        self.reasoning_tokens = later.reasoning_tokens.or(self.reasoning_tokens);
        self.drafts.drafted = later.drafts.drafted.or(self.drafts.drafted);
        self.drafts.accepted = later.drafts.accepted.or(self.drafts.accepted);
        self.weight_version = later.weight_version.clone().or(self.weight_version.take());
    }

    /// The facts of a request's rows, as a phrase: `40 tokens of reasoning, mean logprob -0.42`. Counts of 0 are left out.
    pub fn phrase<'c>(rows: impl Iterator<Item = &'c Content>) -> Option<String> {
        let mut all = TokenFacts::default();
        rows.for_each(|row| all.update(&row.facts));
        let some = |count: Option<u64>| count.filter(|count| *count > 0);
        let mut parts = Vec::new();
        parts.extend(
            some(all.cached_tokens).map(|count| format!("{count} tokens of the prompt from its cache")),
        );
        parts.extend(some(all.reasoning_tokens).map(|count| format!("{count} tokens of reasoning")));
        parts.extend(some(all.drafts.drafted).map(|count| format!("{count} tokens drafted")));
        parts.extend(some(all.drafts.accepted).map(|count| format!("{count} draft tokens accepted")));
        let sum: f64 = all.logprobs.iter().copied().map(f64::from).sum();
        if !all.logprobs.is_empty() {
            parts.push(format!("mean logprob {:.3}", sum / all.logprobs.len() as f64));
        }
        parts.extend(all.weight_version.map(|version| format!("weights {version}")));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl Content {
    fn bytes(&self) -> usize {
        let TokenFacts { logprobs, top_logprobs, .. } = &self.facts;
        let tokens = size_of_val(logprobs.as_slice()) + top_logprobs.ids.len() * 12;
        size_of_val(self.ids.as_slice()) + self.text.as_ref().map_or(0, String::len) + tokens
    }
}

/// The facts that a frame has about a request, beside its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// The word for the engine.
    pub engine: &'static str,
    /// The length of the prompt in tokens. Some engines say it in the first row only.
    pub prompt_tokens: Option<u64>,
}

/// Bounds of the content that is read for one request.
#[derive(Clone, Copy, Debug)]
pub struct ContentBounds {
    /// Most rows with content.
    pub rows: usize,
    /// Bytes of ids and texts after which no further row is read.
    pub bytes: usize,
}

impl ContentBounds {
    /// Every row.
    pub const NONE: ContentBounds = ContentBounds { rows: usize::MAX, bytes: usize::MAX };
}

/// The reason why the journal does not give a row's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The frame was forwarded without being stored.
    NotStored,
    /// Retention removed the segment.
    Removed,
    /// The frame is damaged, or its segment is missing.
    Unreadable,
    /// The frame cannot be decoded with the given layout.
    NotDecoded,
    /// The row is past the bound of what is shown.
    NotShown,
    /// The request was erased.
    Erased,
    /// The journal is the pack of a request, and the row is not in the pack.
    LeftOut,
}

impl Absent {
    /// The reason in two words.
    pub fn words(self) -> &'static str {
        match self {
            Absent::NotStored => "not stored",
            Absent::Removed => "removed",
            Absent::Unreadable => "cannot be read",
            Absent::NotDecoded => "not decoded",
            Absent::NotShown => "not shown",
            Absent::Erased => "erased",
            Absent::LeftOut => "not packed",
        }
    }

    /// The reason in a sentence about several rows.
    pub fn reason(self) -> &'static str {
        match self {
            Absent::NotStored => "the frames were forwarded without being stored (on_error = \"forward\")",
            Absent::Removed => "retention removed the segments",
            Absent::Unreadable => "the journal is damaged (`afterbay journal verify` names the damage)",
            Absent::NotDecoded => "the frames do not fit the stream's layout",
            Absent::Erased => "the request was erased",
            Absent::LeftOut => "`journal pack` left them out",
            Absent::NotShown => "they are past the bound of this answer (`afterbay journal show` prints all)",
        }
    }
}

/// A stream whose rows are shown.
pub struct ContentReader<'a> {
    stream: &'a StreamReader,
    layouts: &'a Layouts,
    /// Read for the first row without content.
    coverage: OnceCell<StreamCoverage>,
}

impl<'a> ContentReader<'a> {
    /// A reader of a stream's rows, whose msgpack frames have one of these layouts.
    pub fn new(stream: &'a StreamReader, layouts: &'a Layouts) -> ContentReader<'a> {
        ContentReader { stream, layouts, coverage: OnceCell::new() }
    }

    /// Name of the stream.
    pub fn name(&self) -> &str {
        self.stream.name()
    }

    /// The received content of each row. Rows past the bounds are [`Absent::NotShown`].
    pub fn contents(&self, life: &RequestHistory, bounds: ContentBounds) -> Vec<Result<Content, Absent>> {
        let mut bytes = 0;
        let rows = life.rows.iter().enumerate();
        let content = rows.map(|(at, row)| {
            if at >= bounds.rows || bytes >= bounds.bytes {
                return Err(Absent::NotShown);
            }
            if life.request.erased.is_some() {
                return Err(Absent::Erased);
            }
            let content = self.content(row);
            bytes += content.as_ref().map_or(0, Content::bytes);
            content
        });
        content.collect()
    }

    fn content(&self, row: &JournalRow) -> Result<Content, Absent> {
        let frame = row.position.as_ref().and_then(|position| self.stream.frame(position).ok());
        let frame = frame.ok_or_else(|| self.absent(row.frame))?;
        if frame.is_release_marker() {
            // The marker itself has no content; the held rows that it releases have.
            return Ok(Content { ids: Vec::new(), text: None, facts: TokenFacts::default() });
        }
        let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame.bytes.into(), self.layouts) else {
            return Err(Absent::NotDecoded);
        };
        let mut ids = Vec::new();
        batch.row_ids(row.row, &mut ids);
        let text = batch.text(row.row).map(str::to_owned);
        Ok(Content { ids, text, facts: TokenFacts::read(&batch, row.row) })
    }

    /// The rows that left in the place of those of a row's frame.
    pub(crate) fn changed(&self, row: &JournalRow) -> Changed {
        let stored = row.changed.as_ref().and_then(|position| self.stream.changed(position).ok());
        let decoded = stored.map(|bytes| afterbay_wire::decode(bytes.into(), self.layouts));
        Changed::new(&row.passage, decoded)
    }

    /// The record of a request. `None`: no record of the request came before its first row.
    pub fn record(&self, life: &RequestHistory) -> Option<Result<RequestRecord, Absent>> {
        let frame = Some(life.request.record_frame).filter(|frame| frame.0 > 0)?;
        if life.request.erased.is_some() {
            return Some(Err(Absent::Erased));
        }
        let stored = life.record.as_ref().and_then(|position| self.stream.frame(position).ok());
        Some(match stored {
            Some(stored) => RequestRecord::read(&stored.bytes.into()).map_err(|_| Absent::NotDecoded),
            None => Err(self.absent(frame)),
        })
    }

    /// The facts that a frame has about the request of one of its rows. `None` if the frame cannot be read.
    pub fn facts(&self, position: &Position, row: u32) -> Option<RequestFacts> {
        let frame = self.stream.frame(position).ok()?;
        let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame.bytes.into(), self.layouts) else {
            return None;
        };
        Some(RequestFacts { engine: batch.engine().word(), prompt_tokens: batch.prompt_tokens(row) })
    }

    fn absent(&self, frame: FrameNo) -> Absent {
        // A stream that cannot be read has no coverage: nothing was removed, so the frame is unreadable.
        let coverage = self.coverage.get_or_init(|| self.stream.coverage().unwrap_or_default());
        match frame {
            frame if coverage.not_stored.contains(frame) => Absent::NotStored,
            frame if coverage.left_out.contains(frame) => Absent::LeftOut,
            frame if frame < coverage.first_frame => Absent::Removed,
            _ => Absent::Unreadable,
        }
    }

    /// The reason why rows of a request are in no record.
    pub fn rows_absent(&self, life: &RequestHistory) -> Absent {
        let coverage = self.coverage.get_or_init(|| self.stream.coverage().unwrap_or_default());
        match life.request.first_frame < coverage.first_frame {
            _ if !coverage.left_out.is_empty() => Absent::LeftOut,
            true => Absent::Removed,
            false => Absent::Unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_rows_are_told_in_a_phrase_and_those_that_an_engine_does_not_say_are_left_out() {
        let row = |logprobs: &[f32], accepted| {
            let drafts = Drafts { drafted: None, accepted };
            let facts = TokenFacts { logprobs: logprobs.to_vec(), drafts, ..TokenFacts::default() };
            Content { ids: Vec::new(), text: None, facts }
        };
        let rows = [row(&[-1.0, -0.5], Some(1)), row(&[-1.5], Some(3))];
        let phrase = TokenFacts::phrase(rows.iter());
        assert_eq!(phrase.as_deref(), Some("3 draft tokens accepted, mean logprob -1.000"));
        assert_eq!(rows[1].facts.json(), json!({"logprobs": [-1.5], "accepted_tokens": 3}));
        assert_eq!(TokenFacts::phrase([row(&[], None)].iter()), None);
    }
}
