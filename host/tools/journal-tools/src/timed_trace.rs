//! `afterbay journal timed-trace`: the load of recorded requests, for benchmarks that replay it.

use crate::LoadConfig;
use crate::ended_requests::{ArrivedArgs, arrived, each_arrived};
use crate::place::{Place, Selected};
use afterbay_journal_view::ended::{EndedRequest, FrameUse};
use afterbay_journal_view::wording::counted;
use afterbay_terminal as screen;
use anyhow::ensure;
use serde::Serialize;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::process::ExitCode;

/// Most bytes of a trace in memory: 2 GiB.
const BYTES_MAX: usize = 2 << 30;
/// Bits of a block's number, so that every reader of JSON keeps it.
const HASH_BITS: u32 = 53;

/// Write the load of recorded requests as a trace that benchmarks replay: arrivals, lengths and shared prefixes
///
/// One JSON object a request, in the order of arrival: `timestamp` in seconds since the first request, `input_length` and
/// `output_length` in tokens, and in `hash_ids` a number for each block of the prompt. Two prompts share a number if they are equal up to
/// the end of that block. The numbers tell nothing else about the prompts, and are others each time. vLLM reads the file with
/// `--dataset-name timed_trace`, GuideLLM as `mooncake` with the same size of a block; with --block-tokens 512 --milliseconds it
/// is a trace of Mooncake, as AIPerf reads it. Only requests that have ended, each with the tokens that it got.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal timed-trace --since 1h > load.jsonl\n  vllm bench serve --dataset-name timed_trace --dataset-path load.jsonl --timed-trace-chunk-hash-size 16 --model MODEL"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    arrived: ArrivedArgs,
    /// The tokens of a block
    #[arg(long, value_name = "N", default_value = "16")]
    block_tokens: NonZeroUsize,
    /// Write `timestamp` in milliseconds
    #[arg(long)]
    milliseconds: bool,
}

/// A request of a trace, by the names that vLLM, GuideLLM and AIPerf read.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct TracedRequest {
    pub(crate) timestamp: f64,
    pub(crate) input_length: u64,
    pub(crate) output_length: u64,
    pub(crate) hash_ids: Vec<u64>,
}

/// A trace, and the requests that it lacks.
#[derive(Debug, Default)]
pub(crate) struct TimedTrace {
    pub(crate) requests: Vec<TracedRequest>,
    /// Requests that have not ended.
    pub(crate) live: u64,
    /// Requests without a record, or without the length of their prompts.
    pub(crate) unknown: u64,
    /// Requests whose prompts' ids are not in the journal. They share no block.
    pub(crate) without_ids: u64,
}

pub(crate) fn run(args: &Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let selected = args.place.select_since(load, args.arrived.since)?;
    let times = (args.arrived.since, args.arrived.until);
    let units_a_second = if args.milliseconds { 1e3 } else { 1.0 };
    let trace = timed_trace(&selected, times, (args.block_tokens, units_a_second), &RandomState::new())?;
    let mut out = screen::Output::new();
    for request in &trace.requests {
        out.json(&serde_json::to_string(request)?)?;
    }
    out.flush()?;
    for (requests, why) in [
        (trace.live, "not ended"),
        (trace.unknown, "no record in the journal, so that nobody knows when they arrived"),
    ] {
        if requests > 0 {
            screen::complain(format!("left out: {}, {why}", counted(requests, "request")));
        }
    }
    if trace.without_ids > 0 {
        let requests = counted(trace.without_ids, "request");
        screen::complain(format!(
            "{requests} without the ids of the prompt: their prefixes count as shared with none"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The trace of the requests that arrived in this time, with blocks of so many tokens and times in this unit.
pub(crate) fn timed_trace(
    selected: &Selected,
    times: (Option<u64>, Option<u64>),
    (block_tokens, units_a_second): (NonZeroUsize, f64),
    hasher: &impl BuildHasher,
) -> anyhow::Result<TimedTrace> {
    let mut trace = TimedTrace::default();
    let mut found: Vec<(u64, TracedRequest)> = Vec::new();
    let mut bytes = 0;
    let live = each_arrived(selected, times, FrameUse::Contents, &mut |ended| {
        let Some(record) = &ended.record else {
            trace.unknown += 1;
            return Ok(());
        };
        let said = record.prompt_tokens.or_else(|| ended.facts.as_ref()?.prompt_tokens);
        let Some(input_length) = said.filter(|_| record.arrived_unix_ns.is_some()) else {
            trace.unknown += 1;
            return Ok(());
        };
        trace.without_ids += u64::from(record.prompt_ids().is_none());
        let hash_ids = blocks(&ended, input_length, block_tokens, hasher);
        bytes += size_of::<TracedRequest>() + 8 * hash_ids.len();
        ensure!(
            bytes <= BYTES_MAX,
            "the trace needs over {BYTES_MAX} bytes: select fewer with --since and --until"
        );
        let output_length = ended.info.received;
        found
            .push((arrived(&ended), TracedRequest { timestamp: 0.0, input_length, output_length, hash_ids }));
        Ok(())
    })?;
    trace.live = live as u64;
    found.sort_by_key(|(arrived, _)| *arrived);
    let first = found.first().map_or(0, |(arrived, _)| *arrived);
    trace.requests = found
        .into_iter()
        .map(|(arrived, request)| {
            let timestamp = (arrived - first) as f64 / 1e9 * units_a_second;
            TracedRequest { timestamp, ..request }
        })
        .collect();
    Ok(trace)
}

/// The numbers of the blocks of a prompt. Each is made of the block and of all before it.
fn blocks(
    ended: &EndedRequest,
    input_length: u64,
    block_tokens: NonZeroUsize,
    hasher: &impl BuildHasher,
) -> Vec<u64> {
    let number = |hash: u64| hash >> (u64::BITS - HASH_BITS);
    let record = ended.record.as_ref();
    let Some(ids) = record.and_then(|record| record.prompt_ids()) else {
        let key = (&ended.stream, ended.info.number.0);
        let blocks = 0..input_length.div_ceil(block_tokens.get() as u64);
        return blocks.map(|block| number(hasher.hash_one((key, block)))).collect();
    };
    // The same ids give other keys and values with another adapter or another image.
    let images = record.into_iter().flat_map(|record| &record.multimodal).map(|input| &input.hash);
    let lora = record.and_then(|record| record.lora.as_deref());
    let mut before = hasher.hash_one((lora, images.collect::<Vec<_>>()));
    let ids: Vec<u32> = ids.collect();
    let chained = ids.chunks(block_tokens.get()).map(|block| {
        before = hasher.hash_one((before, block));
        number(before)
    });
    chained.collect()
}
