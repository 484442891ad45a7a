//! The greeting: the first 64 bytes of a connection in each direction.

use crate::zmtp::error::ZmtpError;

/// Length of a ZMTP 3 greeting.
pub const GREETING_BYTES: usize = 64;

const VERSION_AT: usize = 10;
const MECHANISM_AT: usize = 12;
const MECHANISM_BYTES: usize = 20;

/// Our greeting: signature (ff, 8 bytes, 7f), version 3.1, mechanism NULL, not as server, filler.
pub(crate) const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xff;
    // libzmq writes 1 here: a ZMTP 1.0 peer then reads the signature as the header of a one-byte frame.
    bytes[8] = 1;
    bytes[9] = 0x7f;
    bytes[VERSION_AT] = 3;
    bytes[VERSION_AT + 1] = 1;
    bytes[MECHANISM_AT] = b'N';
    bytes[MECHANISM_AT + 1] = b'U';
    bytes[MECHANISM_AT + 2] = b'L';
    bytes[MECHANISM_AT + 3] = b'L';
    bytes
};

/// Checks the first `bytes.len()` bytes of a greeting, so that a peer that does not speak ZMTP is refused at its first
/// wrong byte. Returns the minor version once the greeting is complete.
pub(crate) fn check(bytes: &[u8]) -> Result<Option<u8>, ZmtpError> {
    // The checks follow the order of the bytes, and the messages name only bytes that every split has received. So the
    // error does not depend on the split.
    if let Some(first) = bytes.first()
        && *first != 0xff
    {
        return Err(ZmtpError::Signature(vec![*first]));
    }
    if let Some(signature) = bytes.get(..VERSION_AT)
        && signature.last().is_none_or(|last| last & 1 == 0)
    {
        return Err(ZmtpError::Signature(signature.to_vec()));
    }
    match bytes.get(VERSION_AT) {
        Some(0) => return Err(ZmtpError::Version("1.0")),
        Some(1 | 2) => return Err(ZmtpError::Version("2.0")),
        // RFC 23: a peer of a version above 3 speaks version 3 to us.
        _ => {}
    }
    let Some(mechanism) = bytes.get(MECHANISM_AT..MECHANISM_AT + MECHANISM_BYTES) else { return Ok(None) };
    if mechanism != &GREETING[MECHANISM_AT..MECHANISM_AT + MECHANISM_BYTES] {
        let name = mechanism.split(|b| *b == 0).next().unwrap_or_default();
        return Err(ZmtpError::Mechanism(String::from_utf8_lossy(name).into_owned()));
    }
    // The rest is as-server, which NULL ignores, and filler.
    Ok((bytes.len() >= GREETING_BYTES).then(|| bytes[VERSION_AT + 1]))
}
