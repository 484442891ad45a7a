//! A disk that fails, fills up or vanishes: the errors that a stream gets, and how the journal recovers.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::disk::{Faults, SimDisk};
use crate::support::*;
use afterbay_journal::reader::{ReadFrom, StreamReader};
use afterbay_journal::storage::{Disk, File, Storage};
use afterbay_journal::*;
use afterbay_sim_disk::AlmostDisk;

fn numbers(stream: &StreamReader) -> Vec<u64> {
    stream.frames(ReadFrom::Start).unwrap().map(|frame| frame.unwrap().0.position.frame.0).collect()
}

fn notices(writer: &mut JournalWriter) -> Vec<BackgroundNotice> {
    std::iter::from_fn(|| writer.next_notice()).collect()
}

#[test]
fn a_full_disk_refuses_a_frame_whole_and_takes_it_when_there_is_room() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let request = writer.open("r");
    step(&mut writer, &[request], b"fits", 1);
    disk.set_capacity(disk.used() + 100);
    for _ in 0..3 {
        let error = writer.append(&[1; 400], 2).unwrap_err();
        let WriteError::Io(error) = error else { panic!("{error}") };
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        assert!(
            error.to_string().contains("/journal/s/00000000000000000001-0000000000.seg: write: "),
            "{error}"
        );
        assert!(!writer.is_healthy());
        assert_eq!(numbers(&stream(&disk)), [1]);
    }
    disk.set_capacity(usize::MAX);
    assert_eq!(step(&mut writer, &[request], &[1; 400], 2), FrameNo(2));
    assert!(writer.is_healthy());
    writer.flush().unwrap();
    let report = stream(&disk).verify().unwrap();
    assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
    assert_eq!((report.frames, report.outcomes, report.rows, report.requests), (2, 2, 2, 1));
}

#[test]
fn flush_finds_that_the_disk_has_recovered() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    step(&mut writer, &[], b"fits", 1);
    writer.flush().unwrap();
    disk.set_capacity(disk.used());
    writer.append(b"does not", 2).unwrap_err();
    writer.flush().unwrap_err();
    assert!(!writer.is_healthy());
    disk.set_capacity(usize::MAX);
    writer.flush().unwrap();
    assert!(writer.is_healthy());
    assert_eq!(numbers(&stream(&disk)), [1]);
}

#[test]
fn frames_forwarded_without_being_stored_are_recorded_as_skipped() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let request = writer.open("r");
    step(&mut writer, &[request], b"kept", 1);
    disk.set_capacity(disk.used());
    for ns in 2..5 {
        writer.append(b"not kept", ns).unwrap_err();
        let frame = writer.skipped(1, ns);
        assert_eq!(frame.0, ns);
        writer.outcome(&plain_outcome(frame, &[request], &[1]));
    }
    disk.set_capacity(usize::MAX);
    assert_eq!(last_step(&mut writer, &[request], 5, 5), FrameNo(5));
    writer.flush().unwrap();
    let stream = stream(&disk);
    assert_eq!(numbers(&stream), [1, 5]);
    let report = stream.verify().unwrap();
    // The request's token count is right, because the outcomes of skipped frames are stored.
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.notes, [VerifyNote::Skipped { from: FrameNo(2), count: 3 }]);
    assert_eq!(
        report.notes[0].to_string(),
        "3 frames from 2 on were forwarded without being stored, as on_error says"
    );
    let rows = &stream.lives("r").unwrap()[0].rows;
    let kept: Vec<bool> = rows.iter().map(|row| row.position.is_some()).collect();
    assert_eq!(kept, [true, false, false, false, true]);
}

#[test]
fn outcomes_past_the_bound_are_counted_and_totals_stay_right() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let request = writer.open("r");
    let other = writer.open("other");
    let mut rows = vec![other; 99_999];
    rows.push(request);
    let tokens = vec![1; rows.len()];
    writer.append(b"first", 1).unwrap();
    disk.set_capacity(disk.used());
    let kept = bounds::PENDING_BYTES_MAX.div_ceil(400_000) as u64;
    for ns in 2..kept + 4 {
        let frame = writer.skipped(1, ns);
        writer.outcome(&plain_outcome(frame, &rows, &tokens));
    }
    // Outcomes after the bound are counted too.
    let unseen = writer.open("unseen");
    disk.set_capacity(usize::MAX);
    writer.flush().unwrap();
    let lost = notices(&mut writer).into_iter().find_map(|notice| match notice {
        BackgroundNotice::OutcomesLost { count } => Some(count),
        _ => None,
    });
    assert_eq!(lost, Some(3), "{kept} outcomes fit");
    step(&mut writer, &[unseen], b"on", 40);
    writer.outcome(&plain_outcome(FrameNo(1), &[], &[]));
    writer.flush().unwrap();
    let stream = stream(&disk);
    let info = |rid| stream.lives(rid).unwrap()[0].request.clone();
    assert_eq!((info("r").received, info("unseen").received), (kept + 2, 1));
    let report = stream.verify().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(report.notes.contains(&VerifyNote::OutcomesLost { count: 3 }), "{:?}", report.notes);
}

