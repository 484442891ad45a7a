//! Form of a rid in the journal and in every lookup by rid.
//!
//! Clients choose rids, so a rid may have any length. In JSON a rid may contain lone surrogates, which UTF-8
//! cannot encode. The frame itself holds the rid unchanged.

use std::borrow::Cow;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::bounds::{RID_BYTES_MAX, RID_PREFIX_BYTES_MAX};

/// Returns a UTF-8 rid of at most 4,096 bytes unchanged. Of any other rid, returns the first characters (at
/// most 1,024 bytes), then `#sha256:` and the hash of all its bytes in hexadecimal.
pub fn stored_rid(rid: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(rid) {
        Ok(text) if text.len() <= RID_BYTES_MAX => Cow::Borrowed(text),
        _ => Cow::Owned(hashed(rid)),
    }
}

#[cold]
fn hashed(rid: &[u8]) -> String {
    // Each invalid byte becomes a three-byte replacement character.
    let prefix = String::from_utf8_lossy(&rid[..rid.len().min(RID_PREFIX_BYTES_MAX)]).into_owned();
    let mut kept = prefix[..prefix.floor_char_boundary(RID_PREFIX_BYTES_MAX)].to_owned();
    kept.push_str("#sha256:");
    for byte in Sha256::digest(rid) {
        // Writing to a String cannot fail.
        let _ = write!(kept, "{byte:02x}");
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rid_of_usual_length_is_stored_unchanged() {
        for rid in ["", "a", &"r".repeat(RID_BYTES_MAX), "é"] {
            assert!(matches!(stored_rid(rid.as_bytes()), Cow::Borrowed(kept) if kept == rid));
        }
    }

    #[test]
    fn a_longer_rid_is_stored_as_its_beginning_and_a_hash() {
        let long = |last: &str| format!("{}{last}", "é".repeat(RID_BYTES_MAX));
        let (one, other) = (long("1"), long("2"));
        let (one, other) = (stored_rid(one.as_bytes()), stored_rid(other.as_bytes()));
        assert_ne!(one, other);
        assert_eq!(one, stored_rid(long("1").as_bytes()), "it is the same in each run");
        assert_eq!(one[..RID_PREFIX_BYTES_MAX], other[..RID_PREFIX_BYTES_MAX]);
        assert_eq!(one.len(), RID_PREFIX_BYTES_MAX + "#sha256:".len() + 64);
        assert_eq!(stored_rid(one.as_bytes()), one, "what stands for it stands for itself");
    }

    #[test]
    fn a_rid_that_is_not_utf8_is_stored_with_a_hash() {
        let (one, other) = (stored_rid(b"a\xed\xa0\x80"), stored_rid(b"a\xed\xa0\x81"));
        assert_ne!(one, other);
        assert!(one.starts_with("a\u{fffd}\u{fffd}\u{fffd}#sha256:"), "{one}");
        let worst = stored_rid(&[0xff; 1 << 20]).len();
        assert!(worst <= RID_BYTES_MAX, "{worst}");
    }
}
