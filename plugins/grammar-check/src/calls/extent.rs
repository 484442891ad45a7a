//! Finds the end of a value in brackets in a text that arrives in parts.

/// The progress in a JSON or Python value: an object or a list. Brackets and strings decide; whether the value is
/// valid is checked when it is complete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JsonExtent {
    depth: u32,
    /// The quote that ends the string.
    string: Option<u8>,
    is_escaped: bool,
    has_apostrophes: bool,
}

impl JsonExtent {
    /// `has_apostrophes`: whether strings may stand in apostrophes.
    pub(crate) fn new(has_apostrophes: bool) -> Self {
        Self { has_apostrophes, ..Self::default() }
    }

    /// The length up to the end of the value, if it ends in these bytes.
    pub(crate) fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            if let Some(quote) = self.string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    byte if *byte == quote => self.string = None,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.string = Some(b'"'),
                b'\'' if self.has_apostrophes => self.string = Some(b'\''),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_value_is_found_at_every_split() {
        let text = br#"{"a": "}\"]\\", "b": [1, {"c": "{"}]}"#;
        for split in 0..text.len() {
            let mut extent = JsonExtent::default();
            assert_eq!(extent.find_end(&text[..split]), None, "{split}");
            assert_eq!(extent.find_end(&[&text[split..], b"}} x"].concat()), Some(text.len() - split));
        }
    }
}
