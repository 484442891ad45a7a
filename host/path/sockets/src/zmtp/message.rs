//! A frame as the message's bytes on the wire, and back.

use std::borrow::Cow;

use afterbay_types::parts;
use bytes::Bytes;

use crate::zmtp::frame::{self, FrameHeader, FrameStart, HEADER_BYTES_MAX};

/// The bytes of the frame's message on the wire: a header, then the rest. The rest of a message of one part is a borrowed
/// payload; several parts are copied with their headers, and the header before them is empty.
pub fn on_wire(frame: &Bytes) -> (FrameHeader, Cow<'_, [u8]>) {
    // Every frame that begins like an envelope was made as one, or else it is sent as it is.
    let parts = match parts::is_envelope(frame) {
        true => parts::split(frame).ok(),
        false => None,
    };
    let Some(parts) = parts else { return (FrameHeader::message(frame.len()), Cow::Borrowed(frame)) };
    let bytes: usize = parts.iter().map(|part| HEADER_BYTES_MAX + part.len()).sum();
    let mut wire = Vec::with_capacity(bytes);
    for (part, is_last) in parts.iter().zip((1..=parts.len()).map(|number| number == parts.len())) {
        wire.extend_from_slice(FrameHeader::part(part.len(), is_last).as_bytes());
        wire.extend_from_slice(part);
    }
    (FrameHeader::none(), Cow::Owned(wire))
}

/// The frame of one message on the wire. `None` if [`is_on_wire`] says no.
pub fn frame_on_wire(wire: &[u8]) -> Option<Bytes> {
    let parts: Vec<Bytes> = parts_on_wire(wire)?.into_iter().map(Bytes::copy_from_slice).collect();
    Some(parts::join(&parts))
}

/// Whether the bytes are exactly one message, with the headers of [`on_wire`].
pub fn is_on_wire(wire: &[u8]) -> bool {
    parts_on_wire(wire).is_some()
}

fn parts_on_wire(mut wire: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    loop {
        let (FrameStart::Message { bytes, is_last }, header) = frame::parse(wire).ok()?? else { return None };
        let size = usize::try_from(bytes).ok()?;
        let (header, rest) = wire.split_at(header);
        if header != FrameHeader::part(size, is_last).as_bytes() || parts.len() == parts::PARTS_MAX {
            return None;
        }
        parts.push(rest.get(..size)?);
        wire = &rest[size..];
        if is_last {
            return wire.is_empty().then_some(parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wire(frame: &Bytes) -> Vec<u8> {
        let (header, rest) = on_wire(frame);
        [header.as_bytes(), &rest].concat()
    }

    #[test]
    fn a_message_of_one_part_is_not_copied() {
        let frame = Bytes::from_static(b"payload");
        assert!(matches!(on_wire(&frame), (_, Cow::Borrowed(rest)) if rest.as_ptr() == frame.as_ptr()));
    }

    #[test]
    fn parts_have_headers_of_their_own_and_all_but_the_last_the_more_flag() {
        let frame = parts::join(&[Bytes::from_static(b"ab"), Bytes::from(vec![7; 256]), Bytes::new()]);
        let expected = [&[1, 2][..], b"ab", &[3, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 256], &[0, 0]].concat();
        assert_eq!(wire(&frame), expected);
    }

    #[test]
    fn bytes_that_are_not_exactly_one_message_are_no_frame() {
        let message = wire(&parts::join(&[Bytes::from_static(b"ab"), Bytes::from_static(b"c")]));
        for bytes in 0..message.len() {
            assert_eq!(frame_on_wire(&message[..bytes]), None, "{bytes} bytes");
        }
        assert_eq!(frame_on_wire(&[&message[..], b"x"].concat()), None);
        assert_eq!(frame_on_wire(&[4, 1, 0]), None, "a command");
        assert_eq!(frame_on_wire(&[2, 0, 0, 0, 0, 0, 0, 0, 1, b'x']), None, "a long header of a short part");
    }

    proptest! {
        #[test]
        fn a_frame_comes_back_from_the_wire_as_it_was(
            sizes in proptest::collection::vec(0_usize..400, 1..6),
            first in any::<u8>(),
        ) {
            let parts: Vec<Bytes> = sizes.iter().map(|size| Bytes::from(vec![first; *size])).collect();
            let frame = parts::join(&parts);
            prop_assert_eq!(frame_on_wire(&wire(&frame)), Some(frame));
        }
    }
}
