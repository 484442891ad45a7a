//! The frames of a load: the rows of each step as the bytes that the engine would send, with the facts to record
//! once they are sent.

mod vllm;

use std::time::Duration;

use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthError, SynthFinish, SynthRow, SynthWire};
use bytes::Bytes;

use crate::ids::{Seed, word};
use crate::load::{EndReason, Load};
use crate::record::{EndedRequest, Record};
use crate::steps::{Step, StepRow, Steps};

/// `FreezeGCReq` as SGLang 0.5.23 writes it. It is sent at every start.
const CONTROL_MSGPACK: &[u8] = include_bytes!("../../../../tests/fixtures/frames/ctl_freeze_gc.msgpack");
const CONTROL_PICKLE: &[u8] = include_bytes!("../../../../tests/fixtures/frames/ctl_freeze_gc.pickle");

/// SMG's answer to a control call.
const CONTROL_SLIM: &[u8] = b"\x95\xb0ControlReplySlim\x01\xc3\xc0\x00";

/// The encoding of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The output of SGLang's scheduler ([`BatchKind::TokenId`]), of its detokenizer ([`BatchKind::Str`]), or of vLLM's
    /// engine ([`BatchKind::Outputs`]).
    pub kind: BatchKind,
    /// One of SGLang's two encodings, or the one of another engine.
    pub wire: SynthWire,
}

/// One frame, with the facts for its sender's record.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The bytes of the frame.
    pub bytes: Bytes,
    /// The number of rows without health checks.
    pub rows: u32,
    /// The number of new tokens.
    pub tokens: u64,
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The requests whose first token is in this frame.
    pub started: Vec<Box<str>>,
    /// The requests that end in this frame, by rid, without the time of their first token.
    pub ended: Vec<(Box<str>, EndedRequest)>,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A batch with rows.
    Batch {
        /// The number of health checks among the rows.
        health_checks: u32,
    },
    /// A batch without rows.
    Idle,
    /// A control message.
    Control,
}

/// Encodes steps as frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameWriter {
    encoding: Encoding,
}

/// Encodes a whole load as frames, for benches and tests. `step_time` is the time of a step for
/// [`Arrivals::Rate`](crate::load::Arrivals::Rate).
pub fn frames(load: &Load, encoding: Encoding, step_time: Duration) -> anyhow::Result<Vec<Frame>> {
    load.check()?;
    let (mut steps, writer) = (Steps::new(load.clone()), FrameWriter::new(encoding));
    let (mut frames, mut now) = (Vec::new(), Duration::ZERO);
    while !steps.is_done() {
        writer.step(steps.next(now), &mut frames)?;
        now += step_time;
    }
    Ok(frames)
}

impl Frame {
    /// Adds the frame to a record, except [`ended`](Frame::ended), which needs the time of the first token.
    pub(crate) fn record(&self, record: &mut Record) {
        record.frame(&self.bytes);
        record.rows += u64::from(self.rows);
        record.tokens += self.tokens;
        match self.kind {
            FrameKind::Batch { health_checks } => record.health_checks += u64::from(health_checks),
            FrameKind::Idle => record.idle += 1,
            FrameKind::Control => record.controls += 1,
        }
    }
}

impl FrameWriter {
    pub(crate) fn new(encoding: Encoding) -> FrameWriter {
        FrameWriter { encoding }
    }

    /// Appends a step's frames: none if the step is empty.
    pub(crate) fn step(&self, mut step: Step, out: &mut Vec<Frame>) -> Result<(), SynthError> {
        let control = match self.encoding.wire {
            SynthWire::Msgpack => CONTROL_MSGPACK,
            SynthWire::Pickle => CONTROL_PICKLE,
            SynthWire::Slim => {
                // SMG sends no health check as a request.
                step.health_check = None;
                CONTROL_SLIM
            }
            SynthWire::EngineCore => {
                vllm::step(step, out);
                return Ok(());
            }
        };
        if step.control {
            out.push(Frame::new(Bytes::from_static(control), FrameKind::Control));
        }
        if step.idle {
            out.push(Frame::new(self.encode(Vec::new())?, FrameKind::Idle));
        }
        if step.rows.is_empty() && step.health_check.is_none() {
            return Ok(());
        }
        let mut frame =
            Frame::new(Bytes::new(), FrameKind::Batch { health_checks: step.health_check.is_some().into() });
        let mut rows = Vec::with_capacity(step.rows.len() + 1);
        for row in step.rows {
            frame.add(&row);
            rows.push(self.row(row));
        }
        rows.extend(step.health_check.map(health_check));
        frame.bytes = self.encode(rows)?;
        out.push(frame);
        Ok(())
    }

    fn encode(&self, rows: Vec<SynthRow>) -> Result<Bytes, SynthError> {
        SynthBatch { rows }.encode(self.encoding.kind, self.encoding.wire)
    }

    fn row(&self, row: StepRow) -> SynthRow {
        let seed = Seed::of(&row.rid);
        let completion_tokens = row.from + u64::from(row.tokens);
        let ids: Vec<i64> =
            (row.from..completion_tokens).map(|position| seed.id(row.begin + position)).collect();
        let text = match self.encoding.kind {
            BatchKind::Str => ids.iter().map(|&id| word(id)).collect(),
            BatchKind::TokenId | BatchKind::Embedding | BatchKind::Outputs => String::new(),
        };
        let tail = if row.first { row.prompt_tail } else { 0 };
        let finish = row.ending.map(|ending| match ending {
            EndReason::Length | EndReason::Other => SynthFinish::Length(completion_tokens),
            EndReason::StopToken => SynthFinish::StopToken(ids.last().copied().unwrap_or_default()),
            EndReason::StopText => SynthFinish::StopText("\n\n".to_owned()),
            EndReason::Abort => SynthFinish::Abort("Aborted by the simulator".to_owned()),
        });
        SynthRow {
            prompt_tail: (0..u64::from(tail)).map(|position| seed.prompt_id(position)).collect(),
            ids,
            text,
            finish,
            completion_tokens,
            prompt_tokens: row.prompt_tokens.into(),
            // SGLang measures it only with `--enable-metrics`.
            first_token_ns: None,
            rid: row.rid,
            http_worker_ipc: None,
        }
    }
}

impl Frame {
    pub(crate) fn new(bytes: Bytes, kind: FrameKind) -> Frame {
        Frame { bytes, rows: 0, tokens: 0, kind, started: Vec::new(), ended: Vec::new() }
    }

    /// Adds a row to the facts.
    fn add(&mut self, row: &StepRow) {
        self.rows += 1;
        self.tokens += u64::from(row.tokens);
        if row.first && row.tokens > 0 {
            self.started.push(row.rid.as_str().into());
        }
        if let Some(ending) = row.ending {
            let tokens = row.from + u64::from(row.tokens);
            let request = EndedRequest { tokens, ids: row.digest, ending, first: None };
            self.ended.push((row.rid.as_str().into(), request));
        }
    }
}

/// The row of a health check as SGLang sends one: a request of one token.
fn health_check(number: u64) -> SynthRow {
    let rid = format!("HEALTH_CHECK_{number:032x}");
    let ids = vec![Seed::of(&rid).id(0)];
    let finish = Some(SynthFinish::Length(1));
    SynthRow { rid, ids, finish, completion_tokens: 1, prompt_tokens: 1, ..SynthRow::default() }
}
