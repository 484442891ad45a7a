//! Everything written is read back, in every way of reading.

use crate::support::*;
use afterbay_journal::reader::{JournalRecord, OperatorAbort, ReadFrom, RequestFilter, RequestState};
use afterbay_journal::*;

#[test]
fn every_part_of_an_outcome_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open(dir.path(), options());
    let (a, b) = (writer.open("rid-a"), writer.open("rid-b"));
    let first = writer.append(b"frame one", 1_000).unwrap();
    writer.outcome(&Outcome { received_unix_ns: 1_000, ..plain_outcome(first.frame, &[a, b], &[3, 4]) });
    let second = writer.append(b"frame two", 2_000).unwrap();
    writer.outcome(&Outcome {
        frame: second.frame,
        received_unix_ns: 2_000,
        passage: Passage::Changed,
        changed: Some(b"what left"[..].into()),
        requests: (&[b, a]).into(),
        tokens: (&[5, 6]).into(),
        finished: (&[RowFinish { row: 1, reason: "stop".into(), completion_tokens: Some(9) }]).into(),
        gaps: (&[TokenGap { row: 0, expected: 9, got: 11 }]).into(),
        actions: (&[
            PluginAction {
                row: 0,
                plugin: "p".into(),
                verdict: Verdict::Replace,
                text: "".into(),
                ids: (&[-1, 1 << 40]).into(),
                forwarded: 2,
            },
            PluginAction {
                row: 1,
                plugin: "q".into(),
                verdict: Verdict::Drop,
                text: "why".into(),
                ids: (&[]).into(),
                forwarded: 0,
            },
        ])
            .into(),
    });
    writer.close(a);
    let third = writer.append(b"control", 3_000).unwrap();
    writer.outcome(&Outcome {
        passage: Passage::Barrier("FlushCache".into()),
        ..plain_outcome(third.frame, &[], &[])
    });
    let fourth = writer.append(b"?", 4_000).unwrap();
    writer.outcome(&Outcome {
        passage: Passage::NotUnderstood("opcode".into()),
        ..plain_outcome(fourth.frame, &[], &[])
    });
    let credit = Credit { generation: 3, sent: 77, handed_over: 1 };
    for (sink, sent) in [("detokenizer", first.frame), ("tap", second.frame)] {
        writer.sent(sink, 1, SinkContent::Whole(sent), 0);
    }
    writer.taken("detokenizer", 1, first.frame, Some(credit), 0);
    writer.taken("tap", 1, fourth.frame, None, 0);
    let fifth = writer.append(b"ended", 5_000).unwrap();
    let ended = [PluginAction {
        row: 0,
        plugin: "p".into(),
        verdict: Verdict::Length,
        text: "".into(),
        ids: (&[]).into(),
        forwarded: 1,
    }];
    let c = writer.open("rid-c");
    writer.outcome(&Outcome { actions: (&ended).into(), ..plain_outcome(fifth.frame, &[c], &[1]) });
    writer.flush().unwrap();

    let stream = reader(dir.path());
    let frames: Vec<_> = stream.frames(ReadFrom::Start).unwrap().map(Result::unwrap).collect();
    let bytes: Vec<&[u8]> = frames.iter().map(|(frame, _)| &frame.bytes[..]).collect();
    assert_eq!(bytes, [b"frame one" as &[u8], b"frame two", b"control", b"?", b"ended"]);
    assert_eq!(frames[1].0.position, second);
    assert_eq!(stream.frame(&second).unwrap(), frames[1].0);
    assert_eq!(stream.position(third.frame).unwrap(), Some(third));

    let outcome = frames[1].1.as_ref().unwrap();
    assert_eq!(outcome.requests[..], [b.number(), a.number()]);
    assert_eq!(outcome.tokens[..], [5, 6]);
    assert_eq!((&outcome.passage, outcome.changed.as_deref()), (&Passage::Changed, Some(&b"what left"[..])));
    assert_eq!(outcome.actions[0].ids[..], [-1, 1 << 40]);
    assert_eq!((outcome.actions[1].verdict, &outcome.actions[1].text[..]), (Verdict::Drop, "why"));
    assert_eq!(outcome.gaps[..], [TokenGap { row: 0, expected: 9, got: 11 }]);
    assert_eq!(frames[2].1.as_ref().unwrap().passage, Passage::Barrier("FlushCache".into()));
    assert_eq!(frames[3].1.as_ref().unwrap().passage, Passage::NotUnderstood("opcode".into()));

    let requests: Vec<_> = stream.requests(RequestFilter::default()).unwrap().map(Result::unwrap).collect();
    assert_eq!(requests.len(), 3);
    let early: Vec<_> = requests.iter().map(|info| info.ended_early).collect();
    assert_eq!(early, [false, false, true]);
    let (one, other) = (&requests[0], &requests[1]);
    assert_eq!((&one.rid[..], one.state, &one.finish[..]), ("rid-a", RequestState::Finished, "stop"));
    assert_eq!((one.rows, one.received, one.forwarded, one.dropped), (2, 9, 3, 6));
    assert_eq!((one.first_unix_ns, one.last_unix_ns, one.completion_tokens), (1_000, 2_000, Some(9)));
    assert_eq!((&other.rid[..], other.state, other.gaps), ("rid-b", RequestState::Live, 1));
    assert_eq!((other.received, other.forwarded, other.replaced), (9, 6, 5));

    let lives = stream.lives("rid-a").unwrap();
    assert_eq!(lives.len(), 1);
    assert_eq!(lives[0].request, *one);
    let row = &lives[0].rows[1];
    assert_eq!((row.frame, row.row, row.tokens, row.forwarded), (second.frame, 1, 6, 0));
    assert_eq!(row.position, Some(second));
    assert_eq!(row.taken_by(), ["tap"]);
    assert_eq!(lives[0].rows[0].taken_by(), ["detokenizer"]);
    assert!(stream.lives("rid").unwrap().is_empty());
}

