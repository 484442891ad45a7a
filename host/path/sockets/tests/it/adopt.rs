//! A PULL that continues the connections of a process that died or handed over: nothing is lost, repeated or reordered.
//!
//! The death of a process is the end of everything but the duplicates in the store: [`injected::set_dead`] lets the drops of
//! this thread have no effect outside.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::support::python::PythonPeer;
use crate::support::raw::{Raw, dial, hello, message};
use crate::support::{both, describe, in_parts, ipc, path_of, payload};
use afterbay_sockets::injected::{self, SocketCall};
use afterbay_sockets::zmtp::Role;
use afterbay_sockets::{Endpoint, Lasting, Message, PeerId, Pull, PullNotice, PullOptions, TokenRange};
use afterbay_supervision::fdstore::{FdName, FdStore, Inherited};

const TOKENS: TokenRange = TokenRange { first: 10, count: 1 + 32 };

/// A process, as far as its PULL goes, with the journal that outlives it.
struct Process {
    poll: mio::Poll,
    store: FdStore,
    pull: Option<Pull>,
    notices: Vec<PullNotice>,
}

/// The frames of the journal: all messages that were persisted.
#[derive(Default)]
struct Journal(Vec<Message>);

impl Process {
    fn start(endpoint: &Endpoint, inherited: Vec<(FdName, Vec<OwnedFd>)>, journal: &Journal) -> Process {
        let options = PullOptions { last_frame: journal.0.len() as u64, ..PullOptions::default() };
        Process::with(endpoint, inherited, options)
    }

    fn with(endpoint: &Endpoint, inherited: Vec<(FdName, Vec<OwnedFd>)>, options: PullOptions) -> Process {
        let (poll, store) = (mio::Poll::new().unwrap(), FdStore::new());
        let mut inherited = Inherited::from_entries(&store, inherited);
        let lasting = Lasting { store: &store, stream: "s", inherited: &mut inherited };
        let pull = Pull::bind(poll.registry(), TOKENS, endpoint, options, Some(lasting)).unwrap();
        let mut process = Process { poll, store, pull: Some(pull), notices: Vec::new() };
        process.take_notices();
        process
    }

    fn pull(&mut self) -> &mut Pull {
        self.pull.as_mut().unwrap()
    }

    fn poll(&mut self, at_most: Duration) {
        let pull = self.pull.as_mut().unwrap();
        let wait = if pull.has_more() { Duration::ZERO } else { at_most };
        let mut events = mio::Events::with_capacity(64);
        self.poll.poll(&mut events, Some(wait)).unwrap();
        for event in &events {
            pull.ready(event, Instant::now());
        }
        pull.tick(Instant::now());
        self.take_notices();
    }

    fn take_notices(&mut self) {
        let pull = self.pull.as_mut().unwrap();
        self.notices.extend(std::iter::from_fn(|| pull.next_notice()));
    }

    /// Receives until the journal has this many frames.
    fn persist(&mut self, journal: &mut Journal, frames: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while journal.0.len() < frames {
            assert!(Instant::now() < end, "{} of {frames} frames; {:?}", journal.0.len(), self.notices);
            match self.pull().receive() {
                Some(message) => {
                    let frame = journal.0.len() as u64 + 1;
                    self.pull().note(frame);
                    journal.0.push(message);
                    self.pull().done();
                }
                None => self.poll(Duration::from_millis(10)),
            }
        }
    }

    fn receive(&mut self) -> Message {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < end, "nothing to receive; {:?}", self.notices);
            match self.pull().receive() {
                Some(message) => return message,
                None => self.poll(Duration::from_millis(10)),
            }
        }
    }

    /// Ends everything but the descriptors in the store.
    fn die(mut self) -> Vec<(FdName, Vec<OwnedFd>)> {
        let left = self.store.entries().unwrap();
        injected::set_dead(true);
        self.pull = None;
        injected::set_dead(false);
        left
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Process) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            assert!(Instant::now() < end, "{what}: not in 60 s; {:?}", self.notices);
            // Handshakes are read, too.
            assert!(self.pull().receive().is_none());
            self.poll(Duration::from_millis(10));
        }
    }

    fn connected(&self) -> usize {
        self.notices.iter().filter(|notice| matches!(notice, PullNotice::Connected { .. })).count()
    }

    fn adopted(&self) -> Vec<PeerId> {
        let of = |notice: &PullNotice| match notice {
            PullNotice::Adopted { peer, .. } => Some(*peer),
            _ => None,
        };
        self.notices.iter().filter_map(of).collect()
    }

    fn refused(&self) -> Vec<(String, u64)> {
        let of = |notice: &PullNotice| match notice {
            PullNotice::NotAdopted { why, lost, .. } => Some((why.clone(), *lost)),
            _ => None,
        };
        self.notices.iter().filter_map(of).collect()
    }
}

