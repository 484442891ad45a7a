//! Conversations, whole and in pieces, valid and invalid.

use proptest::prelude::*;

use super::*;
use crate::zmtp::frame::FrameHeader;
use crate::zmtp::fuzz::{fuzz, run};

/// The first bytes of a PUSH of libzmq 4.3.5, taken from the wire: greeting, READY.
fn hello(socket_type: &str) -> Vec<u8> {
    let mut bytes = GREETING.to_vec();
    bytes.extend_from_slice(&command::ready(socket_type));
    bytes
}

fn message(payload: &[u8]) -> Vec<u8> {
    [FrameHeader::message(payload.len()).as_bytes(), payload].concat()
}

fn command_frame(body: &[u8]) -> Vec<u8> {
    [FrameHeader::command(body.len()).as_bytes(), body].concat()
}

fn ping(context: &[u8]) -> Vec<u8> {
    command_frame(&[b"\x04PING\x00\x0a", context].concat())
}

fn of_parts(parts: &[&'static [u8]]) -> Bytes {
    parts::join(&parts.iter().map(|part| Bytes::from_static(part)).collect::<Vec<_>>())
}

/// Messages of several parts, and of one part that begins like an envelope.
fn frames_of_parts() -> Vec<Bytes> {
    let long = &[7; 300];
    vec![of_parts(&[b"ab", b"", long, b"c"]), of_parts(&[b"", b""]), of_parts(&[b"\xc1part"])]
}

/// A conversation with every valid frame: messages of one part, then those of several parts. Returns the frames of all.
fn conversation() -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut bytes, mut payloads) = conversation_of_single_parts();
    for frame in frames_of_parts() {
        let parts = parts::split(&frame).unwrap();
        for (number, part) in (1..).zip(&parts) {
            bytes.extend_from_slice(FrameHeader::part(part.len(), number == parts.len()).as_bytes());
            bytes.extend_from_slice(part);
            if number < parts.len() {
                // libzmq's heartbeat comes between any two parts.
                bytes.extend(ping(b"context"));
            }
        }
        payloads.push(frame.to_vec());
    }
    (bytes, payloads)
}

fn conversation_of_single_parts() -> (Vec<u8>, Vec<Vec<u8>>) {
    let payloads: Vec<Vec<u8>> =
        [0, 1, 2, 254, 255, 256, 257, 300, 5000].iter().map(|n| (0..*n).map(|i| i as u8).collect()).collect();
    let mut bytes = hello("PUSH");
    for payload in &payloads {
        bytes.extend(ping(b"context"));
        bytes.extend(message(payload));
        bytes.extend(command_frame(b"\x07UNKNOWNdata"));
    }
    (bytes, payloads)
}

fn messages(events: &[ZmtpEvent]) -> Vec<Vec<u8>> {
    events
        .iter()
        .filter_map(|event| match event {
            ZmtpEvent::Message(bytes) => Some(bytes.to_vec()),
            _ => None,
        })
        .collect()
}

#[test]
fn a_valid_conversation_gives_its_messages_and_pongs() {
    let (bytes, payloads) = conversation();
    let (events, error, output) = run(Role::Pull, &bytes, &[]);
    assert_eq!(error, None);
    assert_eq!(
        events[0],
        ZmtpEvent::Ready(Handshake { socket_type: "PUSH".into(), identity: vec![], minor_version: 1 })
    );
    assert_eq!(messages(&events), payloads);
    assert_eq!(output[..hello("PULL").len()], hello("PULL"));
    let pong = command_frame(b"\x04PONGcontext");
    // Four commands are between parts.
    assert_eq!(output[hello("PULL").len()..], pong.repeat(payloads.len() - frames_of_parts().len() + 4));
}

#[test]
fn a_pull_ignores_commands_that_it_does_not_know() {
    let (events, error, _) = run(Role::Pull, &[hello("PUSH"), command_frame(b"\x09SUBSCRIBE")].concat(), &[]);
    assert_eq!((events.last(), error), (Some(&ZmtpEvent::Command), None));
}

#[test]
fn every_split_of_a_conversation_gives_the_same_events() {
    let (bytes, _) = conversation();
    let whole = run(Role::Pull, &bytes, &[]);
    for at in 1..bytes.len() {
        let mut peer = Conversation::new(Role::Pull, 1 << 16);
        let mut events = Vec::new();
        for mut piece in [&bytes[..at], &bytes[at..]] {
            while !piece.is_empty() {
                let (used, event) = peer.feed(piece).unwrap();
                events.extend(event);
                piece = &piece[used..];
            }
        }
        assert_eq!((events, peer.output()), (whole.0.clone(), &whole.2[..]), "split at {at}");
    }
    for size in 1..=255 {
        assert_eq!(run(Role::Pull, &bytes, &[size]), whole, "pieces of {size}");
    }
}

