//! The presets: a regular expression for the shape of each kind of text, and a check for the rest of its rules.
//!
//! An expression is as narrow as it can be, because each text that it can begin with makes rows wait.

mod bank;
mod keys;
mod network;
mod phone;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::patterns::{BEFORE_BYTES, Candidate, Check, Ends, MATCH_BYTES_MAX, Overlong, Rule};

/// A kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// E-mail addresses.
    Email,
    /// Numbers of payment cards, by issuer, length and check digit.
    Card,
    /// IBANs, by country, length and check digits.
    Iban,
    /// Phone numbers: international, of North America, and national ones with a leading 0.
    Phone,
    /// API keys and tokens of well-known services, JSON web tokens and private keys.
    ApiKey,
    /// Public IP addresses, version 4 and 6.
    Ip,
}

/// The longest local part of an e-mail address.
const LOCAL_PART_BYTES_MAX: u64 = 64;

/// A local part and a domain. Behind `://` stands the user of a URL and no address, which the check refuses.
const EMAIL: &str = r"(?x)
    (?: ://[A-Za-z0-9._%+\-~!$&*=:]* )?
    [A-Za-z0-9_][A-Za-z0-9._%+\-]*@
    (?:[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.)+
    (?: [A-Za-z]{2,24} | [Xx][Nn]--[A-Za-z0-9\-]{0,58}[A-Za-z0-9] ) \b";

/// File extensions that follow an `@` in names of files (`icon@2x.png`).
const EXTENSIONS: [&[u8]; 12] =
    [b"png", b"jpg", b"jpeg", b"gif", b"svg", b"webp", b"css", b"js", b"mjs", b"ts", b"json", b"html"];

impl Preset {
    /// All presets.
    pub const ALL: [Self; 6] = [Self::Email, Self::Card, Self::Iban, Self::Phone, Self::ApiKey, Self::Ip];

    /// The name in the settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Card => "card",
            Self::Iban => "iban",
            Self::Phone => "phone",
            Self::ApiKey => "api-key",
            Self::Ip => "ip",
        }
    }

    /// Whether it finds digits, which may be of full width.
    pub(crate) fn is_of_digits(self) -> bool {
        matches!(self, Self::Card | Self::Phone)
    }

    /// The patterns and their rules.
    pub(crate) fn patterns(self) -> Vec<(&'static str, Rule)> {
        let rule = |check: Check, ends| Rule {
            name: self.name().to_owned(),
            check: Some(check),
            ends,
            overlong: Overlong::Slide,
            limit: None,
        };
        match self {
            Self::Email => {
                vec![(EMAIL, Rule { limit: Some(email_limit), ..rule(is_email, Ends::LongestValid) })]
            }
            Self::Card => vec![(bank::CARD, rule(bank::is_card, Ends::LongestValid))],
            Self::Iban => vec![(bank::IBAN, rule(bank::is_iban, Ends::LongestValid))],
            Self::Phone => vec![
                (phone::INTERNATIONAL, rule(phone::is_international, Ends::Longest)),
                (phone::NORTH_AMERICAN, rule(phone::is_north_american, Ends::Longest)),
                (phone::NATIONAL, rule(phone::is_national, Ends::Longest)),
                (phone::PAIRS, rule(phone::is_in_pairs, Ends::Longest)),
                (phone::TRUNK, rule(phone::is_behind_trunk, Ends::Longest)),
                (phone::TOGETHER, rule(phone::is_together, Ends::Longest)),
            ],
            Self::ApiKey => {
                let act = |check| Rule { overlong: Overlong::Act, ..rule(check, Ends::Longest) };
                vec![(keys::KEY, act(keys::is_key)), (keys::SECRET, act(|_| true))]
            }
            Self::Ip => vec![
                (network::V4, rule(network::is_public_v4, Ends::Longest)),
                (network::V6, rule(network::is_public_v6, Ends::LongestValid)),
            ],
        }
    }
}

/// A longer text without `@` is no local part.
fn email_limit(candidate: &Candidate<'_>) -> u64 {
    if candidate.text.contains(&b'@') { MATCH_BYTES_MAX } else { LOCAL_PART_BYTES_MAX }
}

fn is_email(candidate: &Candidate<'_>) -> bool {
    let mut parts = candidate.text.split(|byte| *byte == b'@');
    let (local, domain) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let last = domain.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    // `git@host` names a repository.
    local != b"git" && !local.starts_with(b"://") && !EXTENSIONS.contains(&&*last.to_ascii_lowercase())
}

/// The digits of a text, as numbers.
fn digits(text: &[u8]) -> impl Iterator<Item = u8> {
    text.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| byte - b'0')
}

/// Whether a number of more digits ends right before the candidate: `3.4111…` or `1-800`.
fn continues_number(before: [u8; BEFORE_BYTES]) -> bool {
    let [.., second, first] = before;
    match first {
        b'.' | b'-' | b'/' => second.is_ascii_alphanumeric(),
        b',' => second.is_ascii_digit(),
        _ => first.is_ascii_digit(),
    }
}
