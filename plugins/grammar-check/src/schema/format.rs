//! The formats of strings that are checked on request.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A value of `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    DateTime,
    Date,
    Time,
    Email,
    Uri,
    Uuid,
    Ipv4,
    Ipv6,
}

impl Format {
    const NAMES: [(&str, Format); 8] = [
        ("date-time", Format::DateTime),
        ("date", Format::Date),
        ("time", Format::Time),
        ("email", Format::Email),
        ("uri", Format::Uri),
        ("uuid", Format::Uuid),
        ("ipv4", Format::Ipv4),
        ("ipv6", Format::Ipv6),
    ];

    pub(super) fn named(name: &str) -> Option<Format> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    pub(super) fn matches(self, text: &str) -> bool {
        match self {
            Format::DateTime => {
                text.split_once(['T', 't']).is_some_and(|(date, time)| is_date(date) && is_time(time))
            }
            Format::Date => is_date(text),
            Format::Time => is_time(text),
            Format::Email => is_email(text),
            Format::Uri => is_uri(text),
            Format::Uuid => is_uuid(text),
            Format::Ipv4 => text.parse::<Ipv4Addr>().is_ok(),
            Format::Ipv6 => text.parse::<Ipv6Addr>().is_ok(),
        }
    }
}

/// Reads numbers at the places of the digits of a form: `0000-00-00`. The other characters must be the same.
fn digits<const N: usize>(text: &str, form: &str) -> Option<[u32; N]> {
    let mut numbers = [0; N];
    let mut part = 0;
    if text.len() != form.len() {
        return None;
    }
    for (byte, of_form) in text.bytes().zip(form.bytes()) {
        match of_form {
            b'0' if byte.is_ascii_digit() => {
                let number = numbers.get_mut(part)?;
                *number = *number * 10 + u32::from(byte - b'0');
            }
            b'0' => return None,
            _ if byte == of_form => part += 1,
            _ => return None,
        }
    }
    Some(numbers)
}

/// A date of RFC 3339.
fn is_date(text: &str) -> bool {
    let Some([year, month, day]) = digits(text, "0000-00-00") else { return false };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// A time of RFC 3339 with its offset. The 60th second is the last one of a day in UTC.
fn is_time(text: &str) -> bool {
    let Some((time, rest)) = text.split_at_checked(8) else { return false };
    let Some([hour, minute, second]) = digits(time, "00:00:00") else { return false };
    let offset = match rest.strip_prefix('.') {
        Some(fraction) => {
            let offset = fraction.trim_start_matches(|char: char| char.is_ascii_digit());
            if offset.len() == fraction.len() {
                return false;
            }
            offset
        }
        None => rest,
    };
    // The minutes from the time to UTC.
    let to_utc = match offset.split_at_checked(1) {
        Some(("Z" | "z", "")) => 0,
        Some((sign @ ("+" | "-"), offset)) => {
            let Some([hours @ 0..24, minutes @ 0..60]) = digits(offset, "00:00") else { return false };
            let minutes = hours * 60 + minutes;
            if sign == "+" { 24 * 60 - minutes } else { minutes }
        }
        _ => return false,
    };
    let is_last_minute = (hour * 60 + minute + to_utc) % (24 * 60) == 24 * 60 - 1;
    hour < 24 && minute < 60 && (second < 60 || second == 60 && is_last_minute)
}

/// A mailbox of RFC 5321.
fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let is_atom = |atom: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
        !atom.is_empty() && atom.bytes().all(is_part)
    };
    let is_local = match local.strip_prefix('"').and_then(|quoted| quoted.strip_suffix('"')) {
        Some(quoted) => {
            let mut bytes = quoted.bytes();
            let mut is_next = || match bytes.next()? {
                b'\\' => Some(matches!(bytes.next(), Some(b' '..=b'~'))),
                byte => Some(matches!(byte, b' '..=b'~') && byte != b'"'),
            };
            std::iter::from_fn(&mut is_next).all(|is_allowed| is_allowed)
        }
        None => local.split('.').all(is_atom),
    };
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_part)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_domain = match domain.strip_prefix('[').and_then(|literal| literal.strip_suffix(']')) {
        Some(literal) => match literal.strip_prefix("IPv6:") {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => literal.parse::<Ipv4Addr>().is_ok(),
        },
        None => domain.len() <= 255 && domain.split('.').all(is_label),
    };
    is_local && local.len() <= 64 && is_domain
}

/// An absolute address of RFC 3986.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match path.strip_prefix("//") {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", path),
    };
    is_scheme
        && is_authority(authority)
        && has_only(path, b":@/")
        && has_only(query, b":@/?")
        && has_only(fragment, b":@/?")
}

fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = match host.strip_prefix('[') {
        Some(literal) => literal.split_once(']').is_some_and(|(address, port)| {
            let is_future =
                address.starts_with(['v', 'V']) && address.contains('.') && has_only(address, b":");
            let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            has_port && (is_future || address.parse::<Ipv6Addr>().is_ok())
        }),
        None => {
            let (name, port) = host.split_once(':').unwrap_or((host, ""));
            has_only(name, b"") && is_port(port)
        }
    };
    has_only(user, b":") && is_host
}

/// Whether a part of an address has only plain characters, encoded ones and these.
fn has_only(text: &str, others: &[u8]) -> bool {
    let mut parts = text.split('%');
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte) || others.contains(&byte)
    };
    let are_plain = |part: &str| part.bytes().all(is_plain);
    let is_encoded =
        |part: &str| part.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    parts.next().is_none_or(are_plain) && parts.all(|part| is_encoded(part) && are_plain(part))
}

fn is_uuid(text: &str) -> bool {
    let is_part = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_takes_what_its_standard_says() {
        for (format, valid, invalid) in [
            (
                "date",
                &["2020-02-29", "0001-12-31"][..],
                &["tomorrow", "2021-02-29", "2020-1-01", "2020-13-01", "২020-01-1"][..],
            ),
            (
                "time",
                &["23:59:60Z", "01:29:60+01:30", "08:30:06.25-08:00"],
                &["08:30:06", "24:00:00Z", "08:30:06.Z", "22:59:60z", "08:30:06+24:00"],
            ),
            (
                "date-time",
                &["1990-12-31T15:59:50.123-08:00", "1963-06-19t08:30:06z"],
                &["1963-06-19 08:30:06Z", "1963-06-19T08:30:06", "1990-02-31T15:59:59Z"],
            ),
            (
                "email",
                &["a.b@example.org", "\"a@ \\\" b\"@x", "a@[IPv6:::1]"],
                &["a..b@x.org", "a b@x.org", "\"a\"b\"@x.org", "a@-x.org", "@x", "a@[1.2.3]"],
            ),
            (
                "uri",
                &["http://a:b@[::1]:80/p%20q?x#y", "urn:isbn:1", "mailto:a@b.c"],
                &["/a", "//a/b", "http://a b", "http://a/%4", "http://a:b/", "a:#b#c", "http:/[::1]"],
            ),
            (
                "uuid",
                &["2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
                &["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
            ),
            ("ipv4", &["192.168.0.1"], &["192.168.0.01", "256.0.0.1", "1.2.3"]),
            ("ipv6", &["::1", "1::d6:192.168.0.1"], &["fe80::a%eth1", "12345::", "1.2.3.4"]),
        ] {
            let format = Format::named(format).unwrap();
            valid.iter().for_each(|text| assert!(format.matches(text), "{format:?} {text}"));
            invalid.iter().for_each(|text| assert!(!format.matches(text), "{format:?} {text}"));
        }
        assert_eq!(Format::named("hostname"), None);
    }
}
