//! Synthetic batches for the simulator and the benches: all columns as the streamer of SGLang 0.5.23 writes them for
//! plain requests (no logprobs, no speculation, metrics off). The real SGLang takes them; a test shows it.

use afterbay_pickle::{ParseError, Source, Tree, Writer};
use bytes::Bytes;
use thiserror::Error;

use crate::columns::{self, Join};
use crate::error::RowsError;
use crate::kind::Kind;
use crate::layouts::{LayoutError, Layouts};
use crate::pack;
use crate::packed::write_wrapped;
use crate::pickled;
use crate::sink::{Sink, wait};
use crate::value::Value;

/// The version whose frames are written.
const VERSION: &str = "0.5.23";
/// What SGLang's tokens of prompt for the detokenizer are at most.
const PROMPT_TAIL: i64 = 5;
/// A `SchedulerReqTimeStats` as it is with metrics off.
const TIME_STATS: &[u8] =
    b"\x80\x04csglang.srt.observability.req_time_stats\nSchedulerReqTimeStats\n)\x81}b.";

/// One row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SynthRow {
    /// The request's name.
    pub rid: String,
    /// The last ids of the prompt, at most 5, in a request's first row; nothing in later ones.
    pub prompt_tail: Vec<i64>,
    /// The new ids.
    pub ids: Vec<i64>,
    /// The new text, for [`Kind::Str`].
    pub text: String,
    /// Whether the row is its request's last.
    pub finish: Option<SynthFinish>,
    /// The request's tokens so far, these included.
    pub completion_tokens: u64,
    /// The length of its prompt.
    pub prompt_tokens: u64,
    /// The socket of the HTTP worker that waits for the request, where there are several.
    pub http_worker_ipc: Option<String>,
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SynthFinish {
    /// The limit of tokens, so many.
    Length(u64),
    /// A stop token, the row's last.
    StopToken(i64),
    /// A stop text.
    StopText(String),
    /// Aborted, with this message.
    Abort(String),
}

/// How a synthetic batch is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthWire {
    /// As with `SGLANG_USE_PICKLE_IPC=0`.
    Msgpack,
    /// A pickle of protocol 5, the default.
    Pickle,
}

/// The rows of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SynthBatch {
    /// The rows; none is an idle batch.
    pub rows: Vec<SynthRow>,
}

/// Why a batch was not written. None of it happens to rows within the bounds of a frame.
#[derive(Debug, Error)]
pub enum SynthError {
    /// The layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A model of an object.
    #[error(transparent)]
    Model(#[from] ParseError),
    /// The writing.
    #[error(transparent)]
    Write(#[from] RowsError),
}

impl SynthBatch {
    /// Writes the batch as a frame.
    pub fn encode(&self, kind: Kind, wire: SynthWire) -> Result<Bytes, SynthError> {
        let layouts = Layouts::version(VERSION)?;
        let names =
            layouts.iter().find(|layout| layout.kind == kind).map_or(&[][..], |layout| &layout.fields);
        let stats = Tree::parse(Bytes::from_static(TIME_STATS))?;
        match wire {
            SynthWire::Msgpack => {
                let mut out = Vec::with_capacity(128 * (1 + self.rows.len()));
                pack::write::array(&mut out, names.len() + 1);
                pack::write::str(&mut out, kind.class());
                for field in names {
                    if *field.name == *"time_stats" {
                        let mut writer = Writer::new(4);
                        let source = writer.source(&stats);
                        self.time_stats(&mut writer, &stats, source)?;
                        let pickle = writer.finish().map_err(RowsError::from)?;
                        write_wrapped(&mut out, &pickle);
                    } else {
                        self.column(&mut out, &field.name)?;
                    }
                }
                Ok(out.into())
            }
            SynthWire::Pickle => {
                let model = pickled::model(kind, false)?;
                let mut writer = Writer::new(5);
                let (model_source, source) = (writer.source(&model), writer.source(&stats));
                let mut failed = None;
                let written = writer.object(model_source, model.root(), |writer| {
                    let written = names.iter().try_for_each(|field| {
                        writer.str(&field.name);
                        match &*field.name {
                            "time_stats" => self.time_stats(writer, &stats, source),
                            name => self.column(writer, name),
                        }
                    });
                    wait(written, &mut failed)
                });
                failed.map_or(written.map_err(RowsError::from), Err)?;
                Ok(writer.finish().map_err(RowsError::from)?)
            }
        }
    }

    fn time_stats<'a>(
        &self,
        writer: &mut Writer<'a>,
        stats: &'a Tree,
        source: Source,
    ) -> Result<(), RowsError> {
        Sink::list(writer, self.rows.len(), |writer| {
            let one = Value::Tree(stats, stats.root());
            self.rows.iter().try_for_each(|_| Sink::copy(writer, one, Some(source)))
        })
    }

    /// Writes the column of that name.
    pub(crate) fn column<'a>(&self, sink: &mut impl Sink<'a>, name: &str) -> Result<(), RowsError> {
        // What the streamer leaves out for such requests.
        let nil = name.contains("logprobs")
            || name == "customized_info"
            || name == "weight_versions"
            || name != "embeddings"
                && columns::find(name).is_none_or(|it| matches!(it.join, Join::Never | Join::Mask))
            || name == "dp_ranks" && self.rows.is_empty();
        if nil {
            sink.nil();
            return Ok(());
        }
        let rows = if name.starts_with("spec_") { &[] } else { self.rows.as_slice() };
        sink.list(rows.len(), |sink| rows.iter().try_for_each(|row| row.cell(sink, name)))
    }
}

