//! Tests several sources at once: the priority of their values, and the behaviour when one stops.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterbay_scheduler::signals::{Error, Field, Freshness, LoadConfig, LoadHandle, LoadReader, SourceKind};
use serde_json::json;

use crate::stage::{ShmFile, of_file, unix_now, until};

const BODY: &str =
    "sglang:num_running_reqs 50\nsglang:num_retracted_requests_total 4\nsglang:gen_throughput 9.5\n";

/// A server that answers with [`BODY`] until it is made silent.
fn server() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let silent = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let silent = Arc::clone(&silent);
        move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 1024]);
                if !silent.load(Ordering::Relaxed) {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
                    let _ = stream.write_all(head.as_bytes());
                }
            }
        }
    });
    (url, silent)
}

#[test]
fn a_scrape_fills_the_fields_that_the_file_lacks_and_replaces_a_stale_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let (url, silent) = server();
    let config = LoadConfig {
        metrics: Some(url),
        metrics_every: Duration::from_millis(50),
        stale_after: Duration::from_secs(3),
        ..of_file(&path)
    };
    let reader = LoadReader::start(config).unwrap();
    let load = reader.handle();
    let alone = until(&load, "the scrape alone", |load| load.freshness == Freshness::Fresh);
    assert_eq!((alone.source, alone.values.num_running_reqs), (Some(SourceKind::Metrics), Some(50)));

    let file = ShmFile::create(&path, 1);
    file.write(0, &json!({"timestamp": unix_now(), "num_running_reqs": 60}));
    // Newer scrapes do not replace the file's values.
    let both = until(&load, "both", |load| load.values.num_running_reqs == Some(60));
    assert_eq!(both.source, Some(SourceKind::LoadSnapshot));
    assert_eq!(both.source_of(Field::NumRunningReqs), Some(SourceKind::LoadSnapshot));
    assert_eq!(both.source_of(Field::GenThroughput), Some(SourceKind::Metrics));
    assert_eq!((both.values.gen_throughput, both.values.num_retracted_requests_total), (Some(9.5), Some(4)));
    assert!(both.sources.load_snapshot.unwrap().is_fresh && both.sources.metrics.unwrap().is_fresh);
    assert_eq!(both.sources.load_stat, None);

    let over = until(&load, "the scrape takes over", |load| load.source == Some(SourceKind::Metrics));
    assert_eq!((over.freshness, over.values.num_running_reqs), (Freshness::Fresh, Some(50)));
    assert_eq!(over.values.num_waiting_reqs, None, "a stale source gives nothing while another is fresh");
    assert!(!over.sources.load_snapshot.unwrap().is_fresh);

    silent.store(true, Ordering::Relaxed);
    let stale = until(&load, "all stale", |load| load.freshness == Freshness::Stale);
    assert_eq!((stale.fresh(), stale.values.num_waiting_reqs), (None, Some(0)), "the last known values stay");
}

#[test]
fn a_snapshot_is_json_with_values_ages_and_freshness() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    ShmFile::create(&path, 1).running(3);
    let reader = LoadReader::start(of_file(&path)).unwrap();
    let read = until(&reader.handle(), "a reading", |load| load.freshness == Freshness::Fresh);
    let text = serde_json::to_value(read).unwrap();
    assert_eq!((&text["freshness"], &text["source"]), (&json!("fresh"), &json!("load_snapshot")));
    assert_eq!((&text["num_running_reqs"], &text["gen_throughput"]), (&json!(3), &json!(null)));
    assert!(text["age_ns"].is_u64() && text["sources"]["load_snapshot"]["is_fresh"] == json!(true), "{text}");
    let sources = serde_json::to_value(reader.sources()).unwrap();
    assert_eq!((&sources[0]["source"], &sources[0]["state"]), (&json!("load_snapshot"), &json!("fresh")));
}

#[test]
fn the_handles_of_a_dropped_reader_become_stale() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loads.shm");
    let file = ShmFile::create(&path, 1);
    file.running(3);
    let mut config = of_file(&path);
    config.stale_after = Duration::from_millis(500);
    let reader = LoadReader::start(config).unwrap();
    let load = reader.handle();
    until(&load, "a reading", |load| load.freshness == Freshness::Fresh);
    drop(reader);
    file.running(4);
    let read = until(&load, "stale", |load| load.freshness == Freshness::Stale);
    assert_eq!(read.values.num_running_reqs, Some(3));
}

#[test]
fn without_a_source_no_reader_starts_and_a_default_handle_has_no_values() {
    assert!(matches!(LoadReader::start(LoadConfig::default()), Err(Error::NoSource)));
    let read = LoadHandle::default().read();
    assert_eq!((read.freshness, read.source, read.fresh()), (Freshness::Never, None, None));
}
