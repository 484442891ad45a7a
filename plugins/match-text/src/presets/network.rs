//! Public IP addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::continues_number;
use crate::patterns::Candidate;

/// Four or more numbers: five and more are the check's business, because they must not match in part.
pub const V4: &str = r"\b[0-9]{1,3}(?:\.[0-9]{1,4}){3,}\b";

/// The groups of an address that begins with 2 or 3, as all public ones do.
pub const V6: &str = r"\b[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}\b{end-half}";

/// Whether the text is the address of a host on the Internet.
pub fn is_public_v4(candidate: &Candidate<'_>) -> bool {
    let address = str::from_utf8(candidate.text).ok().and_then(|text| text.parse::<Ipv4Addr>().ok());
    address.is_some_and(is_public) && !continues_number(candidate.before)
}

fn is_public(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        // This network, shared addresses of providers, benchmarks, multicast and reserved.
        || first == 0
        || first == 100 && (64..128).contains(&second)
        || first == 198 && (18..20).contains(&second)
        || first >= 224;
    !is_special
}

/// Whether the text is the address of a host on the Internet, and not of 2001:db8::/32, which is for documents.
pub fn is_public_v6(candidate: &Candidate<'_>) -> bool {
    let address = str::from_utf8(candidate.text).ok().and_then(|text| text.parse::<Ipv6Addr>().ok());
    let is_host = |address: Ipv6Addr| !matches!(address.segments(), [0x2001, 0xdb8, ..]);
    address.is_some_and(is_host) && candidate.before.last() != Some(&b':')
}
