//! The queue's two parts, its limits, and a model of it.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn frame(sequence: u64, size: usize, counted: bool) -> OutgoingFrame {
    OutgoingFrame { sequence, bytes: Bytes::from(vec![sequence as u8; size]), counted }
}

fn wire(queue: &SendQueue, frames: usize, bytes: usize) -> Vec<u8> {
    let mut slices = Vec::new();
    queue.slices(&mut slices, frames, bytes);
    slices.iter().flat_map(|slice| slice.to_vec()).collect()
}

#[test]
fn without_credit_a_frame_is_taken_when_its_last_byte_is() {
    let mut queue = SendQueue::default();
    queue.connected(1000);
    queue.push(frame(3, 300, true));
    queue.push(frame(7, 5, true));
    assert_eq!(queue.waiting(), Pending { frames: 2, bytes: 305 });
    assert_eq!(wire(&queue, 9, 9999).len(), 9 + 300 + 2 + 5);
    assert_eq!(queue.advance(308), 0);
    assert_eq!((queue.taken(), queue.last_written()), (0, 0));
    assert_eq!(queue.advance(1), 1);
    assert_eq!((queue.taken(), queue.last_written()), (3, 3));
    assert_eq!(queue.advance(7), 1);
    assert_eq!(
        (queue.taken(), queue.waiting(), queue.unfinished()),
        (7, Pending::default(), Pending::default())
    );
    assert_eq!(queue.recent(), Some(Unconfirmed { first: 3, last: 7, frames: 2 }));
}

#[test]
fn a_cut_frame_is_sent_again_whole() {
    let mut queue = SendQueue::default();
    queue.push(frame(1, 300, true));
    queue.push(frame(2, 10, true));
    let whole = wire(&queue, 9, 9999);
    queue.advance(100);
    assert_eq!(wire(&queue, 9, 9999), whole[100..]);
    assert_eq!(queue.cut(), Some(1));
    assert_eq!(wire(&queue, 9, 9999), whole);
    assert_eq!(queue.cut(), None);
    queue.advance(309);
    assert_eq!(queue.cut(), None, "between two frames nothing is cut");
    // A frame is cut even within its header.
    queue.advance(1);
    assert_eq!(queue.cut(), Some(2));
}

#[test]
fn with_credit_frames_are_kept_until_they_are_finished_or_sent_again() {
    let mut queue = SendQueue::default();
    queue.retain_written();
    for n in 1..=5 {
        queue.push(frame(n, 10, n != 3));
    }
    let whole = wire(&queue, 9, 9999);
    queue.advance(12 * 4);
    assert_eq!((queue.taken(), queue.last_written(), queue.counted()), (0, 4, 3));
    assert_eq!(queue.unfinished(), Pending { frames: 4, bytes: 40 });
    assert_eq!(queue.finish(1), 0);
    assert_eq!((queue.taken(), queue.unfinished().frames), (1, 3));
    assert_eq!(queue.requeue(), 3);
    assert_eq!((queue.last_written(), queue.waiting().frames, queue.unfinished().frames), (1, 4, 0));
    assert_eq!(wire(&queue, 9, 9999), whole[12..]);
    queue.advance(12 * 4);
    // Frame 2 is finished, and with it the uncounted frame 3, which no count reports.
    assert_eq!(queue.finish(1), 0);
    assert_eq!(queue.taken(), 3);
    assert_eq!(queue.finish(5), 3, "three counts that are not ours");
    assert_eq!(queue.taken(), 5);
}

#[test]
fn the_window_holds_writing_but_never_a_frame_alone_or_one_begun() {
    let mut queue = SendQueue::default();
    queue.retain_written();
    for n in 1..=4 {
        queue.push(frame(n, 100, true));
    }
    assert_eq!(queue.window(2, 10_000, 99), 2);
    assert_eq!(queue.window(9, 250, 99), 2);
    assert_eq!(queue.window(9, 50, 99), 1, "too big for the window, and alone");
    assert_eq!(queue.window(9, 10_000, 3), 3);
    queue.advance(102 * 2 + 1);
    assert_eq!(queue.window(2, 10_000, 99), 1, "the frame that is begun is ended");
    queue.advance(101);
    assert_eq!(queue.window(2, 10_000, 99), 0);
    queue.stop_retaining();
    assert_eq!(queue.window(2, 10_000, 99), 99, "without credit there is no window");
}

