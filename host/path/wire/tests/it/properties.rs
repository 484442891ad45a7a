//! Random batches, split and joined in any way.

use std::collections::HashMap;

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, BatchPart, Edit, Finish, Ids, TokenEdit};
use proptest::prelude::*;

use crate::samples::{assert_reads_alike, hold_and_release, open, read_batch};

/// Steps of some requests: for each step, the requests with a row and the row's number of tokens. A request ends in its
/// last step.
fn steps() -> impl Strategy<Value = Vec<Vec<(u8, u8)>>> {
    prop::collection::vec(prop::collection::btree_map(0u8..12, 0u8..6, 1..8), 1..6)
        .prop_map(|steps| steps.into_iter().map(|step| step.into_iter().collect()).collect())
}

fn encodings() -> impl Strategy<Value = (BatchKind, SynthWire)> {
    (
        prop_oneof![Just(BatchKind::TokenId), Just(BatchKind::Str)],
        prop_oneof![Just(SynthWire::Msgpack), Just(SynthWire::Pickle)],
    )
}

/// The batches of these steps.
fn batches(steps: &[Vec<(u8, u8)>], kind: BatchKind, wire: SynthWire) -> Vec<Batch> {
    let mut sent: HashMap<u8, u64> = HashMap::new();
    let last = |request: u8| steps.iter().rposition(|step| step.iter().any(|row| row.0 == request));
    let batch = |(at, step): (usize, &Vec<(u8, u8)>)| {
        let rows = step.iter().map(|&(request, tokens)| {
            let first = !sent.contains_key(&request);
            let before = sent.entry(request).or_default();
            let ids: Vec<i64> = (*before..*before + u64::from(tokens))
                .map(|token| (i64::from(request) << 40) + token as i64 * 7919)
                .collect();
            *before += u64::from(tokens);
            SynthRow {
                rid: format!("request-{request}"),
                prompt_tail: if first { vec![1, 2, 3] } else { vec![] },
                text: ids.iter().map(|id| format!("<{id}>")).collect(),
                ids,
                finish: (last(request) == Some(at)).then_some(SynthFinish::Length(*before)),
                completion_tokens: *before,
                prompt_tokens: 300,
                ..SynthRow::default()
            }
        });
        read_batch(&SynthBatch { rows: rows.collect() }.encode(kind, wire).unwrap())
    };
    steps.iter().enumerate().map(batch).collect()
}

#[derive(Debug, Default, PartialEq)]
struct Request {
    ids: Vec<i64>,
    decode_ids: Vec<serde_json::Value>,
    text: String,
    completion_tokens: Option<u64>,
    ended: bool,
}

