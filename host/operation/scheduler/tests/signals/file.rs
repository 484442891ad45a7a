//! Tests bad LoadSnapshot files: torn, replaced, garbage, stale, missing, of another rank.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afterbay_scheduler::signals::{Freshness, LoadConfig, LoadReader, SourceChange, SourceState};
use serde_json::json;

use crate::stage::{SLOT, ShmFile, of_file, unix_now, until, until_invalid, until_notice, until_running};

#[test]
fn a_file_that_appears_later_is_found_and_changes_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let reader = LoadReader::start(of_file(&path)).unwrap();
    let load = reader.handle();
    let lost = until_notice(&reader, "lost", |change| matches!(change, SourceChange::Lost { .. }));
    assert_eq!(lost[0].change, SourceChange::Lost { why: "does not exist".to_owned() });
    assert_eq!((load.read().freshness, load.read().fresh()), (Freshness::Never, None));
    let file = ShmFile::create(&path, 1);
    file.running(3);
    let read = until_running(&load, 3);
    assert_eq!(read.fresh().unwrap().waiting, Some(0));
    until_notice(&reader, "found", |change| *change == SourceChange::Found);
    file.running(4);
    until_running(&load, 4);
    assert_eq!(reader.source().unwrap().state, SourceState::Fresh);
}

#[test]
fn a_replaced_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let old = ShmFile::create(&path, 1);
    old.running(1);
    let reader = LoadReader::start(of_file(&path)).unwrap();
    until_running(&reader.handle(), 1);
    let new = dir.path().join("new");
    ShmFile::create(&new, 2).running(2);
    std::fs::rename(&new, &path).unwrap();
    until_running(&reader.handle(), 2);
    old.running(3);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(reader.handle().read().values.running, Some(2));
}

#[test]
fn an_unlinked_file_is_read_until_it_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 1);
    file.running(1);
    let mut config = of_file(&path);
    config.stale_after = Duration::from_secs(1);
    let reader = LoadReader::start(config).unwrap();
    until_running(&reader.handle(), 1);
    std::fs::remove_file(&path).unwrap();
    file.running(2);
    until_running(&reader.handle(), 2);
    until_notice(&reader, "lost", |change| matches!(change, SourceChange::Lost { .. }));
    ShmFile::create(&path, 1).running(5);
    assert_eq!(until_running(&reader.handle(), 5).freshness, Freshness::Fresh);
}

#[test]
fn a_reading_is_stale_after_its_time_and_fresh_with_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 1);
    file.running(8);
    let mut config = of_file(&path);
    config.stale_after = Duration::from_secs(1);
    let reader = LoadReader::start(config).unwrap();
    let load = reader.handle();
    let read = until(&load, "stale", |load| load.freshness == Freshness::Stale);
    assert_eq!((read.fresh(), read.values.running), (None, Some(8)));
    assert!(read.age_ns.unwrap() > 1_000_000_000, "{read:?}");
    until_notice(&reader, "stale", |change| matches!(change, SourceChange::Stale { .. }));
    file.running(9);
    let read = until(&load, "fresh", |load| load.freshness == Freshness::Fresh);
    assert_eq!(read.values.running, Some(9));
    until_notice(&reader, "fresh", |change| *change == SourceChange::Fresh);
    // A read in the future sees its age at that time.
    let later = load.read_at(Instant::now() + Duration::from_secs(60));
    assert_eq!((later.freshness, later.fresh()), (Freshness::Stale, None));
    assert!(later.age().unwrap() >= Duration::from_secs(59));
}

#[test]
fn a_timestamp_ahead_of_our_clock_becomes_stale_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 1);
    file.write(0, &json!({"timestamp": unix_now() + 3600.0, "num_running_reqs": 1}));
    let mut config = of_file(&path);
    config.stale_after = Duration::from_millis(100);
    let reader = LoadReader::start(config).unwrap();
    until(&reader.handle(), "stale", |load| load.freshness == Freshness::Stale);
}

