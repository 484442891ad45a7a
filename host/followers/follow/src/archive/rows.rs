//! Requests and batches as rows of the tables.

use std::sync::Arc;

use arrow_array::builder::{
    BooleanBuilder, Float32Builder, Int32Builder, Int64Builder, ListBuilder, StringBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use afterbay_journal::reader::RequestState;
use afterbay_journal_view::ended::{EndedRequest, SettledFrame};

use crate::archive::columns::{AttributeColumn, DroppedColumn, GapColumn, VerdictColumn};
use crate::archive::schema::{Table, item_field, time};

/// The attribute with the name of the model.
const MODEL: &str = "model";

/// The facts about a stream that stand in each of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// The identity of the journal directory.
    pub instance: String,
    /// Name of the stream.
    pub stream: String,
}

/// Rows of the table of requests that wait to be written.
pub(crate) struct RequestRows {
    schema: SchemaRef,
    facts: StreamFacts,
    rows: usize,
    /// Bytes of the lists, about.
    bytes: usize,
    instance: StringBuilder,
    stream: StringBuilder,
    number: Int64Builder,
    rid: StringBuilder,
    segment: StringBuilder,
    engine: StringBuilder,
    engine_version: StringBuilder,
    model: StringBuilder,
    sink: StringBuilder,
    attributes: AttributeColumn,
    state: StringBuilder,
    finish_reason: StringBuilder,
    ended_early: BooleanBuilder,
    ended_by: StringBuilder,
    ended_by_plugin: StringBuilder,
    erased: BooleanBuilder,
    first_at: TimestampMicrosecondBuilder,
    last_at: TimestampMicrosecondBuilder,
    first_unix_ns: Int64Builder,
    prompt_tokens: Int64Builder,
    cached_tokens: Int64Builder,
    completion_tokens: Int64Builder,
    first_token_ns: Int64Builder,
    weight_version: StringBuilder,
    tokens_received: Int64Builder,
    tokens_forwarded: Int64Builder,
    tokens_replaced: Int64Builder,
    tokens_dropped: Int64Builder,
    tokens_swallowed: Int64Builder,
    dropped_by: DroppedColumn,
    gap_count: Int32Builder,
    gaps: GapColumn,
    row_count: Int64Builder,
    rows_missing: Int64Builder,
    row_tokens: ListBuilder<Int32Builder>,
    row_delta_ns: ListBuilder<Int64Builder>,
    ids: ListBuilder<Int64Builder>,
    ids_sent: ListBuilder<Int64Builder>,
    logprobs: ListBuilder<Float32Builder>,
    verdicts: VerdictColumn,
}

fn times() -> TimestampMicrosecondBuilder {
    TimestampMicrosecondBuilder::new().with_data_type(time())
}

fn ints() -> ListBuilder<Int64Builder> {
    ListBuilder::new(Int64Builder::new()).with_field(item_field(DataType::Int64))
}

/// Unix microseconds. `None` for 0 nanoseconds, which stand for no time.
fn micros(unix_ns: u64) -> Option<i64> {
    (unix_ns > 0).then_some((unix_ns / 1000) as i64)
}

impl RequestRows {
    pub(crate) fn new(facts: StreamFacts) -> RequestRows {
        RequestRows {
            schema: Table::Requests.schema(),
            facts,
            rows: 0,
            bytes: 0,
            instance: StringBuilder::new(),
            stream: StringBuilder::new(),
            number: Int64Builder::new(),
            rid: StringBuilder::new(),
            segment: StringBuilder::new(),
            engine: StringBuilder::new(),
            engine_version: StringBuilder::new(),
            model: StringBuilder::new(),
            sink: StringBuilder::new(),
            attributes: AttributeColumn::new(),
            state: StringBuilder::new(),
            finish_reason: StringBuilder::new(),
            ended_early: BooleanBuilder::new(),
            ended_by: StringBuilder::new(),
            ended_by_plugin: StringBuilder::new(),
            erased: BooleanBuilder::new(),
            first_at: times(),
            last_at: times(),
            first_unix_ns: Int64Builder::new(),
            prompt_tokens: Int64Builder::new(),
            cached_tokens: Int64Builder::new(),
            completion_tokens: Int64Builder::new(),
            first_token_ns: Int64Builder::new(),
            weight_version: StringBuilder::new(),
            tokens_received: Int64Builder::new(),
            tokens_forwarded: Int64Builder::new(),
            tokens_replaced: Int64Builder::new(),
            tokens_dropped: Int64Builder::new(),
            tokens_swallowed: Int64Builder::new(),
            dropped_by: DroppedColumn::new(),
            gap_count: Int32Builder::new(),
            gaps: GapColumn::new(),
            row_count: Int64Builder::new(),
            rows_missing: Int64Builder::new(),
            row_tokens: ListBuilder::new(Int32Builder::new()).with_field(item_field(DataType::Int32)),
            row_delta_ns: ints(),
            ids: ints(),
            ids_sent: ints(),
            logprobs: ListBuilder::new(Float32Builder::new()).with_field(item_field(DataType::Float32)),
            verdicts: VerdictColumn::new(),
        }
    }

