//! The queue's two parts, its limits, and a model of it.

use std::io::Read;

use afterbay_types::parts;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn frame(sequence: u64, size: usize, counted: bool) -> OutgoingFrame {
    OutgoingFrame { sequence, bytes: Bytes::from(vec![sequence as u8; size]), counted }
}

/// Stages and writes the next frames.
fn write(queue: &mut SendQueue, frames: usize) {
    for _ in 0..frames {
        queue.staged();
    }
    queue.wrote(frames);
}

/// How many more frames these limits allow to be staged.
fn allowed(queue: &mut SendQueue, max_frames: usize, max_bytes: usize) -> usize {
    let (staged, bytes) = (queue.staged, queue.staged_bytes);
    while queue.next_unstaged(max_frames, max_bytes).is_some() {
        queue.staged();
    }
    let allowed = queue.staged - staged;
    (queue.staged, queue.staged_bytes) = (staged, bytes);
    allowed
}

#[test]
fn without_credit_a_frame_is_taken_when_its_last_byte_is() {
    let mut queue = SendQueue::default();
    queue.connected(1000);
    queue.push(frame(3, 300, true));
    queue.push(frame(7, 5, true));
    assert_eq!(queue.waiting(), Pending { frames: 2, bytes: 305 });
    queue.staged();
    assert_eq!((queue.taken(), queue.last_written(), queue.last()), (0, 0, 7));
    queue.wrote(1);
    assert_eq!((queue.taken(), queue.last_written()), (3, 3));
    write(&mut queue, 1);
    assert_eq!(
        (queue.taken(), queue.waiting(), queue.unfinished()),
        (7, Pending::default(), Pending::default())
    );
    assert_eq!(queue.recent(), Some(Unconfirmed { first: 3, last: 7, frames: 2 }));
}

#[test]
fn a_cut_frame_and_those_behind_it_are_sent_again() {
    let mut queue = SendQueue::default();
    queue.push(frame(1, 300, true));
    queue.push(frame(2, 10, true));
    queue.staged();
    queue.staged();
    assert_eq!(queue.cut(true), Some(1));
    assert_eq!(queue.next_unstaged(9, 9999).unwrap().sequence, 1);
    write(&mut queue, 1);
    queue.staged();
    assert_eq!(queue.cut(false), None, "between two frames nothing is cut");
    assert_eq!(queue.next_unstaged(9, 9999).unwrap().sequence, 2);
}

#[test]
fn with_credit_frames_are_kept_until_they_are_finished_or_sent_again() {
    let mut queue = SendQueue::default();
    queue.retain_written();
    for n in 1..=5 {
        queue.push(frame(n, 10, n != 3));
    }
    write(&mut queue, 4);
    assert_eq!((queue.taken(), queue.last_written(), queue.counted()), (0, 4, 3));
    assert_eq!(queue.unfinished(), Pending { frames: 4, bytes: 40 });
    assert_eq!(queue.finish(1), 0);
    assert_eq!((queue.taken(), queue.unfinished().frames), (1, 3));
    assert_eq!(queue.requeue(), 3);
    assert_eq!((queue.last_written(), queue.waiting().frames, queue.unfinished().frames), (1, 4, 0));
    assert_eq!(queue.next_unstaged(9, 9999).unwrap().sequence, 2);
    write(&mut queue, 4);
    // Frame 2 is finished, and with it the uncounted frame 3, which no count reports.
    assert_eq!(queue.finish(1), 0);
    assert_eq!(queue.taken(), 3);
    assert_eq!(queue.finish(5), 3, "three counts that are not ours");
    assert_eq!(queue.taken(), 5);
}

#[test]
fn the_window_holds_writing_but_never_a_frame_alone() {
    let mut queue = SendQueue::default();
    queue.retain_written();
    for n in 1..=4 {
        queue.push(frame(n, 100, true));
    }
    assert_eq!(allowed(&mut queue, 2, 10_000), 2);
    assert_eq!(allowed(&mut queue, 9, 250), 2);
    assert_eq!(allowed(&mut queue, 9, 50), 1, "too big for the window, and alone");
    write(&mut queue, 2);
    queue.staged();
    assert_eq!(allowed(&mut queue, 3, 10_000), 0);
    assert_eq!(allowed(&mut queue, 4, 10_000), 1);
    queue.stop_retaining();
    assert_eq!(allowed(&mut queue, 1, 1), 1, "without credit there is no window");
}

