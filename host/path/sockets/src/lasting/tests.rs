//! Kills a process that receives into, or sends from, a memory, at hundreds of instants.
//!
//! The process is this test's binary: it runs only the test [`the_process_that_is_killed`], with the memory as its standard
//! input and the socket as its standard error.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::SealFlags;
use rustix::io::Errno;

use super::{Memory, MemoryError, MemoryRole, WORDS, Words};

const AREA: usize = 64 << 10;
/// The variable that tells the child its direction.
const DIRECTION: &str = "AFTERBAY_TEST_MEMORY";
const KILLS: usize = 150;

/// Word 0: bytes transferred by earlier calls. Word 1: the complement of word 0, which shows a torn state.
fn words(bytes: u64) -> Words {
    let mut words = [0; WORDS];
    (words[0], words[1], words[WORDS - 1]) = (bytes, !bytes, bytes);
    words
}

/// The bytes that the memory says were transferred.
fn transferred(memory: &Memory) -> u64 {
    let stored = memory.words();
    assert_eq!(stored, words(stored[0]), "torn words");
    stored[0] + memory.count() as u64
}

/// The byte of the stream at this offset.
fn byte(offset: u64) -> u8 {
    (offset % 251) as u8
}

fn stream(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

fn wait_for(socket: impl AsFd, flags: PollFlags) {
    let mut fds = [PollFd::new(&socket, flags)];
    let _ready = poll(&mut fds, None);
}

/// The child: transfers until it is killed. In an ordinary run of the tests there is nothing to do.
#[test]
fn the_process_that_is_killed() {
    let Ok(direction) = std::env::var(DIRECTION) else { return };
    let owned = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let (memory, socket) = (owned(std::io::stdin().as_fd()), owned(std::io::stderr().as_fd()));
    let role = if direction == "receive" { MemoryRole::Receive } else { MemoryRole::Send };
    let mut memory = Memory::adopt(memory, role).unwrap();
    loop {
        let before = transferred(&memory);
        // Sizes that divide nothing.
        let size = 1 + (before as usize * 7 + 13) % 3001;
        let at = before as usize % (AREA - 3001);
        let done = if role == MemoryRole::Receive {
            memory.receive(&words(before), socket.as_fd(), at..at + size)
        } else {
            memory.send(
                &words(before),
                socket.as_fd(),
                &[IoSlice::new(&stream(before..before + size as u64))],
            )
        };
        match done {
            Ok(count) if role == MemoryRole::Receive && count > 0 => {
                // The parent checks the last bytes in the area, and these checks catch earlier ones.
                let got = memory.bytes(at..at + count) == stream(before..before + count as u64);
                memory.commit(&words(if got { before + count as u64 } else { u64::MAX / 2 }));
            }
            Ok(_) => {}
            Err(Errno::AGAIN) if role == MemoryRole::Receive => wait_for(&socket, PollFlags::IN),
            Err(Errno::AGAIN) => wait_for(&socket, PollFlags::OUT),
            Err(_) => return,
        }
    }
}

fn spawn(direction: &str, memory: &Memory, socket: &OwnedFd) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lasting::tests::the_process_that_is_killed", "--test-threads=1"])
        .env(DIRECTION, direction)
        .stdin(Stdio::from(memory.fd().try_clone_to_owned().unwrap()))
        .stdout(Stdio::null())
        .stderr(Stdio::from(socket.try_clone().unwrap()))
        .spawn()
        .unwrap()
}

/// The two ends of a connection: one for the child, the other for this process.
fn connections() -> Vec<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().0;
    vec![(ours.into(), theirs.into()), (connected.into(), accepted.into())]
}

