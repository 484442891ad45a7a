//! Rows of tool calls for a reader whose parser needs single tokens.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::{batch_of, bytes, content, options};
use afterbay_batch::outbox::{Frame, Options, Outbox, When};
use afterbay_batch::{JoinEnds, Joins, SingleRows};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};

/// The ids of each row that is sent for each of these texts, a token a row from `first` on, to a reader that is behind.
fn sent(ends: JoinEnds, texts: &[(&str, &str)], first: u64) -> BTreeMap<String, Vec<String>> {
    let JoinEnds::WhereTextIsWhole(vocabulary) = bytes() else { panic!("it has a vocabulary") };
    let options = options(When::Backpressure, JoinEnds::default(), 512);
    let options = Options { joins: Joins { ends, single: SingleRows::FromToolCall(vocabulary) }, ..options };
    let (mut outbox, now) = (Outbox::new(options, 0, 0), Instant::now());
    let longest = texts.iter().map(|(_, text)| text.len()).max().unwrap();
    for at in 0..longest {
        let rows = texts.iter().filter_map(|(rid, text)| {
            let ids = vec![i64::from(*text.as_bytes().get(at)?)];
            let completion_tokens = first + at as u64;
            Some(SynthRow {
                rid: (*rid).into(),
                ids,
                completion_tokens,
                prompt_tokens: 3,
                ..SynthRow::default()
            })
        });
        let frame = SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, SynthWire::Msgpack);
        let content = content(batch_of(frame.unwrap()));
        outbox.push(Frame { number: 1 + at as u64, at: now, content });
    }
    let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(frame) = outbox.next(true, now) {
        let batch = batch_of(frame.bytes);
        for (row, rid) in (0..).zip(batch.rids()) {
            let mut ids = Vec::new();
            batch.row_ids(row, &mut ids);
            let text = ids.iter().map(|id| char::from(*id as u8)).collect();
            sent.entry(rid.to_owned()).or_default().push(text);
        }
    }
    sent
}

#[test]
fn rows_stay_single_from_a_requests_first_tool_call_on_and_those_of_others_are_joined() {
    for ends in [JoinEnds::Anywhere, bytes()] {
        let sent = sent(ends, &[("call", "{\"a\"}"), ("prose", "see {a}"), ("late", " [f()]")], 1);
        assert_eq!(sent["prose"], ["see {a}"]);
        assert_eq!(sent["call"], ["{", "\"", "a", "\"", "}"]);
        assert_eq!(sent["late"], [" ", "[", "f", "(", ")", "]"]);
    }
}

#[test]
fn rows_of_a_request_whose_first_row_was_not_seen_stay_single() {
    assert_eq!(sent(JoinEnds::Anywhere, &[("r", "abc")], 7)["r"], ["a", "b", "c"]);
}
