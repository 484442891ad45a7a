//! A journal of this format, which an earlier build of this version wrote, opens. A segment of another version is refused.

use std::path::Path;

use crate::support::*;
use afterbay_journal::reader::ReadFrom;
use afterbay_journal::*;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixture");

/// Every kind of record, in two sealed segments and one that was left open.
#[test]
#[ignore = "writes the fixture of a new format version"]
fn write_the_fixture_of_this_version() {
    let dir = Path::new(FIXTURE);
    assert!(!dir.exists(), "a fixture is written once");
    std::fs::create_dir_all(dir).unwrap();
    let (_directory, mut writer, _) = open(dir, JournalOptions { segment_bytes: 4096, ..options() });
    let long = writer.open("long");
    for round in 0..10 {
        let short = writer.open(format!("short-{round}"));
        let frame = writer.append(&[round as u8; 500], 1_000 + round).unwrap().frame;
        writer.outcome(&Outcome {
            passage: Passage::Changed,
            changed: Some(vec![round as u8; 50].into()),
            finished: (&[RowFinish { row: 1, reason: "stop".into(), completion_tokens: Some(3) }]).into(),
            actions: (&[PluginAction {
                row: 0,
                plugin: "p".into(),
                verdict: Verdict::Replace,
                text: "note".into(),
                ids: (&[7, -7]).into(),
                forwarded: 2,
            }])
                .into(),
            ..plain_outcome(frame, &[long, short], &[1, 3])
        });
        writer.close(short);
        let rows = [(long.number(), frame), (short.number(), frame)];
        let sent = if round % 2 == 0 { SinkContent::Whole(frame) } else { SinkContent::Rows((&rows).into()) };
        writer.sent("sink", 1 + round, sent, 0);
        // The last three frames are not taken, and some of those before.
        let through = FrameNo(round.min(5));
        writer.taken(
            "sink",
            round.min(7),
            through,
            Some(Credit { generation: 1, sent: round.min(7), handed_over: round }),
            0,
        );
    }
    writer.skipped(2, 1_010);
    let frame = writer.append(b"control", 1_011).unwrap().frame;
    writer.outcome(&Outcome {
        passage: Passage::Barrier("FlushCache".into()),
        ..plain_outcome(frame, &[], &[])
    });
    let dropped = writer.append(b"dropped", 1_012).unwrap().frame;
    writer.outcome(&Outcome { passage: Passage::Dropped, ..plain_outcome(dropped, &[long], &[1]) });
    writer.append(b"no outcome", 1_013).unwrap();
    writer.append(b"nor this", 1_014).unwrap();
    writer.flush().unwrap();
}

fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("s")).unwrap();
    for entry in std::fs::read_dir(Path::new(FIXTURE).join("s")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join("s").join(entry.file_name())).unwrap();
    }
    dir
}

#[test]
fn a_journal_of_this_version_is_read_and_goes_on() {
    let dir = copy();
    let stream = reader(dir.path());
    let frames: Vec<_> = stream.frames(ReadFrom::Start).unwrap().map(Result::unwrap).collect();
    let numbers: Vec<u64> = frames.iter().map(|(frame, _)| frame.position.frame.0).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16]);
    let outcome = |at: usize| frames[at].1.as_ref().unwrap();
    assert_eq!(outcome(3).changed.as_deref(), Some(&[3; 50][..]));
    assert_eq!((&outcome(11).passage, &outcome(11).changed), (&Passage::Dropped, &None));
    let report = stream.verify().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(
        report.notes,
        [VerifyNote::Skipped { from: FrameNo(11), count: 2 }, VerifyNote::Unfinished { frames: 2 }]
    );

    let (_directory, mut writer, recovered) = open(dir.path(), options());
    assert_eq!(recovered.unfinished.runs().collect::<Vec<_>>(), [(FrameNo(15), 2)]);
    let sink = &recovered.sinks[0];
    assert_eq!((sink.name(), sink.through(), sink.sequence(), sink.last_sent()), ("sink", FrameNo(5), 7, 10));
    assert_eq!(sink.credit(), Some(Credit { generation: 1, sent: 7, handed_over: 9 }));
    let long = recovered.live[0].request;
    let taken: Vec<bool> = (5..=9).map(|frame| sink.has_taken_row(FrameNo(frame), long.number())).collect();
    assert_eq!(taken, [true, true, true, false, false]);
    let sent: Vec<_> =
        sink.sent().map(|sent| (sent.sequence, matches!(sent.content, SinkContent::Whole(_)))).collect();
    assert_eq!(sent, [(8, false), (9, true), (10, false)]);
    assert_eq!(last_step(&mut writer, &[long], 12, 2_000), FrameNo(17));
    for frame in recovered.unfinished.iter() {
        writer.outcome(&plain_outcome(frame, &[], &[]));
    }
    writer.finish().unwrap();
    let problems = reader(dir.path()).verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_journal_of_another_version_is_refused_with_its_version() {
    for version in [4, 6] {
        let dir = copy();
        let segments = std::fs::read_dir(dir.path().join("s")).unwrap();
        let segment = segments.map(|entry| entry.unwrap().path()).max().unwrap();
        let mut bytes = std::fs::read(&segment).unwrap();
        for copy in [0, 64] {
            bytes[copy + 8] = version;
            let crc = crc32fast::hash(&bytes[copy..copy + 60]);
            bytes[copy + 60..copy + 64].copy_from_slice(&crc.to_le_bytes());
        }
        std::fs::write(&segment, &bytes).unwrap();
        let path = segment.display();
        let expected =
            format!("journal segment {path}: format version {version}, this program reads version 5");
        let error = reader(dir.path()).verify().unwrap_err();
        assert_eq!(error.to_string(), expected);
        let directory = unlocked(|| JournalDirectory::open(dir.path(), options())).unwrap();
        assert_eq!(directory.stream("s").err().unwrap().to_string(), expected);
    }
}
