//! Segments that followers need: what retention keeps for them, the end of segments in time, and the journal's identity.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::*;

const SECOND: u64 = 1_000_000_000;
const LIMIT: u64 = 20_000;
const LIMIT_AND_TWO_SEGMENTS: usize = 20_000 + 2 * 4096;

fn archive() -> Follower {
    Follower { name: "archive", copy: "s3://tokens".into(), needs_ended_segments: true }
}

/// The places that another process confirms.
struct Hold(SimDisk);

impl Hold {
    fn confirm(&self, stream: &str, oldest_needed: SegmentId) {
        let mut confirmed = Confirmed::read(&self.0, Path::new(DIR), &archive()).unwrap();
        confirmed.confirm(stream, oldest_needed);
        confirmed.write(&self.0, Path::new(DIR), &archive()).unwrap();
    }
}

fn held() -> JournalOptions {
    JournalOptions { segment_bytes: 4096, retain_bytes: Some(LIMIT), followers: vec![archive()], ..options() }
}

fn begin(disk: &SimDisk, options: JournalOptions) -> JournalDirectory {
    JournalDirectory::open_on(disk.process(), Path::new(DIR), options, Background::Caller).unwrap()
}

fn stream(disk: &SimDisk) -> StreamReader {
    JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap().stream("s").unwrap()
}

fn segments(disk: &SimDisk) -> Vec<SegmentId> {
    stream(disk).segments().unwrap()
}

fn notices(writer: &mut JournalWriter) -> Vec<BackgroundNotice> {
    std::iter::from_fn(|| writer.next_notice()).collect()
}

/// Appends a frame of 400 bytes without rows, and lets the background threads work.
fn append(
    disk: &SimDisk,
    directory: &JournalDirectory,
    writer: &mut JournalWriter,
) -> Result<Position, WriteError> {
    let at = writer.append(&[1; 400], disk.pass_time(SECOND))?;
    writer.outcome(&plain_outcome(at.frame, &[], &[]));
    writer.flush().unwrap();
    writer.tend();
    directory.tend();
    Ok(at)
}

#[test]
fn at_the_limit_unconfirmed_segments_stay_and_frames_are_refused_until_the_follower_confirms() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, held());
    let (mut writer, _) = directory.stream("s").unwrap();
    let refused = (0..200).find_map(|_| append(&disk, &directory, &mut writer).err()).unwrap();
    let WriteError::HeldBack(HeldBack { bytes, limit: LIMIT, followers }) = refused else {
        panic!("{refused}")
    };
    assert!(bytes > LIMIT && disk.used() < LIMIT_AND_TWO_SEGMENTS, "{bytes} of {}", disk.used());
    assert_eq!(followers, "archive");
    let before = segments(&disk);
    assert_eq!(before[0].first, FrameNo(1), "nothing was removed");
    assert!(writer.append(b"refused", disk.pass_time(SECOND)).is_err());

    // The follower needs the fourth segment and all later ones.
    let hold = Hold(disk.clone());
    hold.confirm("s", before[3]);
    directory.tend();
    assert!(append(&disk, &directory, &mut writer).is_ok());
    assert!(segments(&disk)[0] > before[0] && segments(&disk).contains(&before[3]));
    assert!(
        notices(&mut writer).iter().all(|each| !matches!(each, BackgroundNotice::RemovedUnconfirmed { .. }))
    );
}

#[test]
fn confirmed_places_outlive_both_processes_and_a_stream_or_a_copy_without_one_is_held_whole() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, JournalOptions { retain_bytes: None, ..held() });
    let (mut writer, _) = directory.stream("s").unwrap();
    for _ in 0..100 {
        append(&disk, &directory, &mut writer).unwrap();
    }
    let all = segments(&disk);
    let hold = Hold(disk.clone());
    hold.confirm("other", *all.last().unwrap());
    drop(writer);
    drop(directory);
    disk.cut_power();
    let full = || JournalOptions { retain_bytes: Some(1), abandon_after: Duration::ZERO, ..held() };
    let directory = begin(&disk, full());
    disk.pass_time(SECOND);
    directory.tend();
    assert_eq!(segments(&disk), all, "the stream has no place");
    hold.confirm("s", all[5]);
    directory.set_followers(vec![Follower { copy: "s3://other".into(), ..archive() }]);
    directory.tend();
    assert_eq!(segments(&disk), all, "another copy has no place");
    directory.set_followers(vec![archive()]);
    directory.tend();
    assert_eq!(segments(&disk), all[5..]);
}

#[test]
fn with_removes_unconfirmed_the_oldest_go_and_the_notice_names_the_follower() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, JournalOptions { removes_unconfirmed: true, ..held() });
    let (mut writer, _) = directory.stream("s").unwrap();
    let mut first = None;
    for _ in 0..100 {
        first = first.or(Some(append(&disk, &directory, &mut writer).unwrap().segment));
    }
    assert!(disk.used() <= LIMIT_AND_TWO_SEGMENTS, "{}", disk.used());
    let lost = notices(&mut writer).into_iter().filter_map(|each| match each {
        BackgroundNotice::RemovedUnconfirmed { followers, segment, .. } => Some((followers, segment)),
        BackgroundNotice::Removed { .. } => panic!("{each:?}"),
        _ => None,
    });
    let lost: Vec<_> = lost.collect();
    assert!(lost.len() > 3 && lost.iter().all(|(followers, _)| followers == "archive"), "{lost:?}");
    assert_eq!(lost.first().map(|(_, segment)| *segment), first);
    assert!(lost.last().unwrap().1 < segments(&disk)[0]);
}

