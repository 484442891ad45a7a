//! Synthetic batches for the simulator and the benches: every column as SGLang 0.5.23's streamer writes it for plain
//! requests (no logprobs, no speculation, metrics off), or the same rows as vLLM's. A test shows that the real engines read
//! them.

use crate::pickle::{ParseError, PickleWriter, SourceId, Tree};
use afterbay_types::Engine;
use bytes::Bytes;
use thiserror::Error;

use crate::error::RowsError;
use crate::kind::BatchKind;
use crate::pack;
use crate::packed::write_wrapped;
use crate::sglang::columns::{self, Join};
use crate::sglang::layouts::{LayoutField, Messages};
use crate::sglang::pickled;
use crate::sglang::value_writer::{ValueWriter, wait};
use crate::smg::{self, SlimEnd, SlimRow};
use crate::value::RawValue;
use crate::vllm::{SynthOutput, SynthOutputs};

/// The engine's clock in seconds.
const CLOCK_S: f64 = 1e6;
/// The SGLang version of the frames.
const VERSION: &str = "0.5.23";
/// The most prompt tokens that SGLang sends for the detokenizer.
const PROMPT_TAIL: i64 = 5;
/// A `SchedulerReqTimeStats` with metrics off.
const TIME_STATS: &[u8] =
    b"\x80\x04csglang.srt.observability.req_time_stats\nSchedulerReqTimeStats\n)\x81}b.";

/// A synthetic row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SynthRow {
    /// The request's name.
    pub rid: String,
    /// The last ids of the prompt, at most 5, in a request's first row. Empty in later rows.
    pub prompt_tail: Vec<i64>,
    /// The new ids.
    pub ids: Vec<i64>,
    /// The new text, for [`BatchKind::Str`].
    pub text: String,
    /// The finish reason, if the row is its request's last.
    pub finish: Option<SynthFinish>,
    /// The request's tokens so far, including these.
    pub completion_tokens: u64,
    /// The length of the prompt in tokens.
    pub prompt_tokens: u64,
    /// Time from the engine's queue to the first token, in nanoseconds, in a request's first row. `None`: the engine measures none.
    pub first_token_ns: Option<u64>,
    /// The socket of the HTTP worker that waits for the request, if there are several workers.
    pub http_worker_ipc: Option<String>,
}

/// The reason why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SynthFinish {
    /// The token limit, with this number of tokens.
    Length(u64),
    /// A stop token, the row's last.
    StopToken(i64),
    /// A stop text.
    StopText(String),
    /// An abort with this message.
    Abort(String),
}

/// The encoding of a synthetic batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthWire {
    /// msgpack, as with `SGLANG_USE_PICKLE_IPC=0`.
    Msgpack,
    /// A pickle of protocol 5, SGLang's default.
    Pickle,
    /// vLLM's `EngineCoreOutputs`. Of a row it has the name, the ids, the finish reason, and in a request's first row the
    /// length of the prompt. [`SynthOutputs`] has all that vLLM sends.
    EngineCore,
    /// SMG's `BatchTokenIDSlimOutput`.
    Slim,
}

impl SynthWire {
    /// The engine's kind of batch and its encoding. `None`: the engine has several.
    pub fn only(engine: Engine) -> Option<(BatchKind, SynthWire)> {
        match engine {
            Engine::Sglang => None,
            Engine::Vllm => Some((BatchKind::Outputs, SynthWire::EngineCore)),
            Engine::Smg => Some((BatchKind::TokenId, SynthWire::Slim)),
        }
    }
}

/// The rows of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SynthBatch {
    /// The rows. An empty list makes an idle batch.
    pub rows: Vec<SynthRow>,
}

