//! Payload of ATTRIBUTES: names and values of a request's attributes.

use super::put_u32;
use crate::bounds::{ATTRIBUTE_BYTES_MAX, ATTRIBUTES_BYTES_MAX};
use crate::format::{ByteReader, RecordKind, put_text, record};
use crate::position::RequestNo;
use crate::request::RequestInfo;

/// Least bytes of an attribute: two lengths.
const ATTRIBUTE_BYTES_MIN: usize = 4;

/// The attributes that are stored: sorted by name, without those past a bound.
pub(crate) fn bounded_attributes(mut attributes: Vec<(String, String)>) -> Vec<(String, String)> {
    attributes.sort();
    let mut bytes = 0;
    attributes.retain(|(name, value)| {
        let is_stored = name.len().max(value.len()) <= ATTRIBUTE_BYTES_MAX
            && bytes + name.len() + value.len() <= ATTRIBUTES_BYTES_MAX;
        if is_stored {
            bytes += name.len() + value.len();
        }
        is_stored
    });
    attributes
}

/// Adds the ATTRIBUTES of a request, also if it has none.
pub(crate) fn put_attributes(out: &mut Vec<u8>, number: RequestNo, attributes: &[(String, String)]) {
    record(out, RecordKind::ATTRIBUTES, number.0, 0, |out| {
        put_u32(out, attributes.len() as u32);
        for (name, value) in attributes {
            put_text(out, name);
            put_text(out, value);
        }
    });
}

/// Adds the ATTRIBUTES of a request that a CARRY or a SUMMARY lists, if it has any.
pub(crate) fn put_kept_attributes(out: &mut Vec<u8>, info: &RequestInfo) {
    if !info.attributes.is_empty() {
        put_attributes(out, info.number, &info.attributes);
    }
}

/// Returns `None` if the payload does not match its kind.
pub(super) fn decode_attributes(at: &mut ByteReader<'_>) -> Option<Vec<(String, String)>> {
    (0..at.count(ATTRIBUTE_BYTES_MIN)?).map(|_| Some((at.text()?, at.text()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn attributes_past_a_bound_are_left_out_and_the_others_are_sorted_by_name() {
        let long = "x".repeat(ATTRIBUTE_BYTES_MAX + 1);
        let kept = bounded_attributes(pairs(&[("tenant", "a"), ("grammar", &long), ("model", "m")]));
        assert_eq!(kept, pairs(&[("model", "m"), ("tenant", "a")]));
        let largest = "x".repeat(ATTRIBUTE_BYTES_MAX - 1);
        let each = ["a", "b", "c", "d", "e"].map(|name| (name, &*largest));
        let kept = bounded_attributes(pairs(&[&each[..], &[("f", "")]].concat()));
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"], "1,024 bytes");
    }
}
