//! `SamplingMaskChunk` (0.5.21 and later): the tokens that each new token was sampled from, as three flat arrays.
//! Besides ids and lists it is the only kind of cell that joins and edits must change inside.

use crate::pickle::Node;

use crate::facts::SamplingMask;
use crate::pack::{self, PackValue, write};
use crate::value::RawValue;

/// The msgpack extension type that SGLang gives to `numpy.ndarray`.
const EXT_NDARRAY: u8 = 3;
/// The function that makes a chunk of three byte strings, in a pickle.
const FROM_BUFFERS: (&str, &str) = ("sglang.srt.sampling.sampling_mask", "_chunk_from_buffers");
/// The arrays' types in numpy's notation.
const DTYPES: [&str; 3] = ["<i4", "<i4", "<f4"];

/// A chunk. All numbers have 4 bytes, little-endian.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask {
    /// For each new token, how many tokens it was sampled from.
    lengths: Vec<[u8; 4]>,
    /// The ids of these tokens, for one new token after another.
    token_ids: Vec<[u8; 4]>,
    /// Their logprobs ("support"), or those of the new tokens only ("selected").
    logprobs: Vec<[u8; 4]>,
}

impl Mask {
    /// Reads a chunk. `None`: the value is not one.
    pub(crate) fn read(value: RawValue<'_>) -> Option<Mask> {
        let parts: Vec<&[u8]> = match value {
            RawValue::Packed(_) => {
                let items = value.list().filter(|items| items.len() == DTYPES.len())?;
                items
                    .into_iter()
                    .zip(DTYPES)
                    .map(|(item, dtype)| ndarray(item, dtype))
                    .collect::<Option<_>>()?
            }
            RawValue::Tree(tree, id) => {
                let Node::Reduce { callable, args } = tree.node(id) else { return None };
                let Node::Global { module, name } = tree.node(callable) else { return None };
                if (module, name) != FROM_BUFFERS {
                    return None;
                }
                tree.items(args)?.iter().map(|&part| tree.bytes(part)).collect::<Option<_>>()?
            }
        };
        let [lengths, token_ids, logprobs] = parts.try_into().ok()?;
        let numbers = |bytes: &[u8]| {
            let (numbers, rest) = bytes.as_chunks();
            rest.is_empty().then(|| numbers.to_vec())
        };
        Some(Mask {
            lengths: numbers(lengths)?,
            token_ids: numbers(token_ids)?,
            logprobs: numbers(logprobs)?,
        })
    }

    /// Concatenates chunks.
    pub(crate) fn concat(masks: Vec<Mask>) -> Mask {
        masks.into_iter().fold(Mask::default(), |mut all, mask| {
            all.lengths.extend(mask.lengths);
            all.token_ids.extend(mask.token_ids);
            all.logprobs.extend(mask.logprobs);
            all
        })
    }

    /// The numbers of the arrays.
    pub(crate) fn numbers(&self) -> SamplingMask {
        SamplingMask {
            lengths: self.lengths.iter().map(|length| u32::from_le_bytes(*length)).collect(),
            token_ids: self.token_ids.iter().map(|id| u32::from_le_bytes(*id)).collect(),
            logprobs: self.logprobs.iter().map(|logprob| f32::from_le_bytes(*logprob)).collect(),
        }
    }

    /// The number of new tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.lengths.len()
    }

    /// The chunk for other tokens: `kept` has the old position of each, or `None` for an inserted token, which gets no
    /// candidates and logprob 0. `None`: the lengths of the arrays are inconsistent.
    pub(crate) fn select(&self, kept: impl Iterator<Item = Option<usize>>) -> Option<Mask> {
        let mut ends = vec![0];
        for length in &self.lengths {
            ends.push(ends.last()? + usize::try_from(i32::from_le_bytes(*length)).ok()?);
        }
        let selected = self.logprobs.len() == self.lengths.len();
        if *ends.last()? != self.token_ids.len() || !selected && self.logprobs.len() != self.token_ids.len() {
            return None;
        }
        let mut mask = Mask::default();
        for kept in kept {
            let Some(token) = kept else {
                mask.lengths.push([0; 4]);
                mask.logprobs.extend(selected.then_some([0; 4]));
                continue;
            };
            let support = *ends.get(token)?..*ends.get(token + 1)?;
            mask.lengths.push(self.lengths[token]);
            mask.token_ids.extend_from_slice(&self.token_ids[support.clone()]);
            mask.logprobs
                .extend_from_slice(&self.logprobs[if selected { token..token + 1 } else { support }]);
        }
        Some(mask)
    }

    fn arrays(&self) -> [&[u8]; 3] {
        [&self.lengths, &self.token_ids, &self.logprobs].map(|numbers| numbers.as_flattened())
    }

    /// Writes the chunk as msgpack.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        write::array(out, 3);
        for (bytes, dtype) in self.arrays().into_iter().zip(DTYPES) {
            let mut head = Vec::new();
            write::array(&mut head, 2);
            write::array(&mut head, 1);
            write::int(&mut head, bytes.len() as i64 / 4);
            write::str(&mut head, dtype);
            write::ext(out, EXT_NDARRAY, 4 + head.len() + bytes.len());
            out.extend_from_slice(&(head.len() as u32).to_be_bytes());
            out.extend_from_slice(&head);
            out.extend_from_slice(bytes);
        }
    }

    /// Writes the chunk as a part of a pickle.
    pub(crate) fn pickle(&self, out: &mut Vec<u8>) {
        let (module, name) = FROM_BUFFERS;
        out.extend_from_slice(format!("c{module}\n{name}\n").as_bytes());
        for bytes in self.arrays() {
            out.push(b'B');
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        out.extend_from_slice(b"\x87R");
    }
}

/// The bytes of a flat ndarray of this type.
fn ndarray<'a>(value: RawValue<'a>, dtype: &str) -> Option<&'a [u8]> {
    let RawValue::Packed(bytes) = value else { return None };
    let PackValue::Ext(EXT_NDARRAY, payload) = pack::item(bytes)? else { return None };
    let (len, rest) = payload.split_first_chunk()?;
    let (head, items) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let head = RawValue::Packed(head.get(..pack::skip(head, 0).ok()?)?).list()?;
    let [shape, name] = head[..] else { return None };
    (shape.list()?.len() == 1 && name.str() == Some(dtype)).then_some(items)
}