#[test]
fn torn_writes_are_never_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 1);
    file.running(1);
    let mut config = of_file(&path);
    config.load_snapshot_every = Duration::from_micros(200);
    let reader = LoadReader::start(config).unwrap();
    let load = reader.handle();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each payload repeats one number. All have the same length and are written in three pieces with
            // pauses.
            for n in (1..10u64).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                let n = n * 1_000_000_000;
                let map = json!({
                    "timestamp": unix_now(), "num_running_reqs": n, "num_waiting_reqs": n, "pad": "x".repeat(4096),
                    "token_usage": n as f64,
                });
                let payload = rmp_serde::to_vec(&map).unwrap();
                file.0.write_all_at(&[0; 4], 12).unwrap();
                let half = payload.len() / 2;
                file.0.write_all_at(&payload[..half], 16).unwrap();
                file.0.write_all_at(&payload[half..], 16 + half as u64).unwrap();
                file.0.write_all_at(&(payload.len() as u32).to_le_bytes(), 12).unwrap();
                if n % 2_000_000_000 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let (start, mut seen, mut last) = (Instant::now(), 0, None);
        while seen < 300 && start.elapsed() < Duration::from_secs(60) {
            let read = load.read();
            let values = read.values;
            if values.running != Some(1) {
                assert_eq!(values.waiting, values.running);
                assert_eq!(values.kv_cache_usage, values.running.map(|n| n as f64));
                if last != read.timestamp_unix_ns {
                    (seen, last) = (seen + 1, read.timestamp_unix_ns);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(seen >= 10, "{seen} readings beside the writer");
    });
    let notices = reader.notices();
    assert!(
        !notices.iter().any(|notice| matches!(notice.change, SourceChange::Invalid { .. })),
        "{notices:?}"
    );
}

#[test]
fn a_writer_that_died_in_the_middle_of_a_write_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 1);
    file.running(1);
    file.0.write_all_at(&[0; 4], 12).unwrap();
    let reader = LoadReader::start(of_file(&path)).unwrap();
    let is_stopped = |change: &SourceChange| matches!(change, SourceChange::Lost { why } if why.contains("its writer has stopped"));
    until_notice(&reader, "a stopped writer", is_stopped);
    file.running(2);
    until_running(&reader.handle(), 2);
}

#[test]
fn an_invalid_file_is_refused_with_the_value_and_the_expected_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 2);
    let reader = LoadReader::start(of_file(&path)).unwrap();
    let slot = SLOT as u32;
    // Failures of one kind give at most one notice a second.
    file.header(b"ELF\x7f", 2, 2, slot);
    until_invalid(&reader, "the magic is \"ELF\\x7f\", expected \"SLNS\"");
    file.header(b"SLNS", 3, 2, slot);
    until_invalid(&reader, "the version is 3, expected 2");
    file.header(b"SLNS", 2, 2, 3);
    until_invalid(&reader, "the slot size is 3, expected 5 to 65536");
    file.header(b"SLNS", 2, 0, slot);
    until_invalid(&reader, "it has 0 dp ranks, expected more than rank 0");
    file.header(b"SLNS", 2, 2, slot);
    file.0.write_all_at(&9_999_999u32.to_le_bytes(), 12).unwrap();
    until_invalid(&reader, "the payload's length is 9999999, at most 16380");
    file.payload(0, &[0xff; 100]);
    until_invalid(&reader, "the payload begins with 0xff, expected a msgpack map");
    file.write(0, &json!({"timestamp": unix_now(), "dp_rank": 1}));
    until_invalid(&reader, "the slot is of dp rank 1, expected 0");
    file.0.set_len(100).unwrap();
    until_invalid(&reader, "it has 100 bytes, expected 16396 for rank 0");
    file.0.set_len(7).unwrap();
    until_invalid(&reader, "it has 7 bytes, expected a header of 12");
    assert_eq!(reader.handle().read().freshness, Freshness::Never);
    assert_eq!(reader.source().unwrap().state, SourceState::Invalid);
    // The reader recovers.
    ShmFile::create(&path, 1).running(6);
    until_running(&reader.handle(), 6);
}

#[test]
fn a_rank_beyond_the_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    ShmFile::create(&path, 2).running(1);
    let reader = LoadReader::start(LoadConfig { dp_rank: 2, ..of_file(&path) }).unwrap();
    until_invalid(&reader, "it has 2 dp ranks, expected more than rank 2");
}

#[test]
fn a_pipe_at_the_path_of_the_file_does_not_block_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let reader = LoadReader::start(of_file(&path)).unwrap();
    until_invalid(&reader, "it is not a regular file");
    let start = Instant::now();
    drop(reader);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_reader_follows_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    ShmFile::create(&one, 1).running(1);
    let reader = LoadReader::start(of_file(&one)).unwrap();
    let load = reader.handle();
    until_running(&load, 1);
    reader.follow(two.clone());
    until(&load, "no reading", |load| load.freshness == Freshness::Never);
    ShmFile::create(&two, 1).running(2);
    until_running(&load, 2);
    assert_eq!(reader.source().unwrap().name, two.display().to_string());
}
