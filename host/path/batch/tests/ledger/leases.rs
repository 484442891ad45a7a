//! Requests that the engine goes on with after their client has left.

use crate::stream::{Stream, last, row};
use afterbay_journal::reader::JournalReader;
use afterbay_wire::RequestRecord;

/// Passes a message of the connector. Nothing of it is sent.
fn pass(stream: &mut Stream, message: impl Into<bytes::Bytes>) {
    let decoded = stream.receive(message.into());
    let (ledger, records) = stream.both();
    let Err(settled) = ledger.account(decoded, records) else { panic!("the message has no rows") };
    assert!(matches!(settled.into_parts().1.content, afterbay_batch::Content::Nothing));
}

fn announce(stream: &mut Stream, rid: &str, lease_ms: Option<u64>) {
    pass(stream, RequestRecord { rid: rid.to_owned(), lease_ms, ..RequestRecord::default() }.to_frame());
}

fn leave(stream: &mut Stream, rid: &str) {
    pass(stream, format!("{{\"afterbay\":\"left\",\"rid\":\"{rid}\"}}"));
}

#[test]
fn a_lease_begins_when_the_client_leaves_and_ends_with_the_request() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", Some(60_000));
    stream.pass(vec![row("a", &[1], 1)]);
    assert_eq!(stream.leases(), [""; 0]);
    stream.seconds += 3;
    let at = stream.now().unix_ns / 1_000_000;
    leave(&mut stream, "a");
    assert_eq!(stream.leases(), [format!("1 a client_left={at} lease=60s")]);
    // A second message of the same client, and one of a request that is not live.
    leave(&mut stream, "a");
    leave(&mut stream, "unknown");
    assert_eq!(stream.pass(vec![row("a", &[2], 2)]).len(), 1, "its rows go on");
    assert_eq!(stream.leases(), [""; 0]);
    stream.pass(vec![last("a", &[3], 3)]);
    assert_eq!(stream.leases(), ["1 ended"]);
    stream.restart(true);
    let journal = JournalReader::open(stream.dir.path()).unwrap();
    let [a] = &journal.stream("s").unwrap().lives("a").unwrap()[..] else { panic!("one request") };
    assert_eq!(a.request.attribute(RequestRecord::CLIENT_LEFT), Some(&*at.to_string()));
}

#[test]
fn a_request_whose_client_stays_has_no_lease_to_end() {
    let mut stream = Stream::new();
    announce(&mut stream, "a", Some(60_000));
    stream.pass(vec![last("a", &[1], 1)]);
    assert_eq!(stream.leases(), [""; 0]);
}

#[test]
fn a_lease_goes_on_after_a_restart_and_after_a_kill() {
    for is_clean in [true, false] {
        let mut stream = Stream::new();
        announce(&mut stream, "there", Some(1500));
        announce(&mut stream, "left", Some(1500));
        stream.pass(vec![row("left", &[1], 1), row("there", &[1], 1)]);
        leave(&mut stream, "left");
        let [begun] = &stream.leases()[..] else { panic!("one lease") };
        stream.restart(is_clean);
        assert_eq!(stream.leases(), [begun.as_str()], "clean: {is_clean}");
        leave(&mut stream, "left");
        assert_eq!(stream.leases(), [""; 0]);
        stream.pass(vec![last("left", &[2], 2), row("there", &[2], 2)]);
        assert_eq!(stream.leases(), ["2 ended"]);
    }
}
