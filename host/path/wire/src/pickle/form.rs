//! Values alike that are written one after the other, as the cells of a column. After one of them the next ones are written
//! at once: its bytes are copied, and the content of texts, bytes and floats is put into the copy.
//!
//! The written bytes are the same as without. A value that differs is written node by node.

use std::ops::RangeInclusive;

use crate::pickle::arena::{NodeId, Tag};
use crate::pickle::tree::Tree;

/// The values that are written alike.
pub(crate) enum AlikeValues {
    /// Texts or bytes of this length, or floats, that nothing else refers to.
    Leaf(Tag, u32),
    /// The nodes of a run that the parser found to be alike.
    Run(RangeInclusive<u32>),
}

/// The content of a text, bytes or a float, which differs from value to value.
#[derive(Clone, Copy)]
pub(crate) struct Content {
    /// The node.
    pub node: NodeId,
    /// The offset of the content in the written bytes.
    pub at: usize,
    /// The number of bytes of a text or of bytes. `None`: a float.
    pub length: Option<usize>,
}

/// The form of a written value.
pub(crate) struct Form {
    pub alike: AlikeValues,
    /// The value that was written.
    pub value: NodeId,
    /// The contents of the value.
    pub contents: Vec<Content>,
    /// The bytes of the value.
    pub bytes: Vec<u8>,
}

impl AlikeValues {
    /// The values that are written like this one. `None`: none is known.
    pub fn of(tree: &Tree, value: NodeId) -> Option<AlikeValues> {
        let raw = tree.raw(value);
        match raw.tag {
            Tag::Str | Tag::Bytes | Tag::Float if raw.shared == 0 => Some(AlikeValues::Leaf(raw.tag, raw.b)),
            _ => {
                let mut runs = tree.runs.iter().map(|run| run.values());
                runs.find(|values| values.contains(&value.0)).map(AlikeValues::Run)
            }
        }
    }

    fn has(&self, tree: &Tree, value: NodeId) -> bool {
        match self {
            AlikeValues::Run(values) => values.contains(&value.0),
            AlikeValues::Leaf(tag, length) => {
                let raw = tree.raw(value);
                raw.tag == *tag && raw.shared == 0 && (raw.b == *length || raw.tag == Tag::Float)
            }
        }
    }
}

impl Form {
    /// The number of values at the head that have this form.
    pub fn count(&self, tree: &Tree, values: &[NodeId]) -> usize {
        values.iter().take_while(|value| self.alike.has(tree, **value)).count()
    }

    /// Writes values that have this form.
    pub fn write(&self, tree: &Tree, values: &[NodeId], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes.repeat(values.len()));
        let written = &mut out[start..];
        for content in &self.contents {
            // The content of all values at once, so that a loop has nothing to look up.
            let by = content.node.0.wrapping_sub(self.value.0);
            let raws = values.iter().map(|value| tree.raw(NodeId(value.0.wrapping_add(by))));
            let places = written.chunks_exact_mut(self.bytes.len()).map(|value| &mut value[content.at..]);
            match content.length {
                // One token id.
                Some(8) => places.zip(raws).for_each(|(place, raw)| {
                    let bytes = tree.pickle[raw.a as usize..].first_chunk::<8>();
                    if let (Some(place), Some(bytes)) = (place.first_chunk_mut(), bytes) {
                        *place = *bytes;
                    }
                }),
                Some(length) => {
                    places.zip(raws).for_each(|(place, raw)| place[..length].copy_from_slice(tree.span(raw)))
                }
                None => places.zip(raws).for_each(|(place, raw)| {
                    if let Some(place) = place.first_chunk_mut() {
                        *place = raw.word().to_be_bytes();
                    }
                }),
            }
        }
    }
}
