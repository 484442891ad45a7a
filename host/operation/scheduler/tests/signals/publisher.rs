//! Tests LoadStat over a real socket: the `zeromq` crate's PUB with SGLang's bytes and with garbage.

use std::time::{Duration, Instant};

use afterbay_scheduler::signals::{Freshness, LoadConfig, LoadReader, SourceChange, SourceKind};
use tokio::runtime::{Builder, Runtime};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use crate::stage::{fixture, until_invalid, until_notice, until_running};

/// A PUB that sends on demand.
struct Publisher {
    runtime: Runtime,
    socket: PubSocket,
}

impl Publisher {
    fn bind(endpoint: &str) -> Publisher {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = runtime.block_on(async {
            let mut socket = PubSocket::new();
            socket.bind(endpoint).await.unwrap();
            socket
        });
        Publisher { runtime, socket }
    }

    fn send(&mut self, frames: &[&[u8]]) {
        let frames: Vec<bytes::Bytes> =
            frames.iter().map(|frame| bytes::Bytes::copy_from_slice(frame)).collect();
        let message = ZmqMessage::try_from(frames).unwrap();
        self.runtime.block_on(self.socket.send(message)).unwrap();
    }

    fn stat(&mut self, seq: i64, running: u64) {
        let stat = ("LoadStat", running, 2, 30, 400, 0, 5, 60, 70, 80, 90);
        self.send(&[b"load", &seq.to_be_bytes(), &rmp_serde::to_vec(&stat).unwrap()]);
    }

    /// Sends until a notice appears, because a PUB drops messages before its subscriber has connected.
    fn until_notice(
        &mut self,
        reader: &LoadReader,
        mut send: impl FnMut(&mut Publisher),
        is: impl Fn(&SourceChange) -> bool,
    ) {
        let start = Instant::now();
        while !reader.notices().iter().any(|notice| is(&notice.change)) {
            assert!(start.elapsed() < Duration::from_secs(60), "no notice within 60 s");
            send(self);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn ipc(dir: &tempfile::TempDir) -> String {
    format!("ipc://{}/load", dir.path().display())
}

fn start(endpoint: &str) -> LoadReader {
    LoadReader::start(LoadConfig { load_stat: Some(endpoint.to_owned()), ..LoadConfig::default() }).unwrap()
}

#[test]
fn sglangs_messages_have_the_values_that_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(&ipc(&dir));
    let reader = start(&ipc(&dir));
    let [one, two] =
        [0, 1].map(|seq| [0, 1, 2].map(|frame| fixture(&format!("load-stat-{seq}.{frame}.bin"))));
    let send = |publisher: &mut Publisher| publisher.send(&one.each_ref().map(Vec::as_slice));
    publisher.until_notice(&reader, send, |change| *change == SourceChange::Found);
    publisher.send(&two.each_ref().map(Vec::as_slice));
    let read = until_running(&reader.handle(), 101);
    assert_eq!((read.freshness, read.source), (Freshness::Fresh, Some(SourceKind::LoadStat)));
    let values = read.values;
    assert_eq!((values.num_waiting_reqs, values.num_waiting_uncached_tokens), (Some(7), Some(1234)));
    assert_eq!((values.num_used_tokens, values.num_total_tokens), (Some(40_000), Some(45_000)));
    assert_eq!((values.max_total_num_tokens, values.max_running_requests), (Some(100_000), Some(2048)));
    assert_eq!((values.token_usage, values.gen_throughput), (None, None));
}

#[test]
fn lost_messages_are_counted_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(&ipc(&dir));
    let reader = start(&ipc(&dir));
    publisher.until_notice(
        &reader,
        |publisher| publisher.stat(10, 1),
        |change| *change == SourceChange::Found,
    );
    publisher.stat(11, 2);
    publisher.stat(15, 3);
    until_running(&reader.handle(), 3);
    until_notice(&reader, "missed", |change| *change == SourceChange::Missed { messages: 3 });
    assert_eq!(reader.sources()[0].missed, 3);
}

#[test]
fn a_restarted_publisher_is_reconnected_and_counts_from_0() {
    let dir = tempfile::tempdir().unwrap();
    let reader = start(&ipc(&dir));
    let mut publisher = Publisher::bind(&ipc(&dir));
    publisher.until_notice(
        &reader,
        |publisher| publisher.stat(500, 1),
        |change| *change == SourceChange::Found,
    );
    drop(publisher);
    until_notice(&reader, "lost", |change| matches!(change, SourceChange::Lost { .. }));
    let _ = std::fs::remove_file(dir.path().join("load"));
    let mut publisher = Publisher::bind(&ipc(&dir));
    publisher.until_notice(
        &reader,
        |publisher| publisher.stat(0, 2),
        |change| *change == SourceChange::Found,
    );
    until_running(&reader.handle(), 2);
    assert_eq!(reader.sources()[0].missed, 0);
}

#[test]
fn garbage_is_refused_with_a_reason_and_later_messages_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(&ipc(&dir));
    let reader = start(&ipc(&dir));
    let garbage = |publisher: &mut Publisher| publisher.send(&[b"load", b"12345678", &[0xc1; 50]]);
    publisher.until_notice(
        &reader,
        garbage,
        |change| matches!(change, SourceChange::Invalid { why } if why.starts_with("a message is not a LoadStat: ")),
    );
    let other = rmp_serde::to_vec(&("LoadStat", 1, 2, 3, 4, 7)).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    publisher.send(&[b"load", &[0; 8], &other]);
    until_invalid(&reader, "the publisher is of dp rank 7, expected 0");
    publisher.stat(1, 9);
    until_running(&reader.handle(), 9);
}

#[test]
fn a_missing_publisher_is_reported_and_does_not_delay_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let reader = start(&ipc(&dir));
    let notices = until_notice(&reader, "lost", |change| matches!(change, SourceChange::Lost { .. }));
    assert_eq!(notices[0].change, SourceChange::Lost { why: "no publisher answers within 2 s".to_owned() });
    let start = Instant::now();
    drop(reader);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
