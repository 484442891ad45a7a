//! PULL against peers made by hand: bounds, fairness, every kind of end.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::raw::{Raw, dial, hello, message};
use crate::support::{Loop, both, ipc, path_of, payload};
use afterbay_sockets::zmtp::Role;
use afterbay_sockets::{Endpoint, PeerId, PullNotice, PullOptions, bounds};

#[test]
fn a_sender_that_floods_does_not_keep_another_from_being_heard() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "fair"), PullOptions::default());
    let endpoint = this.endpoint();
    let mut flood = Raw::push(&endpoint);
    let flooding = std::thread::spawn(move || {
        for i in 0..20_000 {
            flood.send(&payload(1, i, 100));
        }
    });
    this.until("the flood", |this| this.received.len() > 500);
    let mut other = Raw::push(&endpoint);
    let start = this.received.len();
    for i in 0..50 {
        other.send(&payload(2, i, 100));
    }
    this.until("all", |this| this.received.len() == 20_050);
    flooding.join().unwrap();
    let places: Vec<_> = (0..this.received.len())
        .filter(|i| crate::support::describe(&this.received[*i].bytes).0 == 2)
        .collect();
    // Once its bytes have arrived, every second message is the other sender's.
    let span = places[49] - places[0];
    assert!(places[0] >= start && span < 200, "50 messages took {span} places");
}

#[test]
fn one_huge_message_does_not_keep_small_ones_from_being_heard() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "huge"), PullOptions::default());
    let endpoint = this.endpoint();
    let mut huge = Raw::push(&endpoint);
    let sending = std::thread::spawn(move || huge.send(&payload(1, 0, 200 << 20)));
    let mut small = Raw::push(&endpoint);
    this.run(Duration::from_millis(20));
    for i in 0..20 {
        small.send(&payload(2, i, 100));
    }
    this.receive(20);
    this.receive(21);
    assert_eq!(this.received[20].bytes.len(), 200 << 20);
    sending.join().unwrap();
}

#[test]
fn the_memory_of_a_big_message_goes_back_to_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let store = afterbay_supervision::fdstore::FdStore::new();
    let mut this = Loop::bind_lasting(&ipc(&dir, "big"), &store);
    let endpoint = this.endpoint();
    let mut raw = Raw::push(&endpoint);
    let sending = std::thread::spawn(move || {
        raw.send(&payload(1, 0, 20 << 20));
        raw
    });
    this.receive(1);
    let memory = store.entries().unwrap().pop().unwrap().1.pop().unwrap();
    let taken = || rustix::fs::fstat(&memory).unwrap().st_blocks as u64 * 512;
    assert!(taken() >= 20 << 20, "{}", taken());
    // The deadline wakes the loop also if nothing arrives.
    let due = this.pull().deadline().unwrap();
    this.until("given back", |_| taken() <= (1 << 20) + 8192);
    assert!(Instant::now() >= due);
    assert_eq!(this.pull().deadline(), None);
    drop(sending.join().unwrap());
}

#[test]
fn a_message_at_the_bound_passes_and_one_past_it_closes_its_peer() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "bound") {
        let options = PullOptions { max_message_bytes: 100_000, ..PullOptions::default() };
        let mut this = Loop::bind(&endpoint, options);
        let mut raw = Raw::push(&this.endpoint());
        raw.send(&payload(1, 0, 100_000));
        this.receive(1);
        // Only the header is sent: it is refused before anything is allocated.
        raw.write(&[2, 0, 0, 0, 0, 0, 1, 0x86, 0xa1]);
        this.until("closed", |this| !this.closed().is_empty());
        assert_eq!(this.closed(), ["message has 100001 bytes, the limit is 100000"]);
    }
}

