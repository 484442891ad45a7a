//! A hand-over between this process and a new one. The new process is this test again, with a part to play in its environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_supervision::fdstore::{FdName, FdStore, Inherited};
use afterbay_supervision::hand_over::{HandOverError, Predecessor, STATE_BYTES_MAX, Successor};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// The variable with the part of a new process.
const PART: &str = "HAND_OVER_PART";
const STATE: &[u8] = b"the state";

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Starts this test as a new process that plays a part.
fn start(part: &str) -> Successor {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_new_process_plays_its_part", "--nocapture"]).env(PART, part);
    Successor::start(command).unwrap()
}

/// Descriptors of one stream: a listener, and a sender with its memory.
fn entries() -> Vec<(FdName, Vec<OwnedFd>)> {
    let fd = || OwnedFd::from(tempfile::tempfile().unwrap());
    let mut entries: Vec<_> = (0..300).map(|id| (FdName::sender("a", id), vec![fd(), fd()])).collect();
    entries.push((FdName::listener("a"), vec![fd()]));
    entries.push((FdName::journal_lock(), vec![fd()]));
    entries
}

/// Plays the part of the environment as a new process. Without one, this test does nothing.
#[test]
fn the_new_process_plays_its_part() {
    let Ok(part) = std::env::var(PART) else { return };
    if let Some(last) = part.strip_prefix("dies after ") {
        die_after(last);
    }
    let predecessor = Predecessor::from_stdin().unwrap();
    if part == "ends" {
        std::process::exit(64);
    }
    if part == "no room" {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(16), maximum }).unwrap();
    }
    let Ok(mut taken) = predecessor.ask("0.2.0", "journal 2") else { return };
    assert_eq!(taken.state, STATE);
    assert!(taken.take(&FdName::journal_lock()).is_some() && taken.take(&FdName::journal_lock()).is_none());
    let mut inherited = Inherited::from_passed(&FdStore::new(), taken.passed);
    assert_eq!(inherited.take(&FdName::listener("a")).unwrap().len(), 1);
    let senders = inherited.take_with_prefix(&FdName::senders("a"));
    assert!(senders.len() == 300 && senders.iter().all(|(_, fds)| fds.len() == 2));
    match part.as_str() {
        "fails" => predecessor.fail("the disk\nis full"),
        "waits" => std::thread::sleep(Duration::from_secs(60)),
        "takes over" => predecessor.wait_until_released().unwrap(),
        _ => std::process::exit(3),
    }
}

/// A new process that dies once it has received a message with these words. It is ready when it has the state.
fn die_after(last: &str) -> ! {
    let socket = std::io::stdin();
    let send = |text: &str| rustix::net::send(&socket, text.as_bytes(), SendFlags::empty()).unwrap();
    send(&format!("VERSION=0.2.0\nFORMATS=journal 2\nMAINPID={}", std::process::id()));
    let mut buffer = [0; 4096];
    loop {
        let (bytes, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty()).unwrap();
        let text = String::from_utf8_lossy(&buffer[..bytes]);
        if text == "STATE=1" {
            send("READY=1");
        }
        if text == last {
            // The release may be on its way, and is not read.
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }
}

fn hand_over(part: &str) -> Result<(), HandOverError> {
    let mut successor = start(part);
    assert_eq!(successor.wait_until_asked(deadline())?, ("0.2.0".to_owned(), "journal 2".to_owned()));
    successor.hand_over(&entries(), STATE, deadline())
}

#[test]
fn a_new_process_gets_every_descriptor_and_the_state_and_is_released() {
    hand_over("takes over").unwrap();
}

#[test]
fn a_new_process_that_fails_or_ends_says_why_and_has_ended() {
    for (part, why) in [
        ("ends", "the new process ended before it took over (exit status: 64)"),
        ("fails", "the new process: the disk is full"),
        ("dies", "the new process ended before it took over (exit status: 3)"),
        ("no room", "the new process: no room for further descriptors"),
    ] {
        let error = hand_over(part).unwrap_err().to_string();
        assert!(error.starts_with(why), "{part}: {error}");
    }
}

#[test]
fn a_new_process_that_ends_before_it_reads_the_release_lets_the_running_one_resume() {
    let error = hand_over("dies after STATE=1").unwrap_err();
    assert!(matches!(error, HandOverError::Ended(_)), "{error}");
}

#[test]
fn a_new_process_that_has_read_the_release_owns_the_streams_also_without_an_answer() {
    hand_over("dies after RELEASED=1").unwrap();
}

#[test]
fn a_new_process_that_does_not_answer_is_killed_at_the_deadline() {
    let mut successor = start("waits");
    successor.wait_until_asked(deadline()).unwrap();
    let pid = rustix::process::Pid::from_raw(successor.pid().try_into().unwrap()).unwrap();
    let error = successor.hand_over(&entries(), STATE, Instant::now() + Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, HandOverError::Late), "{error}");
    assert!(rustix::process::test_kill_process(pid).is_err(), "it has ended");
}

#[test]
fn a_new_process_that_is_given_up_is_killed() {
    let mut successor = start("takes over");
    successor.wait_until_asked(deadline()).unwrap();
    let pid = rustix::process::Pid::from_raw(successor.pid().try_into().unwrap()).unwrap();
    drop(successor);
    assert!(rustix::process::test_kill_process(pid).is_err(), "it has ended");
}

#[test]
fn a_child_of_the_started_process_may_not_take_over() {
    let mut command = Command::new("/bin/sh");
    let test = std::env::current_exe().unwrap().display().to_string();
    let line = format!("'{test}' --exact the_new_process_plays_its_part --nocapture; exit 0");
    command.args(["-c", &line]).env(PART, "takes over");
    let error = Successor::start(command).unwrap().wait_until_asked(deadline()).unwrap_err();
    assert!(matches!(error, HandOverError::Wrapper), "{error}");
}

#[test]
fn a_state_past_its_bound_is_not_sent() {
    let mut successor = start("takes over");
    successor.wait_until_asked(deadline()).unwrap();
    let state = vec![0; STATE_BYTES_MAX + 1];
    let error = successor.hand_over(&[], &state, deadline()).unwrap_err();
    assert!(matches!(error, HandOverError::State(_)), "{error}");
}

#[test]
fn a_process_that_no_upgrade_started_has_no_predecessor() {
    assert!(matches!(Predecessor::from_stdin().unwrap_err(), HandOverError::NotStarted));
}