/// Runs and kills children until `KILLS` are dead. `progress` keeps the other end busy; `check` runs after each death.
fn kill_many(
    direction: &str,
    memory: &Memory,
    child_end: &OwnedFd,
    mut progress: impl FnMut(),
    mut check: impl FnMut(&Memory),
) {
    let mut seed = 0x9e37_79b9_u64;
    for _ in 0..KILLS / 2 {
        let before = transferred(memory);
        let mut child = spawn(direction, memory, child_end);
        // Nearly all of the child's life is its start, so the clock begins with the first transfer.
        let start = Instant::now();
        while transferred_now(memory) == before && start.elapsed() < Duration::from_secs(10) {
            progress();
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (since, life) = (Instant::now(), Duration::from_nanos((seed >> 33) % 1_500_000));
        while since.elapsed() < life {
            progress();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        check(memory);
    }
}

/// As [`transferred`], while the child runs: words and count may be of two states.
fn transferred_now(memory: &Memory) -> u64 {
    memory.words()[0] + memory.count() as u64
}

#[test]
fn a_kill_at_any_instant_leaves_a_count_that_agrees_with_the_bytes_received() {
    for (ours, theirs) in connections() {
        let memory = Memory::new(MemoryRole::Receive, AREA).unwrap();
        let mut memory_of_parent =
            Memory::adopt(memory.fd().try_clone_to_owned().unwrap(), MemoryRole::Receive).unwrap();
        memory_of_parent.commit(&words(0));
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let mut ours = std::fs::File::from(ours);
        let mut written = 0;
        let mut write = || {
            if let Ok(bytes) = ours.write(&stream(written..written + 7919)) {
                written += bytes as u64;
            }
        };
        kill_many("receive", &memory, &theirs, &mut write, |memory| {
            let (before, count) = (memory.words()[0], memory.count());
            let at = before as usize % (AREA - 3001);
            let expected = stream(before..before + count as u64);
            assert!(memory.bytes(at..at + count) == expected, "the {count} bytes after {before} differ");
            assert!(transferred(memory) < u64::MAX / 4, "the child found other bytes");
        });
        // The rest of the stream continues exactly where the memory ends.
        let taken = transferred(&memory);
        drop(ours);
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        let mut rest = Vec::new();
        std::fs::File::from(theirs).read_to_end(&mut rest).unwrap();
        assert!(taken > 0 && taken + rest.len() as u64 == written, "{taken} + {} of {written}", rest.len());
        assert!(rest == stream(taken..written));
    }
}

#[test]
fn a_kill_at_any_instant_leaves_a_count_that_agrees_with_the_bytes_sent() {
    for (ours, theirs) in connections() {
        let mut memory = Memory::new(MemoryRole::Send, AREA).unwrap();
        memory.commit(&words(0));
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let mut ours = std::fs::File::from(ours);
        let read = std::cell::RefCell::new(0_u64);
        let mut buffer = vec![0; 10_007];
        let mut take = || {
            if let Ok(bytes) = ours.read(&mut buffer) {
                let mut read = read.borrow_mut();
                assert!(buffer[..bytes] == stream(*read..*read + bytes as u64), "after {read}");
                *read += bytes as u64;
            }
        };
        kill_many("send", &memory, &theirs, &mut take, |memory| {
            assert!(transferred(memory) >= *read.borrow(), "more arrived than was counted");
        });
        let sent = transferred(&memory);
        drop(theirs);
        let end = Instant::now() + Duration::from_secs(10);
        while *read.borrow() < sent && Instant::now() < end {
            take();
        }
        take();
        assert_eq!(*read.borrow(), sent);
    }
}

#[test]
fn a_memory_that_is_not_ours_is_refused_with_the_reason() {
    let adopt = |fd: OwnedFd| Memory::adopt(fd, MemoryRole::Receive).map(|_| ()).unwrap_err();
    let memfd = || {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
        rustix::fs::memfd_create("test", flags).unwrap()
    };
    assert_eq!(adopt(UnixStream::pair().unwrap().0.into()), MemoryError::NotSealed);
    let unsealed = memfd();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    assert_eq!(adopt(unsealed), MemoryError::NotSealed);
    for size in [0, 100, 4096, 1 << 50] {
        let empty = memfd();
        if rustix::fs::ftruncate(&empty, size).is_ok() {
            rustix::fs::fcntl_add_seals(&empty, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
                .unwrap();
            assert_eq!(adopt(empty), MemoryError::Magic, "{size}");
        }
    }
    let ours = |change: &dyn Fn(&OwnedFd)| {
        let fd = Memory::new(MemoryRole::Receive, AREA).unwrap().fd().try_clone_to_owned().unwrap();
        change(&fd);
        fd
    };
    let write = |at: u64, bytes: &[u8]| {
        ours(&|fd| assert_eq!(rustix::io::pwrite(fd, bytes, at).unwrap(), bytes.len()))
    };
    assert_eq!(adopt(write(0, b"ABJOURNL")), MemoryError::Magic);
    assert_eq!(adopt(write(8, &[2])), MemoryError::Version { found: 2 });
    assert_eq!(adopt(write(12, &[2])), MemoryError::Role { found: 2, expected: 1 });
    let (found, stated) = (4096 + AREA as u64, 4096 + AREA as u64 + 1);
    assert_eq!(adopt(write(16, &(AREA as u64 + 1).to_le_bytes())), MemoryError::Size { found, stated });
    assert!(matches!(adopt(write(24, &[2])), MemoryError::Contradiction(_)));
    assert!(Memory::adopt(write(24, &[1]), MemoryRole::Receive).is_ok());
}

#[test]
fn a_range_outside_of_the_area_is_empty_and_returned_pages_read_as_zero() {
    let mut memory = Memory::new(MemoryRole::Receive, AREA).unwrap();
    assert!(memory.bytes(AREA - 1..AREA + 1).is_empty() && memory.bytes_mut(AREA..AREA + 1).is_empty());
    memory.bytes_mut(0..AREA).fill(7);
    memory.give_back(5000);
    assert!(memory.bytes(0..8192).iter().all(|byte| *byte == 7));
    assert!(memory.bytes(8192..AREA).iter().all(|byte| *byte == 0));
    let (socket, _other) = UnixStream::pair().unwrap();
    assert_eq!(memory.receive(&words(3), socket.as_fd(), AREA..AREA + 1), Err(Errno::NOBUFS));
    assert_eq!((memory.words()[0], memory.count()), (3, 0));
}