#[test]
fn ready_is_sent_when_the_peers_greeting_is_whole_and_not_before() {
    let mut peer = Conversation::new(Role::Pull, 10);
    assert_eq!(peer.output(), GREETING);
    peer.feed(&GREETING[..63]).unwrap();
    assert_eq!(peer.output(), GREETING);
    peer.sent(60);
    peer.feed(&GREETING[63..]).unwrap();
    assert_eq!(peer.output(), [&GREETING[60..], &command::ready("PULL")].concat());
}

#[test]
fn a_header_is_short_up_to_255_bytes_and_long_beyond() {
    assert_eq!(FrameHeader::message(0).as_bytes(), [0, 0]);
    assert_eq!(FrameHeader::message(255).as_bytes(), [0, 255]);
    assert_eq!(FrameHeader::message(256).as_bytes(), [2, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(FrameHeader::message(0x0102_0304_0506).as_bytes(), [2, 0, 0, 1, 2, 3, 4, 5, 6]);
}

/// The error after a good greeting, READY and `bytes`.
fn after_hello(bytes: &[u8]) -> Option<ZmtpError> {
    run(Role::Pull, &[&hello("PUSH"), bytes].concat(), &[]).1
}

fn greeting(change: impl FnOnce(&mut [u8; GREETING_BYTES])) -> Option<ZmtpError> {
    let mut bytes = GREETING;
    change(&mut bytes);
    run(Role::Pull, &bytes, &[]).1
}

#[test]
fn invalid_bytes_are_refused_with_the_reason() {
    for (error, words) in [
        (run(Role::Pull, b"GET / HTTP/1.1\r\n", &[]).1, "not with a ZMTP signature"),
        (run(Role::Pull, b"\x01\x00", &[]).1, "peer begins with [01]"),
        (greeting(|g| g[9] = 0), "not with a ZMTP signature"),
        (greeting(|g| g[10] = 0), "ZMTP 1.0"),
        (greeting(|g| g[10] = 1), "ZMTP 2.0"),
        (greeting(|g| g[12..17].copy_from_slice(b"CURVE")), "mechanism \"CURVE\""),
        (greeting(|g| g[12..17].copy_from_slice(b"NULLX")), "mechanism \"NULLX\""),
        (run(Role::Pull, &hello("PULL"), &[]).1, "peer is a \"PULL\" socket, a PULL takes only a PUSH"),
        (run(Role::Pull, &hello("PUB"), &[]).1, "peer is a \"PUB\" socket"),
        (run(Role::Push, &hello("PUSH"), &[]).1, "peer is a \"PUSH\" socket, a PUSH takes only a PULL"),
        (run(Role::Push, &[hello("PULL"), message(b"x")].concat(), &[]).1, "message from a PULL peer"),
        (run(Role::Router, &hello("ROUTER"), &[]).1, "a ROUTER takes only a DEALER"),
        (
            run(Role::Pull, &[&GREETING[..], &message(b"x")].concat(), &[]).1,
            "message before the handshake's end",
        ),
        (run(Role::Pull, &[&GREETING[..], &ping(b"")].concat(), &[]).1, "\"PING\" where READY must be"),
        (
            run(Role::Pull, &[&GREETING[..], &command_frame(b"\x05HELLO")].concat(), &[]).1,
            "\"HELLO\" where READY",
        ),
        (
            run(Role::Pull, &[&GREETING[..], &command_frame(b"\x05READY")].concat(), &[]).1,
            "Socket-Type is missing",
        ),
        (
            run(Role::Pull, &[&GREETING[..], &command::error("go away")].concat(), &[]).1,
            "peer says: \"go away\"",
        ),
        (after_hello(&command::error("later")), "peer says: \"later\""),
        (after_hello(&[0x08]), "flags 0x08"),
        (after_hello(&[0x05]), "flags 0x05"),
        (after_hello(&[0xff]), "flags 0xff"),
        (after_hello(&command_frame(b"")), "command has no name"),
        (after_hello(&command_frame(b"\x00")), "command has no name"),
        (after_hello(&command_frame(b"\x09PING")), "command has no name"),
    ] {
        let error = error.unwrap_or_else(|| panic!("nothing refused, wanted {words:?}")).to_string();
        assert!(error.contains(words), "{error:?} should say {words:?}");
    }
}

#[test]
fn metadata_that_is_cut_or_doubled_is_refused() {
    for (metadata, why) in [
        (&b"\x0bSocket"[..], "a property's name is cut"),
        (b"\x00", "a property's name is cut"),
        (b"\x0bSocket-Type\x00\x00", "a property's length is cut"),
        (b"\x0bSocket-Type\x00\x00\x00\x05PUSH", "a property's value is cut"),
        (b"\x0bSocket-Type\xff\xff\xff\xffPUSH", "a property's value is cut"),
        (
            b"\x0bSocket-Type\x00\x00\x00\x04PUSH\x0bSocket-Type\x00\x00\x00\x04PUSH",
            "Socket-Type is there twice",
        ),
    ] {
        assert_eq!(command::parse_metadata(metadata), Err(ZmtpError::Metadata(why)), "{metadata:?}");
    }
    let good = b"\x0bsocket-TYPE\x00\x00\x00\x04PUSH\x08Identity\x00\x00\x00\x02me\x05X-Any\x00\x00\x00\x00";
    assert_eq!(command::parse_metadata(good), Ok(("PUSH".to_owned(), b"me".to_vec())));
}

#[test]
fn a_message_at_the_bound_passes_and_one_past_it_is_refused_by_its_header_alone() {
    let limit = 1000;
    let mut peer = Conversation::new(Role::Pull, limit);
    let hello = hello("PUSH");
    peer.feed(&hello).unwrap();
    let at = message(&vec![1; limit]);
    assert!(matches!(peer.feed(&at), Ok((_, Some(ZmtpEvent::Message(m)))) if m.len() == limit));
    let past = FrameHeader::message(limit + 1);
    assert_eq!(peer.feed(past.as_bytes()), Err(ZmtpError::MessageTooLong { bytes: 1001, limit }));
    assert_eq!(
        after_hello(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        Some(ZmtpError::MessageTooLong { bytes: u64::MAX, limit: 1 << 16 })
    );
}

#[test]
fn the_parts_of_a_message_and_the_commands_between_them_have_the_bound_of_one_message() {
    let limit = 1000;
    let fed = |frames: &[Vec<u8>]| {
        let mut peer = Conversation::new(Role::Pull, limit);
        let bytes = [hello("PUSH"), frames.concat()].concat();
        let mut rest = &bytes[..];
        let mut messages = 0;
        while !rest.is_empty() {
            let (used, event) = peer.feed(rest)?;
            messages += usize::from(matches!(event, Some(ZmtpEvent::Message(_))));
            rest = &rest[used..];
        }
        Ok((messages, peer.unfinished()))
    };
    let part = |size: usize, is_last| [FrameHeader::part(size, is_last).as_bytes(), &vec![1; size]].concat();
    // Each part counts 9 bytes more than its own.
    let at = [part(400, false), part(1000 - 2 * 9 - 400, true)];
    assert_eq!(fed(&[&at[..], &at[..]].concat()), Ok((2, None)), "the bound is each message's");
    let past = [part(400, false), part(1000 - 2 * 9 - 399, true)];
    assert_eq!(fed(&past), Err(ZmtpError::MessageTooLong { bytes: 1001, limit }));
    let commands = [vec![part(0, false)], vec![ping(b""); 100]].concat();
    assert!(matches!(fed(&commands), Err(ZmtpError::MessageTooLong { .. })));
    assert_eq!(fed(&commands[..20]), Ok((0, Some(UnfinishedPart::Parts { had: 1 }))));
}

#[test]
fn more_parts_than_the_bound_are_refused() {
    let limit = parts::PARTS_MAX;
    let mut peer = Conversation::new(Role::Pull, 1 << 30);
    peer.feed(&hello("PUSH")).unwrap();
    let message = [&[1, 0].repeat(limit - 1)[..], &[0, 0]].concat();
    let (_, event) = peer.feed(&message).unwrap();
    assert!(matches!(event, Some(ZmtpEvent::Message(frame)) if frame.len() == 5 + 4 * limit));
    assert_eq!(peer.feed(&[1, 0].repeat(limit + 1)), Err(ZmtpError::TooManyParts { limit }));
}

#[test]
fn a_command_at_the_bound_passes_and_one_past_it_is_refused_by_its_header_alone() {
    let mut at = b"\x04WHAT".to_vec();
    at.resize(COMMAND_BYTES_MAX, 0);
    assert_eq!(after_hello(&command_frame(&at)), None);
    let past = FrameHeader::command(COMMAND_BYTES_MAX + 1);
    let bytes = COMMAND_BYTES_MAX as u64 + 1;
    assert_eq!(
        after_hello(past.as_bytes()),
        Some(ZmtpError::CommandTooLong { bytes, limit: COMMAND_BYTES_MAX })
    );
    // The same limit holds during the handshake.
    let early = [&GREETING[..], past.as_bytes()].concat();
    assert_eq!(
        run(Role::Pull, &early, &[]).1,
        Some(ZmtpError::CommandTooLong { bytes, limit: COMMAND_BYTES_MAX })
    );
}

#[test]
fn pings_without_end_do_not_fill_the_output() {
    let flood = ping(b"0123456789abcdef and more").repeat(10_000);
    let (_, error, output) = run(Role::Pull, &[hello("PUSH"), flood].concat(), &[]);
    assert_eq!(error, None);
    assert!(output.len() <= OUTPUT_BYTES_MAX);
    assert!(output.ends_with(b"\x04PONG0123456789abcdef"), "the context is cut at 16 bytes");
}

#[test]
fn a_higher_version_is_spoken_to_in_ours_and_3_0_is_accepted() {
    for (major, minor) in [(3, 0), (3, 1), (3, 9), (4, 0)] {
        let mut bytes = hello("PUSH");
        bytes[10] = major;
        bytes[11] = minor;
        let (events, error, _) = run(Role::Pull, &bytes, &[]);
        assert_eq!((events.len(), error), (1, None), "{major}.{minor}");
    }
}

#[test]
fn the_unfinished_part_is_named() {
    let unfinished = |bytes: &[u8]| {
        let mut peer = Conversation::new(Role::Pull, 1 << 16);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (used, _) = peer.feed(rest).unwrap();
            rest = &rest[used..];
        }
        peer.unfinished()
    };
    let hello = hello("PUSH");
    assert_eq!(unfinished(&[]), Some(UnfinishedPart::Handshake { had: 0 }));
    assert_eq!(unfinished(&hello[..10]), Some(UnfinishedPart::Handshake { had: 10 }));
    assert_eq!(unfinished(&hello[..65]), Some(UnfinishedPart::Handshake { had: 65 }));
    assert_eq!(unfinished(&hello), None);
    assert_eq!(unfinished(&[&hello[..], &[2, 0]].concat()), Some(UnfinishedPart::Header { had: 2 }));
    assert_eq!(
        unfinished(&[&hello[..], &[0, 9, 1]].concat()),
        Some(UnfinishedPart::Message { had: 1, of: 9 })
    );
    let between_parts = [&hello[..], &[1, 1, 65], &ping(b"")].concat();
    assert_eq!(unfinished(&between_parts), Some(UnfinishedPart::Parts { had: 1 }));
    assert_eq!(
        unfinished(&[&hello[..], &[4, 9, 1, 65]].concat()),
        Some(UnfinishedPart::Command { had: 2, of: 9 })
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_in_arbitrary_pieces_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        fuzz(&bytes);
    }

    #[test]
    fn a_conversation_in_arbitrary_pieces_is_the_same(
        sizes in proptest::collection::vec(any::<u8>(), 1..40),
        payloads in proptest::collection::vec(0usize..70_000, 0..8),
    ) {
        let mut bytes = hello("PUSH");
        for size in payloads.iter().copied().filter(|size| *size <= 1 << 16) {
            bytes.extend(message(&vec![size as u8; size]));
        }
        prop_assert_eq!(run(Role::Pull, &bytes, &sizes), run(Role::Pull, &bytes, &[]));
    }

    #[test]
    fn mutated_conversations_never_panic_and_do_not_depend_on_the_pieces(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
        sizes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = conversation().0;
        for (at, value, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = value,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, value),
            }
        }
        let mut input = vec![sizes.len() as u8];
        input.extend(sizes);
        input.extend(bytes);
        fuzz(&input);
    }
}