/// Asserts that each sender's messages arrived once and in order. Returns how many of each.
fn check(journal: &Journal) -> BTreeMap<u64, u64> {
    let mut next = BTreeMap::new();
    for message in &journal.0 {
        let (sender, sequence, _) = describe(&message.bytes);
        let expected = next.entry(sender).or_insert(0);
        assert_eq!(sequence, *expected, "sender {sender}");
        *expected += 1;
    }
    next
}

#[test]
fn a_message_in_hand_is_received_again_unless_the_journal_has_its_frame() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "in-hand") {
        let mut journal = Journal::default();
        let mut process = Process::start(&endpoint, Vec::new(), &journal);
        let endpoint = process.pull().endpoint().clone();
        let mut raw = Raw::push(&endpoint);
        for sequence in 0..40 {
            raw.send(&payload(1, sequence, 2000));
        }
        for round in 0..8 {
            let before = journal.0.len();
            process.persist(&mut journal, before + 2);
            // The process dies with a message in hand, at four points.
            let message = process.receive();
            match round % 4 {
                0 => {}
                1 => process.pull().note(journal.0.len() as u64 + 1),
                2 => {
                    process.pull().note(journal.0.len() as u64 + 1);
                    journal.0.push(message);
                }
                _ => {
                    // The operator lets the frame pass without the journal.
                    process.pull().note(journal.0.len() as u64 + 1);
                    process.pull().done();
                    journal.0.push(message);
                }
            }
            process = Process::start(&endpoint, process.die(), &journal);
            assert_eq!((process.adopted(), process.refused()), (vec![PeerId(1)], vec![]));
        }
        process.persist(&mut journal, 40);
        assert_eq!(check(&journal), BTreeMap::from([(1, 40)]), "{endpoint}");
    }
}

#[test]
fn a_message_that_passed_without_the_journal_is_not_received_again() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "skipped");
    let mut journal = Journal::default();
    let mut process = Process::start(&endpoint, Vec::new(), &journal);
    let mut raw = Raw::push(&endpoint);
    (0..4).for_each(|sequence| raw.send(&payload(1, sequence, 100)));
    process.persist(&mut journal, 1);
    for frame in 2..4 {
        process.receive();
        process.pull().note(frame);
        process.pull().done();
    }
    // The journal's last frame is 1.
    let mut process = Process::start(&endpoint, process.die(), &journal);
    assert_eq!(describe(&process.receive().bytes), (1, 3, 100));
}

#[test]
fn a_message_that_is_taken_back_is_received_first_and_its_frame_number_may_be_used_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "back");
    let mut process = Process::start(&endpoint, Vec::new(), &Journal::default());
    let mut senders = [Raw::push(&endpoint), Raw::push(&endpoint)];
    for sequence in 0..3 {
        senders.iter_mut().zip(1..).for_each(|(sender, number)| sender.send(&payload(number, sequence, 50)));
    }
    let taken = process.receive();
    process.pull().note(1);
    // A panic: the journal has no frame.
    assert_eq!(process.pull().take_back(0), Some(50));
    assert_eq!(process.pull().take_back(0), None);
    // The journal's frame 1 is one of Afterbay's own. Then the process dies.
    let mut process =
        Process::with(&endpoint, process.die(), PullOptions { last_frame: 1, ..PullOptions::default() });
    let mut received = Vec::new();
    while received.len() < 6 {
        let message = process.receive();
        let number = received.len() as u64 + 2;
        process.pull().note(number);
        // Every second message is taken back once, and is the next one.
        if number.is_multiple_of(2) {
            assert!(process.pull().take_back(number - 1).is_some());
            assert_eq!(process.receive().bytes, message.bytes);
            process.pull().note(number);
            assert_eq!(process.pull().take_back(number), None);
        }
        received.push(message);
    }
    assert!(received.iter().any(|message| message.bytes == taken.bytes));
    assert_eq!(check(&Journal(received)), BTreeMap::from([(1, 3), (2, 3)]));
}