    /// Rows that wait, and the bytes of their lists, about.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.rows, self.bytes)
    }

    pub(crate) fn push(&mut self, request: &EndedRequest) {
        let EndedRequest { info, rows, ledger, .. } = request;
        let count = |tokens: u64| tokens as i64;
        self.instance.append_value(&self.facts.instance);
        self.stream.append_value(&self.facts.stream);
        self.number.append_value(count(info.number.0));
        self.rid.append_value(&info.rid);
        self.segment.append_value(request.end.segment.to_string());
        let facts = request.facts.as_ref();
        self.engine.append_option(facts.map(|facts| facts.engine));
        self.engine_version.append_option(facts.and_then(|facts| facts.versions.as_deref()));
        let model = info.attributes.iter().find(|(name, _)| name == MODEL);
        self.model.append_option(model.map(|(_, model)| model));
        self.sink.append_option(request.sink.as_deref());
        self.attributes.push(&info.attributes);
        self.state.append_value(match info.state {
            RequestState::Finished => "finished",
            RequestState::Abandoned | RequestState::Live => "abandoned",
        });
        self.finish_reason.append_option(Some(&info.finish).filter(|finish| !finish.is_empty()));
        self.ended_early.append_value(info.ended_early);
        let by = request.ended_by();
        self.ended_by.append_value(by.word().unwrap_or("unknown"));
        self.ended_by_plugin.append_option(by.plugin());
        self.erased.append_value(info.erased.is_some());
        self.first_at.append_option(micros(info.first_unix_ns));
        self.last_at.append_option(micros(info.last_unix_ns));
        self.first_unix_ns.append_value(info.first_unix_ns as i64);
        self.prompt_tokens.append_option(facts.and_then(|facts| facts.prompt_tokens).map(count));
        self.cached_tokens.append_option(facts.and_then(|facts| facts.cached_tokens).map(count));
        self.completion_tokens.append_option(info.completion_tokens.map(count));
        self.first_token_ns.append_option(facts.and_then(|facts| facts.first_token_ns).map(count));
        self.weight_version.append_option(facts.and_then(|facts| facts.weight_version.as_deref()));
        self.tokens_received.append_value(count(info.received));
        self.tokens_forwarded.append_value(count(info.forwarded));
        self.tokens_replaced.append_value(count(info.replaced));
        self.tokens_dropped.append_value(count(info.dropped));
        self.tokens_swallowed.append_value(count(ledger.swallowed));
        self.dropped_by.push(&ledger.dropped_by);
        self.gap_count.append_value(info.gaps as i32);
        self.gaps.push(&request.gaps);
        self.row_count.append_value(count(info.rows));
        self.rows_missing.append_value(count(request.rows_missing));
        self.row_tokens.append_value(rows.tokens.iter().map(|tokens| Some(*tokens as i32)));
        let first = rows.received_unix_ns.first().copied().unwrap_or_default();
        let before = std::iter::once(&first).chain(&rows.received_unix_ns);
        let delta = |(time, before): (&u64, &u64)| Some(time.wrapping_sub(*before) as i64);
        self.row_delta_ns.append_value(rows.received_unix_ns.iter().zip(before).map(delta));
        let contents = request.contents.as_ref();
        append(&mut self.ids, contents.map(|contents| contents.received.as_slice()));
        append(&mut self.ids_sent, contents.and_then(|contents| contents.sent.as_deref()));
        match contents.and_then(|contents| contents.logprobs.as_ref()) {
            Some(logprobs) => {
                self.logprobs.values().append_slice(logprobs);
                self.logprobs.append(true);
            }
            None => self.logprobs.append(false),
        }
        self.verdicts.push(&request.verdicts);
        self.rows += 1;
        let ids = contents.map_or(0, |it| it.received.len() + it.sent.as_ref().map_or(0, Vec::len));
        self.bytes += 12 * rows.tokens.len() + 8 * ids + 96 * request.verdicts.len() + info.rid.len();
    }

    /// Takes the rows.
    ///
    /// # Errors
    /// A column does not fit the schema, or a list is past 2^31 items.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        (self.rows, self.bytes) = (0, 0);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.instance.finish()),
            Arc::new(self.stream.finish()),
            Arc::new(self.number.finish()),
            Arc::new(self.rid.finish()),
            Arc::new(self.segment.finish()),
            Arc::new(self.engine.finish()),
            Arc::new(self.engine_version.finish()),
            Arc::new(self.model.finish()),
            Arc::new(self.sink.finish()),
            self.attributes.finish()?,
            Arc::new(self.state.finish()),
            Arc::new(self.finish_reason.finish()),
            Arc::new(self.ended_early.finish()),
            Arc::new(self.ended_by.finish()),
            Arc::new(self.ended_by_plugin.finish()),
            Arc::new(self.erased.finish()),
            Arc::new(self.first_at.finish()),
            Arc::new(self.last_at.finish()),
            Arc::new(self.first_unix_ns.finish()),
            Arc::new(self.prompt_tokens.finish()),
            Arc::new(self.cached_tokens.finish()),
            Arc::new(self.completion_tokens.finish()),
            Arc::new(self.first_token_ns.finish()),
            Arc::new(self.weight_version.finish()),
            Arc::new(self.tokens_received.finish()),
            Arc::new(self.tokens_forwarded.finish()),
            Arc::new(self.tokens_replaced.finish()),
            Arc::new(self.tokens_dropped.finish()),
            Arc::new(self.tokens_swallowed.finish()),
            self.dropped_by.finish()?,
            Arc::new(self.gap_count.finish()),
            self.gaps.finish()?,
            Arc::new(self.row_count.finish()),
            Arc::new(self.rows_missing.finish()),
            Arc::new(self.row_tokens.finish()),
            Arc::new(self.row_delta_ns.finish()),
            Arc::new(self.ids.finish()),
            Arc::new(self.ids_sent.finish()),
            Arc::new(self.logprobs.finish()),
            self.verdicts.finish()?,
        ];
        RecordBatch::try_new(self.schema.clone(), columns)
    }
}

