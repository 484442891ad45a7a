//! The frames of a load: each step's rows as the bytes that SGLang would send, with what is to be recorded of them once
//! they are sent. Next is the socket.

use std::time::{Duration, Instant};

use afterbay_wire::Kind;
use afterbay_wire::synth::{SynthBatch, SynthError, SynthFinish, SynthRow, SynthWire};
use bytes::Bytes;

use crate::ids::{Digest, Seed, word};
use crate::load::{Ending, Load, LoadError};
use crate::record::{Record, Request};
use crate::steps::{Row, Step, Steps};

/// `FreezeGCReq` as SGLang 0.5.23 writes it; it crosses the socket at every start.
const CONTROL_MSGPACK: &[u8] = include_bytes!("../../../tests/fixtures/frames/ctl_freeze_gc.msgpack");
const CONTROL_PICKLE: &[u8] = include_bytes!("../../../tests/fixtures/frames/ctl_freeze_gc.pickle");

/// How a load is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// As the scheduler writes ([`Kind::TokenId`]), or as the detokenizer after it ([`Kind::Str`]).
    pub kind: Kind,
    /// In which of SGLang's two encodings.
    pub wire: SynthWire,
}

/// One frame, and what it means for who sends it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What goes over the socket.
    pub bytes: Bytes,
    /// Rows, those of health checks left out.
    pub rows: u32,
    /// New tokens in them.
    pub tokens: u64,
    /// What else it is.
    pub part: Part,
    /// The requests whose first token is in it.
    pub started: Vec<Box<str>>,
    /// The requests that end in it.
    pub ended: Vec<Ended>,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rows, some of them health checks.
    Batch {
        /// So many.
        health_checks: u32,
    },
    /// A batch without rows.
    Idle,
    /// A control message.
    Control,
    /// A frame from elsewhere, which is not looked into.
    Unknown,
}

/// A request that ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its name.
    pub rid: Box<str>,
    /// Its tokens.
    pub tokens: u64,
    /// Over their ids.
    pub ids: Digest,
    /// How.
    pub ending: Ending,
}

/// Writes steps as frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    encoding: Encoding,
}

/// Writes a whole load as frames, for who needs them ready: benches and tests. `step_time` is how long a step takes, for
/// arrivals by rate.
pub fn frames(load: &Load, encoding: Encoding, step_time: Duration) -> Result<Vec<Frame>, FramesError> {
    load.check()?;
    let (mut steps, writer) = (Steps::new(load.clone()), Writer::new(encoding));
    let (mut frames, mut now) = (Vec::new(), Duration::ZERO);
    while !steps.is_done() {
        writer.step(steps.next(now), &mut frames)?;
        now += step_time;
    }
    Ok(frames)
}

/// Why a load could not be written.
#[derive(Debug, thiserror::Error)]
pub enum FramesError {
    /// It cannot be.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The bytes.
    #[error("batch cannot be written: {0}")]
    Synth(#[from] SynthError),
}

impl Frame {
    /// Takes the frame into a record, but for [`ended`](Frame::ended), which takes the time of the first token.
    pub(crate) fn record(&self, record: &mut Record) {
        record.frame(&self.bytes);
        record.rows += u64::from(self.rows);
        record.tokens += self.tokens;
        match self.part {
            Part::Batch { health_checks } => record.health_checks += u64::from(health_checks),
            Part::Idle => record.idle += 1,
            Part::Control => record.controls += 1,
            Part::Unknown => {}
        }
    }
}

impl Ended {
    pub(crate) fn request(&self, first: Option<Instant>) -> Request {
        Request { tokens: self.tokens, ids: self.ids, ending: self.ending, first }
    }
}

impl Writer {
    pub(crate) fn new(encoding: Encoding) -> Writer {
        Writer { encoding }
    }

    /// Appends a step's frames, none where nothing happened in it.
    pub(crate) fn step(&self, step: Step, out: &mut Vec<Frame>) -> Result<(), SynthError> {
        if step.control {
            let bytes = match self.encoding.wire {
                SynthWire::Msgpack => CONTROL_MSGPACK,
                SynthWire::Pickle => CONTROL_PICKLE,
            };
            out.push(Frame::new(Bytes::from_static(bytes), Part::Control));
        }
        if step.idle {
            out.push(Frame::new(self.encode(Vec::new())?, Part::Idle));
        }
        if step.rows.is_empty() && step.health_check.is_none() {
            return Ok(());
        }
        let mut frame =
            Frame::new(Bytes::new(), Part::Batch { health_checks: step.health_check.is_some().into() });
        frame.rows = step.rows.len() as u32;
        let mut rows = Vec::with_capacity(step.rows.len() + 1);
        for row in step.rows {
            frame.tokens += u64::from(row.tokens);
            if row.first && row.tokens > 0 {
                frame.started.push(row.rid.as_str().into());
            }
            if let Some(ending) = row.ending {
                let tokens = row.from + u64::from(row.tokens);
                let rid = row.rid.as_str().into();
                frame.ended.push(Ended { rid, tokens, ids: row.digest, ending });
            }
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

    fn row(&self, row: Row) -> SynthRow {
        let seed = Seed::of(&row.rid);
        let completion_tokens = row.from + u64::from(row.tokens);
        let ids: Vec<i64> = (row.from..completion_tokens).map(|place| seed.id(place)).collect();
        let text = match self.encoding.kind {
            Kind::Str => ids.iter().map(|&id| word(id)).collect(),
            Kind::TokenId | Kind::Embedding => String::new(),
        };
        let tail = if row.first { row.prompt_tail } else { 0 };
        let finish = row.ending.map(|ending| match ending {
            Ending::Length | Ending::Other => SynthFinish::Length(completion_tokens),
            Ending::StopToken => SynthFinish::StopToken(ids.last().copied().unwrap_or_default()),
            Ending::StopText => SynthFinish::StopText("\n\n".to_owned()),
            Ending::Abort => SynthFinish::Abort("Aborted by the simulator".to_owned()),
        });
        SynthRow {
            prompt_tail: (0..u64::from(tail)).map(|place| seed.prompt_id(place)).collect(),
            ids,
            text,
            finish,
            completion_tokens,
            prompt_tokens: row.prompt_tokens.into(),
            rid: row.rid,
            http_worker_ipc: None,
        }
    }
}

impl Frame {
    pub(crate) fn new(bytes: Bytes, part: Part) -> Frame {
        Frame { bytes, rows: 0, tokens: 0, part, started: Vec::new(), ended: Vec::new() }
    }
}

/// The row of a health check, as SGLang sends one: a request of one token.
fn health_check(number: u64) -> SynthRow {
    let rid = format!("HEALTH_CHECK_{number:032x}");
    let ids = vec![Seed::of(&rid).id(0)];
    let finish = Some(SynthFinish::Length(1));
    SynthRow { rid, ids, finish, completion_tokens: 1, prompt_tokens: 1, ..SynthRow::default() }
}
