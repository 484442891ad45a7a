//! LoadStat over a real socket: the `zeromq` crate's PUB with SGLang's bytes and with garbage.

use std::time::{Duration, Instant};

use afterbay_signals::{Change, Freshness, LoadConfig, LoadReader, SourceKind};
use tokio::runtime::{Builder, Runtime};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use crate::stage::{fixture, until_invalid, until_running, until_told};

/// A PUB that sends when it is told to.
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
        let frames: Vec<bytes::Bytes> = frames.iter().map(|it| bytes::Bytes::copy_from_slice(it)).collect();
        let message = ZmqMessage::try_from(frames).unwrap();
        self.runtime.block_on(self.socket.send(message)).unwrap();
    }

    fn stat(&mut self, seq: i64, running: u64) {
        let stat = ("LoadStat", running, 2, 30, 400, 0, 5, 60, 70, 80, 90);
        self.send(&[b"load", &seq.to_be_bytes(), &rmp_serde::to_vec(&stat).unwrap()]);
    }

    /// Sends until it is told: a PUB drops what it sends before its subscriber is there.
    fn until_told(
        &mut self,
        reader: &LoadReader,
        mut send: impl FnMut(&mut Publisher),
        is: impl Fn(&Change) -> bool,
    ) {
        let begun = Instant::now();
        while !reader.notices().iter().any(|notice| is(&notice.change)) {
            assert!(begun.elapsed() < Duration::from_secs(30), "not told within 30 s");
            send(self);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn ipc(dir: &tempfile::TempDir) -> String {
    format!("ipc://{}/load", dir.path().display())
}

fn of(endpoint: &str) -> LoadReader {
    LoadReader::start(LoadConfig { load_stat: Some(endpoint.to_owned()), ..LoadConfig::default() }).unwrap()
}

#[test]
fn the_messages_that_sglang_sent_read_as_what_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(&ipc(&dir));
    let reader = of(&ipc(&dir));
    let [one, two] =
        [0, 1].map(|seq| [0, 1, 2].map(|place| fixture(&format!("load-stat-{seq}.{place}.bin"))));
    let send = |publisher: &mut Publisher| publisher.send(&one.each_ref().map(Vec::as_slice));
    publisher.until_told(&reader, send, |change| *change == Change::Found);
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
fn missed_messages_are_counted_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(&ipc(&dir));
    let reader = of(&ipc(&dir));
    publisher.until_told(&reader, |publisher| publisher.stat(10, 1), |change| *change == Change::Found);
    publisher.stat(11, 2);
    publisher.stat(15, 3);
    until_running(&reader.handle(), 3);
    until_told(&reader, "missed", |change| *change == Change::Missed { messages: 3 });
    assert_eq!(reader.sources()[0].missed, 3);
}

#[test]
fn a_publisher_that_starts_again_is_connected_to_again_and_counts_from_0() {
    let dir = tempfile::tempdir().unwrap();
    let reader = of(&ipc(&dir));
    let mut publisher = Publisher::bind(&ipc(&dir));
    publisher.until_told(&reader, |publisher| publisher.stat(500, 1), |change| *change == Change::Found);
    drop(publisher);
    until_told(&reader, "lost", |change| matches!(change, Change::Lost { .. }));
    let _ = std::fs::remove_file(dir.path().join("load"));
    let mut publisher = Publisher::bind(&ipc(&dir));
    publisher.until_told(&reader, |publisher| publisher.stat(0, 2), |change| *change == Change::Found);
    until_running(&reader.handle(), 2);
    assert_eq!(reader.sources()[0].missed, 0);
}

#[test]
fn garbage_from_a_publisher_is_refused_in_words_and_what_follows_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(&ipc(&dir));
    let reader = of(&ipc(&dir));
    let garbage = |publisher: &mut Publisher| publisher.send(&[b"load", b"12345678", &[0xc1; 50]]);
    publisher.until_told(
        &reader,
        garbage,
        |change| matches!(change, Change::Invalid { why } if why.starts_with("a message is no LoadStat: ")),
    );
    let other = rmp_serde::to_vec(&("LoadStat", 1, 2, 3, 4, 7)).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    publisher.send(&[b"load", &[0; 8], &other]);
    until_invalid(&reader, "the publisher is of dp rank 7, expected 0");
    publisher.stat(1, 9);
    until_running(&reader.handle(), 9);
}

#[test]
fn a_publisher_that_is_not_there_is_told_and_does_not_delay_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let reader = of(&ipc(&dir));
    let told = until_told(&reader, "lost", |change| matches!(change, Change::Lost { .. }));
    assert_eq!(told[0].change, Change::Lost { why: "no publisher answers within 2 s".to_owned() });
    let begun = Instant::now();
    drop(reader);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
