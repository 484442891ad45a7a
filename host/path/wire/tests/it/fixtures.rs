//! Every frame of the real SGLang: decoded, split, joined again.

use afterbay_wire::{
    BarrierKind, BatchKind, DecodedFrame, Finish, Ids, Layouts, Matched, Wire, Wrapped, decode,
};

use crate::samples::{all, assert_same, batch, fields, open, read_batch, sample, split_and_join};

#[test]
fn every_fixture_decodes_to_its_json() {
    let (mut batches, mut idle, mut control) = (0, 0, 0);
    for it in all() {
        let name = &it.name;
        match decode(it.bytes.clone(), &Layouts::builtin()) {
            DecodedFrame::Batch(batch) => {
                batches += 1;
                assert_eq!(batch.bytes(), &it.bytes, "{name}");
            }
            DecodedFrame::Barrier(barrier) => {
                assert_eq!(barrier.bytes(), &it.bytes, "{name}");
                match &barrier.kind {
                    BarrierKind::Idle { .. } => {
                        idle += 1;
                        assert!(barrier.counted(), "{name}");
                    }
                    BarrierKind::Control { tag } => {
                        control += 1;
                        assert!(!barrier.counted(), "{name}");
                        let class = it.json.as_ref().and_then(|json| json["__struct__"].as_str());
                        assert_eq!(class.unwrap_or(tag), tag, "{name}");
                        continue;
                    }
                    kind => panic!("{name}: {kind}"),
                }
            }
        }
        let Some(json) = it.json else { continue };
        // One JSON file serves both encodings. In `frames` it shows pickles inside msgpack as bytes.
        match name.strip_prefix("frames/").and_then(|name| name.strip_suffix(".pickle")) {
            Some(name) => {
                let msgpack = sample(&format!("frames/{name}.msgpack"));
                assert_same(name, &fields(&it.bytes, Wrapped::Open), &fields(&msgpack.bytes, Wrapped::Open));
            }
            None => assert_same(name, &fields(&it.bytes, it.wrapped), &json),
        }
    }
    assert!(batches > 200 && idle > 20 && control > 60, "{batches} batches, {idle} idle, {control} control");
}

#[test]
fn every_fixture_taken_apart_and_joined_is_as_it_was() {
    let mut joined = 0;
    for sample in all() {
        let Some(batch) = batch(&sample) else { continue };
        let again = split_and_join(&batch);
        assert_eq!(open(&again), open(&batch), "{}", sample.name);
        assert_eq!(again.wire(), batch.wire(), "{}", sample.name);
        joined += 1;
    }
    assert!(joined > 200, "{joined}");
}

#[test]
fn all_rows_taken_at_once_are_the_same_fields() {
    for sample in all() {
        let Some(batch) = batch(&sample) else { continue };
        let rows: Vec<_> = (0..batch.rows()).collect();
        let all = batch.take(&rows).unwrap();
        assert_eq!(open(&all), open(&batch), "{}", sample.name);
        if sample.name.ends_with("msgpack") && !open(&batch)["time_stats"].is_array() {
            assert_eq!(all.bytes(), batch.bytes(), "{}", sample.name);
        }
    }
}

#[test]
fn accessors_agree_with_the_json() {
    for sample in all() {
        let Some(batch) = batch(&sample) else { continue };
        let json = open(&batch);
        let ids = |cell: &serde_json::Value| -> Vec<i64> {
            let ids = cell.get("v").unwrap_or(cell);
            ids.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
        };
        let rows = || 0..batch.rows();
        assert!(batch.rids().eq(rows().map(|row| batch.rid(row))), "{}", sample.name);
        assert!(batch.token_counts().eq(rows().map(|row| batch.tokens(row))), "{}", sample.name);
        assert!(batch.completion_counts().eq(rows().map(|row| batch.completion_tokens(row))));
        assert!(batch.finishes().eq(rows().map(|row| batch.finish(row))), "{}", sample.name);
        let mut all = Ids::default();
        batch.output_ids(&mut all);
        assert_eq!(all.ends.len(), batch.rows() as usize);
        for row in 0..batch.rows() {
            let at = row as usize;
            assert_eq!(batch.rid(row), json["rids"][at], "{}", sample.name);
            assert_eq!(batch.front_end(row), json["http_worker_ipcs"][at].as_str());
            assert_eq!(batch.prompt_tokens(row), json["prompt_tokens"][at].as_u64());
            assert_eq!(batch.completion_tokens(row), json["completion_tokens"][at].as_u64());
            assert_eq!(batch.text(row), json["output_strs"][at].as_str());
            let finish = match json["finished_reasons"][at]["type"].as_str() {
                None => matches!(batch.finish(row), Finish::Running),
                Some("stop") => matches!(batch.finish(row), Finish::Stop { .. }),
                Some("length") => matches!(batch.finish(row), Finish::Length),
                Some("abort") => batch.finish(row) == Finish::Abort,
                _ => matches!(batch.finish(row), Finish::Other),
            };
            assert!(finish, "{}", sample.name);
            if json["output_ids"].is_array() {
                assert_eq!(all.row(row), ids(&json["output_ids"][at]), "{}", sample.name);
            }
            assert_eq!(batch.tokens(row) as usize, all.row(row).len(), "{}", sample.name);
        }
    }
}

