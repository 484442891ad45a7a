//! Tests bytes that the real SGLang wrote (`tests/fixtures/make.py`).

use std::time::Duration;

use afterbay_scheduler::signals::{Freshness, LoadReader, LoadValues, SourceChange};

use crate::stage::{fixture, of_file, until, until_notice};

/// Longer than the age of the fixtures, which are from 2023: they are never stale here.
const AGES: Duration = Duration::from_secs(100 * 365 * 86_400);

fn values() -> LoadValues {
    LoadValues { running: Some(100), waiting: Some(7), kv_cache_usage: Some(0.4) }
}

#[test]
fn sglangs_file_has_the_values_that_it_was_given_for_each_rank() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    std::fs::write(&path, fixture("load-snapshot-two-ranks.shm")).unwrap();
    for rank in [0, 1] {
        let mut config = of_file(&path);
        (config.dp_rank, config.stale_after) = (rank, AGES);
        let reader = LoadReader::start(config).unwrap();
        let read = until(&reader.handle(), "a reading", |load| load.freshness == Freshness::Fresh);
        let mut expected = values();
        if rank == 1 {
            expected.running = Some(101);
        }
        assert_eq!(read.values, expected);
        assert_eq!(read.timestamp_unix_ns, Some(1_700_000_000_250_000_000));
    }
}

#[test]
fn the_file_of_a_dead_server_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    std::fs::write(&path, fixture("load-snapshot-two-ranks.shm")).unwrap();
    let reader = LoadReader::start(of_file(&path)).unwrap();
    let load = reader.handle();
    let read = until(&load, "a reading", |it| {
        assert_eq!(it.fresh(), None);
        it.freshness == Freshness::Stale
    });
    assert_eq!(read.values, values());
    assert!(read.age().unwrap() > Duration::from_secs(86_400));
    let notices = until_notice(&reader, "stale", |change| matches!(change, SourceChange::Stale { .. }));
    assert_eq!(notices[0].change, SourceChange::Found);
}

#[test]
fn a_file_before_the_first_measurement_gives_no_reading() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    std::fs::write(&path, fixture("load-snapshot-not-measured.shm")).unwrap();
    let reader = LoadReader::start(of_file(&path)).unwrap();
    let notices = until_notice(&reader, "lost", |change| matches!(change, SourceChange::Lost { .. }));
    assert_eq!(
        notices[0].change,
        SourceChange::Lost { why: "the scheduler has not measured yet".to_owned() }
    );
    assert_eq!(reader.handle().read().freshness, Freshness::Never);
}
