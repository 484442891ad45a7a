//! The fields of rows that only some readers need: the candidates, the drafts, the weights and the experts of tokens.

use serde::{Deserialize, Serialize};

/// The weights that made some of a request's tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightSpan {
    /// The version of the weights.
    pub version: String,
    /// The first of these tokens, among the request's.
    pub start: u64,
    /// The first token after them.
    pub end: u64,
}

/// The tokens that each new token of a row was sampled from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingMask {
    /// For each new token, the number of its candidates.
    pub lengths: Vec<u32>,
    /// The ids of the candidates, for one new token after another.
    pub token_ids: Vec<u32>,
    /// Their logprobs, or those of the new tokens only. Empty if the engine does not say.
    pub logprobs: Vec<f32>,
}

/// The tokens that a draft model made for a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Tokens that the draft model proposed, if the row says it.
    pub drafted: Option<u64>,
    /// Those of them that the model accepted, if the row says it.
    pub accepted: Option<u64>,
}

/// The experts that a row's tokens were routed to. Some engines say them for the whole request in its last row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutedExperts {
    /// The size of each axis: tokens, layers, experts of a token.
    pub shape: Vec<u64>,
    /// The numbers of the experts, in C order.
    pub experts: Vec<i64>,
}

impl RoutedExperts {
    /// Reads an array of whole numbers, little-endian, of this type in numpy's or torch's notation. `None`: of another type, or of
    /// another size than the shape says.
    pub(crate) fn read(dtype: &str, shape: Vec<u64>, bytes: &[u8]) -> Option<RoutedExperts> {
        let experts = ints(dtype, bytes)?;
        let items = shape.iter().try_fold(1u64, |items, size| items.checked_mul(*size))?;
        (items == experts.len() as u64).then_some(RoutedExperts { shape, experts })
    }
}

/// The items of an array of whole numbers. `None`: the type is another one.
pub(crate) fn ints(dtype: &str, bytes: &[u8]) -> Option<Vec<i64>> {
    fn read<const N: usize>(bytes: &[u8], int: fn([u8; N]) -> i64) -> Option<Vec<i64>> {
        let (items, rest) = bytes.as_chunks();
        rest.is_empty().then(|| items.iter().map(|item| int(*item)).collect())
    }
    match dtype.strip_prefix("torch.").unwrap_or(dtype) {
        "uint8" | "|u1" => read(bytes, |[byte]| byte.into()),
        "int8" | "|i1" => read(bytes, |byte| i8::from_le_bytes(byte).into()),
        "int16" | "<i2" => read(bytes, |int| i16::from_le_bytes(int).into()),
        "<u2" => read(bytes, |int| u16::from_le_bytes(int).into()),
        "int32" | "<i4" => read(bytes, |int| i32::from_le_bytes(int).into()),
        "int64" | "<i8" => read(bytes, i64::from_le_bytes),
        _ => None,
    }
}
