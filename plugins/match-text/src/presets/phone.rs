//! Phone numbers.

use super::{continues_number, digits};
use crate::patterns::Candidate;

/// A plus, or 00 and a country code by themselves, and in all 8 to 15 digits.
pub const INTERNATIONAL: &str = r"\+[1-9](?:[ ().\-/\u{a0}\u{2011}]{0,3}[0-9]){7,14}\b|\b00[1-9][0-9]{0,2}(?:[ ().\-/]{1,3}[0-9]{1,8}){1,5}\b";

/// Area code, exchange and number, with or without a 1 before.
pub const NORTH_AMERICAN: &str =
    r"(?:\b1[ .\-])?(?:\([2-9][0-9]{2}\)[ \-]?|\b[2-9][0-9]{2}[ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}\b";

/// A 0, the rest of the area code, and the number. Or pairs of digits, as in France. Or all digits together.
pub const NATIONAL: &str = r"(?:\(0[1-9][0-9]{1,4}\)|\b0[1-9][0-9]{1,4})(?: ?[/\-] ?| )[0-9]{2,8}(?:[ \-][0-9]{2,5}){0,3}\b|\b0[1-9](?:[ .\-][0-9]{2}){4}\b|\b0[1-9][0-9]{8,9}\b";

/// Whether nothing before the plus is part of it.
pub fn is_international(candidate: &Candidate<'_>) -> bool {
    let [_, first] = candidate.before;
    // A sum, or the exponent of a number.
    !first.is_ascii_alphanumeric() && first != b'+' && (8..=15).contains(&digits(candidate.text).count())
}

/// Whether the number does not continue another one.
pub fn is_north_american(candidate: &Candidate<'_>) -> bool {
    !continues_number(candidate.before)
}

/// Whether the number has as many digits as a national number.
pub fn is_national(candidate: &Candidate<'_>) -> bool {
    !continues_number(candidate.before) && (9..=12).contains(&digits(candidate.text).count())
}
