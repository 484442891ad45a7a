//! The columns of the tables: types, meanings and values. The page about the archive shows the same list.

use afterbay_journal::TokenGap;
use afterbay_journal::reader::RequestState;
use afterbay_journal_view::ended::{DroppedTokens, EndedRequest, RowVerdict, SettledFrame};
use afterbay_journal_view::wording;
use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use arrow_schema::{DataType, SchemaRef};

use crate::archive::columns::{self, Column};

/// The version of the schema. A change that an existing query could notice makes a new version; a new column does not.
pub const SCHEMA_VERSION: u32 = 1;
/// The key of [`SCHEMA_VERSION`] in the key-value metadata of each file.
pub const SCHEMA_VERSION_KEY: &str = "afterbay.schema_version";
/// The key of the table's name in the key-value metadata of each file.
pub const TABLE_KEY: &str = "afterbay.table";

/// The attribute with the name of the model.
const MODEL: &str = "model";

/// The facts about a stream that stand in each of its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// The identity of the journal directory.
    pub instance: String,
    /// Name of the stream.
    pub stream: String,
}

/// A table of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// One row a request of a stream that has ended.
    Requests,
    /// One row a batch.
    Batches,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 2] = [Table::Requests, Table::Batches];

    /// The name of the table, which begins the names of its objects.
    pub fn name(self) -> &'static str {
        match self {
            Table::Requests => "requests",
            Table::Batches => "batches",
        }
    }

    /// The columns as Arrow's schema.
    pub fn schema(self) -> SchemaRef {
        match self {
            Table::Requests => columns::schema(&requests(&StreamFacts::default())),
            Table::Batches => columns::schema(&batches(&StreamFacts::default())),
        }
    }

    /// The columns as a table of Markdown.
    pub fn markdown(self) -> String {
        match self {
            Table::Requests => markdown(&requests(&StreamFacts::default())),
            Table::Batches => markdown(&batches(&StreamFacts::default())),
        }
    }
}

fn markdown<R>(columns: &[Column<R>]) -> String {
    let mut out = "| column | type | |\n|---|---|---|\n".to_owned();
    for Column { field, about, .. } in columns {
        let null = if field.is_nullable() { ", or null" } else { "" };
        let kind = sql_type(field.data_type());
        out += &format!("| `{}` | `{kind}`{null} | {about} |\n", field.name());
    }
    out
}

/// The type's name in DuckDB.
fn sql_type(kind: &DataType) -> String {
    match kind {
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int32 => "INTEGER".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Float32 => "FLOAT".to_owned(),
        DataType::Timestamp(..) => "TIMESTAMPTZ".to_owned(),
        DataType::List(item) => format!("{}[]", sql_type(item.data_type())),
        DataType::Map(..) => "MAP(VARCHAR, VARCHAR)".to_owned(),
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|it| format!("{} {}", it.name(), sql_type(it.data_type())));
            format!("STRUCT({})", fields.collect::<Vec<_>>().join(", "))
        }
        _ => "VARCHAR".to_owned(),
    }
}

/// The columns that both tables begin with.
fn common<R: 'static>(facts: &StreamFacts) -> [Column<R>; 2] {
    let StreamFacts { instance, stream } = facts.clone();
    [
        Column::text("instance", "Identity of the journal directory (`DIR/INSTANCE`).", move |_| {
            instance.clone().into()
        }),
        Column::text("stream", "Name of the stream.", move |_| stream.clone().into()),
    ]
}

