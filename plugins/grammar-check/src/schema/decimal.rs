//! Exact decimal numbers: a schema compares numbers as their texts have them, not as floats.

use std::cmp::Ordering;
use std::fmt;

/// The most digits of a number that others are divided by.
const DIVISOR_DIGITS_MAX: usize = 37;
/// The largest exponent. A larger one counts as this one.
const EXPONENT_MAX: i64 = 1 << 60;
/// A number of up to [`DIVISOR_DIGITS_MAX`] digits has fewer factors of 2 and of 5 than this power of 10.
const TENS_MAX: i64 = 128;

/// A number of any size: `digits` times 10 to the power of `exponent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Decimal {
    is_negative: bool,
    /// The values of the digits, without zeros at either end. Empty for zero.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Reads a number in JSON's notation.
    pub(super) fn read(text: &str) -> Decimal {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = whole.bytes().chain(fraction.bytes()).map(|digit| digit.wrapping_sub(b'0'));
        let mut digits: Vec<u8> = digits.skip_while(|digit| *digit == 0).collect();
        let length = digits.len();
        while digits.last() == Some(&0) {
            digits.pop();
        }
        if digits.is_empty() {
            return Decimal { is_negative: false, digits, exponent: 0 };
        }
        let largest = if exponent.starts_with('-') { -EXPONENT_MAX } else { EXPONENT_MAX };
        let exponent = exponent.parse::<i64>().unwrap_or(largest).clamp(-EXPONENT_MAX, EXPONENT_MAX);
        let zeros = (length - digits.len()) as i64;
        let exponent = exponent + zeros - fraction.len() as i64;
        Decimal { is_negative, digits, exponent }
    }

    pub(super) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Whether [`Decimal::is_multiple_of`] takes this number as a divisor.
    pub(super) fn is_divisor(&self) -> bool {
        !self.is_negative && (1..=DIVISOR_DIGITS_MAX).contains(&self.digits.len())
    }

    pub(super) fn is_multiple_of(&self, divisor: &Decimal) -> bool {
        // Digits do not end in a zero, so that 10 divides none of them.
        let tens = self.exponent - divisor.exponent;
        if self.is_zero() || tens < 0 {
            return self.is_zero();
        }
        let by = divisor.digits.iter().fold(0, |by: u128, digit| by * 10 + u128::from(*digit));
        let zeros = std::iter::repeat_n(&0, tens.min(TENS_MAX) as usize);
        self.digits.iter().chain(zeros).fold(0, |rest, digit| (rest * 10 + u128::from(*digit)) % by) == 0
    }

    /// Compares without the signs.
    fn cmp_sizes(&self, other: &Decimal) -> Ordering {
        let first_digit = |number: &Decimal| number.exponent + number.digits.len() as i64;
        first_digit(self).cmp(&first_digit(other)).then_with(|| self.digits.cmp(&other.digits))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        let sign = |number: &Decimal| match (number.is_zero(), number.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        sign(self).cmp(&sign(other)).then_with(|| match self.is_negative {
            true => other.cmp_sizes(self),
            false => self.cmp_sizes(other),
        })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return text.write_str("0");
        }
        if self.is_negative {
            text.write_str("-")?;
        }
        for digit in &self.digits {
            write!(text, "{digit}")?;
        }
        match self.exponent {
            0 => Ok(()),
            exponent => write!(text, "e{exponent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_equal_and_ordered_whatever_their_notation() {
        for (one, other) in
            [("1", "1.0"), ("100", "1e2"), ("-0", "0.00"), ("0.010", "1E-2"), ("12e+1", "120")]
        {
            assert_eq!(Decimal::read(one), Decimal::read(other), "{one} {other}");
        }
        let ascending = [
            "-1e400",
            "-10",
            "-9.5",
            "-9",
            "0",
            "1e-400",
            "0.1",
            "0.10000000000000001",
            "9",
            "9.5",
            "10",
            "9007199254740992",
            "9007199254740993",
            "1e400",
            "1e99999999999999999999",
        ];
        for pair in ascending.windows(2) {
            assert!(Decimal::read(pair[0]) < Decimal::read(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn a_multiple_is_exact() {
        let is_multiple = |one: &str, of: &str| Decimal::read(one).is_multiple_of(&Decimal::read(of));
        for (one, of) in [
            ("19.99", "0.01"),
            ("0", "3"),
            ("-6", "1.5"),
            ("1e308", "0.5"),
            ("1e400", "7e399"),
            ("4.5", "1.5"),
            ("9007199254740993", "3"),
            ("1e1000", "1024"),
        ] {
            assert_eq!(is_multiple(one, of), (one, of) != ("1e400", "7e399"), "{one} {of}");
        }
        for (one, of) in [("500000000.5", "1"), ("19.990000001", "0.01"), ("1e-400", "1"), ("35", "1.5")] {
            assert!(!is_multiple(one, of), "{one} {of}");
        }
        assert!(!Decimal::read("0").is_divisor() && !Decimal::read("-1").is_divisor());
    }
}
