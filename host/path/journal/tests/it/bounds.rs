//! Every bound of `bounds`, and what happens at each.

use std::path::Path;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::*;

#[test]
fn options_outside_their_bounds_are_refused_with_the_bound() {
    let dir = tempfile::tempdir().unwrap();
    let message = |options| JournalDirectory::open(dir.path(), options).err().map(|error| error.to_string());
    assert_eq!(
        message(JournalOptions { segment_bytes: bounds::SEGMENT_BYTES_MAX + 1, ..options() }).unwrap(),
        "journal option segment_bytes: 2147483649, allowed is 4096 to 2147483648"
    );
    assert_eq!(
        message(JournalOptions { max_frame_bytes: bounds::FRAME_BYTES_MAX + 1, ..options() }).unwrap(),
        "journal option max_frame_bytes: 1073741825, allowed is 1 to 1073741824"
    );
    assert_eq!(message(options()), None);
}

#[test]
fn a_stream_has_a_plain_name_and_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let directory = JournalDirectory::open(dir.path(), options()).unwrap();
    for name in ["", "..", ".hidden", "a/b", "LOCK", "ü", &"x".repeat(129)] {
        assert!(matches!(directory.stream(name), Err(OpenError::StreamName { .. })), "{name:?}");
    }
    let (writer, _) = directory.stream("decode-0").unwrap();
    assert!(matches!(directory.stream("decode-0"), Err(OpenError::StreamOpen { .. })));
    directory.stream("decode-1").unwrap();
    drop(writer);
    directory.stream("decode-0").unwrap();
    let again = JournalDirectory::open(dir.path(), options()).err().unwrap();
    assert!(
        matches!(&again, OpenError::Locked { pid, .. } if *pid == std::process::id().to_string()),
        "{again}"
    );
}

#[test]
fn a_frame_over_the_bound_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut writer, _) = open(dir.path(), JournalOptions { max_frame_bytes: 100, ..options() });
    writer.append(&[0; 100], 1).unwrap();
    let error = writer.append(&[0; 101], 2).unwrap_err();
    assert_eq!(error.to_string(), "journal frame: 101 bytes, at most 100");
    assert!(writer.is_healthy());
}

#[test]
fn a_frame_larger_than_a_segment_has_one_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut small, _) = open(dir.path(), JournalOptions { segment_bytes: 4096, ..options() });
    let one = small.append(&[1; 100], 1).unwrap();
    let two = small.append(&[2; 50_000], 2).unwrap();
    let three = small.append(&[3; 100], 3).unwrap();
    assert!(one.segment < two.segment && two.segment < three.segment);
    assert_eq!(reader(dir.path()).frame(&two).unwrap().bytes, [2; 50_000]);
}

#[test]
fn a_rid_of_the_largest_size_is_found_by_it() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let long = "r".repeat(bounds::RID_BYTES_MAX);
    let request = writer.open(&long);
    step(&mut writer, &[request], b"", 1);
    writer.flush().unwrap();
    assert_eq!(stream(&disk).lives(&long).unwrap().len(), 1);
}

#[test]
fn a_frame_that_ends_more_requests_than_a_summary_has_room_for_loses_none() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let frame = writer.append(b"", 1).unwrap().frame;
    let count = 2 * bounds::SEGMENT_REQUESTS_MAX + 10;
    let requests: Vec<_> = (0..count).map(|_| writer.open("r")).collect();
    let tokens = vec![1; count];
    writer.outcome(&plain_outcome(frame, &requests, &tokens));
    requests.iter().for_each(|request| writer.close(*request));
    writer.finish().unwrap();
    let reader = stream(&disk);
    assert_eq!(reader.lives("r").unwrap().len(), count);
    let report = reader.verify().unwrap();
    assert_eq!((report.problems.len(), report.notes.len(), report.rows), (0, 0, count as u64));
}

#[test]
fn many_requests_end_a_segment() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let first = writer.append(b"", 1).unwrap();
    for _ in 0..bounds::SEGMENT_REQUESTS_MAX {
        let request = writer.open("r");
        writer.close(request);
    }
    let second = writer.append(b"", 2).unwrap();
    assert!(second.segment > first.segment);
    assert_eq!(writer.append(b"", 3).unwrap().segment, second.segment);
}

#[test]
fn too_many_runs_of_frames_without_an_outcome_drop_the_oldest_and_report_it() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let runs = bounds::RUNS_MAX as u64;
    for ns in 0..2 * runs + 2 {
        writer.append(b"", ns).unwrap();
    }
    for number in (2..=2 * runs + 2).step_by(2) {
        writer.outcome(&plain_outcome(FrameNo(number), &[], &[]));
    }
    for number in (3..=2 * runs + 2).step_by(2) {
        writer.outcome(&plain_outcome(FrameNo(number), &[], &[]));
    }
    writer.finish().unwrap();
    let problems = stream(&disk).verify().unwrap().problems;
    let whats: Vec<_> = problems.iter().map(|problem| problem.what.to_string()).collect();
    assert_eq!(whats, ["frame 1 has no outcome"]);
}

#[test]
fn a_text_over_the_bound_is_cut_at_a_character() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let frame = writer.append(b"", 1).unwrap().frame;
    let long = "ä".repeat(bounds::TEXT_BYTES_MAX / 2 + 5);
    let odd = format!("x{long}");
    writer.outcome(&Outcome {
        passage: Passage::NotUnderstood((&odd).into()),
        ..plain_outcome(frame, &[], &[])
    });
    writer.flush().unwrap();
    let (_, outcome) = stream(&disk).frames(reader::ReadFrom::Start).unwrap().next().unwrap().unwrap();
    let Passage::NotUnderstood(text) = outcome.unwrap().passage else { panic!() };
    assert_eq!(text.len(), bounds::TEXT_BYTES_MAX - 1);
    assert!(odd.starts_with(&*text));
}

#[test]
fn sinks_past_the_bound_are_not_recorded() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, options());
    step(&mut writer, &[], b"", 1);
    for sink in 0..bounds::SINKS_MAX + 1 {
        writer.taken(&format!("sink-{sink}"), 0, FrameNo(1), None, 0);
    }
    writer.finish().unwrap();
    drop(directory);
    let (_directory, _writer, RecoveredStream { sinks, .. }) = begin(&disk, options());
    assert_eq!(sinks.len(), bounds::SINKS_MAX);
    assert!(!sinks.iter().any(|sink| sink.name() == format!("sink-{}", bounds::SINKS_MAX)));
}

#[test]
fn a_full_queue_of_notices_drops_the_oldest() {
    let disk = SimDisk::new(1);
    let storage = disk.process();
    let small = JournalOptions { segment_bytes: 4096, retain_bytes: Some(1), ..options() };
    let directory = JournalDirectory::open_on(storage, Path::new(DIR), small, Background::Caller).unwrap();
    let (mut writer, _) = directory.stream("s").unwrap();
    for ns in 0..(bounds::NOTICES_MAX as u64 + 10) {
        step(&mut writer, &[], &[0; 4000], ns);
    }
    writer.flush().unwrap();
    writer.tend();
    directory.tend();
    let told: Vec<_> = std::iter::from_fn(|| writer.next_notice()).collect();
    assert_eq!(told.len(), bounds::NOTICES_MAX);
    assert!(matches!(told.last(), Some(BackgroundNotice::OverBudget { .. })), "the newest is there");
}
