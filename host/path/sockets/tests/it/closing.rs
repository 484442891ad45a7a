//! Closing a PULL: everything that senders have handed to the kernel is received, and the rest stays with them.

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use crate::support::python::PythonPeer;
use crate::support::raw::{Raw, dial, hello, message};
use crate::support::{Loop, both, ipc, path_of, payload};
use afterbay_sockets::zmtp::Role;
use afterbay_sockets::{Endpoint, Message, PullOptions};

fn close(this: &mut Loop) {
    this.pull().close(Instant::now());
    this.until("closed", |this| this.pull().is_closed());
}

#[test]
fn a_closing_socket_receives_what_the_kernel_has_and_later_writes_fail() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "closing") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut raw = Raw::push(&this.endpoint());
        raw.send(&payload(1, 0, 100));
        this.receive(1);
        // These bytes are not read before the close.
        for i in 1..50 {
            raw.send(&payload(1, i, 1000));
        }
        close(&mut this);
        assert_eq!(this.described(50).last(), Some(&(1, 49, 1000)));
        assert_eq!(this.closed(), ["closed by the stop"], "{endpoint}");
        // Over tcp, the first write is the one that the kernel answers with a reset.
        let failed = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            raw.stream.write_all(&message(b"late")).err()
        });
        let kind = failed.expect("writes went on").kind();
        assert!(matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{kind}");
    }
}

#[test]
fn a_closing_socket_accepts_nobody_and_its_name_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "name");
    let mut this = Loop::bind(&endpoint, PullOptions::default());
    let mut raw = Raw::push(&endpoint);
    this.until("connected", |this| !this.pulled.is_empty());
    this.pull().close(Instant::now());
    assert!(!path_of(&endpoint).exists());
    let _next = Loop::bind(&endpoint, PullOptions::default());
    // The connected sender is still read.
    raw.send(b"one more");
    this.receive(1);
    assert!(this.pull().is_closing() && !this.pull().is_closed());
    this.until("closed", |this| this.pull().is_closed());
    assert!(path_of(&endpoint).exists(), "it unlinked another's name");
}

#[test]
fn a_closing_socket_waits_for_the_rest_of_a_message() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "rest") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut raw = Raw::push(&this.endpoint());
        let bytes = message(&payload(1, 0, 5000));
        raw.write(&bytes[..2000]);
        this.until("connected", |this| !this.pulled.is_empty());
        this.pull().close(Instant::now());
        // The sender has seen our greeting, and not our end.
        this.run(Duration::from_millis(50));
        raw.write(&bytes[2000..]);
        this.until("closed", |this| this.pull().is_closed());
        assert_eq!(this.described(1), [(1, 0, 5000)]);
        assert_eq!(this.closed(), ["closed by the stop"]);
    }
}

#[test]
fn a_closing_socket_reports_a_message_that_it_does_not_get_whole() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "cut") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut raw = Raw::push(&this.endpoint());
        raw.write(&message(&payload(1, 0, 5000))[..2000]);
        this.until("connected", |this| !this.pulled.is_empty());
        close(&mut this);
        assert_eq!(this.closed(), ["cut a message after 1991 bytes of 5000"]);
    }
}

#[test]
fn a_closing_socket_does_not_wait_for_silent_senders_and_ends_with_those_that_flood() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "flood"), PullOptions::default());
    let _silent = dial(&this.endpoint());
    let mut half = dial(&this.endpoint());
    half.write_all(&hello(Role::Push)[..70]).unwrap();
    let mut flood = Raw::push(&this.endpoint());
    let flooding = std::thread::spawn(move || {
        let bytes = message(&payload(1, 0, 1000));
        // Writes until a write fails.
        while flood.stream.write_all(&bytes).is_ok() {}
    });
    this.until("the flood", |this| this.received.len() > 100);
    close(&mut this);
    flooding.join().unwrap();
    let mut closed = this.closed();
    closed.sort();
    assert_eq!(closed[1..], ["cut handshake after 0 bytes", "cut handshake after 70 bytes"]);
    assert!(closed[0] == "closed by the stop" || closed[0].starts_with("cut "), "{closed:?}");
}

#[test]
fn a_closing_socket_that_is_not_read_reports_how_much_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "unread") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut raw = Raw::push(&this.endpoint());
        raw.send(b"one");
        this.receive(1);
        this.pull().pause();
        raw.send(b"another");
        this.pull().close(Instant::now());
        this.run(Duration::from_millis(20));
        assert!(!this.pull().is_closed());
        let bytes = message(b"another").len();
        assert_eq!(this.pull().abandon(), bytes as u64);
        this.turn(Duration::ZERO);
        assert!(this.pull().is_closed());
        assert_eq!(this.closed(), [format!("closed by the stop, {bytes} bytes from it were not read")]);
    }
}

/// libzmq sends what the kernel takes, closes its connection when it sees our end, and gives its queue to the socket
/// that binds next. It loses the messages that it had taken out of its queue and could not write: at most 8 KiB, and
/// none if the kernel had room.
#[test]
fn libzmq_keeps_what_it_has_not_written_for_the_socket_that_binds_next() {
    const COUNT: u64 = 60_000;
    const SIZE: usize = 1000;
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "libzmq") {
        for is_stalled in [false, true] {
            let mut this = Loop::bind(&endpoint, PullOptions::default());
            let bound: Endpoint = this.endpoint();
            let mut peer = PythonPeer::start();
            peer.ask(&format!("push a connect {bound}"));
            peer.send_command(&format!("send a 1 0 {COUNT} {SIZE}"));
            this.until("some", |this| this.received.len() > 1000);
            if is_stalled {
                this.receive_max = 0;
                this.run(Duration::from_millis(100));
                this.receive_max = usize::MAX;
            }
            close(&mut this);
            let number = |message: &Message| crate::support::describe(&message.bytes).1;
            let mut got: Vec<u64> = this.received.iter().map(number).collect();
            drop(this);
            let mut next = Loop::bind(&bound, PullOptions::default());
            peer.answer();
            let is_last = |message: Option<&Message>| message.is_some_and(|it| number(it) + 1 == COUNT);
            if got.last() != Some(&(COUNT - 1)) {
                next.until("the last", |next| is_last(next.received.last()));
            }
            got.extend(next.received.iter().map(number));
            assert!(got.is_sorted_by(|one, next| one < next), "{endpoint}: repeated or out of order");
            let missing = COUNT - got.len() as u64;
            assert!(missing <= (8 << 10) / SIZE as u64 + 1, "{endpoint}: {missing} are missing");
        }
    }
}