#[test]
fn confirmed_segments_go_before_unconfirmed_ones_of_another_stream() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, JournalOptions { removes_unconfirmed: true, ..held() });
    let hold = Hold(disk.clone());
    let (mut writer, _) = directory.stream("s").unwrap();
    let (mut newer, _) = directory.stream("newer").unwrap();
    for _ in 0..20 {
        append(&disk, &directory, &mut writer).unwrap();
    }
    let all = segments(&disk);
    hold.confirm("newer", SegmentId { first: FrameNo(u64::MAX), sequence: u32::MAX });
    for _ in 0..60 {
        append(&disk, &directory, &mut newer).unwrap();
    }
    assert_eq!(segments(&disk), all);
}

#[test]
fn an_unconfirmed_segment_older_than_retain_age_stays() {
    let disk = SimDisk::new(1);
    let retain_age = Some(Duration::from_secs(100));
    let directory = begin(&disk, JournalOptions { retain_bytes: None, retain_age, ..held() });
    let hold = Hold(disk.clone());
    let (mut writer, _) = directory.stream("s").unwrap();
    for _ in 0..300 {
        append(&disk, &directory, &mut writer).unwrap();
    }
    let all = segments(&disk);
    assert_eq!(all[0].first, FrameNo(1));
    hold.confirm("s", *all.last().unwrap());
    directory.tend();
    assert!(segments(&disk)[0].first > FrameNo(150));
}

#[test]
fn a_follower_that_the_configuration_no_longer_names_holds_nothing() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, held());
    let (mut writer, _) = directory.stream("s").unwrap();
    while append(&disk, &directory, &mut writer).is_ok() {}
    directory.set_followers(Vec::new());
    directory.tend();
    assert!(append(&disk, &directory, &mut writer).is_ok());
}

#[test]
fn a_segment_ends_after_ten_minutes_also_if_the_stream_is_idle() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, JournalOptions { segment_bytes: 1 << 20, ..held() });
    let (mut writer, _) = directory.stream("s").unwrap();
    append(&disk, &directory, &mut writer).unwrap();
    let idle = |seconds: u64, writer: &mut JournalWriter| {
        for _ in 0..seconds {
            disk.pass_time(SECOND);
            directory.tend();
            if writer.is_to_end() {
                writer.flush().unwrap();
            }
        }
        writer.tend();
        (segments(&disk).len(), stream(&disk).ended_segments().unwrap().len())
    };
    assert_eq!(idle(590, &mut writer), (1, 0));
    assert_eq!(idle(20, &mut writer), (2, 1), "the next segment is begun");
    assert_eq!(idle(3000, &mut writer), (2, 1), "an empty segment does not end");
    append(&disk, &directory, &mut writer).unwrap();
    assert_eq!(idle(500, &mut writer), (2, 1), "the ten minutes begin with its first record");
    assert_eq!(idle(110, &mut writer), (3, 2));
    writer.finish().unwrap();
    assert_eq!(stream(&disk).ended_segments().unwrap().len(), 3, "a sealed segment has ended");
}

#[test]
fn without_such_a_follower_segments_do_not_end_in_time() {
    let disk = SimDisk::new(1);
    let follower = Follower { needs_ended_segments: false, ..archive() };
    let directory = begin(&disk, JournalOptions { followers: vec![follower], ..held() });
    let (mut writer, _) = directory.stream("s").unwrap();
    append(&disk, &directory, &mut writer).unwrap();
    disk.pass_time(3600 * SECOND);
    directory.tend();
    assert!(!writer.is_to_end());
}

#[test]
fn the_instance_of_a_journal_is_made_once_and_readers_see_it() {
    let disk = SimDisk::new(1);
    let directory = begin(&disk, options());
    let instance = directory.instance().unwrap();
    let digits = instance.rsplit_once('-').unwrap().1;
    assert!(digits.len() == 8 && u32::from_str_radix(digits, 16).is_ok(), "{instance}");
    drop(directory);
    disk.cut_power();
    let directory = begin(&disk, options());
    assert_eq!(directory.instance().unwrap(), instance);
    let reader = JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap();
    assert_eq!(reader.instance().unwrap(), Some(instance));
    assert_eq!(reader.streams().unwrap(), Vec::<String>::new());
}

#[test]
fn a_journal_knows_who_has_ever_followed_it() {
    let disk = SimDisk::new(1);
    let reader = || JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap();
    let directory = begin(&disk, options());
    assert!(reader().followers().unwrap().is_empty());
    drop(directory);
    for name in ["replicate", "archive"] {
        let follower = Follower { name, ..archive() };
        let mut confirmed = Confirmed::default();
        confirmed.confirm("s", SegmentId::default());
        confirmed.write(&disk, Path::new(DIR), &follower).unwrap();
    }
    assert_eq!(reader().followers().unwrap(), ["archive", "replicate"]);
}

#[test]
fn a_file_instance_with_another_text_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("INSTANCE"), "node.7\n").unwrap();
    let error = JournalDirectory::open(dir.path(), options()).err().unwrap().to_string();
    assert!(
        error.contains("INSTANCE") && error.contains("\"node.7\"") && error.contains("1 to 64 bytes"),
        "{error}"
    );
}
