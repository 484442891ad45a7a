//! The columns of the tables: types and meanings. The page about the archive shows the same list.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

/// The version of the schema. A change that an existing query could notice makes a new version; a new column does not.
pub const SCHEMA_VERSION: u32 = 1;
/// The key of [`SCHEMA_VERSION`] in the key-value metadata of each file.
pub const SCHEMA_VERSION_KEY: &str = "afterbay.schema_version";
/// The key of the table's name in the key-value metadata of each file.
pub const TABLE_KEY: &str = "afterbay.table";

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

    /// The columns, in order.
    pub fn columns(self) -> Vec<Column> {
        match self {
            Table::Requests => requests(),
            Table::Batches => batches(),
        }
    }

    /// The columns as Arrow's schema.
    pub fn schema(self) -> SchemaRef {
        Arc::new(Schema::new(self.columns().into_iter().map(|column| column.field).collect::<Vec<_>>()))
    }

    /// The columns as a table of Markdown.
    pub fn markdown(self) -> String {
        let mut out = "| column | type | |\n|---|---|---|\n".to_owned();
        for Column { field, about } in self.columns() {
            let null = if field.is_nullable() { ", or null" } else { "" };
            let kind = sql_type(field.data_type());
            out += &format!("| `{}` | `{kind}`{null} | {about} |\n", field.name());
        }
        out
    }
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name, type, and whether it may be null.
    pub field: Field,
    /// The meaning in a sentence.
    pub about: &'static str,
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

fn always(name: &str, kind: DataType, about: &'static str) -> Column {
    Column { field: Field::new(name, kind, false), about }
}

fn maybe(name: &str, kind: DataType, about: &'static str) -> Column {
    Column { field: Field::new(name, kind, true), about }
}

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(item_field(item)))
}

/// The field of the items of a list, as Parquet names it.
pub(crate) fn item_field(item: DataType) -> Field {
    Field::new("element", item, false)
}

/// A point in time of UTC. Spark reads no nanoseconds.
pub(crate) fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// The entries of the map of attributes.
pub(crate) fn attribute_entries() -> Fields {
    vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, false)].into()
}

fn attributes() -> DataType {
    DataType::Map(Arc::new(attributes_field()), false)
}

/// The field inside the map of attributes.
pub(crate) fn attributes_field() -> Field {
    Field::new("key_value", DataType::Struct(attribute_entries()), false)
}

/// The fields of a verdict.
pub(crate) fn verdict_fields() -> Fields {
    vec![
        Field::new("plugin", DataType::Utf8, false),
        Field::new("version", DataType::Utf8, true),
        Field::new("digest", DataType::Utf8, true),
        Field::new("verdict", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, false),
        Field::new("row", DataType::Int32, false),
        Field::new("tokens_forwarded", DataType::Int32, false),
    ]
    .into()
}

/// The fields of an entry of dropped tokens.
pub(crate) fn dropped_fields() -> Fields {
    vec![
        Field::new("plugin", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, false),
        Field::new("tokens", DataType::Int64, false),
    ]
    .into()
}

/// The fields of a gap.
pub(crate) fn gap_fields() -> Fields {
    vec![
        Field::new("row", DataType::Int32, false),
        Field::new("expected", DataType::Int64, false),
        Field::new("got", DataType::Int64, false),
    ]
    .into()
}

