//! PUB against the SUB of libzmq (through pyzmq), the SUB of the `zeromq` crate, and subscribers made by hand.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::support::python::PythonPeer;
use crate::support::raw::{Stream, dial};
use crate::support::{both, in_parts, ipc, payload};
use afterbay_sockets::zmtp::{FrameHeader, SUBSCRIPTIONS_MAX};
use afterbay_sockets::{Endpoint, Pub, PubNotice, PubOptions, TokenRange};
use bytes::Bytes;
use zeromq::{Socket, SocketRecv};

/// One thread with one poll, like a tap.
struct Loop {
    poll: mio::Poll,
    publish: Pub,
    notices: Vec<PubNotice>,
}

impl Loop {
    fn bind(endpoint: &Endpoint, options: PubOptions) -> Loop {
        let poll = mio::Poll::new().unwrap();
        let tokens = TokenRange { first: 10, count: 100 };
        let publish = Pub::bind(poll.registry(), tokens, endpoint, options, Instant::now()).unwrap();
        Loop { poll, publish, notices: Vec::new() }
    }

    fn endpoint(&self) -> Endpoint {
        self.publish.endpoint().clone()
    }

    fn turn(&mut self) {
        let mut events = mio::Events::with_capacity(64);
        let due = self.publish.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let at_most = Duration::from_millis(5);
        self.poll.poll(&mut events, Some(due.map_or(at_most, |due| due.min(at_most)))).unwrap();
        let now = Instant::now();
        for event in &events {
            assert!(self.publish.owns(event.token()));
            self.publish.ready(event, now);
        }
        self.publish.tick(now);
        self.take_notices();
    }

    fn take_notices(&mut self) {
        self.notices.extend(std::iter::from_fn(|| self.publish.next_notice()));
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Loop) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < end, "{what}: not in 60 s, {:?}", self.notices);
            self.turn();
        }
    }

    #[track_caller]
    fn subscribed(&mut self, count: usize) {
        self.until(&format!("{count} subscribed"), |this| this.publish.subscribed() == count);
    }

    /// Sends a frame, and waits until every subscriber has it or it is dropped.
    fn send(&mut self, number: u64, bytes: Vec<u8>) {
        self.publish.send(number, &Bytes::from(bytes));
        self.publish.flush(Instant::now());
        // No turn follows where every subscriber keeps up or is full.
        self.take_notices();
    }

    fn closed(&self) -> Vec<String> {
        let why = |notice: &PubNotice| match notice {
            PubNotice::Closed { why, .. } => Some(why.to_string()),
            _ => None,
        };
        self.notices.iter().filter_map(why).collect()
    }
}

/// A raw peer: greeting and READY of a socket type, then these bytes.
fn says(socket_type: &str, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type\x00\x00\x00".to_vec();
    ready.push(socket_type.len() as u8);
    ready.extend_from_slice(socket_type.as_bytes());
    bytes.extend_from_slice(&[4, ready.len() as u8]);
    bytes.extend(ready);
    bytes.extend_from_slice(rest);
    bytes
}

/// A subscriber to everything that does not read.
fn stuck(this: &mut Loop) -> Box<dyn Stream> {
    let before = this.publish.subscribed();
    let mut stream = dial(&this.endpoint());
    stream.write_all(&says("SUB", &[0, 1, 1])).unwrap();
    this.subscribed(before + 1);
    stream
}

const SIZES: [usize; 14] =
    [0, 1, 15, 16, 254, 255, 256, 257, 8192, 65_535, 65_536, 100_000, 1 << 20, 16 << 20];

#[test]
fn every_size_comes_to_libzmq_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "sizes") {
        let mut this = Loop::bind(&endpoint, PubOptions::default());
        let mut peers = [PythonPeer::start(), PythonPeer::start()];
        for peer in &mut peers {
            peer.ask(&format!("sub a connect {}", this.endpoint()));
            peer.ask("subscribe a");
        }
        this.subscribed(2);
        let count = SIZES.len() * 2;
        peers.iter_mut().for_each(|peer| peer.send_command(&format!("recv a {count} 20000")));
        for i in 0..count {
            this.send(i as u64, payload(7, i as u64, SIZES[i % SIZES.len()]));
        }
        this.until("all is written", |this| this.publish.queue_frames() == 0);
        for peer in &mut peers {
            let got = peer.received();
            assert_eq!(got.len(), count, "{endpoint}");
            for (i, (_, sequence, size)) in got.into_iter().enumerate() {
                assert_eq!(size, SIZES[i % SIZES.len()], "{endpoint}");
                assert!(size == 0 || sequence == i as u64 % 251, "{endpoint}: {i}");
            }
        }
        assert_eq!(this.publish.totals().frames_written, 2 * count as u64);
        assert_eq!(this.publish.totals().frames_dropped, 0);
    }
}