/// The reason why a batch was not written. Rows within the limits of a frame cause none of these errors.
#[derive(Debug, Error)]
pub enum SynthError {
    /// The model of an object is invalid.
    #[error(transparent)]
    Model(#[from] ParseError),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] RowsError),
}

impl SynthBatch {
    /// Writes the batch as a frame. vLLM and SMG have one kind of batch of tokens, so `kind` is ignored for their wires.
    pub fn encode(&self, kind: BatchKind, wire: SynthWire) -> Result<Bytes, SynthError> {
        match wire {
            SynthWire::EngineCore => {
                let rows = self.rows.iter().map(SynthRow::to_output).collect();
                return Ok(SynthOutputs { rows, timestamp: CLOCK_S, ..SynthOutputs::default() }.encode());
            }
            SynthWire::Slim => {
                let rows: Vec<_> = self.rows.iter().map(SynthRow::to_slim).collect();
                return Ok(smg::encode(&rows));
            }
            SynthWire::Msgpack | SynthWire::Pickle => {}
        }
        let messages = Messages::version(VERSION);
        let names = messages.fields(kind);
        let stats = Tree::parse(Bytes::from_static(TIME_STATS))?;
        match wire {
            SynthWire::Pickle => self.pickled(names, &stats, kind),
            _ => {
                let mut out = Vec::with_capacity(128 * (1 + self.rows.len()));
                pack::write::array(&mut out, names.len() + 1);
                pack::write::str(&mut out, kind.class());
                for field in names {
                    if *field.name == *"time_stats" {
                        let mut writer = PickleWriter::new(4);
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
        }
    }

    /// Writes the batch as a pickle.
    fn pickled(&self, names: &[LayoutField], stats: &Tree, kind: BatchKind) -> Result<Bytes, SynthError> {
        let model = pickled::model(kind, false)?;
        let mut writer = PickleWriter::new(5);
        let (model_source, source) = (writer.source(&model), writer.source(stats));
        let mut failed = None;
        let written = writer.object(model_source, model.root(), |writer| {
            let written = names.iter().try_for_each(|field| {
                writer.str(&field.name);
                match &*field.name {
                    "time_stats" => self.time_stats(writer, stats, source),
                    name => self.column(writer, name),
                }
            });
            wait(written, &mut failed)
        });
        failed.map_or(written.map_err(RowsError::from), Err)?;
        Ok(writer.finish().map_err(RowsError::from)?)
    }

    fn time_stats<'a>(
        &self,
        writer: &mut PickleWriter<'a>,
        stats: &'a Tree,
        source: SourceId,
    ) -> Result<(), RowsError> {
        ValueWriter::list(writer, self.rows.len(), |writer| {
            let one = RawValue::Tree(stats, stats.root());
            self.rows.iter().try_for_each(|row| {
                let Some(first_token_ns) = row.first_token_ns else {
                    return ValueWriter::copy(writer, one, Some(source));
                };
                let object = writer.object(source, stats.root(), |writer| {
                    // The reader fails without it.
                    writer.str("diff_realtime_monotonic");
                    writer.float(0.0);
                    writer.str("wait_queue_entry_time");
                    writer.float(CLOCK_S);
                    writer.str("prefill_finished_time");
                    writer.float(CLOCK_S + first_token_ns as f64 / 1e9);
                    Ok(())
                });
                object.map_err(RowsError::from)
            })
        })
    }

    /// Writes the column `name`.
    pub(crate) fn column<'a>(&self, out: &mut impl ValueWriter<'a>, name: &str) -> Result<(), RowsError> {
        // The columns that the streamer leaves out for plain requests.
        let nil = name.contains("logprobs")
            || name == "customized_info"
            || name == "weight_versions"
            || name != "embeddings"
                && columns::find(name).is_none_or(|it| matches!(it.join, Join::Never | Join::Mask))
            || name == "dp_ranks" && self.rows.is_empty();
        if nil {
            out.nil();
            return Ok(());
        }
        let rows = if name.starts_with("spec_") { &[] } else { self.rows.as_slice() };
        out.list(rows.len(), |out| rows.iter().try_for_each(|row| row.cell(out, name)))
    }
}

impl SynthRow {
    fn to_slim(&self) -> SlimRow<'_> {
        let end = self.finish.as_ref().map(|finish| match finish {
            SynthFinish::Length(_) => SlimEnd::Length,
            SynthFinish::StopToken(token) => SlimEnd::StopToken(*token),
            SynthFinish::StopText(text) => SlimEnd::StopText(text),
            SynthFinish::Abort(message) => SlimEnd::Abort(message),
        });
        let SynthRow { rid, ids, prompt_tokens, completion_tokens, .. } = self;
        let (prompt_tokens, completion_tokens) = (*prompt_tokens, *completion_tokens);
        SlimRow { rid, ids, prompt_tokens, completion_tokens, end }
    }

