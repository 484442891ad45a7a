//! ZMTP 3.1 as bytes, written and read without Afterbay's own code.

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

/// A message.
pub fn message(body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(short) => vec![0, short],
        Err(_) => [&[2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// A frame that a peer sent.
pub enum Incoming {
    Command,
    Message(Vec<u8>),
}

/// Takes the first whole frame off the front, after the greeting. Returns also its length.
pub fn take(bytes: &[u8]) -> Option<(Incoming, usize)> {
    let flags = *bytes.first()?;
    let (length, start) = match flags & 2 {
        0 => (usize::from(*bytes.get(1)?), 2),
        _ => (u64::from_be_bytes(bytes.get(1..9)?.try_into().ok()?) as usize, 9),
    };
    let body = bytes.get(start..start + length)?;
    let incoming = if flags & 4 != 0 { Incoming::Command } else { Incoming::Message(body.to_vec()) };
    Some((incoming, start + length))
}
