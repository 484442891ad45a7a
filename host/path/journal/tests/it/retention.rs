//! Retention: the segments that it keeps, for how long, and the case that it may remove none.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestFilter, RequestState, StreamReader};
use afterbay_journal::*;

const SECOND: u64 = 1_000_000_000;

fn begin(disk: &SimDisk, options: JournalOptions) -> JournalDirectory {
    JournalDirectory::open_on(disk.process(), Path::new(DIR), options, Background::Caller).unwrap()
}

fn stream(disk: &SimDisk, name: &str) -> StreamReader {
    JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap().stream(name).unwrap()
}

fn first_frame(disk: &SimDisk, name: &str) -> u64 {
    stream(disk, name).frames(ReadFrom::Start).unwrap().next().unwrap().unwrap().0.position.frame.0
}

fn notices(writer: &mut JournalWriter) -> Vec<BackgroundNotice> {
    std::iter::from_fn(|| writer.next_notice()).collect()
}

/// Appends frames of 400 bytes, one per second, without rows.
fn fill(disk: &SimDisk, directory: &JournalDirectory, writer: &mut JournalWriter, frames: u64) {
    for _ in 0..frames {
        step(writer, &[], &[1; 400], disk.pass_time(SECOND));
        writer.tend();
        directory.tend();
    }
    writer.flush().unwrap();
    directory.tend();
}

fn small() -> JournalOptions {
    JournalOptions { segment_bytes: 4096, retain_bytes: Some(20_000), ..options() }
}

#[test]
fn the_oldest_segments_are_removed_past_retain_bytes() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, small());
    let (mut writer, _) = directory.stream("s").unwrap();
    fill(&disk, &directory, &mut writer, 500);
    assert!(disk.used() <= 20_000 + 4096, "{}", disk.used());
    assert!(disk.used() > 12_000, "no more was removed than need be: {}", disk.used());
    assert!(notices(&mut writer).iter().any(|each| matches!(each, BackgroundNotice::Removed { .. })));
    assert!(stream(&disk, "s").verify().unwrap().problems.is_empty());
}

#[test]
fn retain_bytes_counts_all_streams_and_removes_the_oldest_first() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, small());
    let (mut old, _) = directory.stream("old").unwrap();
    fill(&disk, &directory, &mut old, 40);
    let (mut new, _) = directory.stream("new").unwrap();
    let before = first_frame(&disk, "old");
    fill(&disk, &directory, &mut new, 30);
    assert!(first_frame(&disk, "old") > before);
    assert_eq!(first_frame(&disk, "new"), 1);
    assert!(disk.used() <= 20_000 + 2 * 4096, "{}", disk.used());
}

#[test]
fn segments_are_removed_past_retain_age() {
    let disk = SimDisk::new(1);
    let age = Some(Duration::from_secs(100));
    let directory = begin(&disk, JournalOptions { retain_bytes: None, retain_age: age, ..small() });
    let (mut writer, _) = directory.stream("s").unwrap();
    fill(&disk, &directory, &mut writer, 1000);
    let first = first_frame(&disk, "s");
    assert!((870..=900).contains(&first), "{first}");
    // Segments of a slow stream end by age, so that they can be removed.
    let mut last = None;
    let mut segments = 0;
    for _ in 0..100 {
        let at = writer.append(b"", disk.pass_time(5 * SECOND)).unwrap();
        segments += u64::from(last.replace(at.segment) != Some(at.segment));
    }
    assert!((25..=60).contains(&segments), "{segments} segments in 500 s, at most an eighth of 100 s each");
}

#[test]
fn a_segment_with_a_row_of_a_live_request_stays() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, small());
    let (mut writer, _) = directory.stream("s").unwrap();
    fill(&disk, &directory, &mut writer, 50);
    let live = writer.open("live");
    let first = step(&mut writer, &[live], b"first", disk.pass_time(SECOND));
    fill(&disk, &directory, &mut writer, 300);
    let kept = first_frame(&disk, "s");
    assert!(kept <= first.0 && first.0 - kept < 12, "{kept} is kept, {first} is needed");
    assert!(
        notices(&mut writer)
            .iter()
            .any(|each| matches!(each, BackgroundNotice::OverBudget { limit: 20_000, .. }))
    );
    assert_eq!(stream(&disk, "s").lives("live").unwrap()[0].rows.len(), 1);

    last_step(&mut writer, &[live], 2, disk.pass_time(SECOND));
    fill(&disk, &directory, &mut writer, 1);
    assert!(first_frame(&disk, "s") > first.0 + 200);
    assert!(disk.used() <= 20_000 + 4096);
}

