//! A frame's header: one byte of flags, the length in 1 or 8 bytes.

use crate::error::Error;

/// Longest header of a frame.
pub const HEADER_BYTES_MAX: usize = 9;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The header to send before a message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; HEADER_BYTES_MAX],
    len: u8,
}

impl Header {
    /// For a message (one frame, no MORE) of that many bytes.
    pub fn message(size: usize) -> Header {
        Header::new(size, 0)
    }

    pub(crate) fn command(size: usize) -> Header {
        Header::new(size, COMMAND)
    }

    fn new(size: usize, flags: u8) -> Header {
        let mut bytes = [0; HEADER_BYTES_MAX];
        if let Ok(short) = u8::try_from(size) {
            bytes[0] = flags;
            bytes[1] = short;
            return Header { bytes, len: 2 };
        }
        bytes[0] = flags | LONG;
        bytes[1..].copy_from_slice(&(size as u64).to_be_bytes());
        Header { bytes, len: HEADER_BYTES_MAX as u8 }
    }

    /// The bytes on the wire: 2 or 9.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    Message(u64),
    Command(u64),
}

/// How many bytes the header has that begins with these flags, or that no header begins so.
pub(crate) fn header_bytes(flags: u8) -> Result<usize, Error> {
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(Error::Flags(flags));
    }
    if flags & MORE != 0 {
        return Err(Error::Multipart);
    }
    Ok(if flags & LONG == 0 { 2 } else { HEADER_BYTES_MAX })
}

/// Reads the header at the front of `bytes`: what it announces, and its own length. `None`: not all of it is there.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Announced, usize)>, Error> {
    let Some(flags) = bytes.first() else { return Ok(None) };
    let len = header_bytes(*flags)?;
    let Some(size) = bytes.get(1..len) else { return Ok(None) };
    let size = size.iter().fold(0, |size, byte| size << 8 | u64::from(*byte));
    let announced = if flags & COMMAND == 0 { Announced::Message(size) } else { Announced::Command(size) };
    Ok(Some((announced, len)))
}