#[test]
fn only_frames_that_can_be_unread_are_remembered() {
    let mut queue = SendQueue::default();
    queue.connected(100);
    for n in 1..=10 {
        queue.push(frame(n, 30, true));
        write(&mut queue, 1);
    }
    // The frames have 30 bytes: the last 100 bytes touch four of them.
    assert_eq!(queue.recent(), Some(Unconfirmed { first: 7, last: 10, frames: 4 }));
    queue.connected(100);
    assert_eq!(queue.recent(), None);
    for n in 11..=11 + 2 * RECENT_FRAMES_MAX as u64 {
        queue.push(frame(n, 0, true));
        write(&mut queue, 1);
    }
    assert_eq!(queue.recent().unwrap().frames, RECENT_FRAMES_MAX);
}

#[test]
fn the_frames_that_an_earlier_process_wrote_stay_named_until_enough_later_bytes_are_written() {
    let mut queue = SendQueue::default();
    queue.connected(100);
    for n in 1..=10 {
        queue.push(frame(n, 30, true));
        write(&mut queue, 1);
    }
    let memory = SendMemory::new(&"ipc:///reader".parse().unwrap(), queue.taken()).unwrap();
    let mut queue = SendQueue::adopted(&memory, &queue.saved(), 100);
    assert_eq!(queue.taken(), 10);
    for (n, recent) in [(11, 7..=11), (12, 7..=12), (13, 7..=13), (14, 11..=14), (15, 12..=15)] {
        queue.push(frame(n, 30, true));
        write(&mut queue, 1);
        let frames = recent.clone().count();
        assert_eq!(queue.recent(), Some(Unconfirmed { first: *recent.start(), last: n, frames }));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, bool),
    Stage(usize),
    Write(usize),
    Lose {
        resend: bool,
    },
    /// The process dies, and the next one continues.
    Adopt,
    Finish(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..600, any::<bool>()).prop_map(|(size, counted)| Step::Push(size, counted)),
        (1usize..4).prop_map(Step::Stage),
        (1usize..900).prop_map(Step::Write),
        Just(Step::Adopt),
        any::<bool>().prop_map(|resend| Step::Lose { resend }),
        (1u64..4).prop_map(Step::Finish),
    ]
}