    fn to_output(&self) -> SynthOutput {
        let is_first = !self.ids.is_empty() && self.completion_tokens == self.ids.len() as u64;
        let mut output = SynthOutput {
            request_id: self.rid.clone(),
            new_token_ids: self.ids.clone(),
            prompt_tokens: is_first.then_some(self.prompt_tokens),
            first_token_ns: self.first_token_ns,
            ..SynthOutput::default()
        };
        match &self.finish {
            None => (),
            Some(SynthFinish::Length(_)) => output.finish_reason = Some(1),
            Some(SynthFinish::StopToken(token)) => {
                (output.finish_reason, output.stop_token) = (Some(0), Some(*token))
            }
            Some(SynthFinish::StopText(text)) => {
                (output.finish_reason, output.stop_text) = (Some(0), Some(text.clone()))
            }
            Some(SynthFinish::Abort(message)) => {
                (output.finish_reason, output.stop_text) = (Some(2), Some(message.clone()))
            }
        }
        output
    }

    fn cell<'a>(&self, out: &mut impl ValueWriter<'a>, name: &str) -> Result<(), RowsError> {
        match name {
            "rids" => out.str(&self.rid),
            "http_worker_ipcs" => match &self.http_worker_ipc {
                Some(ipc) => out.str(ipc),
                None => out.nil(),
            },
            "cached_tokens_details" | "dp_ranks" => out.nil(),
            "finished_reasons" => return self.finish(out),
            "decoded_texts" => out.str(""),
            "output_strs" => out.str(&self.text),
            "decode_ids" => return out.ids(&[&self.prompt_tail[..], &self.ids].concat(), None),
            "output_ids" => return out.ids(&self.ids, None),
            "read_offsets" if self.prompt_tail.is_empty() => out.int(PROMPT_TAIL),
            "read_offsets" => out.int(self.prompt_tail.len() as i64),
            "skip_special_tokens" | "spaces_between_special_tokens" => out.bool(true),
            "no_stop_trim" => out.bool(false),
            "embeddings" => {
                return out.list(1, |out| {
                    out.float(0.5);
                    Ok(())
                });
            }
            "prompt_tokens" => out.int(self.prompt_tokens as i64),
            "completion_tokens" => out.int(self.completion_tokens as i64),
            _ => out.int(0),
        }
        Ok(())
    }

    fn finish<'a>(&self, out: &mut impl ValueWriter<'a>) -> Result<(), RowsError> {
        let Some(finish) = &self.finish else {
            out.nil();
            return Ok(());
        };
        let abort = matches!(finish, SynthFinish::Abort(_));
        out.map(if abort { 4 } else { 2 }, |out| {
            out.str("type");
            match finish {
                SynthFinish::Length(tokens) => {
                    ["length", "length"].into_iter().for_each(|text| out.str(text));
                    out.int(*tokens as i64);
                }
                SynthFinish::StopToken(token) => {
                    ["stop", "matched"].into_iter().for_each(|text| out.str(text));
                    out.int(*token);
                }
                SynthFinish::StopText(text) => {
                    ["stop", "matched", text].into_iter().for_each(|text| out.str(text));
                }
                SynthFinish::Abort(message) => {
                    ["abort", "message", message].into_iter().for_each(|text| out.str(text));
                    for key in ["status_code", "err_type"] {
                        out.str(key);
                        out.nil();
                    }
                }
            }
            Ok(())
        })
    }
}