fn requests() -> Vec<Column> {
    use DataType::{Boolean, Float32, Int32, Int64, Struct, Utf8};
    vec![
        always("instance", Utf8, "Identity of the journal directory (`DIR/INSTANCE`)."),
        always("stream", Utf8, "Name of the stream."),
        always(
            "number",
            Int64,
            "Number of the request in its stream. `instance`, `stream` and `number` are the key of the row.",
        ),
        always("rid", Utf8, "The engine's id of the request. Clients may use a rid again."),
        always("segment", Utf8, "Segment of the journal in which the request ended."),
        maybe("engine", Utf8, "`sglang` or `vllm`. Null if no frame of the request could be decoded."),
        maybe(
            "engine_version",
            Utf8,
            "The versions of the engine whose frames have this layout. Null for pickles.",
        ),
        maybe("model", Utf8, "The attribute `model`."),
        maybe("sink", Utf8, "The sink that got the last row."),
        always("attributes", attributes(), "The attributes that the journal has, such as `tenant`."),
        always(
            "state",
            Utf8,
            "`finished`: a row with a finish reason was received. `abandoned`: no such row.",
        ),
        maybe("finish_reason", Utf8, "The engine's finish reason."),
        always(
            "ended_early",
            Boolean,
            "Whether a plugin or an operator ended the request for its reader. `verdicts` has the reason.",
        ),
        always(
            "ended_by",
            Utf8,
            "The party that ended the request: `scheduler`, `plugin`, `fault`, `operator`, `given up` or `unknown`.",
        ),
        maybe("ended_by_plugin", Utf8, "The plugin of `plugin` and `fault`."),
        always(
            "erased",
            Boolean,
            "Whether the request was erased before it was archived. It has no ids then.",
        ),
        maybe("first_at", time(), "Receipt of the first row."),
        maybe("last_at", time(), "Receipt of the last row."),
        always("first_unix_ns", Int64, "Receipt of the first row in Unix nanoseconds; 0 without a row."),
        maybe("prompt_tokens", Int64, "Tokens of the prompt."),
        maybe("cached_tokens", Int64, "Tokens of the prompt that the engine took from its cache."),
        maybe("completion_tokens", Int64, "The engine's own count of the tokens, in the last row."),
        maybe(
            "first_token_ns",
            Int64,
            "Nanoseconds from the engine's queue to the first token, by the engine's clock. Null if the engine does not \
             say: SGLang without `--enable-metrics`, vLLM with `--disable-log-stats`.",
        ),
        maybe("weight_version", Utf8, "The version of the weights in the last row that has one."),
        always("tokens_received", Int64, "Tokens received from the engine."),
        always("tokens_forwarded", Int64, "Tokens sent on to the reader."),
        always("tokens_replaced", Int64, "Tokens received in rows whose ids were replaced."),
        always(
            "tokens_dropped",
            Int64,
            "Tokens received in rows that were dropped, including the swallowed ones.",
        ),
        always("tokens_swallowed", Int64, "Tokens received after the request had ended for its reader."),
        always(
            "dropped_by",
            list(Struct(dropped_fields())),
            "The dropped tokens by plugin and reason, without the swallowed ones. At most 32 entries; the last one \
             sums up the rest and has an empty reason then.",
        ),
        always("gap_count", Int32, "Gaps in the token count: the engine's count was not what was received."),
        always(
            "gaps",
            list(Struct(gap_fields())),
            "The first 64 gaps: row, tokens received, the engine's count.",
        ),
        always("rows", Int64, "Rows received: one for each step of the engine with tokens of the request."),
        always(
            "rows_missing",
            Int64,
            "Rows that are in no list below: their segments were removed before they were read, or the request is \
             past a bound on memory (16 MiB; 512 MiB for all live requests of a stream).",
        ),
        always("row_tokens", list(Int32), "Tokens of each row."),
        always(
            "row_delta_ns",
            list(Int64),
            "Receipt of each row in nanoseconds after the row before; 0 for the first.",
        ),
        maybe("ids", list(Int64), "Token ids as received. -1 for a token whose frame cannot be read."),
        maybe("ids_sent", list(Int64), "Token ids as they were sent on. Null if they are those received."),
        maybe(
            "logprobs",
            list(Float32),
            "The logprob of each received id. Null unless the engine sent all of them.",
        ),
        always(
            "verdicts",
            list(Struct(verdict_fields())),
            "The actions of plugins and operators, in order. `version` is the one that the component gives itself, `digest` \
             its SHA-256. Both are null for an operator, whose name is `(operator)`.",
        ),
    ]
}

fn batches() -> Vec<Column> {
    use DataType::{Int32, Int64, Utf8};
    vec![
        always("instance", Utf8, "Identity of the journal directory (`DIR/INSTANCE`)."),
        always("stream", Utf8, "Name of the stream."),
        always(
            "frame",
            Int64,
            "Number of the frame. `instance`, `stream` and `frame` are the key of the row.",
        ),
        always("received_at", time(), "Receipt of the frame."),
        always("received_unix_ns", Int64, "Receipt of the frame in Unix nanoseconds."),
        maybe("bytes", Int64, "Size of the frame. Null if the frame was not stored."),
        always("requests", Int32, "Rows of the frame, each of one request. 0 for a message without rows."),
        always("tokens", Int64, "Tokens received in the frame."),
    ]
}