#[test]
fn a_libzmq_sub_gets_the_frames_of_its_topic_until_it_unsubscribes() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "topics"), PubOptions::default());
    let mut peer = PythonPeer::start();
    peer.ask(&format!("sub a connect {}", this.endpoint()));
    // A payload begins with its sender's number.
    peer.ask("subscribe a 02");
    peer.ask("subscribe a 0300");
    this.subscribed(1);
    let all_senders = |this: &mut Loop, sequence| {
        for sender in 1..=4 {
            this.send(sequence, payload(sender, sequence, 50));
        }
    };
    let senders = |got: Vec<(u64, u64, usize)>| got.iter().map(|got| got.0).collect::<Vec<_>>();
    // Both subscriptions arrived in one piece or in two.
    let mut sequence = 0;
    loop {
        all_senders(&mut this, sequence);
        this.until("written", |this| this.publish.queue_frames() == 0);
        peer.send_command("recv a 2 200");
        if senders(peer.received()) == [2, 3] {
            break;
        }
        sequence += 1;
    }
    peer.ask("unsubscribe a 02");
    loop {
        sequence += 1;
        all_senders(&mut this, sequence);
        this.turn();
        peer.send_command("recv a 2 200");
        if senders(peer.received()) == [3] {
            break;
        }
    }
    peer.ask("unsubscribe a 0300");
    this.subscribed(0);
}

#[test]
fn a_sub_that_subscribes_by_messages_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "crate"), PubOptions::default());
    let endpoint = this.endpoint().to_string();
    let receiving = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let mut sub = zeromq::SubSocket::new();
            sub.connect(&endpoint).await.unwrap();
            sub.subscribe("ab").await.unwrap();
            let mut got = Vec::new();
            while got.len() < 2 {
                got.push(sub.recv().await.unwrap().get(0).unwrap().to_vec());
            }
            got
        })
    });
    this.subscribed(1);
    for (number, bytes) in ["a", "ab", "ba", "abc"].into_iter().enumerate() {
        this.send(number as u64, bytes.into());
    }
    this.until("it has both", |_| receiving.is_finished());
    assert_eq!(receiving.join().unwrap(), [b"ab".to_vec(), b"abc".to_vec()]);
}

#[test]
fn frames_that_a_slow_subscriber_misses_are_numbered_and_cost_no_other_a_frame() {
    const FRAMES: u64 = 200;
    const SIZE: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "slow") {
        let options = PubOptions { max_queue_frames: 5, ..PubOptions::default() };
        let mut this = Loop::bind(&endpoint, options);
        let mut slow = stuck(&mut this);
        let mut peer = PythonPeer::start();
        peer.ask(&format!("sub a connect {}", this.endpoint()));
        peer.ask("subscribe a");
        this.subscribed(2);
        peer.send_command(&format!("recv a {} 30000", FRAMES * 5));
        // Over tcp the kernel takes some megabytes first.
        for number in 1..=FRAMES * 5 {
            this.send(number, payload(7, number, SIZE));
            this.until("the other has it", |this| this.publish.queue_frames() <= 5);
        }
        this.until("it has all", |this| {
            this.publish.totals().frames_written + this.publish.totals().frames_dropped
                >= 2 * (FRAMES * 5) - 5
        });
        let got = peer.received();
        let sequences: Vec<u64> = got.iter().map(|got| got.1).collect();
        assert_eq!(sequences, (1..=FRAMES * 5).collect::<Vec<_>>(), "{endpoint}");
        let dropping: Vec<u64> = this
            .notices
            .iter()
            .filter_map(|notice| match notice {
                PubNotice::Dropping { first, .. } => Some(*first),
                _ => None,
            })
            .collect();
        let [first] = dropping[..] else { panic!("{dropping:?}") };
        let dropped = this.publish.totals().frames_dropped;
        assert_eq!(first + dropped - 1, FRAMES * 5, "all from the first on");
        // The subscriber reads: it gets the frames before the dropped ones whole, and then the new ones.
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; says("PUB", &[]).len()];
            slow.read_exact(&mut got).unwrap();
            let mut numbers = Vec::new();
            while numbers.last() != Some(&(FRAMES * 5 + 1)) {
                let mut frame = vec![0; FrameHeader::message(SIZE).as_bytes().len() + SIZE];
                slow.read_exact(&mut frame).unwrap();
                numbers.push(crate::support::describe(&frame[9..]).1);
            }
            numbers
        });
        this.until("its queue is empty", |this| this.publish.queue_frames() == 0);
        this.send(FRAMES * 5 + 1, payload(7, FRAMES * 5 + 1, SIZE));
        this.until("it is reported", |this| {
            this.notices.iter().any(|notice| {
                matches!(notice, PubNotice::Dropped { frames, first: f, last, .. }
                    if (*frames, *f, *last) == (dropped, first, FRAMES * 5))
            })
        });
        this.until("the reader has it", |_| reader.is_finished());
        let numbers = reader.join().unwrap();
        assert_eq!(numbers, (1..first).chain([FRAMES * 5 + 1]).collect::<Vec<_>>(), "{endpoint}");
    }
}

