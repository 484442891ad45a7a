//! The facts that a batch has about its requests beside their tokens: the cache, the weights, logprobs. Nothing on the path
//! asks for them.

use crate::batch::{Batch, BatchBody};
use crate::layouts::KnownField;
use crate::value::{ColumnView, RawValue};

/// SGLang's column of times.
const TIME_STATS: &str = "time_stats";
/// The longest time to a first token that is believed, in seconds.
const SECONDS_MAX: f64 = 1e9;

impl Batch {
    /// The versions of the engine whose frames have this layout, as `0.5.21..0.5.23`. `None`: a pickle, whose fields have
    /// names, or a later version.
    pub fn versions(&self) -> Option<&str> {
        let versions = match &self.body {
            BatchBody::Outputs(outputs) => outputs.versions(),
            BatchBody::Packed(_) | BatchBody::Pickled(_) => &self.layout.versions,
        };
        Some(versions).filter(|versions| !versions.is_empty() && *versions != "unknown")
    }

    /// Tokens of the request's prompt that the engine took from its cache. vLLM says it in a request's first row only.
    pub fn cached_tokens(&self, row: u32) -> Option<u64> {
        match self.cell(KnownField::CachedTokens, row) {
            Some(tokens) => tokens.int()?.try_into().ok(),
            None => self.outputs()?.cached_tokens(row),
        }
    }

    /// The version of the weights that made the request's last token. SGLang says it in a request's last row only, vLLM in
    /// each frame since 0.32.
    pub fn weight_version(&self, row: u32) -> Option<&str> {
        if let Some(outputs) = self.outputs().filter(|_| row < self.rows) {
            return outputs.weight_version();
        }
        let spans = self.cell(KnownField::WeightVersions, row)?.list()?;
        match *spans.last()? {
            span @ RawValue::Packed(_) => span.list()?.first()?.str(),
            RawValue::Tree(tree, id) => {
                let fields = tree.object(id)?.fields?;
                tree.str(tree.get(fields, "version")?)
            }
        }
    }

    /// Time from the request's entry into the engine's queue to its first token, in nanoseconds, by the engine's clock. Only in a
    /// request's first row, and only of SGLang with `--enable-metrics` and of vLLM without `--disable-log-stats`.
    pub fn first_token_ns(&self, row: u32) -> Option<u64> {
        let (queued, first) = match self.outputs() {
            Some(outputs) => outputs.queued_and_sent(row)?,
            None => self.time_stats(row)?,
        };
        let seconds = first - queued;
        // An engine that does not know a time leaves it at 0.
        (queued > 0.0 && (0.0..SECONDS_MAX).contains(&seconds)).then_some((seconds * 1e9) as u64)
    }

    /// The times at which SGLang's scheduler queued a request and had its first token, in seconds.
    fn time_stats(&self, row: u32) -> Option<(f64, f64)> {
        let field = self.layout.fields.iter().position(|field| &*field.name == TIME_STATS)?;
        let Ok(ColumnView::Cells(cells)) = self.column(field) else { return None };
        let RawValue::Tree(tree, id) = cells.get(row) else { return None };
        let fields = tree.object(id)?.fields?;
        let time = |name| tree.float(tree.get(fields, name)?);
        Some((time("wait_queue_entry_time")?, time("prefill_finished_time")?))
    }

    /// Appends the logprob of each new id of a row. False, with `out` unchanged: the row has not one for each id.
    pub fn logprobs(&self, row: u32, out: &mut Vec<f32>) -> bool {
        let (before, tokens) = (out.len(), self.tokens(row) as usize);
        let is_whole = match (self.cell(KnownField::OutputLogprobs, row), self.outputs()) {
            (Some(cell), _) => {
                let logprobs = cell.list().filter(|logprobs| logprobs.len() == tokens);
                logprobs.is_some_and(|logprobs| {
                    out.extend(logprobs.into_iter().map_while(RawValue::float).map(|value| value as f32));
                    out.len() == before + tokens
                })
            }
            (None, Some(outputs)) => outputs.logprobs(row, out) && out.len() == before + tokens,
            (None, None) => false,
        };
        if !is_whole {
            out.truncate(before);
        }
        is_whole
    }
}
