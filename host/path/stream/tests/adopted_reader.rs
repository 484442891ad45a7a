//! A process dies at some point between the record of a frame and its write. The next process continues the reader's connection,
//! and takes from the journal exactly the frames that the connection's memory lacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, Instant};

use afterbay_batch::outbox::FrameToSend;
use afterbay_journal::{
    FrameNo, JournalDirectory, JournalOptions, JournalWriter, RecoveredStream, SinkContent,
};
use afterbay_sockets::{Endpoint, InheritedPush, KeepAs, Pull, PullOptions, Push, PushOptions, TokenRange};
use afterbay_stream::delivery::{Resume, SinkSender, push_options};
use afterbay_supervision::fdstore::{FdName, FdStore};
use bytes::Bytes;
use mio::{Events, Poll};

const SINK: &str = "sink";
const FRAMES: u64 = 30;
const READER: TokenRange = TokenRange { first: 100, count: 10 };

fn open(dir: &Path) -> (JournalDirectory, JournalWriter, RecoveredStream) {
    let directory = JournalDirectory::open(dir, JournalOptions::default()).unwrap();
    let (writer, recovered) = directory.stream("s").unwrap();
    (directory, writer, recovered)
}

/// One process: its poll and the socket of its sink.
struct Process {
    poll: Poll,
    sender: SinkSender,
    /// Frames that the kernel has whole.
    written: u64,
}

impl Process {
    fn new(endpoint: &Endpoint, options: PushOptions, inherited: Option<InheritedPush>) -> Process {
        let (poll, now) = (Poll::new().unwrap(), Instant::now());
        let tokens = TokenRange { first: 1, count: 1 };
        let push = match inherited {
            None => Push::connect(poll.registry(), tokens, endpoint, options, now),
            Some(inherited) => Push::adopt(poll.registry(), tokens, endpoint, options, inherited, now),
        };
        Process { sender: SinkSender::new(push.unwrap(), false, now), poll, written: 0 }
    }

    fn turn(&mut self) {
        let mut events = Events::with_capacity(16);
        self.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        let now = Instant::now();
        let push = &mut self.sender.push;
        events.iter().for_each(|event| push.ready(event, now));
        push.tick(now);
        self.sender.flush(now, &mut |frames| self.written += frames.count() as u64);
    }
}

fn frame(sequence: u64) -> FrameToSend {
    let bytes = Bytes::from(vec![sequence as u8; 100_000]);
    let mut frame = FrameToSend::whole(0, sequence, Instant::now(), bytes, true, 0, 0);
    frame.sequence = sequence;
    frame
}

/// Records the first `recorded` frames, gives the first `given` ones to the socket, dies, and adopts. Returns the last frame of
/// the socket, and the resumed state.
fn die_and_resume(recorded: u64, given: u64) -> (u64, Resume) {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let endpoint = Endpoint::ipc(dir.path().join("reader")).unwrap();
    let store = FdStore::new();
    let keep = Some(KeepAs { store: store.clone(), name: FdName::sink("s", SINK) });
    let options = PushOptions { keep, max_queue_frames: FRAMES as usize, ..push_options() };

    let mut reader_poll = Poll::new().unwrap();
    let mut reader =
        Pull::bind(reader_poll.registry(), READER, &endpoint, PullOptions::default(), None).unwrap();
    let mut ours = Process::new(&endpoint, options.clone(), None);
    while !ours.sender.push.is_connected() {
        ours.turn();
        let mut events = Events::with_capacity(16);
        reader_poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        let now = Instant::now();
        events.iter().for_each(|event| reader.ready(event, now));
        reader.tick(now);
        assert!(reader.receive().is_none());
    }

    let (directory, mut writer, _) = open(&journal);
    for number in 1..=FRAMES {
        assert_eq!(writer.append(b"frame", number).unwrap().frame, FrameNo(number));
    }
    writer.taken(SINK, 0, FrameNo(0), None, 0);
    for sequence in 1..=recorded {
        writer.sent(SINK, sequence, SinkContent::Whole(FrameNo(sequence)), 0);
    }
    writer.flush().unwrap();
    (1..=given).for_each(|sequence| ours.sender.stage(frame(sequence)));
    ours.sender.commit();
    ours.turn();
    let (fds, written) = (store.entries().unwrap().pop().unwrap().1, ours.written);
    drop((ours, writer, directory));

    let inherited = InheritedPush::open(fds, &endpoint).unwrap();
    let ours = Process::new(&endpoint, options, Some(inherited));
    let (_directory, mut writer, recovered) = open(&journal);
    let resume = Resume::after_panic(SINK, &recovered, &ours.sender, &mut writer);
    assert!(
        (given.min(1)..=ours.sender.last).contains(&written),
        "{written} of {given} are reported as written"
    );
    (ours.sender.last, resume)
}

#[test]
fn frames_that_the_memory_has_are_not_sent_again_and_recorded_ones_that_it_lacks_are() {
    // The reader reads nothing: the kernel has two or three frames, the memory about 10 more, and the queue the rest.
    for given in [0, 1, 12, FRAMES] {
        let (last, resume) = die_and_resume(FRAMES, given);
        let least = given.min(10);
        assert!((least..=given).contains(&last), "{last} of {given}");
        assert!(given < FRAMES || last < FRAMES, "the queue is not in the memory");
        let taken: Vec<u64> =
            (1..=FRAMES).filter(|frame| resume.progress.has_taken(FrameNo(*frame))).collect();
        assert_eq!(taken, (1..=last).collect::<Vec<_>>());
        assert_eq!((resume.unconfirmed, resume.in_flight_through), (0, last));
        assert_eq!(resume.progress.last_sent(), FRAMES, "later frames have numbers of their own");
    }
}

#[test]
fn a_frame_in_the_memory_that_the_journal_lacks_lets_no_frame_be_sent_again() {
    let (last, resume) = die_and_resume(3, 5);
    assert_eq!((last, resume.progress.last_sent()), (5, 5));
    // Nobody knows what the frames 4 and 5 held.
    assert!((1..=FRAMES).all(|frame| resume.progress.has_taken(FrameNo(frame))));
    assert_eq!(resume.unconfirmed, FRAMES);
}