#[test]
fn a_queue_is_bounded_in_bytes_and_one_frame_always_fits() {
    let dir = tempfile::tempdir().unwrap();
    let options = PubOptions { max_queue_bytes: 1000, ..PubOptions::default() };
    let mut this = Loop::bind(&ipc(&dir, "bytes"), options);
    let _slow = stuck(&mut this);
    // The kernel takes a part of the frame.
    this.send(1, vec![0; 8 << 20]);
    this.send(2, vec![0; 10]);
    assert_eq!((this.publish.queue_frames(), this.publish.totals().frames_dropped), (1, 1));
    assert_eq!(this.publish.queue_bytes(), 8 << 20);
}

#[test]
fn frames_that_a_subscriber_leaves_are_reported_and_its_slot_is_free_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let options = PubOptions { max_subscribers: 2, max_queue_frames: 3, ..PubOptions::default() };
    let mut this = Loop::bind(&ipc(&dir, "places"), options);
    let first = stuck(&mut this);
    let _second = stuck(&mut this);
    let mut third = dial(&this.endpoint());
    this.until("the third is refused", |this| {
        let refused = |notice: &PubNotice| match notice {
            PubNotice::Refused { why, .. } => Some(why.to_string()),
            _ => None,
        };
        this.notices.iter().find_map(refused).as_deref() == Some("2 peers are connected, the limit")
    });
    assert_eq!(third.read(&mut [0]).unwrap(), 0, "it is closed");
    for number in 1..=6 {
        this.send(number, vec![0; 4 << 20]);
    }
    drop(first);
    this.until("it has left", |this| {
        this.notices.iter().any(|notice| {
            matches!(notice, PubNotice::Closed { frames: 0, unsent: 3, why, .. } if why.to_string() == "left")
        })
    });
    assert!(
        this.notices
            .iter()
            .any(|notice| { matches!(notice, PubNotice::Dropped { frames: 3, first: 4, last: 6, .. }) })
    );
    for _ in 0..100 {
        drop(stuck(&mut this));
        this.subscribed(1);
    }
}

#[test]
fn a_message_of_several_parts_goes_with_its_parts_to_those_that_want_the_first_one() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "parts") {
        let mut this = Loop::bind(&endpoint, PubOptions::default());
        let mut peer = PythonPeer::start();
        for (name, topic) in [("a", ""), ("b", "01"), ("c", "02")] {
            peer.ask(&format!("sub {name} connect {}", this.endpoint()));
            peer.ask(&format!("subscribe {name} {topic}"));
        }
        this.subscribed(3);
        // The sender's number begins the payload: the topic of b, not of c.
        for sequence in [7, 8, 9] {
            this.publish.send(sequence, &in_parts(sequence, payload(1, sequence, 2000)));
        }
        peer.send_command("count_parts a 3 30000");
        this.until("written", |this| this.publish.queue_frames() == 0);
        let expected = [(1, 7, 2), (1, 8, 3), (1, 9, 1)];
        assert_eq!(peer.received(), expected);
        peer.send_command("count_parts b 3 30000");
        assert_eq!(peer.received(), expected);
        peer.send_command("count_parts c 1 0");
        assert_eq!(peer.received(), []);
    }
}

#[test]
fn garbage_closes_its_peer_with_the_reason_and_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    let options = PubOptions { handshake_timeout: Duration::from_millis(50), ..PubOptions::default() };
    let mut this = Loop::bind(&ipc(&dir, "garbage"), options);
    let mut peer = PythonPeer::start();
    peer.ask(&format!("sub a connect {}", this.endpoint()));
    peer.ask("subscribe a");
    this.subscribed(1);
    let topics: Vec<u8> = (0..=SUBSCRIPTIONS_MAX as u16)
        .flat_map(|n| [[0, 3, 1].to_vec(), n.to_be_bytes().into()].concat())
        .collect();
    for (bytes, words) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), "not with a ZMTP signature"),
        (says("PULL", &[]), "a PUB takes only a SUB or XSUB"),
        (says("SUB", &[1, 1, 1]), "cut a message after 1 parts"),
        (says("SUB", &topics), "more than 256 subscriptions at once, the limit"),
        (says("SUB", &[2, 0, 0, 0, 0, 0, 0, 0x20, 1]), "message has 8193 bytes, the limit is 8192"),
        (says("SUB", &[0, 5, 1]), "cut a message after 1 bytes of 5"),
        (vec![0xff], "no handshake in 50ms"),
    ] {
        let is_cut = words.starts_with("cut");
        let mut stream = dial(&this.endpoint());
        stream.write_all(&bytes).unwrap();
        let kept = (!is_cut).then_some(stream);
        this.until(words, |this| this.closed().last().is_some_and(|why| why.contains(words)));
        drop(kept);
    }
    assert_eq!(this.closed().len(), 7);
    this.send(1, payload(7, 1, 100));
    peer.send_command("recv a 1 10000");
    this.until("written", |this| this.publish.queue_frames() == 0);
    assert_eq!(peer.received().len(), 1);
}
