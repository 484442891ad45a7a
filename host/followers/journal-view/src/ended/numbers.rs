//! Many small numbers in little memory.

/// Numbers of 7 bits a byte, the lowest bits first: a token id below 2^21 takes at most 3 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedNumbers(Vec<u8>);

impl PackedNumbers {
    pub(super) fn push(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds a number that may be negative: -1 takes one byte.
    pub(super) fn push_signed(&mut self, number: i64) {
        self.push((number << 1 ^ number >> 63) as u64);
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let mut bytes = self.0.iter();
        std::iter::from_fn(move || {
            let (mut number, mut shift) = (0, 0);
            for byte in bytes.by_ref() {
                number |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    return Some(number);
                }
                shift += 7;
            }
            None
        })
    }

    pub(super) fn iter_signed(&self) -> impl Iterator<Item = i64> {
        self.iter().map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_added() {
        let numbers = [0, 1, 0x7f, 0x80, 151_643, u64::from(u32::MAX), u64::MAX];
        let mut packed = PackedNumbers::default();
        numbers.iter().for_each(|number| packed.push(*number));
        assert!(packed.iter().eq(numbers));
        let signed = [0, -1, 1, 63, -64, 64, i64::MIN, i64::MAX];
        let mut packed = PackedNumbers::default();
        signed.iter().for_each(|number| packed.push_signed(*number));
        assert!(packed.iter_signed().eq(signed));
        assert_eq!(PackedNumbers::default().iter().count(), 0);
    }
}