/// Sends messages of these sizes from a thread of its own.
fn send_all(endpoint: &Endpoint, sender: u64, sizes: Vec<usize>) -> std::thread::JoinHandle<Raw> {
    let endpoint = endpoint.clone();
    std::thread::spawn(move || {
        let mut raw = Raw::push(&endpoint);
        // As libzmq, it sends no message before it has READY.
        raw.receive(0);
        for (sequence, size) in sizes.into_iter().enumerate() {
            raw.send(&in_parts(sequence as u64, payload(sender, sequence as u64, size)));
        }
        raw
    })
}

#[test]
fn messages_of_16_bytes_to_4_mib_survive_deaths_at_any_read() {
    let dir = tempfile::tempdir().unwrap();
    for (transport, endpoint) in both(&dir, "sizes").into_iter().enumerate() {
        let mut journal = Journal::default();
        let mut process = Process::start(&endpoint, Vec::new(), &journal);
        let endpoint = process.pull().endpoint().clone();
        let sizes = [100_000, 16, 70_000, 4 << 20, 3000, 200_000, 1 << 20, 17, 64 << 10, 2 << 20];
        let of = |sender: usize| (0..30).map(|i| sizes[(i * sender + transport) % 10]).collect();
        let sending: Vec<_> = (1..=3).map(|sender| send_all(&endpoint, sender as u64, of(sender))).collect();
        while process.connected() < 3 {
            let frames = journal.0.len() + 1;
            process.persist(&mut journal, frames);
        }
        let mut seed = 7_u64;
        while journal.0.len() < 90 {
            // The process dies at a read: before it, or after the kernel gave bytes.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (mut reads_left, is_after, short) = ((seed >> 33) % 40, seed & 1 == 0, seed & 2 == 0);
            injected::set_hook(Some(Box::new(move |call| {
                let is_here = match call {
                    SocketCall::Read(_) => !is_after,
                    SocketCall::HasRead(_) => is_after,
                    _ => false,
                };
                reads_left = reads_left.saturating_sub(u64::from(is_here));
                if is_here && reads_left == 0 {
                    std::panic::resume_unwind(Box::new("dies"));
                }
                if short { 40_000 } else { usize::MAX }
            })));
            let died =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| process.persist(&mut journal, 90)));
            injected::set_hook(None);
            if died.is_err() {
                process = Process::start(&endpoint, process.die(), &journal);
                process.poll(Duration::ZERO);
                assert_eq!((process.adopted().len(), process.refused()), (3, vec![]));
            }
        }
        assert_eq!(check(&journal), BTreeMap::from([(1, 30), (2, 30), (3, 30)]));
        sending.into_iter().for_each(|sending| drop(sending.join().unwrap()));
    }
}

#[test]
fn small_messages_of_libzmq_survive_many_deaths() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "libzmq") {
        let mut journal = Journal::default();
        let mut process = Process::start(&endpoint, Vec::new(), &journal);
        let endpoint = process.pull().endpoint().clone();
        let mut peer = PythonPeer::start();
        peer.ask(&format!("push a connect {endpoint}"));
        peer.send_command("send a 1 0 3000 16 40 17");
        for deaths in 1..=20 {
            process.persist(&mut journal, deaths * 150);
            process = Process::start(&endpoint, process.die(), &journal);
        }
        assert_eq!(check(&journal).values().sum::<u64>(), 3000);
        peer.answer();
    }
}

#[test]
fn a_sender_whose_handshake_is_not_complete_is_not_kept_and_one_that_has_our_ready_is() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "handshake") {
        let mut journal = Journal::default();
        let mut process = Process::start(&endpoint, Vec::new(), &journal);
        let endpoint = process.pull().endpoint().clone();
        let all = hello(Role::Push);
        // The greeting without its last byte: nobody has READY.
        let mut early = dial(&endpoint);
        early.write_all(&all[..63]).unwrap();
        // The greeting: we answer with READY, and the sender may send its READY and messages at any time.
        let mut half = dial(&endpoint);
        half.write_all(&all[..70]).unwrap();
        let senders = |process: &Process| process.store.entries().unwrap().len() - 1;
        process.until("our READY", |process| {
            process.pull.as_ref().unwrap().peers() == 2 && senders(process) == 1
        });
        let mut process = Process::start(&endpoint, process.die(), &journal);
        process.poll(Duration::ZERO);
        assert_eq!((process.adopted().len(), process.refused()), (1, vec![]));
        half.write_all(&all[70..]).unwrap();
        half.write_all(&message(&payload(1, 0, 100))).unwrap();
        process.persist(&mut journal, 1);
        assert_eq!((process.connected(), check(&journal)), (1, BTreeMap::from([(1, 1)])));
        // The other one is closed, so that it connects again.
        let mut bytes = Vec::new();
        early.read_to_end(&mut bytes).ok();
        assert!(bytes.len() < all.len(), "it has READY");
        // A further sender has a number of its own.
        let _further = Raw::push(&endpoint);
        process.until("the further one", |process| process.connected() == 2);
        let ids: Vec<u64> = process
            .notices
            .iter()
            .filter_map(|notice| match notice {
                PullNotice::Connected { peer, .. } => Some(peer.0),
                _ => None,
            })
            .collect();
        assert!(ids[1] > ids[0], "{ids:?}");
    }
}

