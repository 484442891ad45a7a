//! Aborts over real sockets, with and without a scheduler.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use afterbay_scheduler::upstream::{SchedulerSocket, SocketUpstream, UpstreamError};
use afterbay_sockets::Endpoint;
use afterbay_sockets::zmtp::{Conversation, Role, ZmtpEvent};
use afterbay_wire::{AbortForm, AbortShape, read_abort};
use bytes::Bytes;
use zeromq::{Socket, SocketRecv, SocketSend};

/// A scheduler's PULL that connects; blocking.
struct Pull {
    socket: UnixStream,
    peer: Conversation,
}

impl Pull {
    fn connect(path: &Path) -> Pull {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut pull = Pull { socket, peer: Conversation::new(Role::Pull, 1 << 20) };
        while !matches!(pull.next(), Some(ZmtpEvent::Ready(_))) {}
        pull.say();
        pull
    }

    fn say(&mut self) {
        self.socket.write_all(self.peer.output()).unwrap();
        self.peer.sent(self.peer.output().len());
    }

    fn next(&mut self) -> Option<ZmtpEvent> {
        self.say();
        let mut byte = [0];
        self.socket.read_exact(&mut byte).unwrap();
        self.peer.feed(&byte).unwrap().1
    }

    fn message(&mut self) -> Bytes {
        loop {
            if let Some(ZmtpEvent::Message(message)) = self.next() {
                return message;
            }
        }
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T> {
    let work = tokio::task::spawn_blocking(work);
    async { work.await.unwrap() }
}

fn bind(path: &Path, peer: SchedulerSocket) -> SocketUpstream {
    SocketUpstream::bind(&Endpoint::ipc(path).unwrap(), peer).unwrap()
}

fn form() -> AbortForm {
    AbortForm::of(AbortShape::Struct)
}

/// Waits until the PUSH gives this answer.
async fn until(upstream: &SocketUpstream, is_so: impl Fn(&Result<(), UpstreamError>) -> bool) {
    for _ in 0..3000 {
        if is_so(&upstream.abort("r", None, &form()).await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in 30 s: {:?}", upstream.abort("r", None, &form()).await);
}

#[test]
fn an_abort_reaches_the_one_scheduler_that_is_connected_and_is_refused_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abort");
    run(async {
        let endpoint = Endpoint::ipc(&path).unwrap();
        let upstream = SocketUpstream::bind(&endpoint, SchedulerSocket::Pull).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let told = upstream.abort("r", None, &form()).await.unwrap_err().to_string();
        assert_eq!(told, format!("no scheduler is connected to {endpoint}"));

        let there = path.clone();
        let mut scheduler = blocking(move || Pull::connect(&there)).await;
        until(&upstream, Result::is_ok).await;
        let (scheduler, message) = blocking(move || {
            let message = scheduler.message();
            (scheduler, message)
        })
        .await;
        assert_eq!(read_abort(&message), Some(("r".to_owned(), false)));

        let there = path.clone();
        let second = blocking(move || Pull::connect(&there)).await;
        until(&upstream, |told| matches!(told, Err(UpstreamError::Several { schedulers: 2, .. }))).await;
        drop(second);
        until(&upstream, Result::is_ok).await;
        // The PUSH notices a disconnect although it sent nothing since.
        drop(scheduler);
        until(&upstream, |told| matches!(told, Err(UpstreamError::NotConnected { .. }))).await;
        drop(upstream);
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn vllms_dealer_gets_the_type_and_the_ids_as_two_parts_after_it_said_that_it_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abort");
    let endpoint = Endpoint::ipc(&path).unwrap().to_string();
    run(async {
        let upstream = bind(&path, SchedulerSocket::Dealer);
        let mut engine = zeromq::DealerSocket::new();
        engine.connect(&endpoint).await.unwrap();
        engine.send(zeromq::ZmqMessage::from(vec![0x80; 4096])).await.unwrap();
        let form = AbortForm::of(AbortShape::Names);
        while upstream.abort("cmpl-1", None, &form).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let parts = engine.recv().await.unwrap().into_vec();
        assert_eq!(parts, [&b"\x01"[..], b"\x91\xa6cmpl-1"]);
    });
}

#[test]
fn a_scheduler_that_takes_nothing_is_told_and_the_queue_for_it_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abort");
    run(async {
        let upstream = bind(&path, SchedulerSocket::Pull);
        let scheduler = blocking(move || Pull::connect(&path)).await;
        until(&upstream, Result::is_ok).await;
        // More aborts than the kernel has room for, many at once: each of them ends.
        let rid = "r".repeat(4096);
        let form = form();
        let mut aborts = tokio::task::JoinSet::new();
        let upstream = std::sync::Arc::new(upstream);
        for _ in 0..2000 {
            let (upstream, rid, form) = (upstream.clone(), rid.clone(), form.clone());
            aborts.spawn(async move { upstream.abort(&rid, None, &form).await });
        }
        let told = aborts.join_all().await;
        let full =
            told.iter().filter(|it| matches!(it, Err(UpstreamError::Full { waiting: 64, .. }))).count();
        let slow = told.iter().filter(|it| matches!(it, Err(UpstreamError::NotTaken { .. }))).count();
        assert!(full > 0 && slow > 0 && slow <= 65, "{full} found it full, {slow} waited in vain");
        drop(scheduler);
    });
}

#[test]
fn the_name_of_a_live_listener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let endpoint = Endpoint::ipc(dir.path().join("abort")).unwrap();
        let first = SocketUpstream::bind(&endpoint, SchedulerSocket::Pull).unwrap();
        let second = SocketUpstream::bind(&endpoint, SchedulerSocket::Pull).unwrap_err().to_string();
        assert!(second.contains("has a listener that is alive"), "{second}");
        drop(first);
    });
}