#[test]
fn only_frames_that_can_be_unread_are_remembered() {
    let mut queue = SendQueue::default();
    queue.connected(100);
    for n in 1..=10 {
        queue.push(frame(n, 30, true));
        queue.advance(32);
    }
    // The frames have 30 bytes: the last 100 bytes touch four of them.
    assert_eq!(queue.recent(), Some(Unconfirmed { first: 7, last: 10, frames: 4 }));
    queue.connected(100);
    assert_eq!(queue.recent(), None);
    for n in 11..=11 + 2 * RECENT_FRAMES_MAX as u64 {
        queue.push(frame(n, 0, true));
        queue.advance(2);
    }
    assert_eq!(queue.recent().unwrap().frames, RECENT_FRAMES_MAX);
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, bool),
    Write(usize),
    Lose { resend: bool },
    Finish(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..600, any::<bool>()).prop_map(|(size, counted)| Step::Push(size, counted)),
        (1usize..900).prop_map(Step::Write),
        any::<bool>().prop_map(|resend| Step::Lose { resend }),
        (1u64..4).prop_map(Step::Finish),
    ]
}

proptest! {
    /// A reader receives every frame once and in order on each connection. The sums agree, and `taken` never falls.
    #[test]
    fn whatever_happens_the_sums_agree_and_the_order_holds(steps in proptest::collection::vec(step(), 1..80)) {
        let mut queue = SendQueue::default();
        queue.retain_written();
        let (mut next, mut taken, mut received) = (1, 0, Vec::<u8>::new());
        for step in steps {
            match step {
                Step::Push(size, counted) => { queue.push(frame(next, size, counted)); next += 1; }
                Step::Write(bytes) => {
                    let bytes = wire(&queue, 100, 1 << 20).into_iter().take(bytes).collect::<Vec<_>>();
                    queue.advance(bytes.len());
                    received.extend(bytes);
                }
                Step::Lose { resend } => {
                    queue.cut();
                    if resend { queue.requeue(); }
                    received.clear();
                }
                Step::Finish(count) => { queue.finish(count); }
            }
            prop_assert!(queue.taken() >= taken);
            taken = queue.taken();
            let kept = queue.frames.iter().take(queue.written);
            prop_assert_eq!(queue.unfinished().frames, queue.written);
            prop_assert_eq!(queue.unfinished().bytes, kept.clone().map(|f| f.outgoing.bytes.len()).sum::<usize>());
            prop_assert_eq!(queue.counted(), kept.filter(|f| f.outgoing.counted).count() as u64);
            let waiting = queue.frames.iter().skip(queue.written);
            prop_assert_eq!(queue.waiting().frames, waiting.clone().count());
            prop_assert_eq!(queue.waiting().bytes, waiting.map(|f| f.outgoing.bytes.len()).sum::<usize>());
            prop_assert!(queue.frames.iter().is_sorted_by_key(|f| f.outgoing.sequence));
            prop_assert!(queue.frames.front().is_none_or(|f| f.outgoing.sequence > taken));
            // The connection got whole frames in order, then a part of the next.
            let mut rest = &received[..];
            let mut last = 0;
            while let [flags, head @ ..] = rest {
                let (size, head) = match flags {
                    0 if !head.is_empty() => (usize::from(head[0]), &head[1..]),
                    2 if head.len() >= 8 => (u64::from_be_bytes(head[..8].try_into().unwrap()) as usize, &head[8..]),
                    _ => break,
                };
                if head.len() < size { break; }
                if size > 0 {
                    prop_assert!(head[..size].iter().all(|byte| *byte == head[0]));
                    prop_assert!(u64::from(head[0]) > last);
                    last = u64::from(head[0]);
                }
                rest = &head[size..];
            }
        }
    }
}
