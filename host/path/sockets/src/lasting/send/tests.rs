//! The memory at its bounds, over deaths at any write, and memories that are not continued.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;

use crate::zmtp::FrameHeader;
use afterbay_types::parts;
use proptest::prelude::*;

use super::*;

fn endpoint() -> Endpoint {
    "ipc:///run/reader".parse().unwrap()
}

fn new() -> SendMemory {
    SendMemory::new(&endpoint(), 0).unwrap()
}

fn adopt(memory: &SendMemory) -> Result<SendMemory, MemoryError> {
    SendMemory::adopt(memory.fd().try_clone_to_owned().unwrap(), &endpoint())
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn payload(sequence: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![sequence as u8; size];
    for at in (0..size).step_by(1000) {
        bytes[at] = (at / 1000) as u8;
    }
    bytes
}

/// The frame with this number and a payload of this size. Every third one has three parts.
fn frame(sequence: u64, size: usize) -> Bytes {
    let payload = Bytes::from(payload(sequence, size));
    match sequence % 3 {
        0 => parts::join(&[payload.slice(..size / 2), Bytes::new(), payload.slice(size / 2..)]),
        _ => payload,
    }
}

fn append(memory: &mut SendMemory, sequence: u64, size: usize) -> bool {
    memory.append_frame(sequence, true, &frame(sequence, size))
}

/// The bytes that a reader gets of this frame.
fn wire(sequence: u64, size: usize) -> Vec<u8> {
    let payload = payload(sequence, size);
    if !sequence.is_multiple_of(3) {
        return [FrameHeader::message(size).as_bytes(), &payload].concat();
    }
    let (first, last) = payload.split_at(size / 2);
    let header = |size, is_last| FrameHeader::part(size, is_last).as_bytes().to_vec();
    [&header(first.len(), false)[..], first, &[1, 0], &header(last.len(), true), last].concat()
}

fn read_all(theirs: &mut UnixStream) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    while let Ok(read) = theirs.read(&mut buffer) {
        received.extend_from_slice(&buffer[..read]);
    }
    received
}

/// Memory that the pages of the memory take, in bytes.
fn used(memory: &SendMemory) -> u64 {
    rustix::fs::fstat(memory.fd()).unwrap().st_blocks as u64 * 512
}

