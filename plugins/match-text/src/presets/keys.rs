//! API keys and tokens.

use crate::patterns::Candidate;

/// Keys with the prefix of a well-known service.
pub const KEY: &str = r"(?x) \b (?:
    sk-(?:proj-|ant-|or-v1-|svcacct-|live-|test-)?[A-Za-z0-9_\-]{20,}
  | [srp]k_(?:live|test)_[A-Za-z0-9]{16,}
  | (?:AKIA|ASIA)[0-9A-Z]{16}
  | gh[pousr]_[A-Za-z0-9]{36,}
  | github_pat_[A-Za-z0-9_]{22,}
  | glpat-[A-Za-z0-9_\-]{20,}
  | xox[abeoprs]-[A-Za-z0-9\-]{20,}
  | AIza[0-9A-Za-z_\-]{35}
  | ya29\.[0-9A-Za-z_\-]{20,}
  | hf_[A-Za-z0-9]{30,}
  | npm_[A-Za-z0-9]{36}
  | SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}
  | (?:gsk|r8|pplx|nvapi|dop_v1)[_\-][A-Za-z0-9_\-]{32,}
  ) \b{end-half}";

/// JSON web tokens, and private keys in PEM.
pub const SECRET: &str = r"(?x)
    \b eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}
  | -----BEGIN\ (?:[A-Z]{1,16}\ ){0,3}PRIVATE\ KEY-----(?:[A-Za-z0-9+/=\s]|\\n){16,}
    (?:-----END\ (?:[A-Z]{1,16}\ ){0,3}PRIVATE\ KEY-----)?";

/// Whether the text is random, and not words with dashes: it changes four times from a letter to a digit or back,
/// or from a small letter to a capital.
pub fn is_key(candidate: &Candidate<'_>) -> bool {
    let is_change = |pair: &&[u8]| {
        let [left, right] = [pair[0], pair[1]];
        left.is_ascii_digit() && right.is_ascii_alphabetic()
            || left.is_ascii_alphabetic() && right.is_ascii_digit()
            || left.is_ascii_lowercase() && right.is_ascii_uppercase()
    };
    // These have no words after the prefix.
    let is_exact = [&b"AKIA"[..], b"ASIA"].iter().any(|prefix| candidate.text.starts_with(prefix));
    is_exact || candidate.text.windows(2).filter(is_change).count() >= 4
}
