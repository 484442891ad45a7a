//! A full disk refuses frames and still accepts the records about sent frames.

use std::path::Path;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::*;

const SEGMENT_BYTES: u64 = 64 << 10;
const FRAME: [u8; 3000] = [7; 3000];

fn small() -> JournalOptions {
    JournalOptions { segment_bytes: SEGMENT_BYTES, ..options() }
}

/// A disk that accepts no further byte, and a journal on it.
fn full_disk() -> (SimDisk, JournalDirectory, JournalWriter, u64) {
    let disk = SimDisk::new(1);
    disk.set_reserves(true);
    let (directory, mut writer, _) = begin(&disk, small());
    writer.append(&FRAME, 1).unwrap();
    disk.set_capacity(disk.used());
    let mut last = 1;
    while writer.append(&FRAME, last + 1).is_ok() {
        last += 1;
        assert!(last < 1000, "it never fills up");
    }
    (disk, directory, writer, last)
}

fn sends(writer: &mut JournalWriter, frame: u64) -> Result<(), WriteError> {
    writer.outcome(&plain_outcome(FrameNo(frame), &[], &[]));
    writer.sent("sink", frame, SinkContent::Whole(FrameNo(frame)), 0);
    writer.flush()
}

#[test]
fn stored_frames_are_recorded_as_sent_while_the_disk_is_full() {
    let (disk, directory, mut writer, last) = full_disk();
    assert!(last > 10 && !writer.is_healthy());
    for frame in 1..=last {
        sends(&mut writer, frame).unwrap();
        let credit = Credit { generation: 1, sent: frame, handed_over: frame };
        writer.taken("sink", frame, FrameNo(frame), Some(credit), 0);
        writer.flush().unwrap();
    }
    assert!(!writer.is_healthy(), "there is still no room for a frame");
    disk.kill();
    drop((writer, directory));
    disk.set_capacity(usize::MAX);
    let (_directory, _writer, recovered) = begin(&disk, small());
    assert_eq!(recovered.sinks[0].through(), FrameNo(last));
    assert!(recovered.unfinished.is_empty() && recovered.cut.is_empty(), "{recovered:?}");
    assert!(stream(&disk).verify().unwrap().problems.is_empty());
}

#[test]
fn a_segment_without_room_for_a_next_one_takes_records_up_to_the_end_of_its_spare() {
    let (disk, directory, mut writer, _) = full_disk();
    let mut recorded = 0;
    let error = loop {
        match sends(&mut writer, recorded + 1) {
            Ok(()) => recorded += 1,
            Err(error) => break error,
        }
        assert!(recorded < 100_000, "it never fills up");
    };
    assert!(error.is_full(), "{error}");
    assert!(recorded * 50 > SEGMENT_BYTES / bounds::SPARE_PARTS / 4, "{recorded} records found room");
    // The refused records wait for room.
    disk.set_capacity(usize::MAX);
    writer.flush().unwrap();
    assert!(writer.probe().unwrap());
    assert!(writer.is_healthy());
    disk.kill();
    drop((writer, directory));
    let (_directory, _writer, recovered) = begin(&disk, small());
    assert_eq!(recovered.sinks[0].last_sent(), recorded + 1);
}

#[test]
fn a_probe_finds_that_frames_have_room_again() {
    let (disk, _directory, mut writer, last) = full_disk();
    assert!(writer.probe().unwrap_err().is_full() && !writer.is_healthy());
    disk.set_capacity(usize::MAX);
    assert!(writer.probe().unwrap());
    assert!(writer.is_healthy());
    assert_eq!(writer.append(&FRAME, last + 1).unwrap().frame, FrameNo(last + 1));
}

#[test]
fn a_disk_with_room_for_less_than_a_segment_is_used_completely() {
    let disk = SimDisk::new(1);
    disk.set_reserves(true);
    let (_directory, mut writer, _) = begin(&disk, small());
    let spare = SEGMENT_BYTES / bounds::SPARE_PARTS;
    disk.set_capacity(disk.used() + (spare + 8 * FRAME.len() as u64) as usize);
    let frames = (1..100).take_while(|&ns| writer.append(&FRAME, ns).is_ok()).count();
    assert!((5..8).contains(&frames), "{frames}");
    sends(&mut writer, 1).unwrap();
}

