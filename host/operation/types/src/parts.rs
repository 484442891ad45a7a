//! A message of several parts as one frame.
//!
//! ZeroMQ's messages have one part or several. The path of a batch knows one `Bytes` a message: a message of one part is
//! its bytes, and several parts are an envelope:
//!
//! ```text
//! 0xc1   number of parts, u32 LE   length of each part, u32 LE   the parts' bytes
//! ```
//!
//! No msgpack value and no pickle begins with 0xc1. A message of one part that does is an envelope of one part.

use std::iter;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

/// Parts of one message, at most.
pub const PARTS_MAX: usize = 65_536;

const ENVELOPE: u8 = 0xc1;
const COUNT_BYTES: usize = 4;

/// A frame begins like an envelope and is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// The number of parts or a length is cut off, or the lengths add up to other bytes than there are.
    #[error("envelope of a multipart message: {bytes} bytes, but its head and its parts take {expected}")]
    Length {
        /// The frame's bytes.
        bytes: usize,
        /// The bytes that the head says, as far as it can be read.
        expected: u64,
    },
    /// No part, or too many.
    #[error("envelope of a multipart message: {0} parts, 1 to {PARTS_MAX} are allowed")]
    Count(usize),
}

/// The frame of a message of these parts.
pub fn join(parts: &[Bytes]) -> Bytes {
    if let [part] = parts
        && !is_envelope(part)
    {
        return part.clone();
    }
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    let mut frame = BytesMut::with_capacity(1 + COUNT_BYTES * (1 + parts.len()) + bytes);
    frame.put_u8(ENVELOPE);
    frame.put_u32_le(parts.len() as u32);
    parts.iter().for_each(|part| frame.put_u32_le(part.len() as u32));
    parts.iter().for_each(|part| frame.put_slice(part));
    frame.freeze()
}

/// Whether the frame is an envelope, and not the bytes of a message's only part.
pub fn is_envelope(frame: &[u8]) -> bool {
    frame.first() == Some(&ENVELOPE)
}

/// The parts of the message, without a copy.
pub fn split(frame: &Bytes) -> Result<Vec<Bytes>, PartsError> {
    Ok(ranges(frame)?.into_iter().map(|part| frame.slice(part)).collect())
}

/// The place of each part in the frame.
pub fn ranges(frame: &[u8]) -> Result<Vec<Range<usize>>, PartsError> {
    if !is_envelope(frame) {
        return Ok(iter::once(0..frame.len()).collect());
    }
    let wrong = |expected: u64| PartsError::Length { bytes: frame.len(), expected };
    let number = |at: usize| {
        let bytes = frame.get(at..at + COUNT_BYTES)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let head = 1 + COUNT_BYTES;
    let count = number(1).ok_or_else(|| wrong(head as u64))?;
    if !(1..=PARTS_MAX).contains(&count) {
        return Err(PartsError::Count(count));
    }
    let body = head + COUNT_BYTES * count;
    let lengths: Option<Vec<usize>> = (0..count).map(|part| number(head + COUNT_BYTES * part)).collect();
    let lengths = lengths.ok_or_else(|| wrong(body as u64))?;
    let expected = body as u64 + lengths.iter().map(|length| *length as u64).sum::<u64>();
    if expected != frame.len() as u64 {
        return Err(wrong(expected));
    }
    let mut at = body;
    let part = |length: usize| {
        let part = at..at + length;
        at += length;
        part
    };
    Ok(lengths.into_iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &[&'static [u8]]) -> Vec<Bytes> {
        parts.iter().map(|part| Bytes::from_static(part)).collect()
    }

    #[test]
    fn a_message_of_one_part_is_its_bytes() {
        let message = parts(&[b"\x93abc"]);
        assert_eq!(join(&message), message[0]);
        assert_eq!(split(&message[0]), Ok(message));
    }

    #[test]
    fn parts_come_back_as_they_were_the_empty_ones_and_those_that_look_like_an_envelope_too() {
        let messages: [&[&[u8]]; 5] = [
            &[b"a", b"", b"bcd"],
            &[b"", b""],
            &[b"\xc1"],
            &[b"\xc1\x01\0\0\0", b"x"],
            &[b"\xc1\x01\0\0\0\x01\0\0\0x"],
        ];
        for message in messages {
            let message = parts(message);
            let frame = join(&message);
            assert!(is_envelope(&frame));
            assert_eq!(split(&frame), Ok(message));
        }
    }

    #[test]
    fn a_damaged_envelope_is_an_error_with_what_it_says() {
        let whole = join(&parts(&[b"ab", b"cde"]));
        for bytes in 1..whole.len() {
            assert!(split(&whole.slice(..bytes)).is_err(), "{bytes} bytes");
        }
        let longer = Bytes::from([whole.as_ref(), b"x"].concat());
        assert_eq!(split(&longer), Err(PartsError::Length { bytes: 19, expected: 18 }));
        assert_eq!(split(&Bytes::from_static(b"\xc1\0\0\0\0")), Err(PartsError::Count(0)));
        assert_eq!(
            split(&Bytes::from_static(b"\xc1\xff\xff\xff\xff")),
            Err(PartsError::Count(u32::MAX as usize))
        );
    }
}
