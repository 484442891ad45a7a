//! A frame's header: one byte of flags, then the length in 1 or 8 bytes.

use crate::zmtp::error::ZmtpError;

/// The longest header of a frame.
pub const HEADER_BYTES_MAX: usize = 9;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The header that precedes a message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: u8,
}

impl FrameHeader {
    /// The header of a message of `size` bytes, in one part.
    pub fn message(size: usize) -> FrameHeader {
        FrameHeader::part(size, true)
    }

    /// The header of one part of a message. Every part but the last has the MORE flag.
    pub fn part(size: usize, is_last: bool) -> FrameHeader {
        FrameHeader::new(size, if is_last { 0 } else { MORE })
    }

    /// No header: the bytes after it have their own.
    pub fn none() -> FrameHeader {
        FrameHeader { bytes: [0; HEADER_BYTES_MAX], len: 0 }
    }

    pub(crate) fn command(size: usize) -> FrameHeader {
        FrameHeader::new(size, COMMAND)
    }

    fn new(size: usize, flags: u8) -> FrameHeader {
        let mut bytes = [0; HEADER_BYTES_MAX];
        if let Ok(short) = u8::try_from(size) {
            bytes[0] = flags;
            bytes[1] = short;
            return FrameHeader { bytes, len: 2 };
        }
        bytes[0] = flags | LONG;
        bytes[1..].copy_from_slice(&(size as u64).to_be_bytes());
        FrameHeader { bytes, len: HEADER_BYTES_MAX as u8 }
    }

    /// The bytes on the wire: 2 or 9, and 0 of [`FrameHeader::none`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The kind and size of the frame that a header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameStart {
    /// A part of a message. Whether it is the last one.
    Message {
        bytes: u64,
        is_last: bool,
    },
    Command(u64),
}

/// The length of a header that begins with these flags, or an error if they are invalid.
pub(crate) fn header_bytes(flags: u8) -> Result<usize, ZmtpError> {
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(ZmtpError::Flags(flags));
    }
    Ok(if flags & LONG == 0 { 2 } else { HEADER_BYTES_MAX })
}

/// Parses the header at the front of `bytes`. Returns the frame's kind and size, and the header's length; `None` if the
/// header is incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(FrameStart, usize)>, ZmtpError> {
    let Some(flags) = bytes.first() else { return Ok(None) };
    let len = header_bytes(*flags)?;
    let Some(size) = bytes.get(1..len) else { return Ok(None) };
    let size = size.iter().fold(0, |size, byte| size << 8 | u64::from(*byte));
    let start = match flags & COMMAND {
        0 => FrameStart::Message { bytes: size, is_last: flags & MORE == 0 },
        _ => FrameStart::Command(size),
    };
    Ok(Some((start, len)))
}