proptest! {
    /// A reader receives every frame once and in order on each connection, cut at any byte and over any death of our
    /// process. The sums agree, and `taken` never falls.
    #[test]
    fn whatever_happens_the_sums_agree_and_the_order_holds(steps in proptest::collection::vec(step(), 1..80)) {
        let endpoint = "ipc:///reader".parse().unwrap();
        let mut queue = SendQueue::default();
        queue.retain_written();
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut memory = SendMemory::new(&endpoint, 0).unwrap();
        let (mut next, mut taken, mut received) = (1, 0, Vec::<u8>::new());
        for step in steps {
            match step {
                Step::Push(size, counted) => {
                    let frame = frame(next, size, counted);
                    // Every third message has two parts.
                    let bytes = match next % 3 {
                        0 => parts::join(&[frame.bytes.slice(..size / 2), frame.bytes.slice(size / 2..)]),
                        _ => frame.bytes.clone(),
                    };
                    queue.push(OutgoingFrame { bytes, ..frame });
                    next += 1;
                }
                Step::Stage(frames) => for _ in 0..frames {
                    if let Some(frame) = queue.next_unstaged(usize::MAX, usize::MAX) {
                        prop_assert!(memory.append_frame(frame.sequence, frame.counted, &frame.bytes));
                        queue.staged();
                    }
                },
                Step::Write(bytes) => if memory.unwritten() > 0 {
                    crate::injected::set_hook(Some(Box::new(move |_| bytes)));
                    let (_, frames) = memory.write(&ours).unwrap();
                    crate::injected::set_hook(None);
                    queue.wrote(frames);
                    let mut buffer = [0; 1000];
                    let read = theirs.read(&mut buffer).unwrap();
                    received.extend_from_slice(&buffer[..read]);
                }
                Step::Lose { resend } => {
                    queue.cut(memory.is_within_frame());
                    if resend { queue.requeue(); }
                    received.clear();
                    memory = SendMemory::new(&endpoint, queue.taken()).unwrap();
                    queue.copy_retained(&mut memory);
                }
                Step::Finish(count) => { queue.finish(count); }
                Step::Adopt => {
                    // Frames that are not in the memory are lost with the process, and pushed again by the journal.
                    let unstaged: Vec<_> = queue.frames.drain(queue.staged..).collect();
                    let fd = memory.fd().try_clone_to_owned().unwrap();
                    memory = SendMemory::adopt(fd, &endpoint).unwrap();
                    let words = memory.owner()[..QUEUE_WORDS].try_into().unwrap();
                    let adopted = SendQueue::adopted(&memory, &words, 1 << 20);
                    prop_assert_eq!(adopted.taken(), queue.taken());
                    prop_assert_eq!(adopted.written, queue.written);
                    let both = adopted.frames.iter().zip(&queue.frames);
                    both.for_each(|(adopted, queue)| assert_eq!(adopted, queue));
                    // A frame whose staging no write and no save followed is lost with the process as well.
                    let lost = queue.frames.drain(adopted.frames.len()..);
                    let unstaged: Vec<_> = lost.chain(unstaged).collect();
                    queue = adopted;
                    unstaged.into_iter().for_each(|frame| queue.push(frame));
                }
            }
            let mut words = [0; crate::lasting::OWNER_WORDS];
            words[..QUEUE_WORDS].copy_from_slice(&queue.saved());
            memory.save(queue.taken(), queue.has_staged(), &words);
            prop_assert_eq!(memory.frames().count(), queue.staged);
            prop_assert_eq!(memory.whole(), queue.written);
            prop_assert!(queue.taken() >= taken);
            taken = queue.taken();
            let kept = queue.frames.iter().take(queue.written);
            prop_assert_eq!(queue.unfinished().frames, queue.written);
            prop_assert_eq!(queue.unfinished().bytes, kept.clone().map(|f| f.bytes.len()).sum::<usize>());
            prop_assert_eq!(queue.counted(), kept.filter(|f| f.counted).count() as u64);
            let staged = queue.frames.iter().take(queue.staged);
            prop_assert_eq!(queue.staged_bytes, staged.map(|f| f.bytes.len()).sum::<usize>());
            let waiting = queue.frames.iter().skip(queue.written);
            prop_assert_eq!(queue.waiting().frames, waiting.clone().count());
            prop_assert_eq!(queue.waiting().bytes, waiting.map(|f| f.bytes.len()).sum::<usize>());
            prop_assert!(queue.frames.iter().is_sorted_by_key(|f| f.sequence));
            prop_assert!(queue.frames.front().is_none_or(|f| f.sequence > taken));
            // The connection got whole frames in order, then a part of the next.
            let mut rest = &received[..];
            let (mut last, mut is_second_part) = (0, false);
            while let [flags, head @ ..] = rest {
                let (size, head) = match flags {
                    0 | 1 if !head.is_empty() => (usize::from(head[0]), &head[1..]),
                    2 | 3 if head.len() >= 8 => {
                        (u64::from_be_bytes(head[..8].try_into().unwrap()) as usize, &head[8..])
                    }
                    0..=3 => break,
                    _ => return Err(TestCaseError::fail(format!("flags {flags}"))),
                };
                if head.len() < size { break; }
                if size > 0 {
                    prop_assert!(head[..size].iter().all(|byte| *byte == head[0]));
                    let number = u64::from(head[0]);
                    let is_same = is_second_part && number == last;
                    prop_assert!(number > last || is_same);
                    prop_assert!(flags & 1 == 0 || number % 3 == 0);
                    last = number;
                }
                is_second_part = flags & 1 == 1;
                rest = &head[size..];
            }
        }
    }
}
