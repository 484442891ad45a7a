//! vLLM's request `ABORT`: two parts, the type and a msgpack array of the names of requests. It ends the named requests only, and
//! the engine does not answer.

use afterbay_types::parts;
use bytes::Bytes;

use crate::pack::{self, PackValue};

/// The type of the request.
const ABORT: &[u8] = &[1];

/// Encodes the message that ends `rid`.
pub(crate) fn abort(rid: &str) -> Bytes {
    let mut out = Vec::with_capacity(16 + rid.len());
    pack::write::array(&mut out, 1);
    pack::write::str(&mut out, rid);
    parts::join(&[Bytes::from_static(ABORT), out.into()])
}

/// Reads the first request that the message names. `None`: another message.
pub(crate) fn read_abort(message: &Bytes) -> Option<String> {
    let parts = parts::is_envelope(message).then(|| parts::split(message).ok())??;
    let [kind, names] = parts.as_slice() else { return None };
    pack::skip(names, 0).ok().filter(|end| *kind == ABORT && *end == names.len())?;
    let PackValue::Array(count, inside) = pack::item(names)? else { return None };
    let first = pack::items(inside, count).next()?;
    Some(std::str::from_utf8(pack::str_bytes(first)?).ok()?.to_owned())
}