#[test]
fn new_tokens_are_separated_from_the_prompts_tail_without_output_ids() {
    let mut compared = 0;
    for sample in all() {
        let Some(batch) = batch(&sample).filter(|batch| batch.kind() == BatchKind::TokenId) else { continue };
        let json = open(&batch);
        for row in 0..batch.rows() as usize {
            let decode =
                json["decode_ids"][row].get("v").unwrap_or(&json["decode_ids"][row]).as_array().unwrap();
            let offset = json["read_offsets"][row].as_u64().unwrap();
            let completion = json["completion_tokens"][row].as_u64().unwrap();
            let first = offset + completion == decode.len() as u64;
            let new = decode.len() as u64 - if first { offset } else { 0 };
            // Two fixtures were made by hand, with ids that do not continue a prompt's tail.
            assert_eq!(u64::from(batch.tokens(row as u32)), new, "{} row {row}", sample.name);
            compared += 1;
        }
    }
    assert!(compared > 2000, "{compared}");

    let none = sample("frames/tokid_output_ids_none.msgpack");
    let batch = read_batch(&none.bytes);
    assert_eq!((batch.tokens(0), batch.tokens(1)), (1, 1));
}

#[test]
fn finish_reasons_have_the_matched_text_or_token() {
    let sample = sample("frames/tokid_finished.msgpack");
    let batch = read_batch(&sample.bytes);
    let stop = |matched| Finish::Stop { matched };
    let expected = [
        stop(Matched::Token(2)),
        stop(Matched::Text("</s>")),
        Finish::Length,
        Finish::Abort,
        Finish::Abort,
        stop(Matched::Tokens),
        stop(Matched::Text("a+b")),
        Finish::Running,
    ];
    assert_eq!((0..8).map(|row| batch.finish(row)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_row_that_is_not_there_is_empty() {
    let batch = read_batch(&sample("frames/tokid_n3.msgpack").bytes);
    assert_eq!((batch.rid(3), batch.tokens(3), batch.completion_tokens(3)), ("", 0, None));
    assert_eq!((batch.finish(3), batch.text(3), batch.is_health_check(3)), (Finish::Running, None, false));
}

#[test]
fn health_checks_are_known_by_their_rid() {
    assert!(read_batch(&sample("frames/tokid_health_rid.msgpack").bytes).is_health_check(0));
    assert!(!read_batch(&sample("frames/tokid_n1.msgpack").bytes).is_health_check(0));
}

#[test]
fn the_length_of_a_msgpack_batch_tells_its_version() {
    for (version, versions) in [
        ("0.5.15", "0.5.15"),
        ("0.5.16", "0.5.16"),
        ("0.5.17", "0.5.17..0.5.18"),
        ("0.5.18", "0.5.17..0.5.18"),
        ("0.5.20", "0.5.19..0.5.20"),
        ("0.5.23", "0.5.21..0.5.23"),
    ] {
        let batch = read_batch(&sample(&format!("versions/{version}/tokid_n1.msgpack")).bytes);
        assert_eq!(
            batch.wire(),
            Wire::Msgpack { engine: afterbay_wire::Engine::Sglang, versions: versions.into() }
        );
    }
    let pickle = read_batch(&sample("versions/0.5.6/tokid_n1.pickle").bytes);
    assert_eq!(pickle.wire(), Wire::Pickle { protocol: 4 });
}
