//! The wire form, byte for byte. Another form is another version of the hand-over's format.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_supervision::hand_over::{
    Asked, Formats, HandOverSocket, NamedFds, Part, Predecessor, StreamId, Versions,
};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const HELLO: &str = r#"{"hello":{"afterbay":"0.1.0","formats":{"journal":2,"store":1},"descriptors":1024,"streams":[{"name":"decode","listen":"ipc:///run/a"}]}}"#;
const PART: &str = r#"{"part":{"name":"stream/decode","state":{"format":1}}}"#;
const DESCRIPTORS: &str =
    r#"{"descriptors":{"entries":[{"name":"stream/decode/listener","count":1},{"name":"lock","count":2}]}}"#;

fn versions() -> Versions {
    let formats = Formats::from([("journal".to_owned(), 2), ("store".to_owned(), 1)]);
    Versions { afterbay: "0.1.0".to_owned(), formats }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// The bytes of a message: 4 bytes of length, then the JSON.
fn message(json: &str) -> Vec<u8> {
    [&u32::try_from(json.len()).unwrap().to_le_bytes(), json.as_bytes()].concat()
}

#[track_caller]
fn reads(socket: &mut UnixStream, json: &str) {
    let mut found = vec![0; 4 + json.len()];
    socket.read_exact(&mut found).unwrap();
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&message(json)));
}

fn fds(name: &str, count: usize) -> NamedFds {
    let fds = (0..count).map(|_| OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    NamedFds { name: name.to_owned(), fds: fds.collect() }
}

fn state() -> String {
    let pid = std::process::id();
    format!(r#"{{"state":{{"afterbay":"0.1.0","pid":{pid},"parts":1,"descriptors":3}}}}"#)
}

#[test]
fn a_running_process_speaks_the_wire_form_byte_for_byte() {
    let (mut new, running) = UnixStream::pair().unwrap();
    new.write_all(&message(HELLO)).unwrap();
    let asked = Asked::read(running, &versions()).unwrap();
    let stream = StreamId { name: "decode".to_owned(), listen: "ipc:///run/a".to_owned() };
    assert_eq!((asked.pid(), &asked.hello().streams[..]), (std::process::id(), &[stream][..]));
    let part = Part { name: "stream/decode".to_owned(), state: serde_json::json!({"format": 1}) };
    let entries = [fds("stream/decode/listener", 1), fds("lock", 2)];
    let given = asked.give(vec![part], &entries, deadline()).unwrap();
    reads(&mut new, &state());
    reads(&mut new, PART);
    reads(&mut new, DESCRIPTORS);
    new.write_all(&message(r#"{"ready":{}}"#)).unwrap();
    let ready = given.wait_until_ready(deadline()).unwrap();
    let released = std::thread::spawn(|| ready.release());
    reads(&mut new, r#"{"released":{}}"#);
    new.write_all(&message(r#"{"running":{}}"#)).unwrap();
    released.join().unwrap().unwrap();
}

#[test]
fn a_new_process_speaks_the_wire_form_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let socket = HandOverSocket::bind(dir.path()).unwrap();
    let predecessor = Predecessor::connect(dir.path()).unwrap().unwrap();
    let mut running = socket.listener().unwrap().accept().unwrap().0;
    let stream = StreamId { name: "decode".to_owned(), listen: "ipc:///run/a".to_owned() };
    let taking = std::thread::spawn(|| predecessor.ask(&versions(), 1024, vec![stream]));
    reads(&mut running, HELLO);
    let state = state().replace(r#""descriptors":3"#, r#""descriptors":0"#);
    running.write_all(&message(&state)).unwrap();
    running.write_all(&message(PART)).unwrap();
    let taken = taking.join().unwrap().unwrap();
    assert_eq!((taken.afterbay.as_str(), taken.pid), ("0.1.0", std::process::id()));
    assert_eq!((taken.parts[0].name.as_str(), &taken.parts[0].state["format"]), ("stream/decode", &1.into()));
    let confirming = std::thread::spawn(|| taken.confirmation.wait_until_released());
    reads(&mut running, r#"{"ready":{}}"#);
    running.write_all(&message(r#"{"released":{}}"#)).unwrap();
    reads(&mut running, r#"{"running":{}}"#);
    confirming.join().unwrap().unwrap();
}

#[test]
fn a_refusal_and_a_failure_are_messages() {
    let (mut new, running) = UnixStream::pair().unwrap();
    new.write_all(&message(HELLO)).unwrap();
    Asked::read(running, &versions()).unwrap().refuse("no");
    reads(&mut new, r#"{"refused":{"why":"no"}}"#);

    let (mut new, running) = UnixStream::pair().unwrap();
    new.write_all(&message(HELLO)).unwrap();
    let given = Asked::read(running, &versions()).unwrap().give(Vec::new(), &[], deadline()).unwrap();
    new.write_all(&message(r#"{"failed":{"why":"the disk is full"}}"#)).unwrap();
    let why = given.wait_until_ready(deadline()).unwrap_err();
    assert_eq!(why.to_string(), "the new process: the disk is full");
}
