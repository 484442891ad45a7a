//! The arrays of numbers in a row. Their data is in the row, or a part of the message that the row names by its number.
//! Numbers are copied and never read.

use super::outputs::Outputs;
use crate::facts::{SamplingMask, ints};
use crate::pack::{self, PackValue};
use afterbay_types::TopLogprobs;

/// The msgpack extension type that vLLM gives to raw bytes (`CUSTOM_TYPE_RAW_VIEW`).
const EXT_RAW: u8 = 3;

/// The most arrays of one value, and the most axes of an array. vLLM has 5 and 3.
const ARRAYS_MAX: u64 = 16;

/// An array: `[dtype, shape, data]`, of numpy or torch.
#[derive(Clone, Debug)]
pub(crate) struct Array<'a> {
    /// The type of the items, as msgpack: `"<i4"` or `"int32"`.
    dtype: &'a [u8],
    pub(crate) shape: Vec<u64>,
    pub(crate) data: &'a [u8],
    /// The number of the part that has the data.
    part: Option<usize>,
}

impl<'a> Array<'a> {
    /// Reads an array of a row of `outputs`, or one whose data is not in a part. `None`: the value is no array, or names
    /// a part that is not there.
    pub(crate) fn read(outputs: Option<&'a Outputs>, value: &'a [u8]) -> Option<Array<'a>> {
        let Some(PackValue::Array(3, body)) = pack::item(value) else { return None };
        let mut items = pack::items(body, 3);
        let (dtype, shape, data) = (items.next()?, items.next()?, items.next()?);
        pack::str_bytes(dtype)?;
        let PackValue::Array(axes @ ..=ARRAYS_MAX, sizes) = pack::item(shape)? else { return None };
        let size = |size| u64::try_from(pack::int(size)?).ok();
        let shape = pack::items(sizes, axes).map(size).collect::<Option<_>>()?;
        let (data, part) = match pack::item(data)? {
            PackValue::Ext(EXT_RAW, data) => (data, None),
            PackValue::Int(part @ 1..) => {
                let part = usize::try_from(part).ok()?;
                (outputs?.part(part)?, Some(part))
            }
            _ => return None,
        };
        Some(Array { dtype, shape, data, part })
    }

    /// The type of the items: `<i4` or `int32`.
    pub(crate) fn dtype(&self) -> &'a str {
        pack::str_bytes(self.dtype).and_then(|dtype| std::str::from_utf8(dtype).ok()).unwrap_or_default()
    }

    /// The bytes of one entry along the first axis. `None`: the data has not the size that the shape says.
    fn entry_bytes(&self) -> Option<usize> {
        let (entries, rest) = self.shape.split_first()?;
        let items = rest.iter().try_fold(self.item_bytes()?, |bytes, size| bytes.checked_mul(*size))?;
        (items.checked_mul(*entries)? == self.data.len() as u64).then_some(items as usize)
    }

    /// The bytes of an item of numpy: `<i4` has 4.
    fn item_bytes(&self) -> Option<u64> {
        self.dtype().strip_prefix(['<', '|'])?.get(1..)?.parse().ok().filter(|bytes| (1..=16).contains(bytes))
    }

    /// The bytes of an int in this array.
    fn int(&self, value: i64) -> Option<Vec<u8>> {
        match self.dtype() {
            "<i4" => Some(i32::try_from(value).ok()?.to_le_bytes().to_vec()),
            "<i8" => Some(value.to_le_bytes().to_vec()),
            _ => None,
        }
    }

    /// Writes the head of an array of this type, up to its data.
    fn write_head(&self, out: &mut Vec<u8>, entries: u64, bytes: usize) {
        pack::write::array(out, 3);
        out.extend_from_slice(self.dtype);
        pack::write::array(out, self.shape.len());
        let sizes = self.shape.iter().skip(1).copied();
        let first = self.shape.first().map(|_| entries);
        first.into_iter().chain(sizes).for_each(|size| pack::write::int(out, size as i64));
        pack::write::ext(out, EXT_RAW, bytes);
    }

    /// Writes the array with its data inside.
    fn write(&self, out: &mut Vec<u8>) {
        self.write_head(out, self.shape.first().copied().unwrap_or_default(), self.data.len());
        out.extend_from_slice(self.data);
    }
}