#[test]
fn a_journal_continues_after_a_clean_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, mut writer, recovered) = open(dir.path(), options());
    assert_eq!(recovered.last_frame, FrameNo(0));
    let (a, b) = (writer.open("a"), writer.open("b"));
    step(&mut writer, &[a, b], b"one", 1);
    last_step(&mut writer, &[b], 2, 2);
    let waits = writer.append(b"no outcome", 3).unwrap();
    writer.taken("sink", 0, FrameNo(1), None, 0);
    writer.finish().unwrap();
    drop(directory);

    let (_directory, mut writer, recovered) = open(dir.path(), options());
    assert_eq!(recovered.last_frame, waits.frame);
    assert_eq!(recovered.unfinished.iter().collect::<Vec<_>>(), [waits.frame]);
    assert_eq!((recovered.sinks[0].name(), recovered.sinks[0].through()), ("sink", FrameNo(1)));
    assert!(recovered.cut.is_empty() && recovered.corrupt.is_empty());
    let [live] = &recovered.live[..] else { panic!("{:?}", recovered.live) };
    assert_eq!((&live.info.rid[..], live.info.received, live.request.number()), ("a", 1, a.number()));
    // After a clean stop numbers continue.
    assert_eq!(writer.open("c").number().0, b.number().0 + 1);
    let frame = step(&mut writer, &[live.request], b"two", 4);
    assert_eq!(frame.0, waits.frame.0 + 1);
    writer.flush().unwrap();
    let info = reader(dir.path()).lives("a").unwrap().remove(0);
    assert_eq!((info.request.received, info.rows.len()), (2, 2));
}

