//! Excerpts: what a journal has about one rid, as a journal of its own.

use std::borrow::Cow;
use std::path::Path;

use crate::erase::Texts;
use crate::support::*;
use afterbay_journal::reader::{
    ErasedBy, Erasure, JournalRow, ReadFrom, RequestFilter, RequestInfo, RequestState, StreamReader,
};
use afterbay_journal::*;

const ERASURE: Erasure = Erasure { unix_ns: 77, by: ErasedBy::User(1000) };
const BYTES_MAX: u64 = 1 << 20;

/// A stream whose requests share frames. The requests: `a` has a row in every third frame and ends with frame 297, `b` ends with
/// frame 294, `c` with frame 200, `d` begins with frame 290 and is live. Every row has a note, and every frame is sent and taken.
fn filled(dir: &Path) -> StreamReader {
    let (_directory, mut writer, _) = open_alone(dir, JournalOptions { segment_bytes: 6000, ..options() });
    writer.set_attributes(Box::new(|rid, _| vec![("tenant".to_owned(), format!("tenant of {rid}"))]));
    let names = ["a", "b", "c", "d"];
    let requests = names.map(|rid| writer.open(rid));
    let mut received = [0; 4];
    for n in 1..=300_u64 {
        let is_here = [n % 3 == 0 && n <= 297, n <= 294, n <= 200, n >= 290];
        let last = [297, 294, 200, u64::MAX];
        let here: Vec<usize> = (0..4).filter(|at| is_here[*at]).collect();
        let texts: Vec<String> =
            here.iter().map(|at| format!("{}=said{n}{}", names[*at], names[*at])).collect();
        let frame = writer.append(texts.join(";").as_bytes(), n * 1000).unwrap().frame;
        let (mut finished, mut actions) = (Vec::new(), Vec::new());
        for (row, at) in (0..).zip(&here) {
            received[*at] += 1;
            if n == last[*at] {
                let completion_tokens = Some(received[*at]);
                finished.push(RowFinish { row, reason: "stop".into(), completion_tokens });
            }
            let text: Cow<'_, str> = format!("note of {}", names[*at]).into();
            let (plugin, verdict, ids) = ("p".into(), Verdict::Annotate, (&[]).into());
            actions.push(PluginAction { row, plugin, verdict, text, ids, forwarded: 1 });
        }
        let rows: Vec<JournalRequest> = here.iter().map(|at| requests[*at]).collect();
        writer.outcome(&Outcome {
            received_unix_ns: n * 1000,
            finished: finished.into(),
            actions: actions.into(),
            ..plain_outcome(frame, &rows, &vec![1; rows.len()])
        });
        (0..4).filter(|at| n == last[*at]).for_each(|at| writer.close(requests[at]));
        writer.sent("reader", n, SinkContent::Whole(frame), n * 1000 + 10);
        writer.flush().unwrap();
        writer.taken("reader", n - 1, FrameNo(n - 1), None, n * 1000 + 20);
    }
    writer.finish().unwrap();
    reader(dir)
}

fn excerpt(stream: &StreamReader, rid: &str, to: &Path) -> Excerpt {
    write_excerpt(stream, rid, to, ERASURE, &mut Texts, BYTES_MAX).unwrap().unwrap()
}

/// The rows of a request without the offsets of their frames.
fn rows(stream: &StreamReader, rid: &str) -> Vec<JournalRow> {
    let lives = stream.lives(rid).unwrap();
    let rows = lives.into_iter().flat_map(|life| life.rows);
    rows.map(|row| {
        let placeless = |place: Option<Position>| {
            place.map(|it| Position { segment: SegmentId::default(), offset: 0, ..it })
        };
        JournalRow { position: placeless(row.position), changed: placeless(row.changed), ..row }
    })
    .collect()
}

fn request(stream: &StreamReader, rid: &str) -> RequestInfo {
    let found = stream.requests(RequestFilter::default()).unwrap().map(Result::unwrap);
    found.filter(|info| info.rid == rid).last().unwrap()
}

fn frames(stream: &StreamReader) -> Vec<(u64, String)> {
    let frames = stream.frames(ReadFrom::Start).unwrap().map(|frame| frame.unwrap().0);
    frames.map(|it| (it.position.frame.0, String::from_utf8(it.bytes).unwrap())).collect()
}