/// The arrays of a value: an array, or a list of arrays and other values. `None`: a value is neither an array nor a
/// scalar, so parts might hide in it.
fn arrays<'a>(outputs: &'a Outputs, value: &'a [u8]) -> Option<Vec<Result<Array<'a>, &'a [u8]>>> {
    let one = |value: &'a [u8]| match (Array::read(Some(outputs), value), pack::item(value)?) {
        (Some(array), _) => Some(Ok(array)),
        (None, PackValue::Array(..) | PackValue::Map(..)) => None,
        (None, _) => Some(Err(value)),
    };
    match pack::item(value)? {
        PackValue::Array(len, body) if Array::read(Some(outputs), value).is_none() => {
            let items = if len <= ARRAYS_MAX { pack::items(body, len) } else { return None };
            items.map(one).collect()
        }
        _ => Some(vec![one(value)?]),
    }
}

/// Writes a value whose arrays may be in parts, with all data inside. `None`: it cannot be told which parts it names.
pub(super) fn write_whole(out: &mut Vec<u8>, outputs: &Outputs, value: &[u8]) -> Option<()> {
    let arrays = arrays(outputs, value)?;
    if let Some(PackValue::Array(len, _)) = pack::item(value)
        && Array::read(Some(outputs), value).is_none()
    {
        pack::write::array(out, len as usize);
    }
    for array in arrays {
        match array {
            Ok(array) => array.write(out),
            Err(scalar) => out.extend_from_slice(scalar),
        }
    }
    Some(())
}

/// The positions in the frame of the data of a value's arrays. Nothing if it cannot be told which arrays the value has.
pub(super) fn data_spans(outputs: &Outputs, value: &[u8]) -> Vec<std::ops::Range<usize>> {
    let frame = outputs.frame().as_ptr().addr();
    let arrays = arrays(outputs, value).unwrap_or_default();
    let span = |data: &[u8]| {
        let start = data.as_ptr().addr() - frame;
        start..start + data.len()
    };
    arrays.into_iter().flatten().map(|array| span(array.data)).collect()
}

/// Marks the parts that a value names. `None`: it cannot be told, or a part is named twice.
pub(super) fn mark_parts(marked: &mut [bool], outputs: &Outputs, value: &[u8]) -> Option<()> {
    for array in arrays(outputs, value)?.into_iter().flatten() {
        if let Some(part) = array.part
            && std::mem::replace(marked.get_mut(part)?, true)
        {
            return None;
        }
    }
    Some(())
}

/// Appends the logprob of each token of a row: the first of those in its entry. `None`: the value at the start of `value` is no
/// `LogprobsLists`, or of an unknown type.
pub(super) fn sampled_logprobs(outputs: &Outputs, value: &[u8], out: &mut Vec<f32>) -> Option<()> {
    let first = |entry: &[u8]| entry.first_chunk().map_or(0.0, |first| f32::from_le_bytes(*first));
    logprob_entries(outputs, value)?.1.for_each(|entry| out.push(first(entry)));
    Some(())
}

/// Appends the most probable tokens of each token of a row: those behind the first of its entry. `None` as for
/// [`sampled_logprobs`].
pub(super) fn top_logprobs(outputs: &Outputs, value: &[u8], out: &mut TopLogprobs) -> Option<()> {
    let (ids, entries) = logprob_entries(outputs, value)?;
    let ids = Array::read(Some(outputs), ids)?;
    let mut ids = ints(ids.dtype(), ids.data)?.into_iter();
    for entry in entries {
        let (logprobs, _) = entry.as_chunks();
        // The first is the token itself.
        let candidates = logprobs.iter().map(|it| f32::from_le_bytes(*it)).zip(ids.by_ref()).skip(1);
        for (logprob, id) in candidates {
            out.logprobs.push(logprob);
            out.ids.push(id);
        }
        out.end_place();
    }
    ids.next().is_none().then_some(())
}

/// The array of ids of a `LogprobsLists`, and the logprobs of each of the row's tokens. `None`: the value has another form, or
/// logprobs of an unknown type.
fn logprob_entries<'a>(
    outputs: &'a Outputs,
    value: &'a [u8],
) -> Option<(&'a [u8], std::slice::ChunksExact<'a, u8>)> {
    let Some(PackValue::Array(4, body)) = pack::item(value) else { return None };
    let mut items = pack::items(body, 4);
    let (ids, logprobs) = (items.next()?, Array::read(Some(outputs), items.next()?)?);
    if !matches!(logprobs.dtype(), "<f4" | "float32") {
        return None;
    }
    let &[tokens, of_token] = logprobs.shape.as_slice() else { return None };
    let bytes = usize::try_from(of_token).ok()?.checked_mul(size_of::<f32>()).filter(|bytes| *bytes > 0)?;
    if usize::try_from(tokens).ok()?.checked_mul(bytes) != Some(logprobs.data.len()) {
        return None;
    }
    Some((ids, logprobs.data.chunks_exact(bytes)))
}

