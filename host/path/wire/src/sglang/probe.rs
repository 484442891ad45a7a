//! SGLang's own health checks: ordinary requests, which their rids name.

use std::ops::RangeInclusive;

/// The prefix of the rids of SGLang's health checks (`HEALTH_CHECK_RID_PREFIX`).
const HEALTH_CHECK: &[u8] = b"HEALTH_CHECK_";
/// The length of `uuid4().hex`.
const UUID_LENGTH: usize = 32;
/// The lengths of `time.time()` as a text: ten digits, a point, and one to seven decimals.
const TIME_LENGTHS: RangeInclusive<usize> = 12..=18;

/// Whether a rid has exactly the form of SGLang's own health checks: `HEALTH_CHECK_` and `uuid4().hex`, or in earlier
/// versions `time.time()`. Any other rid with this prefix belongs to a client's ordinary request.
#[inline]
pub fn is_health_check(rid: &[u8]) -> bool {
    may_be_health_check(rid) && has_health_check_form(rid)
}

/// Whether a rid of this length can be of a health check. Most rids have another length.
#[inline]
pub(crate) fn may_be_health_check(rid: &[u8]) -> bool {
    let rest = rid.len().wrapping_sub(HEALTH_CHECK.len());
    rest == UUID_LENGTH || TIME_LENGTHS.contains(&rest)
}

fn has_health_check_form(rid: &[u8]) -> bool {
    rid.strip_prefix(HEALTH_CHECK).is_some_and(|rest| is_uuid(rest) || is_time(rest))
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == UUID_LENGTH && text.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Seconds since 1970 as Python writes a float: ten digits, and up to seven decimals.
fn is_time(text: &[u8]) -> bool {
    let Some((seconds, fraction)) = text.split_at_checked(10) else { return false };
    let are_digits = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    TIME_LENGTHS.contains(&text.len())
        && are_digits(seconds)
        && matches!(fraction, [b'.', digits @ ..] if are_digits(digits))
}