#[test]
fn a_full_segment_has_summary_and_the_next_begins() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, mut writer, _) = open(dir.path(), JournalOptions { segment_bytes: 4096, ..options() });
    let long = writer.open("long");
    for round in 0..40 {
        let short = writer.open(format!("short-{round}"));
        step(&mut writer, &[long, short], &[7; 300], round);
        last_step(&mut writer, &[short], 2, round);
    }
    let idle = writer.open("idle");
    step(&mut writer, &[idle], b"", 40);
    writer.finish().unwrap();
    drop(directory);

    let files = std::fs::read_dir(dir.path().join("s")).unwrap().count();
    assert!(files > 4, "{files} segments");
    let stream = reader(dir.path());
    let requests: Vec<_> = stream.requests(RequestFilter::default()).unwrap().map(Result::unwrap).collect();
    let rids: Vec<_> = requests.iter().map(|info| &info.rid[..]).collect();
    let expected: Vec<String> = (0..40).map(|round| format!("short-{round}")).collect();
    assert_eq!(rids[..40], expected);
    assert_eq!(rids[40..], ["long", "idle"]);
    assert_eq!((requests[40].rows, requests[40].received), (40, 40));
    let life = stream.lives("long").unwrap().remove(0);
    assert_eq!(life.rows.len(), 40);
    let numbers: Vec<u64> =
        stream.frames(ReadFrom::Start).unwrap().map(|frame| frame.unwrap().0.position.frame.0).collect();
    assert_eq!(numbers, (1..=81).collect::<Vec<_>>());
    let from: Vec<_> = stream.frames(ReadFrom::Frame(FrameNo(50))).unwrap().map(Result::unwrap).collect();
    assert_eq!((from.len(), from[0].0.position.frame), (32, FrameNo(50)));
    assert!(from.iter().all(|(frame, outcome)| outcome.as_ref().unwrap().frame == frame.position.frame));
    let since: Vec<_> = stream.frames(ReadFrom::Time(38)).unwrap().map(Result::unwrap).collect();
    assert_eq!(since.len(), 5);
    let matching = |filter| stream.requests(filter).unwrap().count();
    assert_eq!(
        matching(RequestFilter { rid_prefix: Some("short-1".into()), ..RequestFilter::default() }),
        11
    );
    assert_eq!(matching(RequestFilter { state: Some(RequestState::Live), ..RequestFilter::default() }), 2);
    assert_eq!(matching(RequestFilter { since_unix_ns: Some(39), ..RequestFilter::default() }), 3);
    assert_eq!(matching(RequestFilter { until_unix_ns: Some(1), ..RequestFilter::default() }), 2);
}

#[test]
fn an_operators_abort_is_found_with_its_request_in_this_segment_and_in_later_ones() {
    for steps in [0, 60] {
        let dir = tempfile::tempdir().unwrap();
        let options = || JournalOptions { segment_bytes: 4096, ..options() };
        let (directory, mut writer, _) = open_alone(dir.path(), options());
        let requests = ["no", "expected", "due", "taken-back"].map(|rid| writer.open(rid));
        step(&mut writer, &requests, b"", 1);
        requests[1..].iter().for_each(|request| writer.ending(*request, OperatorAbort::Expected));
        writer.ending(requests[2], OperatorAbort::Due);
        writer.ending(requests[3], OperatorAbort::No);
        for ns in 0..steps {
            step(&mut writer, &requests, &[7; 300], ns);
        }
        writer.flush().unwrap();
        drop((writer, directory));
        // Once after a kill, and once after a clean stop.
        for _ in 0..2 {
            let (_directory, writer, recovered) = open_alone(dir.path(), options());
            let found: Vec<_> = recovered.live.iter().map(|live| live.info.ending).collect();
            assert_eq!(
                found,
                [OperatorAbort::No, OperatorAbort::Expected, OperatorAbort::Due, OperatorAbort::No],
                "{steps} steps"
            );
            writer.finish().unwrap();
        }
    }
}

#[test]
fn a_reused_rid_is_another_request() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open(dir.path(), options());
    let first = writer.open("same");
    last_step(&mut writer, &[first], 1, 1);
    let second = writer.open("same");
    assert_ne!(first.number(), second.number());
    step(&mut writer, &[second], b"", 2);
    writer.flush().unwrap();
    let lives = reader(dir.path()).lives("same").unwrap();
    assert_eq!(
        lives.iter().map(|life| life.request.state).collect::<Vec<_>>(),
        [RequestState::Finished, RequestState::Live]
    );
    assert!(lives.iter().all(|life| life.rows.len() == 1));
}

#[test]
fn a_closed_request_counts_no_further_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open(dir.path(), options());
    let gone = writer.open("gone");
    step(&mut writer, &[gone], b"", 1);
    writer.close(gone);
    writer.close(gone);
    let next = writer.open("next");
    step(&mut writer, &[next], b"", 2);
    writer.flush().unwrap();
    let requests: Vec<_> =
        reader(dir.path()).requests(RequestFilter::default()).unwrap().map(Result::unwrap).collect();
    assert_eq!((requests[0].state, requests[0].rows), (RequestState::Abandoned, 1));
    assert_eq!((&requests[1].rid[..], requests[1].rows), ("next", 1));
}