fn contents(memory: &SendMemory) -> Vec<(u64, usize)> {
    memory
        .frames()
        .map(|frame| {
            let size = parts::split(&frame.bytes).unwrap().iter().map(Bytes::len).sum();
            assert!(frame.bytes == self::frame(frame.sequence, size), "frame {}", frame.sequence);
            (frame.sequence, size)
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Command(usize),
    Write(usize),
    /// The oldest frames, as many of the whole ones, need not be sent again.
    Take(usize),
    Die,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![4 => 0usize..40, 4 => 200usize..40_000, 1 => Just(600_000)].prop_map(Step::Append),
        1 => (1usize..20).prop_map(Step::Command),
        6 => prop_oneof![1usize..30, 1usize..100_000, Just(1 << 21)].prop_map(Step::Write),
        4 => (1usize..5).prop_map(Step::Take),
        2 => Just(Step::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The reader gets the frames and commands in order, each byte once, over any death of the process; and what a death
    /// leaves is every frame that is not taken.
    #[test]
    fn each_byte_is_written_once_over_deaths_and_no_frame_is_missing(steps in prop::collection::vec(step(), 1..80)) {
        let (ours, mut theirs) = pair();
        ours.set_nonblocking(true).unwrap();
        let mut memory = new();
        // Frames in the memory, and bytes that the reader will get.
        let (mut frames, mut taken, mut next) = (VecDeque::new(), 0, 1);
        let (mut expected, mut received) = (Vec::new(), Vec::new());
        // Appended frames, each with the bytes that it adds if the memory has it at a death.
        let mut unsaved: Vec<(Vec<u8>, bool)> = Vec::new();
        for step in steps {
            match step {
                Step::Append(size) => {
                    prop_assert!(append(&mut memory, next, size));
                    unsaved.push((wire(next, size), true));
                    frames.push_back((next, size));
                    next += 1;
                }
                Step::Command(size) => {
                    // Zero bytes: a short message without bytes, as often as it takes.
                    prop_assert!(memory.append_commands(&vec![4; size]));
                    unsaved.push((vec![4; size], false));
                }
                Step::Write(most) if memory.unwritten() > 0 => {
                    injected::set_hook(Some(Box::new(move |_| most)));
                    let written = memory.write(&ours);
                    injected::set_hook(None);
                    prop_assert!(written.is_ok());
                    expected.extend(unsaved.drain(..).flat_map(|(wire, _)| wire));
                    received.extend(read_all(&mut theirs));
                }
                Step::Write(_) => {}
                Step::Take(count) => {
                    for _ in 0..count.min(memory.whole()) {
                        taken = frames.pop_front().map_or(taken, |(sequence, _)| sequence);
                    }
                    let before = memory.taken();
                    memory.save(taken, true, &[taken; OWNER_WORDS]);
                    if before != taken {
                        expected.extend(unsaved.drain(..).flat_map(|(wire, _)| wire));
                    }
                }
                Step::Die => {
                    memory = adopt(&memory).unwrap();
                    // The process takes frames with it that it appended after the last write or save. The memory may have
                    // them nevertheless, if their bytes were moved since.
                    let left = contents(&memory);
                    let lost = frames.len() - left.len();
                    prop_assert!(lost <= unsaved.iter().filter(|(_, is_frame)| *is_frame).count());
                    frames.truncate(left.len());
                    prop_assert_eq!(&left, &Vec::from(frames.clone()));
                    next -= lost as u64;
                    let rest = memory.unwritten();
                    for (wire, _) in unsaved.drain(..) {
                        if expected.len() < received.len() + rest {
                            expected.extend(wire);
                        }
                    }
                    prop_assert_eq!(memory.owner(), &[taken; OWNER_WORDS]);
                }
            }
            prop_assert_eq!(memory.taken(), taken);
        }
        prop_assert_eq!(contents(&memory), Vec::from(frames.clone()));
        prop_assert!(expected.starts_with(&received), "the reader got other bytes");
        while memory.unwritten() > 0 {
            memory.write(&ours).unwrap();
            received.extend(read_all(&mut theirs));
        }
        expected.extend(unsaved.drain(..).flat_map(|(wire, _)| wire));
        prop_assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    }
}

#[test]
fn a_frame_past_2048_waits_until_the_reader_has_finished_one() {
    let (ours, mut theirs) = pair();
    let mut memory = new();
    for sequence in 1..=SEND_ENTRIES_MAX as u64 {
        assert!(append(&mut memory, sequence, 10));
        memory.write(&ours).unwrap();
        read_all(&mut theirs);
    }
    assert!(!append(&mut memory, 3000, 10));
    memory.save(1, true, &[0; OWNER_WORDS]);
    assert!(append(&mut memory, 3000, 10));
    assert!(!append(&mut memory, 3001, 10));
    let frames = contents(&adopt(&memory).unwrap());
    assert_eq!(frames.first().unwrap().0, 2);
}

#[test]
fn the_memory_begins_again_at_its_front_and_gives_the_pages_of_big_frames_back() {
    let (ours, mut theirs) = pair();
    ours.set_nonblocking(true).unwrap();
    let mut memory = new();
    let mut sequence = 0;
    // Two frames are always unfinished, so the memory is never empty.
    let mut send = |memory: &mut SendMemory, count: usize, size: usize| {
        for _ in 0..count {
            sequence += 1;
            assert!(append(memory, sequence, size));
            while memory.unwritten() > 0 {
                memory.write(&ours).unwrap();
                read_all(&mut theirs);
            }
            memory.save(sequence.saturating_sub(2), true, &[0; OWNER_WORDS]);
        }
    };
    send(&mut memory, 2_000, 10_000);
    let small = used(&memory);
    assert!(
        small <= (SEND_RESTART_BYTES + BYTES_AT + (16 << 10)) as u64,
        "{small} bytes for 20 MB in small frames"
    );
    send(&mut memory, 3, 30 << 20);
    assert!(used(&memory) > 60 << 20);
    memory.give_back();
    send(&mut memory, 200, 10_000);
    memory.give_back();
    assert!(used(&memory) > 60 << 20, "used since the last call");
    send(&mut memory, 1, 10_000);
    memory.give_back();
    assert!(!memory.has_spare_pages());
    let after = used(&memory);
    assert!(after <= (SEND_RESIDENT_BYTES + BYTES_AT + (16 << 10)) as u64, "{after} bytes after big frames");
}

#[test]
fn commands_behind_an_unfinished_frame_take_no_room_once_they_are_written() {
    let (ours, mut theirs) = pair();
    let mut memory = new();
    assert!(append(&mut memory, 1, 100));
    for _ in 0..10_000 {
        assert!(memory.append_commands(&[4; 200]));
        memory.write(&ours).unwrap();
        read_all(&mut theirs);
    }
    assert!(used(&memory) < 200 << 10);
    assert_eq!(contents(&memory), [(1, 100)]);
}

#[test]
fn frames_of_an_earlier_connection_are_kept_and_not_written() {
    let (ours, mut theirs) = pair();
    let mut memory = new();
    assert!(append(&mut memory, 5, 100) && append(&mut memory, 6, 100));
    memory.skip();
    let mut memory = adopt(&memory).unwrap();
    assert_eq!((memory.whole(), memory.unwritten(), memory.is_within_frame()), (2, 0, false));
    assert!(append(&mut memory, 7, 3));
    assert_eq!(memory.write(&ours), Ok((5, 1)));
    assert_eq!(read_all(&mut theirs), [&[0, 3][..], &payload(7, 3)].concat());
    // They are sent again on another connection.
    memory.save(4, false, &[1; OWNER_WORDS]);
    assert_eq!(contents(&memory), []);
}

#[test]
fn a_memory_that_contradicts_itself_or_is_for_another_reader_is_not_continued() {
    let with = |change: &dyn Fn(&mut SendMemory)| {
        let mut memory = new();
        assert!(append(&mut memory, 1, 100) && append(&mut memory, 2, 300));
        memory.memory.commit(&memory.words());
        assert_eq!(contents(&adopt(&memory).unwrap()), [(1, 100), (2, 300)]);
        change(&mut memory);
        memory.memory.commit(&memory.words());
        adopt(&memory).unwrap_err().to_string()
    };
    let set = |memory: &mut SendMemory, index: u32, word: usize, value: u64| {
        let at = memory.entry_at(index).start + 8 * word;
        memory.memory.bytes_mut(at..at + 8).copy_from_slice(&value.to_le_bytes());
    };
    let wrong = [
        with(&|memory| memory.written = memory.end + 1),
        with(&|memory| memory.base = 50),
        with(&|memory| memory.end = u64::MAX),
        with(&|memory| memory.entries = 5000),
        with(&|memory| memory.taken = 1),
        with(&|memory| set(memory, 1, 0, 1)),
        with(&|memory| set(memory, 1, 1, 50)),
        with(&|memory| set(memory, 1, 2, 50)),
        with(&|memory| set(memory, 1, 2, 1 << 60)),
        with(&|memory| set(memory, 0, 2, 101)),
        with(&|memory| memory.memory.bytes_mut(BYTES_AT..BYTES_AT + 1).fill(3)),
    ];
    for wrong in wrong {
        assert!(wrong.starts_with("the memory contradicts itself: "), "{wrong}");
    }
    let other = SendMemory::adopt(new().fd().try_clone_to_owned().unwrap(), &"tcp://host:1".parse().unwrap());
    assert_eq!(other.unwrap_err().to_string(), "the connection is to ipc:///run/reader, not to tcp://host:1");
    let receive = Memory::new(MemoryRole::Receive, BYTES_AT).unwrap();
    let role = SendMemory::adopt(receive.fd().try_clone_to_owned().unwrap(), &endpoint()).unwrap_err();
    assert_eq!(role, MemoryError::Role { found: 1, expected: 2 });
}
