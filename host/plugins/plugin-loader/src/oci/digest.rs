//! SHA-256 digests in the notation of OCI.

use sha2::{Digest as _, Sha256};

/// `sha256:` and the hexadecimal digest of the bytes.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{digits}")
}

/// Whether a text is `sha256:` and 64 hexadecimal digits.
pub(crate) fn is_sha256(digest: &str) -> bool {
    let digits = digest.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}