#[test]
fn a_conversation_is_resumed_at_the_end_of_any_message_or_command_between_two() {
    let (bytes, payloads) = conversation();
    let mut whole = Conversation::new(Role::Pull, 1 << 20);
    let (mut used, mut seen, mut resumed_at) = (0, 0, 0);
    assert!(!whole.has_greeting());
    while used < bytes.len() {
        let (taken, event) = whole.feed(&bytes[used..bytes.len().min(used + 1)]).unwrap();
        used += taken;
        seen += usize::from(matches!(event, Some(ZmtpEvent::Message(_))));
        let is_between = if whole.is_ready() { whole.unfinished().is_none() } else { used == GREETING_BYTES };
        if !is_between {
            continue;
        }
        assert!(whole.has_greeting());
        resumed_at += 1;
        let mut resumed = Conversation::resumed(Role::Pull, 1 << 20, whole.is_ready());
        let (mut rest, mut events) = (&bytes[used..], Vec::new());
        while !rest.is_empty() {
            let (taken, event) = resumed.feed(rest).unwrap();
            (rest, events) = (&rest[taken..], [events, event.into_iter().collect()].concat());
        }
        assert_eq!(messages(&events), payloads[seen..]);
        assert!(resumed.is_ready());
    }
    // A message of several parts has one end, whatever is between its parts.
    let several = frames_of_parts().len();
    assert_eq!(resumed_at, 2 + 3 * (payloads.len() - several) + several);
}