#[test]
fn a_failed_sync_stops_durability_until_the_segment_is_rewritten() {
    let disk = SimDisk::new(2);
    disk.set_reserves(true);
    let (_directory, mut writer, _) = begin(&disk, JournalOptions { sync: SyncPolicy::Always, ..options() });
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    writer.on_change(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let first = step(&mut writer, &[], b"one", 1);
    writer.tend();
    assert_eq!((writer.durable(), woken.load(Ordering::Relaxed)), (first, 1));
    let second = step(&mut writer, &[], b"two", 2);
    assert_eq!(writer.durable(), first);
    disk.set_faults(Faults { sync: 1, ..Faults::default() });
    writer.tend();
    assert!(
        matches!(&notices(&mut writer)[..], [BackgroundNotice::SyncFailed { durable, .. }] if *durable == first)
    );
    assert!(!writer.is_healthy());
    assert_eq!(woken.load(Ordering::Relaxed), 2);

    // The disk works again: the next write begins a new segment, and the old one is rewritten.
    disk.set_faults(Faults::default());
    writer.tend();
    assert_eq!(writer.durable(), first, "syncing the same file again proves nothing");
    let third = step(&mut writer, &[], b"three", 3);
    writer.tend();
    assert_eq!(writer.durable(), third);
    assert!(writer.is_healthy());
    let told = notices(&mut writer);
    assert!(told.iter().any(|each| matches!(each, BackgroundNotice::Rewritten { .. })), "{told:?}");
    let lost =
        told.iter().any(|each| matches!(each, BackgroundNotice::FramesLost { from, .. } if *from == second));
    let read = numbers(&stream(&disk));
    assert_eq!(read.contains(&second.0), !lost, "what the disk had dropped is told");
    assert!(read.contains(&first.0) && read.contains(&third.0));
}

#[test]
fn a_vanished_directory_is_reported_and_made_again_once_its_root_exists() {
    let disk = SimDisk::new(1);
    disk.set_reserves(true);
    let (directory, mut writer, _) = begin(&disk, options());
    let request = writer.open("r");
    step(&mut writer, &[request], b"one", 1);
    let gone = disk.take_away(Path::new(DIR));
    assert!(!gone.is_empty());
    // Not noticed yet: this goes to a file that nobody can find.
    step(&mut writer, &[request], b"two", 2);
    directory.tend();
    assert!(matches!(&notices(&mut writer)[..], [BackgroundNotice::Vanished { .. }]));
    assert!(!writer.is_healthy());
    for _ in 0..2 {
        let error = writer.append(b"three", 3).unwrap_err();
        assert!(error.to_string().contains("journal /journal/s/"), "{error}");
    }
    // An empty directory in its place, as after a wrong mount was corrected.
    disk.bring_back(&[Path::new(DIR)], Vec::new());
    assert_eq!(step(&mut writer, &[request], b"three", 3), FrameNo(3));
    writer.tend();
    writer.flush().unwrap();
    assert!(writer.is_healthy());
    assert_eq!(numbers(&stream(&disk)), [1, 2, 3], "what had gone to the lost file was written again");
    assert!(stream(&disk).verify().unwrap().problems.is_empty());
    // The new directory is locked too.
    let other = JournalDirectory::open_on(disk.process(), Path::new(DIR), options(), Background::Caller);
    assert!(matches!(other, Err(OpenError::Locked { .. })));
}

#[test]
fn a_directory_that_comes_back_is_used_again() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, options());
    step(&mut writer, &[], b"one", 1);
    let gone = disk.take_away(Path::new(DIR));
    directory.tend();
    writer.append(b"two", 2).unwrap_err();
    disk.bring_back(&[Path::new(DIR), Path::new("/journal/s")], gone);
    step(&mut writer, &[], b"two", 2);
    writer.tend();
    writer.flush().unwrap();
    assert_eq!(numbers(&stream(&disk)), [1, 2]);
    assert!(writer.is_healthy() && stream(&disk).verify().unwrap().problems.is_empty());
}

