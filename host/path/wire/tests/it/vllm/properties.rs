//! Random frames, split and joined in any way.

use std::collections::HashMap;

use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{Batch, BatchPart, Finish};
use proptest::prelude::*;

use super::support::{batch, frame, ids, json, row};
use crate::samples::assert_reads_alike;

/// Steps of some requests: for each step, the requests with a row and the row's number of ids.
fn steps() -> impl Strategy<Value = Vec<Vec<(u8, u8)>>> {
    prop::collection::vec(prop::collection::btree_map(0u8..12, 0u8..20, 1..8), 1..6)
        .prop_map(|steps| steps.into_iter().map(|step| step.into_iter().collect()).collect())
}

/// The frames of these steps. Requests with odd numbers ask for logprobs. A request ends in its last step, and each frame
/// names an ended request.
fn frames(steps: &[Vec<(u8, u8)>]) -> Vec<Batch> {
    let mut sent: HashMap<u8, i64> = HashMap::new();
    let last = |request: u8| steps.iter().rposition(|step| step.iter().any(|row| row.0 == request));
    let made = |(at, step): (usize, &Vec<(u8, u8)>)| {
        let rows = step.iter().map(|&(request, tokens)| {
            let before = sent.entry(request).or_default();
            let first = *before == 0 && tokens > 0;
            let ids: Vec<i64> = (*before..*before + i64::from(tokens)).map(|id| id * 7919).collect();
            *before += i64::from(tokens);
            SynthOutput {
                logprobs: (request % 2 == 1).then_some(2),
                prompt_tokens: first.then_some(5),
                finish_reason: (last(request) == Some(at)).then_some(1),
                ..row(&format!("request-{request}"), &ids)
            }
        });
        let finished_requests = vec![format!("gone-{at}")];
        batch(&SynthOutputs { finished_requests, ..frame(at as u32, rows.collect()) }.encode())
    };
    steps.iter().enumerate().map(made).collect()
}

#[derive(Debug, Default, PartialEq)]
struct Request {
    ids: Vec<i64>,
    logprobs: u64,
    first_rows: u32,
    ended: bool,
}

/// The state of a reader of each request at the end, the requests that frames say have ended, sorted, and the tokens of
/// prompts by the statistics.
fn read(batches: &[Batch]) -> (HashMap<String, Request>, Vec<String>, u64) {
    let mut requests: HashMap<String, Request> = HashMap::new();
    let (mut gone, mut queries) = (Vec::new(), 0);
    for batch in batches {
        let json = json(batch);
        gone.extend(batch.finished_requests().map(str::to_owned));
        queries += json["scheduler_stats"]["prefix_cache_stats"]["queries"].as_u64().unwrap_or(0);
        for row in 0..batch.rows() {
            let request = requests.entry(batch.rid(row).to_owned()).or_default();
            request.ids.extend(ids(batch, row));
            let entries = &json["outputs"][row as usize]["new_logprobs"][0]["shape"][0];
            request.logprobs += entries.as_u64().unwrap_or(0);
            request.first_rows += u32::from(batch.is_first(row));
            request.ended |= batch.finish(row) != Finish::Running;
        }
    }
    gone.sort_unstable();
    (requests, gone, queries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn splits_and_joins_keep_each_requests_ids_in_order_and_each_frames_fields_once(
        steps in steps(),
        picks in prop::collection::vec(any::<bool>(), 64),
        size in 1usize..5,
    ) {
        let batches = frames(&steps);
        let mut picks = picks.into_iter().cycle();
        // As an outbox does: some requests of several frames first, then the others.
        let mut written = Vec::new();
        for some in batches.chunks(size) {
            let mut goes_first: HashMap<String, bool> = HashMap::new();
            let mut parts = [Vec::new(), Vec::new()];
            for batch in some {
                let mut rows = [Vec::new(), Vec::new()];
                for row in 0..batch.rows() {
                    let first = *goes_first.entry(batch.rid(row).to_owned()).or_insert_with(|| picks.next().unwrap());
                    rows[usize::from(!first)].push(row);
                }
                for (rows, parts) in rows.into_iter().zip(&mut parts) {
                    parts.push((batch, rows));
                }
            }
            for parts in parts {
                let parts: Vec<_> = parts.iter().map(|(batch, rows)| BatchPart { batch, rows: Some(rows) }).collect();
                if parts.iter().any(|part| part.rows.is_some_and(|rows| !rows.is_empty())) {
                    written.push(Batch::join(&parts).unwrap());
                }
            }
        }
        prop_assert_eq!(read(&written), read(&batches));
    }

    #[test]
    fn taken_rows_are_read_as_a_decoder_reads_their_frame(steps in steps(), pick in any::<u64>()) {
        for batch in frames(&steps) {
            let rows: Vec<u32> = (0..batch.rows()).filter(|row| pick >> (row % 64) & 1 == 1).collect();
            let Ok(taken) = batch.take(&rows) else { continue };
            let again = super::support::batch(taken.bytes());
            assert_reads_alike(&taken, &again);
            prop_assert_eq!(json(&taken), json(&again));
            let last = [taken.rows() - 1];
            let (one, other) = (taken.take(&last).unwrap(), again.take(&last).unwrap());
            prop_assert_eq!(one.bytes(), other.bytes());
        }
    }

    #[test]
    fn a_frame_is_read_as_it_was_written(steps in steps()) {
        for batch in frames(&steps) {
            let rows: Vec<_> = (0..batch.rows()).collect();
            let all = batch.take(&rows).unwrap();
            prop_assert_eq!(all.bytes(), batch.bytes());
            let rows: Vec<_> = rows.iter().map(|row| batch.take(&[*row]).unwrap()).collect();
            let parts: Vec<_> = rows.iter().map(BatchPart::from).collect();
            let joined = Batch::join(&parts).unwrap();
            prop_assert_eq!(joined.bytes(), batch.bytes());
        }
    }
}