#[test]
fn garbage_closes_its_peer_with_the_reason_and_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "garbage") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut good = Raw::push(&this.endpoint());
        good.send(b"one");
        this.receive(1);
        for (garbage, words) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "peer begins with [47], not with a ZMTP signature"),
            ([hello(Role::Push), vec![0x42; 100]].concat(), "frame begins with flags 0x42"),
            (hello(Role::Pull), "peer is a \"PULL\" socket, a PULL takes only a PUSH"),
        ] {
            this.pulled.clear();
            dial(&this.endpoint()).write_all(&garbage).unwrap();
            this.until("closed", |this| !this.closed().is_empty());
            assert_eq!(this.closed(), [words]);
        }
        good.send(b"two");
        this.receive(2);
    }
}

#[test]
fn every_cut_is_reported_with_its_bytes_and_earlier_messages_are_received() {
    let dir = tempfile::tempdir().unwrap();
    let big = message(&payload(1, 1, 70_000));
    for endpoint in both(&dir, "cuts") {
        for (cut, words) in [
            (hello(Role::Push)[..20].to_vec(), "cut handshake after 20 bytes"),
            (hello(Role::Push)[..70].to_vec(), "cut handshake after 70 bytes"),
            (hello(Role::Push), "left"),
            ([hello(Role::Push), message(b"whole")].concat(), "left"),
            ([hello(Role::Push), message(b"whole"), vec![2, 0, 0]].concat(), "cut header after 3 bytes"),
            (
                [hello(Role::Push), message(b"whole"), vec![4, 30, 4, b'P']].concat(),
                "cut command after 2 bytes",
            ),
            ([hello(Role::Push), big[..5000].to_vec()].concat(), "cut a message after 4991 bytes of 70000"),
            (
                [hello(Role::Push), big[..60_000].to_vec()].concat(),
                "cut a message after 59991 bytes of 70000",
            ),
        ] {
            let mut this = Loop::bind(&endpoint, PullOptions::default());
            let mut stream = dial(&this.endpoint());
            stream.write_all(&cut).unwrap();
            drop(stream);
            this.until("closed", |this| !this.closed().is_empty());
            assert_eq!(this.closed(), [words], "{endpoint}");
            let whole = cut.windows(5).any(|five| five == b"whole");
            assert_eq!(this.received.len(), usize::from(whole), "{endpoint}: {words}");
        }
    }
}

#[test]
fn messages_before_a_reset_are_received() {
    let mut this = Loop::bind(&"tcp://127.0.0.1:0".parse().unwrap(), PullOptions::default());
    let Endpoint::Tcp { port, .. } = this.endpoint() else { panic!() };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(&[hello(Role::Push), message(b"one"), message(b"two")].concat()).unwrap();
    // The kernel has all bytes; then there is a reset.
    this.pull().pause();
    this.run(Duration::from_millis(100));
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    this.run(Duration::from_millis(100));
    this.pull().resume();
    this.until("closed", |this| !this.closed().is_empty());
    assert_eq!((this.received.len(), this.closed()), (2, vec!["left".to_owned()]));
}

#[test]
fn a_sender_that_only_shuts_its_writing_down_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "half"), PullOptions::default());
    let mut stream = UnixStream::connect(path_of(&this.endpoint())).unwrap();
    stream.write_all(&[hello(Role::Push), message(b"one")].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    this.until("closed", |this| !this.closed().is_empty());
    assert_eq!(this.received.len(), 1);
}

#[test]
fn a_silent_peer_is_closed_and_an_unread_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "silent") {
        let options = PullOptions { handshake_timeout: Duration::from_millis(200), ..PullOptions::default() };
        let mut this = Loop::bind(&endpoint, options);
        let start = Instant::now();
        let _silent = dial(&this.endpoint());
        let mut slow = dial(&this.endpoint());
        slow.write_all(&hello(Role::Push)[..30]).unwrap();
        this.until("both", |this| this.closed().len() == 2);
        assert_eq!(this.closed(), ["no handshake in 200ms", "no handshake in 200ms"]);
        assert!(start.elapsed() >= Duration::from_millis(200));
        this.pulled.clear();
        // While paused we do not read the handshake that the peer sent in time, so the peer is not closed for it.
        this.pull().pause();
        let mut raw = Raw::push(&this.endpoint());
        raw.send(b"hello");
        this.run(Duration::from_millis(700));
        assert!(this.pulled.is_empty(), "{:?}", this.pulled);
        this.pull().resume();
        this.receive(1);
    }
}

