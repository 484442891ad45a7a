//! API keys and tokens.

use crate::patterns::Candidate;

/// Keys with the prefix of a well-known service. The formats are facts from the services' documents and from the rules of
/// gitleaks.
pub const KEY: &str = r"(?x) \b (?:
    sk-(?:proj-|ant-|or-v1-|svcacct-|live-|test-)?[A-Za-z0-9_\-]{20,}
  | [srp]k_(?:live|test|prod)_[A-Za-z0-9]{16,} | whsec_[A-Za-z0-9+/=]{24,}
  | (?:A3T[0-9A-Z]|AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}
  | ABSK[A-Za-z0-9+/]{60,}={0,2} | bedrock-api-key-[A-Za-z0-9+/_\-]{20,}={0,2} | da2-[a-z0-9]{26}
  | gh[pousr]_[A-Za-z0-9_]{36,} | ghs_[A-Za-z0-9_]+eyJ[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]{10,}){1,2}
  | github_pat_[A-Za-z0-9_]{22,}
  | gl(?:pat|rt|rtr|ptt|dt|cbt|ft|imt|agent|oas|soat|ffct|wt)-[A-Za-z0-9_\-]{20,}(?:\.[0-9a-z]{2,9}){0,2}
  | GR1348941[A-Za-z0-9_\-]{20,} | _gitlab_session=[0-9a-z]{32}
  | (?:xoxe\.)?xox[abeoprs]-[A-Za-z0-9\-]{10,} | xapp-[0-9]-[A-Za-z0-9\-]{20,}
  | (?:https?://)?hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{40,}
  | AIza[0-9A-Za-z_\-]{35}
  | ya29\.[0-9A-Za-z_\-]{20,}
  | (?:hf|api_org)_[A-Za-z0-9]{30,}
  | npm_[A-Za-z0-9]{36}
  | SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}
  | (?:gsk|r8|pplx|nvapi|do[opr]_v1)[_\-][A-Za-z0-9_\-]{32,}
  ) \b{end-half}";

/// JSON web tokens, and private keys in PEM and PGP with their header lines.
pub const SECRET: &str = r"(?x)
    \b eyJ[A-Za-z0-9_\-]{10,}\.(?:[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}|eyJ[A-Za-z0-9_\-]{10,}\.?)
  | -----BEGIN\ (?:[A-Z]{1,16}\ ){0,3}PRIVATE\ KEY(?:\ BLOCK)?-----
    \s*(?:[A-Z][A-Za-z\-]{2,30}:[^\n\\]*\s+)*[A-Za-z0-9+/=\s]{16,}
    (?:-----END\ (?:[A-Z]{1,16}\ ){0,3}PRIVATE\ KEY(?:\ BLOCK)?-----)?";

/// Prefixes with 16 or 17 capitals and digits behind them: no words.
const EXACT: [&[u8]; 5] = [b"AKIA", b"ASIA", b"ABIA", b"ACCA", b"A3T"];

/// Whether the text is random, and no words with dashes, or with capitals in place of spaces. Either digits stand beside
/// letters in four places. Or four places are rare between words (the first two of some capitals, one small letter
/// between capitals), and three of ten characters differ in kind from the one before.
pub fn is_key(candidate: &Candidate<'_>) -> bool {
    let text = candidate.text;
    if EXACT.iter().any(|prefix| text.starts_with(prefix)) {
        return true;
    }
    let kinds: Vec<Kind> = text.iter().copied().map(Kind::of).collect();
    let (mut pairs, mut changes, mut digits, mut rare) = (0, 0, 0, 0);
    for (at, pair) in kinds.windows(2).enumerate() {
        // A number says nothing about words.
        if pair.contains(&Kind::Other) || pair == [Kind::Digit, Kind::Digit] {
            continue;
        }
        let before = at.checked_sub(1).map_or(Kind::Other, |before| kinds[before]);
        let is_change = pair[0] != pair[1];
        let is_acronym = pair == [Kind::Capital, Kind::Capital] && before != Kind::Capital;
        let is_alone = pair == [Kind::Small, Kind::Capital] && before == Kind::Capital;
        pairs += 1;
        changes += u32::from(is_change);
        digits += u32::from(is_change && pair.contains(&Kind::Digit));
        rare += u32::from(is_acronym || is_alone);
    }
    digits >= 4 || digits + rare >= 4 && 10 * changes >= 3 * pairs
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Small,
    Capital,
    Digit,
    Other,
}

impl Kind {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' => Self::Small,
            b'A'..=b'Z' => Self::Capital,
            b'0'..=b'9' => Self::Digit,
            _ => Self::Other,
        }
    }
}
