//! The newest requests, on a journal of many small segments.

use super::{NS, STREAM, Scene};
use afterbay_journal::reader::{JournalReader, RequestFilter, RequestState, StreamReader};
use afterbay_journal::{
    Background, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, RowFinish,
    SyncPolicy, Verdict,
};
use afterbay_journal_view::legs;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Adds a frame with a row of the request.
fn row(writer: &mut JournalWriter, request: JournalRequest, now: u64, is_last: bool) {
    let frame = writer.append(&[7; 900], now).unwrap().frame;
    let finish = RowFinish { row: 0, reason: "stop".into(), completion_tokens: None };
    writer.outcome(&Outcome {
        requests: (&[request]).into(),
        tokens: (&[1]).into(),
        finished: if is_last { vec![finish] } else { Vec::new() }.into(),
        ..Outcome::new(frame, now, Passage::Unchanged)
    });
    if is_last {
        writer.close(request);
    }
    writer.flush().unwrap();
    writer.tend();
}

/// A scheduler's stream, a detokenizer's stream after it with a leg of every second request, and a stream of another scheduler, each of
/// many segments. Some requests stay live.
fn streams(dir: &std::path::Path) -> Vec<StreamReader> {
    let options = JournalOptions { sync: SyncPolicy::None, segment_bytes: 4096, ..JournalOptions::default() };
    let storage = Arc::new(afterbay_journal::storage::Disk);
    let directory = JournalDirectory::open_on(storage, dir, options, Background::Caller).unwrap();
    let open = |name: &str| directory.stream(name).unwrap().0;
    let (mut first, mut text, mut other) = (open("a"), open("text"), open("z"));
    directory.set_after("text", &["a".to_owned()]).unwrap();
    let begun = 1_700_000_000 * NS;
    // The last rows of the detokenizer, by time.
    let mut ends = BTreeMap::new();
    for at in 0..160_u64 {
        let now = begun + at * NS;
        while let Some(end) = ends.first_entry().filter(|end| *end.key() <= now) {
            let (time, leg) = end.remove_entry();
            row(&mut text, leg, time, true);
        }
        if at >= 120 {
            continue;
        }
        let rid = format!("{}-{at}", if at % 3 == 0 { "chat" } else { "cmpl" });
        let is_ended = at % 10 != 7;
        let a = first.open(&rid);
        row(&mut first, a, now, is_ended);
        if at % 2 == 0 {
            // The detokenizer ends much later than the scheduler.
            let leg = text.open(&rid);
            row(&mut text, leg, now + NS / 2, false);
            ends.insert(now + NS * 3 / 4 + at * 7 % 40 * NS + at, leg);
        }
        if at % 5 == 0 {
            let z = other.open(format!("z-{at}"));
            row(&mut other, z, now + 1, true);
        }
    }
    let journal = JournalReader::open(dir).unwrap();
    ["a", "text", "z"].map(|name| journal.stream(name).unwrap()).into()
}

#[test]
fn the_last_requests_are_the_end_of_the_list_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let streams = streams(dir.path());
    assert!(streams.iter().all(|stream| stream.segments().unwrap().len() > 5));
    let shape = |requests: &[legs::Request<_>]| -> Vec<String> {
        let leg =
            |leg: &legs::Leg<afterbay_journal::reader::RequestInfo>| format!("{}:{}", leg.stream, leg.of.rid);
        requests.iter().map(|request| request.0.iter().map(leg).collect::<Vec<_>>().join("+")).collect()
    };
    let filters = [
        RequestFilter::default(),
        RequestFilter { rid_prefix: Some("chat-".into()), ..RequestFilter::default() },
        RequestFilter { state: Some(RequestState::Live), ..RequestFilter::default() },
        RequestFilter { state: Some(RequestState::Finished), ..RequestFilter::default() },
        RequestFilter { since_unix_ns: Some((1_700_000_000 + 90) * NS), ..RequestFilter::default() },
        RequestFilter { finish: Some("stop".into()), ..RequestFilter::default() },
        RequestFilter { until_unix_ns: Some((1_700_000_000 + 20) * NS), ..RequestFilter::default() },
    ];
    for filter in filters {
        let all = shape(&legs::requests(&streams, &filter).unwrap());
        assert!(all.len() > 5, "{filter:?}");
        for last in [0, 1, 5, 20, 100, 1000] {
            let newest = shape(&legs::newest(&streams, &filter, last).unwrap());
            assert_eq!(newest, all[all.len().saturating_sub(last)..], "the last {last} of {filter:?}");
        }
    }
}

#[test]
fn requests_are_found_by_their_finish_reason_and_by_the_plugin_that_acted_on_them() {
    let mut scene = Scene::new();
    let (a, b, c) = (scene.request("a"), scene.request("b"), scene.request("c"));
    scene.row(a, &[1], "", &[("budget", Verdict::Annotate, "half of it is spent")]);
    scene.row(b, &[1], "", &[("stop-loop", Verdict::Finish, "loops")]);
    scene.row(c, &[1], "abort", &[]);
    scene.row(a, &[1], "length", &[]);
    scene.writer.flush().unwrap();
    let streams = [JournalReader::open(scene.dir.path()).unwrap().stream(STREAM).unwrap()];
    let acted = |plugin| legs::acted_on_by(&streams, plugin).unwrap();
    assert_eq!(acted("budget"), [(STREAM.to_owned(), a.number().0)].into());
    assert_eq!(acted("stop-loop"), [(STREAM.to_owned(), b.number().0)].into());
    assert!(acted("pii").is_empty());
    let filter = RequestFilter { finish: Some("abort".into()), ..RequestFilter::default() };
    let found = legs::requests(&streams, &filter).unwrap();
    assert_eq!(found.iter().map(|request| &*request.first().of.rid).collect::<Vec<_>>(), ["c"]);
}