impl SynthRow {
    fn cell<'a>(&self, sink: &mut impl Sink<'a>, name: &str) -> Result<(), RowsError> {
        match name {
            "rids" => sink.str(&self.rid),
            "http_worker_ipcs" => match &self.http_worker_ipc {
                Some(ipc) => sink.str(ipc),
                None => sink.nil(),
            },
            "cached_tokens_details" | "dp_ranks" => sink.nil(),
            "finished_reasons" => return self.finish(sink),
            "decoded_texts" => sink.str(""),
            "output_strs" => sink.str(&self.text),
            "decode_ids" => return sink.ids(&[&self.prompt_tail[..], &self.ids].concat(), None),
            "output_ids" => return sink.ids(&self.ids, None),
            "read_offsets" if self.prompt_tail.is_empty() => sink.int(PROMPT_TAIL),
            "read_offsets" => sink.int(self.prompt_tail.len() as i64),
            "skip_special_tokens" | "spaces_between_special_tokens" => sink.bool(true),
            "no_stop_trim" => sink.bool(false),
            "embeddings" => {
                return sink.list(1, |sink| {
                    sink.float(0.5);
                    Ok(())
                });
            }
            "prompt_tokens" => sink.int(self.prompt_tokens as i64),
            "completion_tokens" => sink.int(self.completion_tokens as i64),
            _ => sink.int(0),
        }
        Ok(())
    }

    fn finish<'a>(&self, sink: &mut impl Sink<'a>) -> Result<(), RowsError> {
        let Some(finish) = &self.finish else {
            sink.nil();
            return Ok(());
        };
        let abort = matches!(finish, SynthFinish::Abort(_));
        sink.map(if abort { 4 } else { 2 }, |sink| {
            sink.str("type");
            match finish {
                SynthFinish::Length(tokens) => {
                    ["length", "length"].into_iter().for_each(|text| sink.str(text));
                    sink.int(*tokens as i64);
                }
                SynthFinish::StopToken(token) => {
                    ["stop", "matched"].into_iter().for_each(|text| sink.str(text));
                    sink.int(*token);
                }
                SynthFinish::StopText(text) => {
                    ["stop", "matched", text].into_iter().for_each(|text| sink.str(text));
                }
                SynthFinish::Abort(message) => {
                    ["abort", "message", message].into_iter().for_each(|text| sink.str(text));
                    for key in ["status_code", "err_type"] {
                        sink.str(key);
                        sink.nil();
                    }
                }
            }
            Ok(())
        })
    }
}
