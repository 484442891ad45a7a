//! The entry for fuzzers: any bytes, in any pieces, for every role. It asserts what must hold; it returns nothing.

use crate::{Error, Event, OUTPUT_BYTES_MAX, Peer, Role};

/// Small, so that a declared length cannot make the fuzzer itself run out of memory.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// Takes the first bytes as sizes of pieces and the rest as what a peer sends. The pieces give the same events, the same
/// error and the same output as the whole.
pub fn fuzz(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let (sizes, input) = rest.split_at(rest.len().min(usize::from(*count)));
    for role in [Role::Pull, Role::Push, Role::Pub] {
        let whole = run(role, input, &[]);
        let pieces = run(role, input, sizes);
        assert_eq!(whole, pieces, "{role:?} in pieces of {sizes:?}");
    }
}

/// Feeds `input` to a new peer, in pieces of the given sizes (in turn; every third number goes straight into
/// the message's buffer).
/// Events, the error that ended it, and the output.
pub fn run(role: Role, mut input: &[u8], sizes: &[u8]) -> (Vec<Event>, Option<Error>, Vec<u8>) {
    let mut peer = Peer::new(role, MESSAGE_BYTES_MAX);
    let mut events = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !input.is_empty() {
        let size = sizes.next().map_or(input.len(), |size| usize::from(*size));
        if size.is_multiple_of(3)
            && let Some(body) = peer.body()
        {
            let piece = &input[..body.missing().min(size.max(1)).min(input.len())];
            let ((), message) = body.fill(|buffer| buffer.extend_from_slice(piece));
            events.extend(message.map(Event::Message));
            input = &input[piece.len()..];
            continue;
        }
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
                    assert!(peer.body().is_none());
                    return (events, Some(error), peer.output().to_vec());
                }
            }
            assert!(peer.output().len() <= OUTPUT_BYTES_MAX);
        }
    }
    (events, None, peer.output().to_vec())
}