/// The table of requests.
pub(crate) fn requests(facts: &StreamFacts) -> Vec<Column<EndedRequest>> {
    type Of = Column<EndedRequest>;
    let columns: [Of; 48] = [
        Of::count(
            "number",
            "Number of the request in its stream. `instance`, `stream` and `number` are the key of the row.",
            |it| it.info.number.0,
        ),
        Of::text("rid", "The engine's id of the request. Clients may use a rid again.", |it| {
            it.info.rid.as_str().into()
        }),
        Of::text("segment", "Segment of the journal in which the request ended.", |it| {
            it.end.segment.to_string().into()
        }),
        Of::maybe_text(
            "engine",
            "The engine, as `stream.engine` names it. Null if no frame of the request could be decoded.",
            |it| Some(it.facts.as_ref()?.engine.into()),
        ),
        Of::maybe_text(
            "engine_version",
            "The versions of the engine whose frames have this layout. Null for pickles.",
            |it| it.facts.as_ref()?.versions.as_deref().map(Into::into),
        ),
        Of::maybe_text("model", "The attribute `model`, or else the model of the request's record.", |it| {
            it.info.attribute(MODEL).or_else(|| it.record.as_ref()?.model.as_deref()).map(Into::into)
        }),
        Of::maybe_text("lora", "The LoRA adapter, by the request's record.", |it| {
            it.record.as_ref()?.lora.as_deref().map(Into::into)
        }),
        Of::maybe_text("session", "The engine's session, by the request's record.", |it| {
            it.record.as_ref()?.session.as_deref().map(Into::into)
        }),
        Of::maybe_text("sink", "The sink that got the last row.", |it| it.sink.as_deref().map(Into::into)),
        Of::map("attributes", "The attributes that the journal has, such as `tenant`.", |it| {
            &it.info.attributes
        }),
        Of::text(
            "state",
            "`finished`: a row with a finish reason was received. `abandoned`: no such row.",
            |it| match it.info.state {
                RequestState::Finished => "finished".into(),
                RequestState::Abandoned | RequestState::Live => "abandoned".into(),
            },
        ),
        Of::maybe_text("finish_reason", "The engine's finish reason.", |it| {
            Some(it.info.finish.as_str().into()).filter(|_| !it.info.finish.is_empty())
        }),
        Of::flag(
            "ended_early",
            "Whether a plugin or an operator ended the request for its reader. `verdicts` has the reason.",
            |it| it.info.ended_early,
        ),
        Of::text(
            "ended_by",
            "The cause of the end ([all causes](why-did-a-request-end.md#who-ended-it)).",
            |it| it.ended_by().cause.word().into(),
        ),
        Of::maybe_text("ended_by_plugin", "The plugin of `plugin`, `watchdog` and `fault`.", |it| {
            it.ended_by().plugin.map(Into::into)
        }),
        Of::flag(
            "erased",
            "Whether the request was erased before it was archived. It has no ids then.",
            |it| it.info.erased.is_some(),
        ),
        Of::time("arrived_at", "The time at which the scheduler got the request, by its record.", |it| {
            it.record.as_ref().and_then(|record| record.arrived_unix_ns).unwrap_or_default()
        }),
        Of::maybe_count("arrived_unix_ns", "The arrival in Unix nanoseconds.", |it| {
            it.record.as_ref()?.arrived_unix_ns
        }),
        Of::maybe_text(
            "request",
            "The request's record as JSON: sampling parameters, grammar and the rest of what the scheduler was asked for. Null \
             without a record.",
            |it| serde_json::to_string(it.record.as_deref()?).ok().map(Into::into),
        ),
        Of::time("first_at", "Receipt of the first row.", |it| it.info.first_unix_ns),
        Of::time("last_at", "Receipt of the last row.", |it| it.info.last_unix_ns),
        Of::count("first_unix_ns", "Receipt of the first row in Unix nanoseconds; 0 without a row.", |it| {
            it.info.first_unix_ns
        }),
        Of::maybe_count("prompt_tokens", "Tokens of the prompt.", |it| {
            let counted = it.facts.as_ref().and_then(|facts| facts.prompt_tokens);
            counted.or_else(|| it.record.as_ref()?.prompt_tokens)
        }),
        Of::maybe_count("cached_tokens", "Tokens of the prompt that the engine took from its cache.", |it| {
            it.facts.as_ref()?.cached_tokens
        }),
        Of::maybe_count(
            "reasoning_tokens",
            "Tokens of the answer that the engine counts as reasoning, in the last row.",
            |it| it.facts.as_ref()?.reasoning_tokens,
        ),
        Of::maybe_count(
            "drafted_tokens",
            "Tokens that a draft model proposed, in the last row. Null if the engine does not say.",
            |it| it.facts.as_ref()?.drafts.drafted,
        ),
        Of::maybe_count(
            "accepted_tokens",
            "Tokens of a draft model that the model accepted, in the last row. Null if the engine does not say.",
            |it| it.facts.as_ref()?.drafts.accepted,
        ),
        Of::maybe_count(
            "completion_tokens",
            "The engine's own count of the tokens, in the last row.",
            |it| it.info.completion_tokens,
        ),
        Of::maybe_count(
            "first_token_ns",
            "Nanoseconds from the engine's queue to the first token, by the engine's clock. Null if the engine does not \
             say, as with its statistics off.",
            |it| it.facts.as_ref()?.first_token_ns,
        ),
        Of::count(
            "gpu_ns",
            "The request's part of the time for which the engine worked, in nanoseconds. 0 on a second leg.",
            |it| it.gpu_ns,
        ),
        Of::maybe_text("weight_version", "The version of the weights in the last row that has one.", |it| {
            it.facts.as_ref()?.weight_version.as_deref().map(Into::into)
        }),
        Of::count("tokens_received", "Tokens received from the engine.", |it| it.info.received),
        Of::count("tokens_forwarded", "Tokens sent on to the reader.", |it| it.info.forwarded),
        Of::count("tokens_replaced", "Tokens received in rows whose ids were replaced.", |it| {
            it.info.replaced
        }),
        Of::count(
            "tokens_dropped",
            "Tokens received in rows that were dropped, including the swallowed ones.",
            |it| it.info.dropped,
        ),
        Of::count("tokens_swallowed", "Tokens received after the request had ended for its reader.", |it| {
            it.ledger.swallowed
        }),
        Of::structs(
            "dropped_by",
            "The dropped tokens by plugin and reason, without the swallowed ones. At most 32 entries; the last one \
             sums up the rest and has an empty reason then.",
            |it| &it.ledger.dropped_by,
            dropped(),
        ),
        Of::small_count(
            "gap_count",
            "Gaps in the token count: the engine's count was not what was received.",
            |it| it.info.gaps,
        ),
        Of::structs(
            "gaps",
            "The first 64 gaps: row, tokens received, the engine's count.",
            |it| &it.gaps,
            gaps(),
        ),
        Of::count(
            "rows",
            "Rows received: one for each step of the engine with tokens of the request.",
            |it| it.info.rows,
        ),
        Of::count(
            "rows_missing",
            "Rows that are in no list below: their segments were removed before they were read, or the request is \
             past a bound on memory (16 MiB; 512 MiB for all live requests of a stream).",
            |it| it.rows_missing,
        ),
        Of::list::<Int32Type>("row_tokens", "Tokens of each row.", |it| {
            it.rows.tokens.iter().map(|tokens| *tokens as i32).collect::<Vec<_>>().into()
        }),
        Of::list::<Int64Type>(
            "row_delta_ns",
            "Receipt of each row in nanoseconds after the row before; 0 for the first.",
            |it| deltas(&it.rows.received_unix_ns).into(),
        ),
        Of::maybe_list::<Int64Type>(
            "prompt_ids",
            "Token ids of the prompt, by the request's record. Null without a record with ids.",
            |it| Some(it.record.as_ref()?.prompt_ids()?.map(i64::from).collect::<Vec<_>>().into()),
        ),
        Of::maybe_list::<Int64Type>(
            "ids",
            "Token ids as received. -1 for a token whose frame cannot be read.",
            |it| Some(it.contents.as_ref()?.received.as_slice().into()),
        ),
        Of::maybe_list::<Int64Type>(
            "ids_sent",
            "Token ids as they were sent on. Null if they are those received.",
            |it| it.contents.as_ref()?.sent.as_deref().map(Into::into),
        ),
        Of::maybe_list::<Float32Type>(
            "logprobs",
            "The logprob of each received id. Null unless the engine sent all of them.",
            |it| it.contents.as_ref()?.logprobs.as_deref().map(Into::into),
        ),
        Of::structs(
            "verdicts",
            "The actions of plugins and operators, in order. `version` is the one that the component gives itself, `digest` \
             its SHA-256. Both are null for an operator, whose name is `(operator)`.",
            |it| &it.verdicts,
            verdicts(),
        ),
    ];
    common(facts).into_iter().chain(columns).collect()
}