#[test]
fn a_peer_past_the_bound_is_refused_and_reported_and_its_slot_is_free_later() {
    let dir = tempfile::tempdir().unwrap();
    let options = PullOptions { max_peers: 3, ..PullOptions::default() };
    let mut this = Loop::bind(&ipc(&dir, "full"), options);
    let mut peers: Vec<_> = (0..3).map(|_| Raw::push(&this.endpoint())).collect();
    this.until("three", |this| this.pulled.len() == 3);
    for _ in 0..20 {
        drop(dial(&this.endpoint()));
    }
    this.run(Duration::from_millis(100));
    let refused = |this: &Loop| {
        this.pulled
            .iter()
            .filter_map(|notice| match notice {
                PullNotice::Refused { why, times, .. } => Some((why.to_string(), *times)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(refused(&this), [("3 peers are connected, the limit".to_owned(), 1)], "at most once a second");
    this.run(Duration::from_millis(1000));
    drop(dial(&this.endpoint()));
    this.until("reported", |this| refused(this).len() == 2);
    assert_eq!(refused(&this)[1].1, 20, "unreported ones are counted");
    drop(peers.pop());
    this.until("left", |this| this.closed() == ["left"]);
    let mut raw = Raw::push(&this.endpoint());
    raw.send(b"hello");
    this.receive(1);
    assert_eq!(this.pull().peers(), 3);
}

#[test]
fn a_paused_socket_reads_nothing_and_a_resumed_one_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "pause") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut raw = Raw::push(&this.endpoint());
        raw.send(&payload(1, 0, 1000));
        this.receive(1);
        let (sent, is_enough) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
        let (counter, stops) = (sent.clone(), is_enough.clone());
        let sending = std::thread::spawn(move || {
            while !stops.load(Relaxed) {
                raw.send(&payload(1, counter.load(Relaxed), 1000));
                counter.fetch_add(1, Relaxed);
            }
            raw
        });
        for round in 0..5 {
            let before = this.received.len();
            this.pull().pause();
            assert!(!this.pull().has_more());
            // The kernel's buffers fill; then the sender blocks.
            let mut last = 0;
            while last != sent.load(Relaxed) {
                last = sent.load(Relaxed);
                this.run(Duration::from_millis(100));
            }
            assert_eq!(this.received.len(), before, "{endpoint} round {round}");
            this.pull().resume();
            // No event need arrive: the kernel's buffer filled long ago.
            this.until("some", |this| this.received.len() > before + 1000);
        }
        is_enough.store(true, Relaxed);
        this.until("the last one is sent", |_| sending.is_finished());
        let raw = sending.join().unwrap();
        this.receive(sent.load(Relaxed) as usize);
        drop(raw);
        for (i, message) in this.received.iter().enumerate() {
            assert_eq!(crate::support::describe(&message.bytes), (1, i as u64, 1000));
        }
    }
}

#[test]
fn a_caller_that_stops_in_between_learns_that_there_is_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "more"), PullOptions::default());
    let mut raw = Raw::push(&this.endpoint());
    for i in 0..100 {
        raw.send(&payload(1, i, 100));
    }
    this.receive_max = 7;
    this.receive(7);
    assert!(this.pull().has_more());
    this.run(Duration::from_millis(50));
    assert_eq!(this.received.len(), 7);
    this.receive_max = usize::MAX;
    this.receive(100);
    this.run(Duration::from_millis(10));
    assert!(!this.pull().has_more());
}

