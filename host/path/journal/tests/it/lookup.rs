//! How much of a large journal is read for one request, and for the newest ones.

use crate::support::*;
use afterbay_journal::reader::{RequestFilter, RequestInfo, StreamReader};
use afterbay_journal::*;
use std::collections::HashSet;

/// Bytes that this thread has read from files.
fn read_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// Bytes that a call reads, and its result.
fn reading<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = read_bytes();
    let done = call();
    (read_bytes() - before, done)
}

/// A journal of 40 segments of half a MiB: 100 requests begin and end in each, and one that began in the first stays open. The time
/// of segment N is N seconds.
fn of_40_segments(dir: &std::path::Path) -> JournalWriter {
    let (_directory, mut writer, _) =
        open_alone(dir, JournalOptions { segment_bytes: 512 << 10, ..options() });
    let open = writer.open("open");
    for segment in 0..40_u64 {
        let rids = (0..100).map(|at| format!("rid-{segment}-{at}"));
        let mut requests: Vec<_> = rids.map(|rid| writer.open(&rid)).collect();
        requests.push(open);
        let now = segment * 1_000_000_000 + 1;
        for at in 0..3 {
            step(&mut writer, &requests, &vec![7; 140 << 10], now + at);
        }
        last_step(&mut writer, &requests[..100], 4, now + 3);
        writer.flush().unwrap();
        writer.tend();
        // One frame more than the segment has room for.
        step(&mut writer, &[open], &vec![7; 140 << 10], now + 4);
    }
    writer.flush().unwrap();
    writer
}

fn list(stream: &StreamReader, filter: RequestFilter) -> Vec<RequestInfo> {
    stream.requests(filter).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_request_is_found_without_the_summaries_of_segments_that_do_not_list_it() {
    let dir = tempfile::tempdir().unwrap();
    let _writer = of_40_segments(dir.path());
    let stream = reader(dir.path());
    let (whole, requests) = reading(|| list(&stream, RequestFilter::default()));
    assert_eq!(requests.len(), 40 * 100 + 1);
    for rid in ["rid-0-99", "rid-20-0", "rid-39-50"] {
        let (bytes, found) = reading(|| stream.whole_rid(rid).unwrap());
        assert_eq!(found.as_deref(), Some(rid));
        assert!(bytes < whole / 2, "{rid}: {bytes} bytes are read, {whole} for a list of all");
        let life = stream.lives(rid).unwrap().remove(0);
        assert_eq!((life.rows.len(), life.request.rows), (4, 4));
        let of_list = requests.iter().find(|info| info.rid == rid).unwrap();
        assert_eq!(life.request, *of_list);
    }
    // A request that every segment lists has all of its rows.
    let life = stream.lives("open").unwrap().remove(0);
    assert_eq!((life.rows.len() as u64, life.request.rows), (160, 160));
    assert_eq!(stream.whole_rid("rid-7-1").unwrap().as_deref(), Some("rid-7-1"));
    assert_eq!(stream.whole_rid("rid-39-99").unwrap().as_deref(), Some("rid-39-99"));
    assert!(matches!(stream.whole_rid("rid-7-"), Err(ReadError::AmbiguousRid { count: 100, .. })));
    assert_eq!(stream.whole_rid("ope").unwrap().as_deref(), Some("open"));
    assert_eq!(stream.whole_rid("rid-40-0").unwrap(), None);
}

#[test]
fn requests_that_ended_before_a_segment_are_listed_without_it_and_without_those_that_were_open() {
    let dir = tempfile::tempdir().unwrap();
    let _writer = of_40_segments(dir.path());
    let stream = reader(dir.path());
    let all = list(&stream, RequestFilter::default());
    let segments = stream.segments().unwrap();
    let before = |rid: Option<&str>| RequestFilter {
        rids: rid.map(|rid| HashSet::from([rid.to_owned()])),
        ended_before: Some(segments[20]),
        ..RequestFilter::default()
    };
    let (whole, listed) = reading(|| list(&stream, before(None)));
    let ended = all.iter().filter(|info| info.rid != "open" && info.last_frame < segments[20].first);
    assert_eq!(listed, ended.cloned().collect::<Vec<_>>());
    assert_eq!(list(&stream, before(Some("rid-7-1"))).len(), 1);
    // The last segment that is looked at has an index of its rids, too.
    let (bytes, listed) = reading(|| list(&stream, before(Some("absent"))));
    assert!(listed.is_empty() && bytes < whole / 4, "{bytes} bytes are read, {whole} for all");
}

#[test]
fn requests_since_a_time_are_listed_without_the_segments_before() {
    let dir = tempfile::tempdir().unwrap();
    let _writer = of_40_segments(dir.path());
    let stream = reader(dir.path());
    let (whole, all) = reading(|| list(&stream, RequestFilter::default()));
    for since in [0, 1, 17_000_000_001, 38_000_000_004, 38_000_000_005, 39_000_000_004, u64::MAX] {
        let since_then = RequestFilter { since_unix_ns: Some(since), ..RequestFilter::default() };
        let (bytes, listed) = reading(|| list(&stream, since_then));
        let expected: Vec<_> = all.iter().filter(|info| info.last_unix_ns >= since).cloned().collect();
        assert_eq!(listed, expected, "since {since}");
        if since > 38_000_000_000 {
            assert!(bytes < whole / 2, "since {since}: {bytes} bytes are read, {whole} for all");
        }
    }
}

#[test]
fn a_segment_is_read_up_to_the_last_row_of_a_request_and_from_about_a_frame_on() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open_alone(dir.path(), options());
    // Ten requests, one after the other, and 1.6 MB of outcomes in the time of each.
    let other = writer.open("other");
    let mut frames = Vec::new();
    for at in 0..10_u64 {
        let request = writer.open(format!("rid-{at}"));
        let rows: Vec<_> = [request].into_iter().chain([other; 499]).collect();
        for _ in 0..400 {
            frames.push(step(&mut writer, &rows, b"", at));
        }
        last_step(&mut writer, &[request], 401, at);
        let last = FrameNo(401 * (at + 1));
        writer.sent("reader", at + 1, SinkContent::Whole(last), at);
        writer.taken("reader", at + 1, last, None, at);
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let stream = reader(dir.path());
    for at in [0, 5, 9] {
        let (bytes, lives) = reading(|| stream.lives(&format!("rid-{at}")).unwrap());
        assert_eq!(lives[0].rows.len(), 401);
        assert!(
            bytes < (at + 1) * 1_700_000 + (3 << 20),
            "rid-{at}: {bytes} bytes are read of a segment of 16 MB"
        );
        assert!(lives[0].rows.last().unwrap().deliveries[0].taken);
    }
    for frame in [frames[0], frames[1999], frames[3999]] {
        let (bytes, position) = reading(|| stream.position(frame).unwrap().unwrap());
        assert_eq!(position.frame, frame);
        assert!(bytes < 6 << 20, "frame {frame}: {bytes} bytes are read of a segment of 16 MB");
        assert!(stream.frame(&position).unwrap().bytes.is_empty());
    }
}

#[test]
fn a_segment_of_many_small_frames_ends_before_it_has_its_full_size() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open_alone(dir.path(), options());
    for at in 0..bounds::SEGMENT_FRAMES_MAX {
        writer.append(b"", at).unwrap();
    }
    let stream = reader(dir.path());
    assert_eq!(stream.segments().unwrap().len(), 1);
    let next = writer.append(b"", 0).unwrap();
    assert_eq!(stream.segments().unwrap(), [SegmentId { first: FrameNo(1), sequence: 0 }, next.segment]);
    assert_eq!(next.segment.first, next.frame);
}