/// The state of a reader of each request at the end.
fn read<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> HashMap<String, Request> {
    let mut requests: HashMap<String, Request> = HashMap::new();
    let mut ids = Ids::default();
    for batch in batches {
        let json = open(batch);
        batch.output_ids(&mut ids);
        for row in 0..batch.rows() {
            let request = requests.entry(batch.rid(row).to_owned()).or_default();
            request.ids.extend(ids.row(row));
            request.text.push_str(batch.text(row).unwrap_or_default());
            request.completion_tokens = batch.completion_tokens(row);
            request.ended |= batch.finish(row) != Finish::Running;
            if let Some(ids) = json["decode_ids"][row as usize]["v"].as_array() {
                request.decode_ids.extend(ids.iter().cloned());
            }
        }
    }
    requests
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_batch_is_read_as_it_was_written((kind, wire) in encodings(), steps in steps()) {
        for batch in batches(&steps, kind, wire) {
            let rows: Vec<_> = (0..batch.rows()).collect();
            let again = read_batch(batch.take(&rows).unwrap().bytes());
            prop_assert_eq!(open(&again), open(&batch));
        }
    }

    #[test]
    fn taken_rows_are_read_as_a_decoder_reads_their_frame(
        (kind, wire) in encodings(),
        steps in steps(),
        pick in any::<u64>(),
    ) {
        for batch in batches(&steps, kind, wire) {
            let rows: Vec<u32> = (0..batch.rows()).filter(|row| pick >> (row % 64) & 1 == 1).collect();
            let Ok(taken) = batch.take(&rows) else { continue };
            let again = read_batch(taken.bytes());
            assert_reads_alike(&taken, &again);
            prop_assert_eq!(open(&taken), open(&again));
            // Taking from what was taken finds the same.
            let last = [taken.rows() - 1];
            let (one, other) = (taken.take(&last).unwrap(), again.take(&last).unwrap());
            prop_assert_eq!(one.bytes(), other.bytes());
        }
    }

    #[test]
    fn joined_any_way_each_request_has_its_tokens_in_order(
        (kind, wire) in encodings(),
        steps in steps(),
        cuts in prop::collection::vec(any::<bool>(), 6),
    ) {
        let single = batches(&steps, kind, wire);
        let mut joined = Vec::new();
        let mut waiting: Vec<&Batch> = Vec::new();
        for (batch, cut) in single.iter().zip(cuts.iter().chain([&true].into_iter().cycle())) {
            waiting.push(batch);
            if *cut {
                let parts: Vec<_> = waiting.drain(..).map(BatchPart::from).collect();
                joined.push(Batch::join(&parts).unwrap());
            }
        }
        let rest: Vec<_> = waiting.into_iter().map(BatchPart::from).collect();
        if !rest.is_empty() {
            joined.push(Batch::join(&rest).unwrap());
        }
        prop_assert_eq!(read(&joined), read(&single));
    }

    #[test]
    fn taken_apart_any_way_and_joined_each_request_has_its_tokens_in_order(
        (kind, wire) in encodings(),
        steps in steps(),
        pick in any::<u64>(),
    ) {
        let single = batches(&steps, kind, wire);
        // Splits each batch in two: the picked rows and the others.
        let halves: Vec<Batch> = single.iter().flat_map(|batch| {
            let (picked, others): (Vec<u32>, Vec<u32>) =
                (0..batch.rows()).partition(|row| pick >> (row % 64) & 1 == 1);
            [picked, others].into_iter().filter(|rows| !rows.is_empty()).map(|rows| batch.take(&rows).unwrap())
                .collect::<Vec<_>>()
        }).collect();
        prop_assert_eq!(read(&halves), read(&single));
        let all = Batch::join(&halves.iter().map(BatchPart::from).collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(read([&all]), read(&single));
        prop_assert_eq!(all.rows() as usize, read(&single).len());
    }

    #[test]
    fn an_edited_row_has_the_ids_it_was_given_and_others_have_theirs(
        (kind, wire) in encodings(),
        steps in steps(),
        new in prop::collection::vec(prop::option::of(prop::collection::vec(any::<i64>(), 0..5)), 8),
    ) {
        for batch in batches(&steps, kind, wire) {
            let edits: Vec<_> = (0..batch.rows()).filter_map(|row| {
                let ids = new[row as usize % new.len()].clone()?;
                Some(Edit { tokens: TokenEdit::Delta(ids), ..Edit::new(row) })
            }).collect();
            let edited = batch.edit(&edits).unwrap().unwrap();
            let (mut ids, mut before) = (Ids::default(), Ids::default());
            edited.output_ids(&mut ids);
            batch.output_ids(&mut before);
            for row in 0..batch.rows() {
                let given = new[row as usize % new.len()].as_deref();
                prop_assert_eq!(ids.row(row), given.unwrap_or(before.row(row)));
                prop_assert_eq!(edited.rid(row), batch.rid(row));
                prop_assert_eq!(edited.finish(row), batch.finish(row));
                // The prompt's tail is kept, or there was none.
                let decode = |batch: &Batch, row: u32| open(batch)["decode_ids"][row as usize]["v"].as_array().map(Vec::len);
                let tail = |batch: &Batch| decode(batch, row).map(|len| len - batch.tokens(row) as usize);
                prop_assert_eq!(tail(&edited), tail(&batch));
            }
        }
    }

    #[test]
    fn held_and_released_in_any_way_each_request_has_its_tokens_in_order(
        (kind, wire) in encodings(),
        steps in steps(),
        holds in any::<u64>(),
    ) {
        let single = batches(&steps, kind, wire);
        let mut asked = 0;
        let left = hold_and_release(&single, |_| {
            asked += 1;
            holds >> (asked % 64) & 1 == 1
        });
        prop_assert_eq!(read(&left), read(&single));
    }

    #[test]
    fn past_the_detokenizer_each_request_has_its_tokens(
        wire in prop_oneof![Just(SynthWire::Msgpack), Just(SynthWire::Pickle)],
        steps in steps(),
    ) {
        let single = batches(&steps, BatchKind::TokenId, wire);
        let past: Vec<_> = single
            .iter()
            .map(|batch| batch.without_detokenizing(&(0..batch.rows()).collect::<Vec<_>>()).unwrap())
            .collect();
        // The rows as the detokenizer would have sent them, without text.
        let text: Vec<_> = batches(&steps, BatchKind::Str, wire)
            .iter()
            .map(|batch| {
                let edits: Vec<_> =
                    (0..batch.rows()).map(|row| Edit { text: Some(String::new()), ..Edit::new(row) }).collect();
                batch.edit(&edits).unwrap().unwrap()
            })
            .collect();
        for (past, text) in past.iter().zip(&text) {
            prop_assert_eq!(open(past), open(text));
        }
    }
}