/// The times between the rows; 0 for the first.
fn deltas(unix_ns: &[u64]) -> Vec<i64> {
    let before = unix_ns.first().into_iter().chain(unix_ns);
    unix_ns.iter().zip(before).map(|(time, before)| time.wrapping_sub(*before) as i64).collect()
}

fn dropped() -> Vec<Column<DroppedTokens>> {
    type Of = Column<DroppedTokens>;
    vec![
        Of::text("plugin", "", |it| (&*it.plugin).into()),
        Of::text("reason", "", |it| (&*it.reason).into()),
        Of::count("tokens", "", |it| it.tokens),
    ]
}

fn gaps() -> Vec<Column<TokenGap>> {
    type Of = Column<TokenGap>;
    vec![
        Of::small_count("row", "", |it| it.row),
        Of::count("expected", "", |it| it.expected),
        Of::count("got", "", |it| it.got),
    ]
}

fn verdicts() -> Vec<Column<RowVerdict>> {
    type Of = Column<RowVerdict>;
    vec![
        Of::text("plugin", "", |it| (&*it.plugin).into()),
        Of::maybe_text("version", "", |it| it.version.as_deref().map(Into::into)),
        Of::maybe_text("digest", "", |it| it.digest.as_deref().map(Into::into)),
        Of::text("verdict", "", |it| wording::verdict(it.verdict).into()),
        Of::text("reason", "", |it| (&*it.reason).into()),
        Of::small_count("row", "", |it| it.row),
        Of::small_count("tokens_forwarded", "", |it| it.forwarded),
    ]
}

/// The table of batches.
pub(crate) fn batches(facts: &StreamFacts) -> Vec<Column<SettledFrame>> {
    type Of = Column<SettledFrame>;
    let columns: [Of; 7] = [
        Of::count(
            "frame",
            "Number of the frame. `instance`, `stream` and `frame` are the key of the row.",
            |it| it.frame.0,
        ),
        Of::time("received_at", "Receipt of the frame.", |it| it.received_unix_ns).always(),
        Of::count("received_unix_ns", "Receipt of the frame in Unix nanoseconds.", |it| it.received_unix_ns),
        Of::maybe_count("bytes", "Size of the frame. Null if the frame was not stored.", |it| {
            it.bytes.map(u64::from)
        }),
        Of::small_count(
            "requests",
            "Rows of the frame, each of one request. 0 for a message without rows.",
            |it| it.requests,
        ),
        Of::count("tokens", "Tokens received in the frame.", |it| it.tokens),
        Of::count(
            "gpu_ns",
            "The time of the engine's step, in nanoseconds. 0 for a frame that is no step, and on a second leg.",
            |it| it.gpu_ns,
        ),
    ];
    common(facts).into_iter().chain(columns).collect()
}
