//! Batches that cannot be written as decided, with rows that must not leave.

use crate::frames;
use crate::stream::{Decide, PLUGIN, SentRow, Stream, last, record, row, sent_rows};
use afterbay_batch::{ChainOutput, Content, ReleasedRow};
use afterbay_events::{EndCause, HoldEnd};
use afterbay_journal::{Passage, Verdict};
use afterbay_wire::BatchKind;
use bytes::Bytes;

/// Rows of these requests with the id `count`. The prompt's length in the row `odd` is a value that can be read but not
/// written: it is deeper than the limit.
fn batch(rids: &[&str], count: u8) -> Bytes {
    let deep = [&b"]".repeat(1_000)[..], &b"a".repeat(999)].concat();
    let prompt = rids.iter().map(|rid| if *rid == "odd" { deep.clone() } else { b"K\x05".to_vec() });
    let ids = vec![vec![b']', b'(', b'K', count, b'e']; rids.len()];
    frames::pickled(
        rids,
        count,
        &[("prompt_tokens", prompt.collect()), ("output_ids", ids.clone()), ("decode_ids", ids)],
    )
}

fn account(stream: &mut Stream, bytes: Bytes) -> ChainOutput {
    let decoded = stream.receive(bytes);
    let (ledger, records) = stream.both();
    let Ok(accounted) = ledger.account(decoded, records) else { panic!("no rows") };
    ChainOutput::new(accounted)
}

/// Settles a batch with these decisions.
fn settle(stream: &mut Stream, bytes: Bytes, decisions: &[(u32, Decide)]) -> Vec<SentRow> {
    let mut output = account(stream, bytes);
    decisions.iter().for_each(|(row, decide)| stream.apply(&mut output, *row, decide));
    output.verdicts.sort();
    sent_rows(stream.settle(output))
}

/// The rids, ids and ends of rows.
fn short(rows: &[SentRow]) -> Vec<(&str, &[i64], bool)> {
    rows.iter().map(|row| (&*row.rid, &*row.ids, row.is_last)).collect()
}

/// The rows that the timeout of all holds releases.
fn time_out(stream: &mut Stream) -> Vec<SentRow> {
    stream.seconds += 61;
    stream.release_due().unwrap()
}

/// Checks that each token of the request `a` was forwarded once, after its last row, which is its third.
fn end(stream: &mut Stream) {
    assert_eq!(short(&settle(stream, batch(&["a"], 3), &[])), [("a", &[3][..], false)]);
    let length = [("finished_reasons", vec![b"}(\x8c\x04type\x8c\x06lengthu".to_vec()])];
    let sent = settle(stream, frames::pickled(&["a"], 4, &length), &[]);
    assert_eq!((short(&sent), sent[0].count), (vec![("a", &[1][..], true)], Some(4)));
    let counters = stream.counters();
    assert_eq!((counters.requests_ended.get(EndCause::Limit), counters.request_imbalances.get()), (1, 0));
}

#[test]
fn tokens_released_with_a_batch_that_cannot_be_written_arrive_once_and_in_order() {
    for restart in [None, Some(true), Some(false)] {
        let mut stream = Stream::with(Vec::new(), true);
        assert_eq!(settle(&mut stream, batch(&["a"], 1), &[(0, Decide::Hold)]), []);
        // The released row of `a` can neither be sent nor be removed.
        let sent = settle(&mut stream, batch(&["a", "odd", "b"], 2), &[(0, Decide::Pass)]);
        assert_eq!(short(&sent), [("odd", &[][..], true), ("b", &[][..], true)]);
        assert_eq!(stream.outcomes().pop().unwrap().passage, Passage::Changed);
        let aborted = stream.aborts().into_iter().map(|abort| (abort.rid, abort.plugin));
        assert_eq!(
            aborted.collect::<Vec<_>>(),
            ["odd", "b"].map(|rid| (rid.to_owned(), Some(PLUGIN.to_owned())))
        );
        if let Some(is_clean) = restart {
            stream.restart(is_clean);
        }
        let released = time_out(&mut stream);
        assert_eq!((short(&released), released[0].count), (vec![("a", &[1, 2][..], false)], Some(2)));
        assert_eq!(settle(&mut stream, batch(&["odd", "b"], 3), &[]), [], "the requests have ended");
        end(&mut stream);
        let counters = stream.counters();
        assert_eq!((counters.tokens_received.get(), counters.tokens_forwarded.get()), (8, 4));
        assert_eq!((counters.tokens_dropped.get(), counters.tokens_swallowed.get()), (2, 2));
    }
}