#[test]
fn a_journal_can_be_sealed_on_a_full_disk() {
    let (disk, directory, mut writer, last) = full_disk();
    for frame in 1..=last {
        sends(&mut writer, frame).unwrap();
    }
    writer.finish().unwrap();
    drop(directory);
    let (_directory, _writer, recovered) = begin(&disk, small());
    assert_eq!((recovered.refused, recovered.last_frame), (None, FrameNo(last)));
    assert!(recovered.unfinished.is_empty());
}

#[test]
fn finish_fails_if_the_segment_cannot_be_sealed() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, small());
    for ns in 1..10 {
        step(&mut writer, &[], &FRAME, ns);
    }
    writer.flush().unwrap();
    disk.set_capacity(disk.used());
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, WriteError::NoSummary { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "journal segment 00000000000000000001-0000000000.seg: no summary: No space left on device (os error 28)"
    );
}

#[test]
fn a_start_on_a_full_disk_succeeds_and_reports_that_it_cannot_write() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    for ns in 1..10 {
        step(&mut writer, &[], &FRAME, ns);
    }
    writer.flush().unwrap();
    disk.kill();
    drop((writer, directory));
    disk.set_capacity(disk.used());
    let (_directory, mut writer, recovered) = begin(&disk, small());
    assert!(recovered.refused.unwrap().contains("No space left on device"));
    assert_eq!(recovered.last_frame, FrameNo(9));
    assert!(writer.append(&FRAME, 10).unwrap_err().is_full());
    disk.set_capacity(usize::MAX);
    assert_eq!(writer.append(&FRAME, 10).unwrap().frame, FrameNo(10));
    assert!(stream(&disk).verify().unwrap().problems.is_empty());
}

#[test]
fn a_file_system_that_cannot_reserve_space_is_reported_once() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, small());
    for ns in 1..100 {
        step(&mut writer, &[], &FRAME, ns);
    }
    let told = std::iter::from_fn(|| writer.next_notice());
    assert_eq!(told.filter(|notice| matches!(notice, BackgroundNotice::NotReserved { .. })).count(), 1);
}

#[test]
fn frames_sent_unrecorded_are_reported_at_each_start_until_everything_is_recorded() {
    let (disk, directory, mut writer, last) = full_disk();
    let mut sent = 0;
    while sends(&mut writer, sent + 1).is_ok() {
        sent += 1;
    }
    assert!(writer.unrecorded());
    disk.kill();
    drop((writer, directory));
    let (directory, mut writer, recovered) = begin(&disk, small());
    assert!(recovered.unrecorded);
    assert!(stream(&disk).verify().unwrap().notes.contains(&VerifyNote::Unrecorded));
    // A write alone settles nothing.
    disk.set_capacity(usize::MAX);
    writer.append(&FRAME, last + 1).unwrap();
    disk.kill();
    drop((writer, directory));
    let (directory, mut writer, recovered) = begin(&disk, small());
    assert!(recovered.unrecorded);
    writer.taken("sink", 0, recovered.last_frame, None, 0);
    writer.forget_unrecorded().unwrap();
    disk.kill();
    drop((writer, directory));
    let (_directory, _writer, recovered) = begin(&disk, small());
    assert!(!recovered.unrecorded);
}

#[test]
fn frames_sent_unrecorded_are_recorded_once_the_disk_has_room() {
    let (disk, directory, mut writer, _) = full_disk();
    let mut sent = 0;
    while sends(&mut writer, sent + 1).is_ok() {
        sent += 1;
    }
    assert!(writer.unrecorded());
    disk.set_capacity(usize::MAX);
    writer.flush().unwrap();
    disk.kill();
    drop((writer, directory));
    let (_directory, _writer, recovered) = begin(&disk, small());
    assert!(!recovered.unrecorded);
    assert_eq!(recovered.sinks[0].last_sent(), sent + 1);
}

#[test]
fn a_directory_without_room_on_the_disk_is_made_once_there_is_room() {
    let disk = SimDisk::new(1);
    disk.set_full_of_names(true);
    let directory =
        JournalDirectory::open_on(disk.process(), Path::new(DIR), small(), Background::Caller).unwrap();
    let (mut writer, recovered) = directory.stream("s").unwrap();
    assert!(recovered.refused.is_some());
    assert!(writer.append(&FRAME, 1).is_err());
    disk.set_full_of_names(false);
    assert_eq!(step(&mut writer, &[], &FRAME, 1), FrameNo(1));
    let other = JournalDirectory::open_on(disk.process(), Path::new(DIR), small(), Background::Caller);
    assert!(matches!(other, Err(OpenError::Locked { .. })), "it is locked, too");
}
