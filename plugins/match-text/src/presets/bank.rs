//! Card numbers and IBANs.

use super::{continues_number, digits};
use crate::patterns::Candidate;

/// 13 to 19 digits together, in groups of 4, or 4-6-5, 4-6-4 and 4-5-6. The first digits are those of an issuer. A
/// separator is a space or a dash, also of Unicode.
pub const CARD: &str = r"(?x) \b{start-half}
    (?: 1[0-9]{3} | 2[2-7][0-9]{2} | 3[0-9]{3} | [4-6][0-9]{3} | 81[0-7][0-9] )
    (?:
        [0-9]{9,15}
      | (?: [\ \-.\u{a0}\u{2009}-\u{2013}\u{202f}] [0-9]{4} ){2} [\ \-.\u{a0}\u{2009}-\u{2013}\u{202f}] [0-9]{1,4}
        (?: [\ \-.\u{a0}\u{2009}-\u{2013}\u{202f}] [0-9]{1,3} )?
      | [\ \-.\u{a0}\u{2009}-\u{2013}\u{202f}] [0-9]{5,6} [\ \-.\u{a0}\u{2009}-\u{2013}\u{202f}] [0-9]{4,6}
    ) \b{end-half}";

/// A country's code, two check digits, and groups of 4 letters and digits.
pub const IBAN: &str = r"(?x) \b
    (?: A[DELTZ] | B[AEGHIRY] | C[HRYZ] | D[EJKO] | E[EGS] | F[IKOR] | G[BEILRT] | H[NRU] | I[ELQST] | J[O]
      | K[WZ] | L[BCITUVY] | M[CDEKNRTU] | N[ILO] | O[M] | P[KLST] | Q[A] | R[OSU] | S[ACDEIKMOTV] | T[LNR]
      | U[A] | V[AG] | X[K] | Y[E] )
    [0-9]{2} (?: [\ \-\u{a0}\u{202f}]? [A-Z0-9]{4} ){2,7} (?: [\ \-\u{a0}\u{202f}]? [A-Z0-9]{1,3} )? \b";

/// The length of an IBAN by country (the registry of SWIFT, release 99).
const IBAN_LENGTHS: [(&[u8; 2], usize); 89] = [
    (b"AD", 24),
    (b"AE", 23),
    (b"AL", 28),
    (b"AT", 20),
    (b"AZ", 28),
    (b"BA", 20),
    (b"BE", 16),
    (b"BG", 22),
    (b"BH", 22),
    (b"BI", 27),
    (b"BR", 29),
    (b"BY", 28),
    (b"CH", 21),
    (b"CR", 22),
    (b"CY", 28),
    (b"CZ", 24),
    (b"DE", 22),
    (b"DJ", 27),
    (b"DK", 18),
    (b"DO", 28),
    (b"EE", 20),
    (b"EG", 29),
    (b"ES", 24),
    (b"FI", 18),
    (b"FK", 18),
    (b"FO", 18),
    (b"FR", 27),
    (b"GB", 22),
    (b"GE", 22),
    (b"GI", 23),
    (b"GL", 18),
    (b"GR", 27),
    (b"GT", 28),
    (b"HN", 28),
    (b"HR", 21),
    (b"HU", 28),
    (b"IE", 22),
    (b"IL", 23),
    (b"IQ", 23),
    (b"IS", 26),
    (b"IT", 27),
    (b"JO", 30),
    (b"KW", 30),
    (b"KZ", 20),
    (b"LB", 28),
    (b"LC", 32),
    (b"LI", 21),
    (b"LT", 20),
    (b"LU", 20),
    (b"LV", 21),
    (b"LY", 25),
    (b"MC", 27),
    (b"MD", 24),
    (b"ME", 22),
    (b"MK", 19),
    (b"MN", 20),
    (b"MR", 27),
    (b"MT", 31),
    (b"MU", 30),
    (b"NI", 28),
    (b"NL", 18),
    (b"NO", 15),
    (b"OM", 23),
    (b"PK", 24),
    (b"PL", 28),
    (b"PS", 29),
    (b"PT", 25),
    (b"QA", 29),
    (b"RO", 24),
    (b"RS", 22),
    (b"RU", 33),
    (b"SA", 24),
    (b"SC", 31),
    (b"SD", 18),
    (b"SE", 24),
    (b"SI", 19),
    (b"SK", 24),
    (b"SM", 27),
    (b"SO", 23),
    (b"ST", 25),
    (b"SV", 28),
    (b"TL", 23),
    (b"TN", 24),
    (b"TR", 26),
    (b"UA", 29),
    (b"VA", 22),
    (b"VG", 24),
    (b"XK", 20),
    (b"YE", 30),
];

/// Whether the issuer's numbers have this length and the check digit of Luhn is right.
pub fn is_card(candidate: &Candidate<'_>) -> bool {
    if continues_number(candidate.before) {
        return false;
    }
    let mut number = [0; 19];
    let mut length = 0;
    for digit in digits(candidate.text) {
        let Some(place) = number.get_mut(length) else { return false };
        (*place, length) = (digit, length + 1);
    }
    let number = &number[..length];
    is_issued(number) && luhn(number)
}

fn is_issued(number: &[u8]) -> bool {
    let first = number.iter().take(4).fold(0, |first, digit| first * 10 + u32::from(*digit));
    match first {
        // Visa.
        4000..=4999 => matches!(number.len(), 13 | 16 | 19),
        // Mastercard.
        2221..=2720 | 5100..=5599 => number.len() == 16,
        // American Express.
        3400..=3499 | 3700..=3799 => number.len() == 15,
        // Diners Club.
        3000..=3059 | 3095 | 3600..=3699 | 3800..=3999 => matches!(number.len(), 14 | 16..=19),
        // JCB.
        3528..=3589 => matches!(number.len(), 16..=19),
        // Discover, UnionPay.
        6011 | 6440..=6599 | 6200..=6299 | 8100..=8171 => matches!(number.len(), 16..=19),
        // UATP.
        1000..=1999 => number.len() == 15,
        // Maestro.
        5000..=5099 | 5600..=5899 | 6300..=6399 | 6700..=6799 => matches!(number.len(), 13..=19),
        _ => false,
    }
}

fn luhn(number: &[u8]) -> bool {
    let doubled = number.iter().rev().zip(0..).map(|(&digit, place)| match place % 2 {
        0 => u32::from(digit),
        _ => [0, 2, 4, 6, 8, 1, 3, 5, 7, 9][usize::from(digit)],
    });
    // A number of one digit only is no card.
    doubled.sum::<u32>().is_multiple_of(10) && number.iter().any(|digit| *digit != number[0])
}

/// Whether the length is that of the country and the check digits are right (ISO 7064, mod 97-10).
pub fn is_iban(candidate: &Candidate<'_>) -> bool {
    let mut text = candidate.text.iter().filter(|byte| byte.is_ascii_alphanumeric());
    let mut iban = [0; 34];
    let mut length = 0;
    for byte in &mut text {
        let Some(place) = iban.get_mut(length) else { return false };
        (*place, length) = (*byte, length + 1);
    }
    let Some((head, tail)) = iban[..length].split_at_checked(4) else { return false };
    let known = IBAN_LENGTHS.iter().find(|(country, _)| country[..] == head[..2]);
    if known.is_none_or(|(_, known)| *known != length) {
        return false;
    }
    let rest = tail.iter().chain(head).fold(0_u32, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        byte => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    rest == 1
}