#[test]
fn bytes_that_trickle_make_whole_messages() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "trickle") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut stream = dial(&this.endpoint());
        let bytes = [hello(Role::Push), message(b""), message(&payload(1, 1, 300)), message(b"x")].concat();
        for byte in bytes.chunks(7) {
            stream.write_all(byte).unwrap();
            this.turn(Duration::from_millis(1));
        }
        this.receive(3);
        let sizes: Vec<_> = this.received.iter().map(|message| message.bytes.len()).collect();
        assert_eq!(sizes, [0, 300, 1]);
        assert!(this.received.iter().all(|message| message.peer == PeerId(1)));
    }
}

#[test]
fn a_message_keeps_only_its_own_bytes_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "own"), PullOptions::default());
    let mut raw = Raw::push(&this.endpoint());
    for size in [10, 1000, 20_000, 100_000] {
        raw.send(&payload(1, 1, size));
    }
    this.receive(4);
    for message in this.received.drain(..) {
        let size = message.bytes.len();
        let bytes: Vec<u8> = message.bytes.try_into_mut().unwrap().into();
        assert_eq!(bytes.capacity(), size);
    }
}

#[test]
fn half_open_handshakes_do_not_keep_an_honest_sender_out() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "half-open") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let silent: Vec<_> = (0..bounds::HANDSHAKES_MAX + 150)
            .map(|_| {
                let silent = dial(&this.endpoint());
                this.turn(Duration::ZERO);
                silent
            })
            .collect();
        let mut raw = Raw::push(&this.endpoint());
        raw.send(b"hello");
        this.receive(1);
        // No more connections than necessary are closed, and the oldest first.
        assert_eq!(this.pull().peers(), bounds::HANDSHAKES_MAX);
        assert_eq!(this.closed().len(), 151);
        let words = "handshake not done, the oldest of 128 when a further sender needed the place";
        assert!(this.closed().iter().all(|why| why == words), "{:?}", this.closed());
        assert_eq!(this.pulled.iter().find_map(closed_peer), Some(PeerId(1)));
        drop(silent);
    }
}

fn closed_peer(notice: &PullNotice) -> Option<PeerId> {
    match notice {
        PullNotice::Closed { peer, .. } => Some(*peer),
        _ => None,
    }
}

#[test]
fn a_full_socket_gives_the_slot_of_a_half_open_sender_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let options = PullOptions { max_peers: 2, ..PullOptions::default() };
    let mut this = Loop::bind(&ipc(&dir, "places"), options);
    let mut one = Raw::push(&this.endpoint());
    this.until("one", |this| this.pulled.len() == 1);
    let _silent = dial(&this.endpoint());
    this.until("both", |this| this.pull().peers() == 2);
    let mut other = Raw::push(&this.endpoint());
    other.send(b"other");
    this.receive(1);
    one.send(b"one");
    this.receive(2);
}

#[test]
fn a_flood_of_commands_ends_its_turn_and_a_message_of_another_comes_in_between() {
    const PINGS: usize = 2000;
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "pings") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let mut flood = Raw::push(&this.endpoint());
        let mut other = Raw::push(&this.endpoint());
        this.until("both", |this| this.pulled.len() == 2);
        this.pull().pause();
        flood.write(&[4, 7, 4, b'P', b'I', b'N', b'G', 0, 0].repeat(PINGS));
        other.send(b"hello");
        this.run(Duration::from_millis(50));
        this.receive_max = 1;
        this.pull().resume();
        this.receive(1);
        // Each PING that was read was answered: those of two turns at most.
        let mut bytes = vec![0; 64 << 10];
        let answers = flood.stream.read(&mut bytes).unwrap() - hello(Role::Pull).len();
        let answered = answers / b"\x04\x05\x04PONG".len();
        assert!(
            answered <= 2 * bounds::COMMANDS_TURN,
            "{answered} of the flood were taken before the message"
        );
    }
}
