//! Commands: READY and ERROR of the handshake, PING and PONG of the heartbeat. Others are ignored.

use crate::zmtp::error::ZmtpError;
use crate::zmtp::frame::FrameHeader;

/// The biggest command received. The header of a bigger one ends the connection. libzmq's READY has about 30 bytes.
pub const COMMAND_BYTES_MAX: usize = 8 << 10;

/// How much of a PING's context a PONG returns (RFC 37).
pub const PING_CONTEXT_BYTES_MAX: usize = 16;

const SOCKET_TYPE: &str = "Socket-Type";
const IDENTITY: &str = "Identity";

/// A parsed command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Ready { metadata: &'a [u8] },
    Error { reason: String },
    Ping { context: &'a [u8] },
    Other { name: &'a [u8] },
}

/// Parses a command's body.
pub(crate) fn parse(body: &[u8]) -> Result<Command<'_>, ZmtpError> {
    let (name, data) = short(body).filter(|(name, _)| !name.is_empty()).ok_or(ZmtpError::CommandName)?;
    Ok(match name {
        b"READY" => Command::Ready { metadata: data },
        b"ERROR" => {
            let reason = short(data).map_or(data, |(reason, _)| reason);
            Command::Error { reason: String::from_utf8_lossy(reason).into_owned() }
        }
        b"PING" => {
            // Skips two bytes of time to live, which are for the peer's own timer.
            let context = data.get(2..).unwrap_or_default();
            Command::Ping { context: &context[..context.len().min(PING_CONTEXT_BYTES_MAX)] }
        }
        _ => Command::Other { name },
    })
}

/// Returns the socket type and the identity of READY's metadata.
pub(crate) fn parse_metadata(mut metadata: &[u8]) -> Result<(String, Vec<u8>), ZmtpError> {
    let mut socket_type = None;
    let mut identity = Vec::new();
    while !metadata.is_empty() {
        let (name, rest) = short(metadata)
            .filter(|(name, _)| !name.is_empty())
            .ok_or(ZmtpError::Metadata("a property's name is cut"))?;
        let (size, rest) =
            rest.split_first_chunk::<4>().ok_or(ZmtpError::Metadata("a property's length is cut"))?;
        let size = u32::from_be_bytes(*size) as usize;
        let (value, rest) =
            rest.split_at_checked(size).ok_or(ZmtpError::Metadata("a property's value is cut"))?;
        if name.eq_ignore_ascii_case(SOCKET_TYPE.as_bytes()) {
            if socket_type.is_some() {
                return Err(ZmtpError::Metadata("Socket-Type is there twice"));
            }
            socket_type = Some(String::from_utf8_lossy(value).into_owned());
        } else if name.eq_ignore_ascii_case(IDENTITY.as_bytes()) {
            identity = value.to_vec();
        }
        metadata = rest;
    }
    Ok((socket_type.ok_or(ZmtpError::Metadata("Socket-Type is missing"))?, identity))
}

/// A READY frame with our socket type. (Only DEALER, REQ and ROUTER have an identity; PUSH and PULL of libzmq send
/// none.)
pub(crate) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = named(b"READY");
    body.push(SOCKET_TYPE.len() as u8);
    body.extend_from_slice(SOCKET_TYPE.as_bytes());
    body.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    body.extend_from_slice(socket_type.as_bytes());
    framed(&body)
}

pub(crate) fn pong(context: &[u8]) -> Vec<u8> {
    let mut body = named(b"PONG");
    body.extend_from_slice(context);
    framed(&body)
}

pub(crate) fn error(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(255)];
    let mut body = named(b"ERROR");
    body.push(reason.len() as u8);
    body.extend_from_slice(reason);
    framed(&body)
}

fn named(name: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend_from_slice(name);
    body
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = FrameHeader::command(body.len()).as_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

/// Splits off a string with one byte of length. Returns the string and the rest.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}
