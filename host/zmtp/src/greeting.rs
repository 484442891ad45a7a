//! The first 64 bytes of a connection, each way.

use crate::error::Error;

/// Length of a ZMTP 3 greeting.
pub const GREETING_BYTES: usize = 64;

const VERSION_AT: usize = 10;
const MECHANISM_AT: usize = 12;
const MECHANISM_BYTES: usize = 20;

/// signature (ff, 8 bytes, 7f), version 3.1, mechanism NULL, not as server, filler.
pub(crate) const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xff;
    // libzmq writes 1 here, so that a ZMTP 1.0 peer reads the signature as the header of a one-byte frame.
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

/// Checks a greeting of which the first `bytes.len()` bytes are there, so that what is no ZMTP is refused at once and
/// not when (if ever) 64 bytes have come. The minor version, once all are there.
pub(crate) fn check(bytes: &[u8]) -> Result<Option<u8>, Error> {
    // In the order of the bytes, and naming none that may not have come: the words do not depend on the pieces.
    if let Some(first) = bytes.first()
        && *first != 0xff
    {
        return Err(Error::Signature(vec![*first]));
    }
    if let Some(signature) = bytes.get(..VERSION_AT)
        && signature.last().is_none_or(|last| last & 1 == 0)
    {
        return Err(Error::Signature(signature.to_vec()));
    }
    match bytes.get(VERSION_AT) {
        Some(0) => return Err(Error::Version("1.0")),
        Some(1 | 2) => return Err(Error::Version("2.0")),
        // A peer that speaks more than 3 speaks 3 to us, says RFC 23.
        _ => {}
    }
    let Some(mechanism) = bytes.get(MECHANISM_AT..MECHANISM_AT + MECHANISM_BYTES) else { return Ok(None) };
    if mechanism != &GREETING[MECHANISM_AT..MECHANISM_AT + MECHANISM_BYTES] {
        let name = mechanism.split(|b| *b == 0).next().unwrap_or_default();
        return Err(Error::Mechanism(String::from_utf8_lossy(name).into_owned()));
    }
    // The rest is as-server, which means nothing to NULL, and filler.
    Ok((bytes.len() >= GREETING_BYTES).then(|| bytes[VERSION_AT + 1]))
}