#[test]
fn the_listener_outlives_the_process_and_a_sender_that_connects_meanwhile_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "listener") {
        let mut journal = Journal::default();
        let mut process = Process::start(&endpoint, Vec::new(), &journal);
        let endpoint = process.pull().endpoint().clone();
        let left = process.die();
        let mut raw = Raw::push(&endpoint);
        raw.send(&payload(1, 0, 100));
        let mut process = Process::start(&endpoint, left, &journal);
        assert_eq!(*process.pull().endpoint(), endpoint);
        process.persist(&mut journal, 1);
        if let Endpoint::Ipc(path) = &endpoint {
            // A process that leaves its sockets to another one leaves the file, too. The last one unlinks it.
            let left = process.store.entries().unwrap();
            process.pull.take().unwrap().leave();
            assert!(path.exists());
            let mut next = Process::start(&endpoint, left, &journal);
            raw.send(&payload(1, 1, 100));
            next.poll(Duration::ZERO);
            next.persist(&mut journal, 2);
            drop(next);
            assert!(!path.exists());
        }
    }
}

#[test]
fn a_process_that_never_ran_leaves_the_listener_and_the_senders_to_the_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "two");
    let mut journal = Journal::default();
    let mut process = Process::start(&endpoint, Vec::new(), &journal);
    let mut raw = Raw::push(&endpoint);
    raw.send(&payload(1, 0, 100));
    raw.send(&payload(1, 1, 100));
    process.persist(&mut journal, 1);
    // The next process has everything ready, and fails.
    let next = Process::start(&endpoint, process.store.entries().unwrap(), &journal);
    drop(next);
    let other = dir.path().join("elsewhere");
    let elsewhere = Endpoint::ipc(&other).unwrap();
    drop(Process::start(&elsewhere, process.store.entries().unwrap(), &journal));
    assert!(path_of(&endpoint).exists() && !other.exists());
    process.persist(&mut journal, 2);
    let mut late = Raw::push(&endpoint);
    late.send(&payload(2, 0, 100));
    process.persist(&mut journal, 3);
}

#[test]
fn a_listener_of_another_endpoint_is_closed_and_its_senders_continue() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (ipc(&dir, "first"), ipc(&dir, "second"));
    let mut journal = Journal::default();
    let mut process = Process::start(&first, Vec::new(), &journal);
    let mut raw = Raw::push(&first);
    raw.send(&payload(1, 0, 100));
    process.persist(&mut journal, 1);
    let mut process = Process::start(&second, process.die(), &journal);
    assert!(path_of(&first).exists(), "the earlier process might still continue");
    process.poll(Duration::ZERO);
    assert!(!path_of(&first).exists() && path_of(&second).exists());
    assert_eq!(process.refused(), [(format!("it listens on {first}"), 0)]);
    raw.send(&payload(1, 1, 100));
    process.persist(&mut journal, 2);
}