fn append(column: &mut ListBuilder<Int64Builder>, ids: Option<&[i64]>) {
    if let Some(ids) = ids {
        column.values().append_slice(ids);
    }
    column.append(ids.is_some());
}

/// Rows of the table of batches that wait to be written.
pub(crate) struct BatchRows {
    schema: SchemaRef,
    facts: StreamFacts,
    rows: usize,
    instance: StringBuilder,
    stream: StringBuilder,
    frame: Int64Builder,
    received_at: TimestampMicrosecondBuilder,
    received_unix_ns: Int64Builder,
    bytes: Int64Builder,
    requests: Int32Builder,
    tokens: Int64Builder,
}

impl BatchRows {
    pub(crate) fn new(facts: StreamFacts) -> BatchRows {
        BatchRows {
            schema: Table::Batches.schema(),
            facts,
            rows: 0,
            instance: StringBuilder::new(),
            stream: StringBuilder::new(),
            frame: Int64Builder::new(),
            received_at: times(),
            received_unix_ns: Int64Builder::new(),
            bytes: Int64Builder::new(),
            requests: Int32Builder::new(),
            tokens: Int64Builder::new(),
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.rows
    }

    pub(crate) fn push(&mut self, frame: &SettledFrame) {
        self.instance.append_value(&self.facts.instance);
        self.stream.append_value(&self.facts.stream);
        self.frame.append_value(frame.frame.0 as i64);
        self.received_at.append_value((frame.received_unix_ns / 1000) as i64);
        self.received_unix_ns.append_value(frame.received_unix_ns as i64);
        self.bytes.append_option(frame.bytes.map(i64::from));
        self.requests.append_value(frame.requests as i32);
        self.tokens.append_value(frame.tokens as i64);
        self.rows += 1;
    }

    /// Takes the rows.
    ///
    /// # Errors
    /// A column does not fit the schema.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.instance.finish()),
            Arc::new(self.stream.finish()),
            Arc::new(self.frame.finish()),
            Arc::new(self.received_at.finish()),
            Arc::new(self.received_unix_ns.finish()),
            Arc::new(self.bytes.finish()),
            Arc::new(self.requests.finish()),
            Arc::new(self.tokens.finish()),
        ];
        RecordBatch::try_new(self.schema.clone(), columns)
    }
}
