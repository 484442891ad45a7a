//! Hand-overs that fail: at each step, the running process learns why and can resume, and the new one must not run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_supervision::hand_over::{
    Asked, Formats, GiveError, Given, HandOverSocket, NamedFds, Part, Predecessor, Ready, SOCKET, TakeError,
    Taken, Versions, bounds,
};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn versions() -> Versions {
    Versions { afterbay: "0.1.0".to_owned(), formats: Formats::from([("journal".to_owned(), 2)]) }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn message(json: &str) -> Vec<u8> {
    [&u32::try_from(json.len()).unwrap().to_le_bytes(), json.as_bytes()].concat()
}

fn hello() -> Vec<u8> {
    message(r#"{"hello":{"afterbay":"0.1.0","formats":{"journal":2},"descriptors":1024,"streams":[]}}"#)
}

/// A new process that has said hello, and the running one's side.
fn asked() -> (UnixStream, Asked) {
    let (mut new, running) = UnixStream::pair().unwrap();
    new.write_all(&hello()).unwrap();
    (new, Asked::read(running, &versions()).unwrap())
}

fn given() -> (UnixStream, Given) {
    let (new, asked) = asked();
    (new, asked.give(Vec::new(), &[], deadline()).unwrap())
}

fn ready() -> (UnixStream, Ready) {
    let (mut new, given) = given();
    new.write_all(&message(r#"{"ready":{}}"#)).unwrap();
    (new, given.wait_until_ready(deadline()).unwrap())
}

/// Reads as the new process until the end of the connection.
fn rest(mut new: UnixStream) -> String {
    let mut read = Vec::new();
    // A reset ends the reading as well.
    let _end = new.read_to_end(&mut read);
    String::from_utf8_lossy(&read).into_owned()
}

#[test]
fn garbage_in_place_of_hello_is_refused_with_its_fault() {
    for (bytes, fault) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "a message of 542393671 bytes, at most 262144 are allowed"),
        (message("{\"hello\":"), "not of this protocol"),
        (message(r#"{"surprise":{}}"#), "unknown variant `surprise`"),
        (message(r#"{"ready":{}}"#), "\"ready\", \"hello\" was expected"),
        (u32::MAX.to_le_bytes().to_vec(), "4294967295 bytes"),
    ] {
        let (mut new, running) = UnixStream::pair().unwrap();
        new.write_all(&bytes).unwrap();
        let why = Asked::read(running, &versions()).unwrap_err();
        assert!(why.contains(fault), "{why}");
        assert!(rest(new).contains("refused"));
    }
    let (new, running) = UnixStream::pair().unwrap();
    drop(new);
    assert_eq!(Asked::read(running, &versions()).unwrap_err(), "the other process closed the connection");
}

#[test]
fn another_format_is_refused_before_anything_stops() {
    let (mut new, running) = UnixStream::pair().unwrap();
    new.write_all(&hello()).unwrap();
    let other = Versions { formats: Formats::from([("journal".to_owned(), 3)]), ..versions() };
    let why = Asked::read(running, &other).unwrap_err();
    assert!(why.contains("its journal format is 2, that of the running one 3"), "{why}");
    assert!(rest(new).contains(&why));
}

#[test]
fn a_new_process_that_ends_or_says_something_else_lets_the_running_one_resume() {
    let (new, given) = given();
    drop(new);
    assert!(matches!(given.wait_until_ready(deadline()), Err(GiveError::Channel(_))));
    for other in [message(r#"{"running":{}}"#), b"\0\0\0\0".to_vec(), hello()] {
        let (mut new, given) = self::given();
        new.write_all(&other).unwrap();
        let error = given.wait_until_ready(deadline()).unwrap_err();
        assert!(matches!(error, GiveError::Channel(_)), "{error}");
        // Whatever the new process says later, it gets no release.
        assert!(!rest(new).contains("released"));
    }
}

#[test]
fn a_silent_new_process_is_given_up_at_the_deadline_and_gets_no_release() {
    let (new, given) = given();
    let error = given.wait_until_ready(Instant::now() + Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.to_string(), "the other process did not answer in time");
    assert!(!rest(new).contains("released"));
}

#[test]
fn a_new_process_that_reads_nothing_is_given_up_at_the_deadline() {
    let (_new, asked) = asked();
    let state = serde_json::Value::String("x".repeat(4 << 20));
    let part = Part { name: "stream/a".to_owned(), state };
    let given = asked.give(vec![part], &[], Instant::now() + Duration::from_millis(50));
    assert_eq!(given.unwrap_err().to_string(), "the other process did not answer in time");
}

#[test]
fn a_new_process_that_ends_before_it_reads_the_release_lets_the_running_one_resume() {
    let (new, ready) = ready();
    drop(new);
    assert!(matches!(ready.release(), Err(GiveError::Channel(_))));
    // It ends between the release and its read.
    let (new, ready) = self::ready();
    let before = rest_before(&new);
    let releasing = std::thread::spawn(|| ready.release());
    while rest_before(&new) == before {
        std::thread::yield_now();
    }
    drop(new);
    let error = releasing.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the other process ended before it read the last message");
}

/// Bytes that wait for the new process.
fn rest_before(new: &UnixStream) -> u64 {
    rustix::io::ioctl_fionread(new).unwrap()
}

#[test]
fn a_new_process_that_has_read_the_release_owns_the_streams_also_without_an_answer() {
    let (mut new, ready) = ready();
    let releasing = std::thread::spawn(|| ready.release());
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("released\":{}}") {
        let mut byte = [0];
        new.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    drop(new);
    releasing.join().unwrap().unwrap();
}

/// A running process's side as a thread, and the state that the new process got.
fn take(running: impl FnOnce(UnixStream) + Send + 'static) -> Result<Taken, TakeError> {
    let dir = tempfile::tempdir().unwrap();
    let socket = HandOverSocket::bind(dir.path()).unwrap();
    let predecessor = Predecessor::connect(dir.path()).unwrap().unwrap();
    let accepted = socket.listener().unwrap().accept().unwrap().0;
    let running = std::thread::spawn(|| running(accepted));
    let taken = predecessor.ask(&versions(), 1024, Vec::new());
    running.join().unwrap();
    taken
}

fn read_hello(socket: &mut UnixStream) {
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    socket.read_exact(&mut vec![0; u32::from_le_bytes(length) as usize]).unwrap();
}

#[test]
fn a_new_process_does_not_run_if_the_running_one_resumes() {
    let asked = |accepted| Asked::read(accepted, &versions()).unwrap();
    let refused = take(move |running| asked(running).refuse("it is not the time")).unwrap_err();
    assert_eq!(refused.to_string(), "the running process refuses: it is not the time");
    // It resumes after it gave its state.
    let taken = take(move |running| drop(asked(running).give(Vec::new(), &[], deadline()).unwrap())).unwrap();
    assert!(taken.confirmation.wait_until_released().is_err());
    // It ends in the middle of the state.
    let cut = take(|mut running| {
        read_hello(&mut running);
        let state = r#"{"state":{"afterbay":"0.1.0","pid":1,"parts":2,"descriptors":0}}"#;
        running.write_all(&message(state)).unwrap();
        running.write_all(&message(r#"{"part":{"name":"a","state":1}}"#)[..9]).unwrap();
    });
    assert!(matches!(cut, Err(TakeError::Channel(_))));
}

#[test]
fn a_state_past_its_bounds_is_refused_by_the_new_process() {
    for (numbers, fault) in [
        (r#""parts":1025,"descriptors":0"#, "1025 parts, at most 1024 are allowed"),
        (r#""parts":0,"descriptors":65537"#, "65537 descriptors, at most 65536 are allowed"),
    ] {
        let taken = take(move |mut running| {
            read_hello(&mut running);
            let state = format!(r#"{{"state":{{"afterbay":"0.1.0","pid":1,{numbers}}}}}"#);
            running.write_all(&message(&state)).unwrap();
            assert!(rest(running).contains(fault));
        });
        assert!(taken.unwrap_err().to_string().contains(fault));
    }
    // An entry that names descriptors which the message does not carry.
    let taken = take(|mut running| {
        read_hello(&mut running);
        let state = r#"{"state":{"afterbay":"0.1.0","pid":1,"parts":0,"descriptors":1}}"#;
        running.write_all(&message(state)).unwrap();
        running.write_all(&message(r#"{"descriptors":{"entries":[{"name":"a","count":1}]}}"#)).unwrap();
        rest(running);
    });
    assert!(taken.unwrap_err().to_string().contains("names 1 descriptors and carries 0"));
}

#[test]
fn descriptors_go_over_in_groups_with_their_names_and_their_order() {
    let files: Vec<std::fs::File> = (0..200).map(|_| tempfile::tempfile().unwrap()).collect();
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    let inodes: Vec<u64> = files.iter().map(|file| file.metadata().unwrap().ino()).collect();
    let entries: Vec<NamedFds> = files
        .chunks(2)
        .enumerate()
        .map(|(at, pair)| NamedFds {
            name: format!("entry {at}"),
            fds: pair.iter().map(|file| file.as_fd().try_clone_to_owned().unwrap()).collect(),
        })
        .collect();
    let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let taken = take(move |running| {
        let asked = Asked::read(running, &versions()).unwrap();
        asked.give(Vec::new(), &entries, deadline()).unwrap();
    });
    let taken = taken.unwrap().fds;
    assert_eq!(taken.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), names);
    assert_eq!(taken.iter().flat_map(|entry| &entry.fds).map(inode).collect::<Vec<_>>(), inodes);
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_refused_before_anything_stops() {
    let (_new, asked) = asked();
    let most = 1024 - usize::try_from(bounds::DESCRIPTORS_SPARE).unwrap();
    assert_eq!(asked.refuses_descriptors(most), None);
    let why = asked.refuses_descriptors(most + 1).unwrap();
    assert!(why.contains("limit is 1024 open files, and it needs 1025"), "{why}");
    assert!(asked.refuses_descriptors(bounds::DESCRIPTORS_MAX + 1).unwrap().contains("at most 65536"));
}

#[test]
fn the_socket_is_private_and_replaces_only_a_stale_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET);
    assert!(Predecessor::connect(dir.path()).unwrap().is_none());
    let mut first = HandOverSocket::bind(dir.path()).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // Its process was killed.
    first.disown();
    drop(first);
    assert!(Predecessor::connect(dir.path()).unwrap().is_none());
    let second = HandOverSocket::bind(dir.path()).unwrap();
    assert!(Predecessor::connect(dir.path()).unwrap().is_some());
    let inherited =
        HandOverSocket::inherit(dir.path(), second.as_fd().try_clone_to_owned().unwrap()).unwrap();
    drop(inherited);
    assert!(path.exists(), "an inherited name stays until it is owned");
    drop(second);
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    assert!(
        HandOverSocket::bind(dir.path()).unwrap_err().to_string().ends_with("is a file, and not a socket")
    );
}

#[test]
fn the_length_of_the_journals_path_has_no_limit() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("a".repeat(200));
    std::fs::create_dir(&long).unwrap();
    let _socket = HandOverSocket::bind(&long).unwrap();
    assert!(Predecessor::connect(&long).unwrap().is_some());
}