#[test]
fn a_memory_that_contradicts_itself_closes_its_connection_with_the_reason_and_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "damaged");
    // The place of each change: the header, then the words of both slots (END is word 2, DONE is word 3, FRAME word 4).
    let word = |slot: u64, word: u64| 32 + slot * 192 + word * 8;
    let cases: [(&[u64], &[u8], &str); 5] = [
        (&[0], b"ABNOTHIN", "the memory is none of Afterbay's"),
        (&[8], &[9], "the memory has version 9, this Afterbay reads version 1"),
        (&[word(0, 2), word(1, 2)], &[255; 8], "the memory contradicts itself"),
        (&[word(0, 3), word(1, 3)], &[255; 7], "the memory contradicts itself"),
        (&[word(0, 0), word(1, 0)], &[3], "the memory contradicts itself"),
    ];
    for (places, bytes, why) in cases {
        let mut journal = Journal::default();
        let mut process = Process::start(&endpoint, Vec::new(), &journal);
        let mut senders = [Raw::push(&endpoint), Raw::push(&endpoint)];
        senders.iter_mut().zip(1..).for_each(|(sender, number)| sender.send(&payload(number, 0, 100)));
        process.persist(&mut journal, 2);
        let first = journal.0.iter().position(|message| message.peer == PeerId(1)).unwrap();
        let (number, ..) = describe(&journal.0[first].bytes);
        let left = process.die();
        let damaged = left.iter().find(|(name, _)| name.sender_id() == Some(1)).unwrap();
        for at in places {
            rustix::io::pwrite(&damaged.1[1], bytes, *at).unwrap();
        }
        senders.iter_mut().zip(1..).for_each(|(sender, number)| sender.send(&payload(number, 1, 100)));
        let mut process = Process::start(&endpoint, left, &journal);
        process.persist(&mut journal, 3);
        assert_eq!(process.adopted(), [PeerId(2)]);
        let refused = process.refused();
        assert!(refused.len() == 1 && refused[0].0.starts_with(why), "{refused:?}");
        // The message that the kernel had.
        assert_eq!(refused[0].1, 102);
        assert_eq!(check(&journal)[&(3 - number)], 2);
    }
}

#[test]
fn entries_with_other_descriptors_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "others");
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let pair = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
    let name = |id| FdName::sender("s", id);
    let left = vec![
        (FdName::listener("s"), vec![pair()]),
        (name(4), vec![pair()]),
        (name(5), vec![file(), file()]),
        (name(6), vec![pair(), pair()]),
    ];
    let mut process = Process::start(&endpoint, left, &Journal::default());
    process.poll(Duration::ZERO);
    let mut why: Vec<String> = process.refused().into_iter().map(|(why, _)| why).collect();
    why.sort();
    assert_eq!(
        why,
        [
            "1 descriptors, expected a socket and its memory",
            "the descriptor is no listening socket",
            "the descriptor is no sealed memory",
            "the descriptor is no socket of unix or TCP",
        ]
    );
    let _sender = Raw::push(&endpoint);
    process.until("a sender", |process| process.connected() == 1);
    let is_new = |notice: &PullNotice| matches!(notice, PullNotice::Connected { peer: PeerId(7), .. });
    assert!(process.notices.iter().any(is_new), "the ids of refused entries are not used again");
}

#[test]
fn the_death_of_a_process_within_a_pong_loses_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "pong");
    let mut journal = Journal::default();
    let mut process = Process::start(&endpoint, Vec::new(), &journal);
    let mut raw = Raw::push(&endpoint);
    raw.send(&payload(1, 0, 100));
    process.persist(&mut journal, 1);
    let ping = [&[4, 14, 4][..], b"PING\x00\x0acontext"].concat();
    raw.write(&ping);
    raw.send(&payload(1, 1, 100));
    // The kernel takes 5 bytes of the PONG, and the process dies.
    injected::set_hook(Some(Box::new(|call| match call {
        SocketCall::Write(_) => 5,
        SocketCall::HasWritten(_) => std::panic::resume_unwind(Box::new("dies")),
        _ => usize::MAX,
    })));
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| process.receive()));
    injected::set_hook(None);
    assert!(died.is_err());
    let mut process = Process::start(&endpoint, process.die(), &journal);
    raw.write(&ping);
    raw.send(&payload(1, 2, 100));
    process.persist(&mut journal, 3);
    assert_eq!(check(&journal), BTreeMap::from([(1, 3)]));
    // Our direction stays cut: what would follow is no ZMTP.
    drop(process);
    let mut rest = Vec::new();
    raw.stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), hello(Role::Pull).len() + 5);
}

#[test]
fn what_is_kept_ends_with_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "ends");
    let mut process = Process::start(&endpoint, Vec::new(), &Journal::default());
    let raw = Raw::push(&endpoint);
    process.until("connected", |process| process.connected() == 1);
    let left = process.store.entries().unwrap();
    assert_eq!((left.len(), left[1].1.len()), (2, 2));
    assert!(rustix::fs::fcntl_get_seals(left[1].1[1].as_fd()).is_ok());
    drop(raw);
    process.until("closed", |process| process.pull.as_ref().unwrap().peers() == 0);
    assert_eq!(process.store.entries().unwrap().len(), 1);
    process.pull().close(Instant::now());
    assert_eq!(process.store.entries().unwrap().len(), 0);
}