#[test]
fn a_row_held_in_a_batch_that_cannot_be_written_does_not_leave_with_it() {
    let mut stream = Stream::new();
    let sent = settle(&mut stream, batch(&["b", "odd", "a"], 1), &[(2, Decide::Hold)]);
    assert_eq!(short(&sent), [("b", &[][..], true), ("odd", &[][..], true)]);
    assert_eq!(settle(&mut stream, batch(&["a"], 2), &[(0, Decide::Hold)]), []);
    assert_eq!(short(&time_out(&mut stream)), [("a", &[1, 2][..], false)]);
    end(&mut stream);
}

#[test]
fn a_batch_that_cannot_be_written_and_has_no_held_row_passes_also_with_a_row_after_an_end() {
    let mut stream = Stream::new();
    settle(&mut stream, batch(&["a"], 1), &[(0, Decide::Finish)]);
    let sent = settle(&mut stream, batch(&["a", "odd"], 2), &[]);
    assert_eq!(short(&sent), [("a", &[2][..], false), ("odd", &[2][..], false)]);
    assert_eq!(stream.counters().tokens_forwarded.get(), 3);
}

#[test]
fn a_batch_whose_only_change_is_impossible_leaves_as_the_bytes_that_arrived() {
    let mut stream = Stream::new();
    let mut output = stream.account_as(BatchKind::Embedding, vec![last("a", &[], 0), last("b", &[], 0)]);
    let received = output.accounted().batch().bytes().clone();
    // An embedding has no tokens to replace.
    stream.apply(&mut output, 0, &Decide::Replace(vec![1]));
    let (_, content) = stream.settle(output).into_parts();
    let Content::Rows { batch, .. } = content.content else { panic!("rows") };
    assert_eq!(*batch.bytes(), received);
    assert_eq!(stream.outcomes()[0].passage, Passage::Unchanged);
    assert_eq!(stream.counters().frames_rewritten.get(), 0);
}

#[test]
fn a_verdict_that_was_not_carried_out_has_no_effect_after_a_restart() {
    for is_clean in [true, false] {
        let mut stream = Stream::new();
        let decisions = [(0, Decide::Finish), (2, Decide::Drop)];
        let sent = settle(&mut stream, batch(&["a", "odd", "b"], 1), &decisions);
        let all = [("a", &[1][..], false), ("odd", &[1][..], false), ("b", &[1][..], false)];
        assert_eq!(short(&sent), all);
        assert_eq!(stream.outcomes()[0].actions[..], []);
        stream.restart(is_clean);
        let sent = settle(&mut stream, batch(&["a", "b"], 2), &[]);
        let counts: Vec<_> = sent.iter().map(|row| (&*row.rid, row.count)).collect();
        assert_eq!(counts, [("a", Some(2)), ("b", Some(2))]);
        end(&mut stream);
    }
}

#[test]
fn an_end_that_was_not_carried_out_ends_neither_a_row_that_leaves_nor_one_held_again() {
    let mut stream = Stream::new();
    stream.decide(vec![row("a", &[1], 1)], &Decide::Hold);
    let empty = [("output_ids", vec![b"]".to_vec(), b"](K\x01e".to_vec()])];
    let mut output = account(&mut stream, frames::pickled(&["a", "b"], 1, &empty));
    // The held row is of a message in msgpack, so the pickled batch cannot be written with it.
    let number = output.accounted().rows()[0].number();
    let held = stream.held().remove(number, PLUGIN, usize::MAX).pop().unwrap();
    record(&mut output, 0, Verdict::Release, "", &[1], 1);
    let (plugin, why) = (PLUGIN.into(), HoldEnd::Verdict);
    output.put_released(ReleasedRow { row: 0, held, in_place: false, plugin, why });
    (0..2).for_each(|row| stream.apply(&mut output, row, &Decide::DropAndFinish));
    output.verdicts.sort();
    assert_eq!(short(&sent_rows(stream.settle(output))), [("b", &[1][..], false)]);
    let outcome = stream.outcomes().pop().unwrap();
    let verdicts: Vec<_> = outcome.actions.iter().map(|action| (action.row, action.verdict)).collect();
    assert_eq!(verdicts, [(0, Verdict::Release), (0, Verdict::Hold)]);
    assert_eq!(short(&stream.release_due().unwrap()), [("a", &[1][..], false)]);
    let sent = stream.pass(vec![row("a", &[2], 2), row("b", &[2], 2)]);
    assert_eq!(short(&sent), [("a", &[2][..], false), ("b", &[2][..], false)]);
}
