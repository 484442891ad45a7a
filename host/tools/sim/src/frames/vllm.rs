//! Steps as vLLM's EngineCore sends them.

use afterbay_wire::vllm::{SynthOutput, SynthOutputs};

use super::{Frame, FrameKind};
use crate::ids::Seed;
use crate::load::EndReason;
use crate::steps::{Step, StepRow};

/// The values of vLLM's `FinishReason`.
const STOP: u8 = 0;
const LENGTH: u8 = 1;
const ABORT: u8 = 2;

/// The engine's clock at the first step, and the time of a step, in seconds.
const CLOCK_S: f64 = 1e6;
const STEP_S: f64 = 0.02;

/// Appends a step's frames. A control message is the answer to a utility call, and a batch without rows are statistics. vLLM
/// has no health checks on this socket.
pub(super) fn step(step: Step, out: &mut Vec<Frame>) {
    let timestamp = CLOCK_S + step.number as f64 * STEP_S;
    let mut outputs = SynthOutputs { timestamp, ..SynthOutputs::default() };
    if step.control {
        let answer = SynthOutputs { answers: Some(1), ..outputs.clone() };
        out.push(Frame::new(answer.encode(), FrameKind::Control));
    }
    outputs.stats = Some((step.rows.len() as u32, 0, 0.25));
    if step.idle {
        out.push(Frame::new(outputs.encode(), FrameKind::Idle));
    }
    if step.rows.is_empty() {
        return;
    }
    let mut frame = Frame::new(bytes::Bytes::new(), FrameKind::Batch { health_checks: 0 });
    for step_row in step.rows {
        if step_row.aborted {
            // vLLM answers an abort with no row.
            outputs.finished_requests.push(step_row.rid);
            continue;
        }
        frame.add(&step_row);
        outputs.rows.push(row(step_row));
    }
    frame.kind = if outputs.rows.is_empty() { FrameKind::Idle } else { frame.kind };
    frame.bytes = outputs.encode();
    out.push(frame);
}

/// The simulated time of a prefill, and of each token of its prompt, in nanoseconds.
const PREFILL_NS: u64 = 20_000_000;
const PREFILL_TOKEN_NS: u64 = 50_000;

fn row(row: StepRow) -> SynthOutput {
    let seed = Seed::of(&row.rid);
    let from = row.begin + row.from;
    let new_token_ids: Vec<i64> = (from..from + u64::from(row.tokens)).map(|at| seed.id(at)).collect();
    let last = new_token_ids.last().copied();
    let (finish_reason, stop_token, stop_text) = match row.ending {
        None => (None, None, None),
        Some(EndReason::Length | EndReason::Other) => (Some(LENGTH), None, None),
        Some(EndReason::StopToken) => (Some(STOP), last, None),
        Some(EndReason::StopText) => (Some(STOP), None, Some("repetition_detected".to_owned())),
        Some(EndReason::Abort) => (Some(ABORT), None, None),
    };
    SynthOutput {
        prompt_tokens: row.first.then_some(row.prompt_tokens.into()),
        first_token_ns: row.first.then_some(PREFILL_NS + u64::from(row.prompt_tokens) * PREFILL_TOKEN_NS),
        request_id: row.rid,
        new_token_ids,
        finish_reason,
        stop_token,
        stop_text,
        logprobs: None,
    }
}