#[test]
fn an_excerpt_has_the_rows_and_deliveries_of_a_request_and_is_a_clean_journal() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = filled(dir.path());
    assert!(source.segments().unwrap().len() > 3);
    let found = excerpt(&source, "a", to.path());
    assert_eq!((found.rows, found.frames, found.left.count), (99, 99, 0));
    let packed = reader(to.path());
    let report = packed.verify().unwrap();
    assert_eq!(report.problems, []);
    let left_out = 300 - 99;
    let notes =
        [VerifyNote::Erased { requests: 3, last_unix_ns: 77 }, VerifyNote::LeftOut { count: left_out }];
    assert_eq!(report.notes, notes);
    assert_eq!(rows(&packed, "a"), rows(&source, "a"));
    assert!(rows(&packed, "a").iter().all(|row| row.deliveries[0].taken_unix_ns > 0));
    assert_eq!(request(&packed, "a"), request(&source, "a"));
    assert_eq!(request(&packed, "a").attributes[0].1, "tenant of a");
    let written: Vec<u64> = frames(&packed).iter().map(|(number, _)| *number).collect();
    assert_eq!(written, (1..=99).map(|n| n * 3).collect::<Vec<u64>>());
    let coverage = packed.coverage().unwrap();
    assert_eq!((coverage.left_out.len(), coverage.not_stored.len()), (left_out, 0));
}

#[test]
fn an_excerpt_has_the_totals_of_other_requests_and_nothing_that_they_said() {
    let (dir, to, again) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = filled(dir.path());
    excerpt(&source, "a", to.path());
    let packed = reader(to.path());
    for (rid, state, received) in [
        ("b", RequestState::Finished, 294),
        ("c", RequestState::Finished, 200),
        ("d", RequestState::Live, 11),
    ] {
        let info = request(&packed, rid);
        assert_eq!((info.state, info.received, info.erased), (state, received, Some(ERASURE)), "{rid}");
    }
    let (number, text) = &frames(&packed)[1];
    assert_eq!((*number, &**text), (6, "a=said6a;b=xxxxxx;c=xxxxxx"));
    let bytes_of = |dir: &Path| {
        let files = std::fs::read_dir(dir.join("s")).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files.into_iter().flat_map(|path| std::fs::read(path).unwrap()).collect::<Vec<u8>>()
    };
    let bytes = bytes_of(to.path());
    let says = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(says("note of a") && says("said6a") && says("tenant of a"));
    assert!(!says("note of b") && !says("said6b") && !says("said6c") && !says("tenant of b"));
    excerpt(&source, "a", again.path());
    assert!(bytes == bytes_of(again.path()), "the same request gives the same bytes");
}

#[test]
fn a_frame_in_which_other_rows_cannot_be_overwritten_is_left_out() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_directory, mut writer, _) = open_alone(dir.path(), options());
    let (a, b) = (writer.open("a"), writer.open("b"));
    step(&mut writer, &[a, b], b"a=1;b=private", 10);
    step(&mut writer, &[a, b], b"?a=2;b=private", 20);
    // A frame that was forwarded without being stored.
    let skipped = writer.skipped(1, 30);
    writer.outcome(&plain_outcome(skipped, &[a], &[1]));
    step(&mut writer, &[b], b"b=private", 40);
    // The rid is used again, and the request is live.
    last_step(&mut writer, &[a], 4, 50);
    let second = writer.open("a");
    step(&mut writer, &[second], b"a=3", 60);
    writer.flush().unwrap();
    let source = reader(dir.path());
    let found = excerpt(&source, "a", to.path());
    assert_eq!((found.rows, found.frames, found.left.count), (5, 3, 1));
    assert_eq!(found.left.first, [LeftFrame { frame: FrameNo(2), why: "not decoded".into() }]);
    let packed = reader(to.path());
    assert_eq!(packed.verify().unwrap().problems, []);
    let expected = [(1, "a=1;b=xxxxxxx"), (5, "last"), (6, "a=3")].map(|(n, text)| (n, text.to_owned()));
    assert_eq!(frames(&packed), expected);
    let positions: Vec<bool> = rows(&packed, "a").iter().map(|row| row.position.is_some()).collect();
    assert_eq!(positions, [true, false, false, true, true]);
    let coverage = packed.coverage().unwrap();
    assert_eq!(
        (coverage.left_out.iter().collect::<Vec<_>>(), coverage.not_stored.first()),
        (vec![FrameNo(2), FrameNo(4)], Some(FrameNo(3)))
    );
}

#[test]
fn an_excerpt_is_bounded_and_a_rid_without_a_row_has_none() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = filled(dir.path());
    let write = |rid: &str, bytes_max| write_excerpt(&source, rid, to.path(), ERASURE, &mut Texts, bytes_max);
    let refused = write("a", 4096).unwrap_err();
    assert_eq!(refused.to_string(), "the excerpt of stream \"s\" would have more than 4096 bytes");
    assert!(write("nobody", BYTES_MAX).unwrap().is_none());
}