#[test]
fn a_request_that_ends_without_a_row_is_finished_with_its_reason_in_records_and_summaries() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, mut writer, _) = open(dir.path(), options());
    let (left, ended) = (writer.open("left"), writer.open("ended"));
    step(&mut writer, &[left, ended], b"", 1);
    let finish = RowFinish { row: 0, reason: "stop".into(), completion_tokens: None };
    let frame = writer.append(b"", 2).unwrap().frame;
    writer.outcome(&Outcome {
        requests: (&[ended]).into(),
        tokens: (&[1]).into(),
        finished: vec![finish].into(),
        ..Outcome::new(frame, 2, Passage::Unchanged)
    });
    writer.close_as(left, "abort");
    writer.close_as(ended, "abort");
    writer.flush().unwrap();
    let found = || -> Vec<_> {
        let requests = reader(dir.path()).requests(RequestFilter::default()).unwrap().map(Result::unwrap);
        requests.map(|info| (info.rid, info.state, info.finish)).collect()
    };
    let expected = [("left", "abort"), ("ended", "stop")]
        .map(|(rid, finish)| (rid.to_owned(), RequestState::Finished, finish.to_owned()));
    assert_eq!(found(), expected, "in the records");
    drop((writer, directory));
    assert_eq!(found(), expected, "in the summary");
    assert!(reader(dir.path()).verify().unwrap().problems.is_empty());
}

#[test]
fn tail_returns_each_record_as_it_is_written_across_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open(dir.path(), JournalOptions { segment_bytes: 4096, ..options() });
    let request = writer.open("r");
    step(&mut writer, &[request], b"before", 1);
    writer.flush().unwrap();
    let mut tail = reader(dir.path()).tail(ReadFrom::Frame(FrameNo(2))).unwrap();
    assert_eq!(tail.next().unwrap(), None);
    assert_eq!(tail.rid(request.number()), Some("r"));
    let mut seen = Vec::new();
    for round in 0..30u64 {
        let frame = step(&mut writer, &[request], &[1; 500], round);
        let other = writer.open("other");
        writer.close(other);
        if round % 3 == 0 {
            writer.flush().unwrap();
        }
        while let Some(record) = tail.next().unwrap() {
            seen.push(record);
        }
        let has =
            seen.iter().any(|record| matches!(record, JournalRecord::Frame(f) if f.position.frame == frame));
        assert!(has, "frame {frame} at once");
    }
    writer.flush().unwrap();
    while let Some(record) = tail.next().unwrap() {
        seen.push(record);
    }
    let count = |kind: fn(&JournalRecord) -> bool| seen.iter().filter(|record| kind(record)).count();
    assert_eq!(count(|record| matches!(record, JournalRecord::Frame(_))), 30);
    assert_eq!(count(|record| matches!(record, JournalRecord::Outcome(_))), 30);
    assert_eq!(seen.len(), 60);
}

#[test]
fn the_preceding_streams_are_stored_until_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, writer, _) = open(dir.path(), options());
    assert_eq!(reader(dir.path()).after().unwrap(), Vec::<String>::new());
    let names = ["decode-0".to_owned(), "decode-1".to_owned()];
    directory.set_after("s", &names).unwrap();
    drop((writer, directory));
    // The file outlives its writer, and the next start does not take it for a segment.
    let (directory, _writer, recovered) = open(dir.path(), options());
    assert!(recovered.cut.is_empty() && recovered.corrupt.is_empty());
    assert_eq!(reader(dir.path()).after().unwrap(), names);
    assert!(reader(dir.path()).verify().unwrap().problems.is_empty());
    assert!(directory.set_after("s", &["../other".to_owned()]).is_err());
    directory.set_after("s", &[]).unwrap();
    assert_eq!(reader(dir.path()).after().unwrap(), Vec::<String>::new());
    let left: Vec<_> =
        std::fs::read_dir(dir.path().join("s")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("AFTER")), "{left:?}");
}
