//! The attributes of a request that are stored.

use crate::bounds::{ATTRIBUTE_BYTES_MAX, ATTRIBUTES_BYTES_MAX};

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
