//! A new process without room for descriptors. A test of its own process: the limit of open files is the process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_supervision::hand_over::{Asked, Formats, HandOverSocket, NamedFds, Predecessor, Versions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[test]
fn a_new_process_without_room_for_descriptors_says_so_and_the_running_one_resumes() {
    let versions = Versions { afterbay: "0.1.0".to_owned(), formats: Formats::new() };
    let dir = tempfile::tempdir().unwrap();
    let socket = HandOverSocket::bind(dir.path()).unwrap();
    let predecessor = Predecessor::connect(dir.path()).unwrap().unwrap();
    let accepted = socket.listener().unwrap().accept().unwrap().0;
    let (asks, deadline) = (versions.clone(), Instant::now() + Duration::from_secs(20));
    let taking = std::thread::spawn(move || predecessor.ask(&asks, u64::MAX, Vec::new()));
    let asked = Asked::read(accepted, &versions).unwrap();
    let fds = (0..4).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
    // Both sides are this process. The kernel gives the lowest free number, so that a limit of it leaves no room.
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), maximum: limit.maximum }).unwrap();
    // They stay open: closed ones would make room.
    let entries = [NamedFds { name: "stream/a/sender/1".to_owned(), fds }];
    let given = asked.give(Vec::new(), &entries, deadline).unwrap();
    let taken = taking.join().unwrap().unwrap_err().to_string();
    setrlimit(Resource::Nofile, limit).unwrap();
    let why = "no room for further descriptors: raise the limit of open files (ulimit -n, LimitNOFILE=)";
    assert_eq!(taken, format!("the running process goes on: {why}"));
    let resumed = given.wait_until_ready(deadline).unwrap_err().to_string();
    assert_eq!(resumed, format!("the new process: {why}"));
}
