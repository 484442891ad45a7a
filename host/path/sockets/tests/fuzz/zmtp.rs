//! The entry for fuzzers: feeds any bytes in any pieces to every role, and asserts what must hold.

use crate::zmtp::{Conversation, OUTPUT_BYTES_MAX, Role, ZmtpError, ZmtpEvent};

/// A small limit, so that a declared length cannot use up the fuzzer's memory.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// Takes the first bytes as sizes of pieces, and the rest as the peer's bytes. Asserts that the pieces give the same
/// events, error and output as the whole.
pub fn fuzz(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let (sizes, input) = rest.split_at(rest.len().min(usize::from(*count)));
    for role in [Role::Pull, Role::Push, Role::Router] {
        let whole = run(role, input, &[]);
        let pieces = run(role, input, sizes);
        assert_eq!(whole, pieces, "{role:?} in pieces of {sizes:?}");
    }
}

/// Feeds `input` to a new peer in pieces of the given sizes, in turn. Returns the events, the error that ended the connection, and the output.
pub fn run(role: Role, mut input: &[u8], sizes: &[u8]) -> (Vec<ZmtpEvent>, Option<ZmtpError>, Vec<u8>) {
    let mut peer = Conversation::new(role, MESSAGE_BYTES_MAX);
    let mut events = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !input.is_empty() {
        let size = sizes.next().map_or(input.len(), |size| usize::from(*size));
        let mut piece = &input[..size.clamp(1, input.len())];
        input = &input[piece.len()..];
        while !piece.is_empty() {
            match peer.feed(piece) {
                Ok((used, event)) => {
                    assert!(event.is_some() || used == piece.len(), "bytes left over without an event");
                    assert!(used > 0, "an event out of nothing");
                    events.extend(event);
                    piece = &piece[used..];
                }
                Err(error) => {
                    assert_eq!(peer.feed(b"x"), Err(error.clone()), "an error that does not last");
                    return (events, Some(error), peer.output().to_vec());
                }
            }
            assert!(peer.output().len() <= OUTPUT_BYTES_MAX);
        }
    }
    (events, None, peer.output().to_vec())
}