#[test]
fn waiting_records_are_written_when_the_streams_thread_panics() {
    let dir = tempfile::tempdir().unwrap();
    let directory = JournalDirectory::open(dir.path(), options()).unwrap();
    let (mut writer, _) = directory.stream("s").unwrap();
    let panicked = std::thread::spawn(move || {
        let request = writer.open("r");
        let frame = step(&mut writer, &[request], b"one", 1);
        writer.taken("sink", 0, frame, None, 0);
        panic!("of the test");
    });
    panicked.join().unwrap_err();
    let (_writer, recovered) = directory.stream("s").unwrap();
    assert!(recovered.unfinished.is_empty());
    assert_eq!((recovered.sinks[0].name(), recovered.sinks[0].through()), ("sink", FrameNo(1)));
    assert_eq!(recovered.live.len(), 1);
}

/// The kernel's `/dev/full`.
struct Full(std::fs::File);

impl File for Full {
    fn write_at(&self, parts: &[io::IoSlice<'_>], _offset: u64) -> io::Result<usize> {
        io::Write::write_vectored(&mut &self.0, parts)
    }
    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }
    fn reserve(&self, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn truncate(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn set_modified(&self, _unix_ns: u64) -> io::Result<()> {
        Ok(())
    }
    fn is_at(&self, _path: &Path) -> bool {
        false
    }
}

#[test]
fn the_kernels_full_device_is_an_error_until_it_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let is_full = Arc::new(AtomicBool::new(true));
    let of_disk = is_full.clone();
    let create = move |path: &Path| match of_disk.load(Ordering::Relaxed) {
        true => Ok(Arc::new(Full(std::fs::File::options().write(true).open("/dev/full")?)) as Arc<dyn File>),
        false => Disk.create(path),
    };
    let disk = Arc::new(AlmostDisk { create, has_boot_clock: true });
    let directory = JournalDirectory::open_on(disk, dir.path(), options(), Background::Caller).unwrap();
    let (mut writer, _) = directory.stream("s").unwrap();
    let WriteError::Io(error) = writer.append(b"one", 1).unwrap_err() else { panic!() };
    assert_eq!(error.source.raw_os_error(), Some(28));
    is_full.store(false, Ordering::Relaxed);
    assert_eq!(step(&mut writer, &[], b"one", 1), FrameNo(1));
}

/// A file system of 1 MiB, if this machine lets a test mount one.
struct SmallMount(tempfile::TempDir);

impl SmallMount {
    fn new() -> Option<SmallMount> {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallMount(dir))
    }
}

impl Drop for SmallMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_file_system_that_fills_up_stops_a_stream_until_there_is_room() {
    let Some(mount) = SmallMount::new() else {
        eprintln!("not run: this machine lets no test mount a tmpfs");
        return;
    };
    let dir = mount.0.path();
    let filler = dir.join("filler");
    std::fs::write(&filler, vec![0; 700 << 10]).unwrap();
    let options = JournalOptions { segment_bytes: 64 << 10, ..options() };
    // No thread gives the unused end of a segment back while the disk is full.
    let directory = JournalDirectory::open_on(Arc::new(Disk), dir, options, Background::Caller).unwrap();
    let (mut writer, _) = directory.stream("s").unwrap();
    let mut kept = 0;
    let error = loop {
        match writer.append(&[1; 10_000], kept) {
            Ok(at) => writer.outcome(&plain_outcome(at.frame, &[], &[])),
            Err(error) => break error,
        }
        kept += 1;
        assert!(kept < 1000, "it never fills up");
    };
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert!(writer.append(&[1; 10_000], kept).is_err());
    std::fs::remove_file(&filler).unwrap();
    step(&mut writer, &[], &[1; 10_000], kept);
    writer.finish().unwrap();
    drop(directory);
    let report = reader(dir).verify().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.frames, kept + 1);
}

#[test]
fn frames_become_durable_without_a_call() {
    for sync in [SyncPolicy::Always, SyncPolicy::Interval(Duration::from_millis(5))] {
        let dir = tempfile::tempdir().unwrap();
        let (_directory, mut writer, _) =
            open(dir.path(), JournalOptions { sync, segment_bytes: 8192, ..options() });
        let (wake, woken) = std::sync::mpsc::channel();
        let wake = Mutex::new(wake);
        writer.on_change(Box::new(move || wake.lock().unwrap().send(()).unwrap_or_default()));
        for ns in 1..200 {
            let frame = step(&mut writer, &[], &[2; 500], ns);
            let deadline = Instant::now() + Duration::from_secs(60);
            while ns % 20 == 0 && writer.durable() < frame {
                assert!(Instant::now() < deadline, "frame {frame} is not durable, {}", writer.durable());
                let _ = woken.recv_timeout(Duration::from_secs(1));
            }
        }
        let (last, durable) = (FrameNo(199), writer.durable());
        assert!(durable >= FrameNo(180) && durable <= last);
        writer.finish().unwrap();
    }
}