#[test]
fn an_abandoned_request_keeps_no_segments_until_it_has_a_row_again() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, JournalOptions { abandon_after: Duration::from_secs(60), ..small() });
    let (mut writer, _) = directory.stream("s").unwrap();
    let idle = writer.open("idle");
    let first = step(&mut writer, &[idle], b"first", disk.pass_time(SECOND));
    fill(&disk, &directory, &mut writer, 50);
    assert_eq!(first_frame(&disk, "s"), first.0);
    fill(&disk, &directory, &mut writer, 100);
    assert!(first_frame(&disk, "s") > first.0);
    let state = |state| {
        stream(&disk, "s")
            .requests(RequestFilter { state: Some(state), ..RequestFilter::default() })
            .unwrap()
            .count()
    };
    assert_eq!((state(RequestState::Abandoned), state(RequestState::Live)), (1, 0));

    let back = step(&mut writer, &[idle], b"back", disk.pass_time(SECOND));
    writer.flush().unwrap();
    assert_eq!((state(RequestState::Abandoned), state(RequestState::Live)), (0, 1));
    fill(&disk, &directory, &mut writer, 50);
    assert!(first_frame(&disk, "s") <= back.0);
    assert_eq!(stream(&disk, "s").lives("idle").unwrap()[0].request.rows, 2);
}

#[test]
fn retained_frames_and_frames_without_an_outcome_stay() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, small());
    let (mut writer, _) = directory.stream("s").unwrap();
    fill(&disk, &directory, &mut writer, 100);
    let waits = writer.append(b"waits", disk.pass_time(SECOND)).unwrap();
    writer.keep_from(Some(waits.frame));
    writer.outcome(&plain_outcome(waits.frame, &[], &[]));
    fill(&disk, &directory, &mut writer, 200);
    assert_eq!(directory.reader("s").unwrap().frame(&waits).unwrap().bytes, b"waits");
    let unfinished = writer.append(b"unfinished", disk.pass_time(SECOND)).unwrap();
    writer.keep_from(None);
    fill(&disk, &directory, &mut writer, 200);
    assert!(matches!(directory.reader("s").unwrap().frame(&waits), Err(ReadError::NoFrame { .. })));
    assert_eq!(directory.reader("s").unwrap().frame(&unfinished).unwrap().bytes, b"unfinished");
}

#[test]
fn a_request_whose_first_row_was_not_accounted_before_a_kill_is_live_at_the_next_start() {
    let disk = SimDisk::new(1);
    let an_hour = JournalOptions { abandon_after: Duration::from_secs(3600), ..small() };
    let directory = begin(&disk, an_hour.clone());
    let (mut writer, _) = directory.stream("s").unwrap();
    let now = disk.pass_time(u64::pow(10, 18));
    writer.append(b"a frame", now).unwrap();
    let request = writer.open("r");
    writer.flush().unwrap();
    disk.kill();
    drop((directory, writer));
    let directory = begin(&disk, an_hour);
    let (mut writer, recovered) = directory.stream("s").unwrap();
    let live: Vec<_> = recovered.live.iter().map(|live| (live.request.number(), &*live.info.rid)).collect();
    assert_eq!(live, [(request.number(), "r")]);
    last_step(&mut writer, &[recovered.live[0].request], 1, now);
    writer.finish().unwrap();
    assert_eq!(stream(&disk, "s").lives("r").unwrap().len(), 1, "it is no second request");
}

#[test]
fn a_stream_without_a_writer_keeps_only_its_last_segment_after_abandon_after() {
    let disk = SimDisk::new(1);
    let an_hour = || JournalOptions { abandon_after: Duration::from_secs(3600), ..small() };
    let directory = begin(&disk, an_hour());
    let (mut writer, _) = directory.stream("old").unwrap();
    let live = writer.open("live");
    step(&mut writer, &[live], b"", disk.pass_time(SECOND));
    fill(&disk, &directory, &mut writer, 60);
    drop(writer);
    let (mut other, _) = directory.stream("other").unwrap();
    fill(&disk, &directory, &mut other, 20);
    assert_eq!(first_frame(&disk, "old"), 1);
    disk.pass_time(3700 * SECOND);
    fill(&disk, &directory, &mut other, 60);
    assert!(first_frame(&disk, "old") > 50);
    drop(other);
    // Numbers continue.
    let (mut writer, recovered) = directory.stream("old").unwrap();
    assert_eq!(recovered.last_frame, FrameNo(61));
    assert!(recovered.live.is_empty(), "idle for too long");
    assert_eq!(writer.append(b"", 1).unwrap().frame, FrameNo(62));
}

#[test]
fn a_restart_keeps_the_segments_of_live_requests() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, small());
    let (mut writer, _) = directory.stream("s").unwrap();
    let live = writer.open("live");
    let first = step(&mut writer, &[live], b"first", disk.pass_time(SECOND));
    fill(&disk, &directory, &mut writer, 100);
    writer.finish().unwrap();
    let (mut writer, recovered) = directory.stream("s").unwrap();
    fill(&disk, &directory, &mut writer, 100);
    assert_eq!(first_frame(&disk, "s"), first.0);
    writer.close(recovered.live[0].request);
    fill(&disk, &directory, &mut writer, 20);
    assert!(first_frame(&disk, "s") > 100);
}
