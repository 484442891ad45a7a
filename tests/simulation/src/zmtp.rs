//! ZMTP 3.1 as bytes, written and read without Afterbay's own code.

use afterbay_types::parts;
use bytes::Bytes;

/// The length of a greeting.
pub const GREETING_BYTES: usize = 64;

/// The greeting of a peer without security.
pub fn greeting() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(GREETING_BYTES, 0);
    bytes
}

/// A READY command of a socket of this type.
pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    body.extend_from_slice(socket_type.as_bytes());
    command(&body)
}

/// A PING.
pub fn ping() -> Vec<u8> {
    command(b"\x04PING\0\0ctx")
}

fn command(body: &[u8]) -> Vec<u8> {
    [&[4, body.len() as u8], body].concat()
}

/// The message of a frame, in one part or several.
pub fn message(frame: &[u8]) -> Vec<u8> {
    let parts = parts::split(&Bytes::copy_from_slice(frame)).expect("a frame of this simulation");
    let part = |(number, body): (usize, &Bytes)| {
        let more = u8::from(number < parts.len());
        let mut bytes = match u8::try_from(body.len()) {
            Ok(short) => vec![more, short],
            Err(_) => [&[2 | more][..], &(body.len() as u64).to_be_bytes()].concat(),
        };
        bytes.extend_from_slice(body);
        bytes
    };
    (1..).zip(&parts).flat_map(part).collect()
}

/// A command or a message that a peer sent. A message of several parts is one frame.
pub enum Incoming {
    Command,
    Message(Vec<u8>),
}

/// Takes the first whole command or message off the front, after the greeting. Returns also its length.
pub fn take(bytes: &[u8]) -> Option<(Incoming, usize)> {
    let (mut parts, mut at) = (Vec::new(), 0);
    loop {
        let flags = *bytes.get(at)?;
        let (length, start) = match flags & 2 {
            0 => (usize::from(*bytes.get(at + 1)?), at + 2),
            _ => (u64::from_be_bytes(bytes.get(at + 1..at + 9)?.try_into().ok()?) as usize, at + 9),
        };
        at = start + length;
        let body = bytes.get(start..at)?;
        if flags & 4 != 0 {
            assert!(parts.is_empty(), "Afterbay sends no command between two parts");
            return Some((Incoming::Command, at));
        }
        parts.push(Bytes::copy_from_slice(body));
        if flags & 1 == 0 {
            return Some((Incoming::Message(parts::join(&parts).to_vec()), at));
        }
    }
}