/// The candidates of each token of a row (`SamplingMaskLists`). `None`: the value is of another form.
pub(super) fn sampling_mask(outputs: &Outputs, value: &[u8]) -> Option<SamplingMask> {
    let Some(PackValue::Array(3, body)) = pack::item(value) else { return None };
    let mut items = pack::items(body, 3);
    let (ids, offsets) = (Array::read(Some(outputs), items.next()?)?, items.next()?);
    let numbers = |array: &Array<'_>| ints(array.dtype(), array.data);
    let to_u32 =
        |numbers: Vec<i64>| numbers.into_iter().map(u32::try_from).collect::<Result<Vec<_>, _>>().ok();
    let token_ids = to_u32(numbers(&ids)?)?;
    let lengths = match Array::read(Some(outputs), offsets) {
        Some(offsets) => {
            let offsets = numbers(&offsets)?;
            to_u32(offsets.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect())?
        }
        // A single token.
        None => vec![token_ids.len() as u32],
    };
    let candidates: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    (candidates == token_ids.len() as u64).then(|| SamplingMask { lengths, token_ids, logprobs: Vec::new() })
}

/// The logprobs of a row (`LogprobsLists`): token ids and logprobs of `[tokens, n + 1]`, ranks of `[tokens]`.
pub(super) struct Logprobs<'a>([Array<'a>; 3]);

impl<'a> Logprobs<'a> {
    /// Reads logprobs whose data is not in parts. `None`: the value has another form.
    pub(super) fn read(value: &'a [u8]) -> Option<Logprobs<'a>> {
        let Some(PackValue::Array(4, body)) = pack::item(value) else { return None };
        let mut items = pack::items(body, 4);
        let mut next = || Array::read(None, items.next()?).filter(|array| array.entry_bytes().is_some());
        let arrays = [next()?, next()?, next()?];
        // `cu_num_generated_tokens`, which the engine does not send.
        let is_alike = arrays.iter().all(|array| array.shape.first() == arrays[0].shape.first());
        (is_alike && *items.next()? == [0xc0]).then_some(Logprobs(arrays))
    }

    /// The number of tokens.
    fn entries(&self) -> u64 {
        self.0[0].shape.first().copied().unwrap_or_default()
    }

    /// Writes the logprobs of several rows as those of one. `None`: they have different types or numbers of logprobs.
    pub(super) fn write_joined(out: &mut Vec<u8>, rows: &[Logprobs<'_>]) -> Option<()> {
        let entries = rows.iter().try_fold(0_u64, |sum, row| sum.checked_add(row.entries()))?;
        pack::write::array(out, 4);
        for at in 0..3 {
            let arrays = || rows.iter().map(|row| &row.0[at]);
            let first = arrays().next()?;
            let is_like =
                |it: &Array<'_>| it.dtype == first.dtype && it.shape.get(1..) == first.shape.get(1..);
            if !arrays().all(is_like) {
                return None;
            }
            first.write_head(out, entries, arrays().map(|array| array.data.len()).sum());
            arrays().for_each(|array| out.extend_from_slice(array.data));
        }
        pack::write::nil(out);
        Some(())
    }

    /// Writes the logprobs of new ids. A retained id keeps its entry; `retained` has its position. A new id gets an
    /// entry with itself as the only token, certain and of rank 1. vLLM's front end needs as many entries as ids. `None`: the
    /// types of the arrays are not known.
    pub(super) fn write_edited(
        &self,
        out: &mut Vec<u8>,
        ids: &[i64],
        retained: &[Option<usize>],
    ) -> Option<()> {
        pack::write::array(out, 4);
        for (at, array) in self.0.iter().enumerate() {
            let entry_bytes = array.entry_bytes()?;
            array.write_head(out, ids.len() as u64, entry_bytes.checked_mul(ids.len())?);
            for (id, retained) in ids.iter().zip(retained) {
                let entry = retained.map(|at| array.data.get(at * entry_bytes..(at + 1) * entry_bytes));
                match (entry, at) {
                    (Some(entry), _) => out.extend_from_slice(entry?),
                    // A logprob of 0 in any type.
                    (None, 1) => out.resize(out.len() + entry_bytes, 0),
                    (None, at) => {
                        let int = array.int(if at == 0 { *id } else { 1 })?;
                        out.extend(int.iter().cycle().take(entry_bytes));
                    }
                }
            }
        }
        pack::write::nil(out);
        Some(())
    }

    /// Whether there is one entry for each of so many tokens.
    pub(super) fn fits(&self, tokens: usize) -> bool {
        self.entries() == tokens as u64
    }
}
