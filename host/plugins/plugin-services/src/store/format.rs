//! The bytes of a store's file. `FORMAT.md` describes them.
//!
//! A record counts if its checksum is right and its operations can be read. The first record that does not count ends the
//! file: whatever follows is not read.

use crate::store::bounds::{KEY_BYTES_MAX, VALUE_BYTES_MAX, WRITERS_MAX};
use crate::store::values::{Value, Values};
use std::sync::Arc;

/// The first bytes of a file. The last byte is the version.
pub(crate) const MAGIC: [u8; 8] = *b"ABSTORE\x01";
/// The version of the format that this crate writes, the last byte of the file's first 8. The crate reads no later one.
pub const FORMAT_VERSION: u32 = MAGIC[7] as u32;
/// The bytes before the operations of a record: their length and their checksum.
const RECORD_HEAD: usize = 8;
/// The writer of operations that count in any case: those of a snapshot.
const NO_WRITER: u16 = u16::MAX;
/// The longest name of a writer. The rest is cut.
const WRITER_BYTES_MAX: usize = 256;

const SET: u8 = 1;
const NUMBER: u8 = 2;
const ADD: u8 = 3;
const DELETE: u8 = 4;
const WRITER: u8 = 5;
const COMMIT: u8 = 6;

/// One operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Set {
        writer: u16,
        key: &'a str,
        value: &'a [u8],
    },
    /// A number of a snapshot.
    Number {
        key: &'a str,
        number: i64,
    },
    Add {
        writer: u16,
        key: &'a str,
        delta: i64,
    },
    Delete {
        writer: u16,
        key: &'a str,
    },
    /// Names a writer, with the number of the last batch that it has finished (0 for none).
    Writer {
        writer: u16,
        name: &'a str,
        committed: u64,
    },
    /// The writer has finished this batch: its operations count.
    Commit {
        writer: u16,
        number: u64,
    },
}

impl Operation<'_> {
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, kind: u8, writer: u16| {
            out.push(kind);
            out.extend_from_slice(&writer.to_le_bytes());
        };
        // The casts are safe: keys, names and values are shorter.
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        };
        match self {
            Operation::Set { writer, key, value } => {
                head(out, SET, writer);
                text(out, key);
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(value);
            }
            Operation::Number { key, number } => {
                head(out, NUMBER, NO_WRITER);
                text(out, key);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Operation::Add { writer, key, delta } => {
                head(out, ADD, writer);
                text(out, key);
                out.extend_from_slice(&delta.to_le_bytes());
            }
            Operation::Delete { writer, key } => {
                head(out, DELETE, writer);
                text(out, key);
            }
            Operation::Writer { writer, name, committed } => {
                head(out, WRITER, writer);
                text(out, &name[..name.floor_char_boundary(WRITER_BYTES_MAX)]);
                out.extend_from_slice(&committed.to_le_bytes());
            }
            Operation::Commit { writer, number } => {
                head(out, COMMIT, writer);
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
}

/// The head of a record with these operations.
pub(crate) fn record_head(operations: &[u8]) -> [u8; RECORD_HEAD] {
    // The cast is safe: a record has at most PENDING_BYTES_MAX bytes.
    let length = (operations.len() as u32).to_le_bytes();
    let mut head = [0; RECORD_HEAD];
    head[..4].copy_from_slice(&length);
    head[4..].copy_from_slice(&checksum(&length, operations).to_le_bytes());
    head
}

fn checksum(length: &[u8], operations: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(operations);
    hasher.finalize()
}

/// A file with these values and these writers, each with its last batch.
pub(crate) fn snapshot<'a>(values: &Values, writers: impl Iterator<Item = (u16, &'a str, u64)>) -> Vec<u8> {
    let mut operations = Vec::with_capacity(values.bytes() + values.keys() * 8);
    for (writer, name, committed) in writers {
        Operation::Writer { writer, name, committed }.put(&mut operations);
    }
    for (key, value) in values.iter() {
        match value {
            Value::Number(number) => Operation::Number { key, number: *number },
            Value::Bytes(value) => Operation::Set { writer: NO_WRITER, key, value },
        }
        .put(&mut operations);
    }
    let mut out = MAGIC.to_vec();
    if !operations.is_empty() {
        out.extend_from_slice(&record_head(&operations));
        out.extend_from_slice(&operations);
    }
    out
}

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) values: Values,
    /// The writers, each with its last batch.
    pub(crate) writers: Vec<(String, u64)>,
    /// The bytes of the file that count.
    pub(crate) bytes: usize,
}

/// Reads a file. Changes of a batch that its writer has not finished do not count: the batch runs again.
pub(crate) fn recover(file: &[u8]) -> Recovered {
    let mut recovered = Recovered::default();
    if file.strip_prefix(&MAGIC).is_none() {
        return recovered;
    }
    recovered.bytes = MAGIC.len();
    let mut all = Vec::new();
    while let Some((operations, end)) = record(&file[recovered.bytes..]) {
        all.extend(operations);
        recovered.bytes += end;
    }
    // The index of each writer's last commit.
    let mut finished = vec![0; WRITERS_MAX];
    for (index, operation) in all.iter().enumerate() {
        if let Operation::Commit { writer, .. } = operation {
            finished[usize::from(*writer)] = index;
        }
    }
    let counts = |writer: u16, index: usize| {
        writer == NO_WRITER || finished.get(usize::from(writer)).is_some_and(|end| index < *end)
    };
    let Recovered { values, writers, .. } = &mut recovered;
    for (index, operation) in all.into_iter().enumerate() {
        match operation {
            Operation::Set { writer, key, value } if counts(writer, index) => {
                values.put(key, Value::Bytes(Arc::from(value)));
            }
            Operation::Number { key, number } => values.put(key, Value::Number(number)),
            // A key whose number was made by an unfinished batch of another writer may be missing, or have bytes.
            Operation::Add { writer, key, delta } if counts(writer, index) => drop(values.add(key, delta)),
            Operation::Delete { writer, key } if counts(writer, index) => drop(values.remove(key)),
            Operation::Set { .. } | Operation::Add { .. } | Operation::Delete { .. } => {}
            Operation::Writer { writer, name, committed } => {
                let place = usize::from(writer);
                if writers.len() <= place {
                    writers.resize(place + 1, (String::new(), 0));
                }
                writers[place] = (name.to_owned(), committed);
            }
            Operation::Commit { writer, number } => {
                if let Some((_, committed)) = writers.get_mut(usize::from(writer)) {
                    *committed = number;
                }
            }
        }
    }
    writers.retain(|(name, _)| !name.is_empty());
    recovered
}

/// The operations of the first record, and the record's length. `None` if it does not count.
fn record(bytes: &[u8]) -> Option<(Vec<Operation<'_>>, usize)> {
    let (head, rest) = bytes.split_first_chunk::<RECORD_HEAD>()?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let operations = rest.get(..length)?;
    if checksum(&head[..4], operations).to_le_bytes() != head[4..] {
        return None;
    }
    let mut input = Input(operations);
    let mut all = Vec::new();
    while !input.0.is_empty() {
        all.push(input.operation()?);
    }
    Some((all, RECORD_HEAD + length))
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = u16::from_le_bytes(self.array()?);
        std::str::from_utf8(self.take(length.into())?).ok()
    }

    fn key(&mut self) -> Option<&'a str> {
        self.text().filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()))
    }

    fn operation(&mut self) -> Option<Operation<'a>> {
        let [kind] = self.array()?;
        let writer = u16::from_le_bytes(self.array()?);
        let is_named = usize::from(writer) < WRITERS_MAX;
        Some(match kind {
            SET if is_named || writer == NO_WRITER => {
                let key = self.key()?;
                let length = u32::from_le_bytes(self.array()?) as usize;
                let value = self.take(length).filter(|_| length <= VALUE_BYTES_MAX)?;
                Operation::Set { writer, key, value }
            }
            NUMBER => Operation::Number { key: self.key()?, number: i64::from_le_bytes(self.array()?) },
            ADD if is_named => {
                Operation::Add { writer, key: self.key()?, delta: i64::from_le_bytes(self.array()?) }
            }
            DELETE if is_named => Operation::Delete { writer, key: self.key()? },
            WRITER if is_named => {
                Operation::Writer { writer, name: self.text()?, committed: u64::from_le_bytes(self.array()?) }
            }
            COMMIT if is_named => Operation::Commit { writer, number: u64::from_le_bytes(self.array()?) },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[&[Operation<'_>]]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for record in records {
            let mut operations = Vec::new();
            record.iter().for_each(|operation| operation.put(&mut operations));
            out.extend_from_slice(&record_head(&operations));
            out.extend_from_slice(&operations);
        }
        out
    }

    const A: Operation<'_> = Operation::Writer { writer: 0, name: "a", committed: 0 };
    const B: Operation<'_> = Operation::Writer { writer: 1, name: "b", committed: 0 };

    fn add(writer: u16, delta: i64) -> Operation<'static> {
        Operation::Add { writer, key: "k", delta }
    }

    #[test]
    fn changes_of_an_unfinished_batch_do_not_count() {
        let bytes = file(&[
            &[A, B, add(0, 1), Operation::Commit { writer: 0, number: 7 }],
            &[add(0, 10), add(1, 100), Operation::Commit { writer: 1, number: 3 }, add(1, 1000)],
        ]);
        let recovered = recover(&bytes);
        assert_eq!(recovered.values.number("k"), Ok(101));
        assert_eq!(recovered.writers, [("a".to_owned(), 7), ("b".to_owned(), 3)]);
        assert_eq!(recovered.bytes, bytes.len());
    }

    #[test]
    fn a_snapshot_reads_as_it_was_written() {
        let mut values = Values::default();
        values.add("number", -5);
        values.put("bytes", Value::Bytes(Arc::from(&b"\x00\xff"[..])));
        let bytes = snapshot(&values, [(0, "a", 4), (1, "b", 0)].into_iter());
        let recovered = recover(&bytes);
        assert!(recovered.values.iter().eq(values.iter()));
        assert_eq!(recovered.values.bytes(), values.bytes());
        assert_eq!(recovered.writers, [("a".to_owned(), 4), ("b".to_owned(), 0)]);
        assert_eq!(recover(&snapshot(&Values::default(), std::iter::empty())).bytes, MAGIC.len());
    }

    #[test]
    fn a_file_cut_at_any_byte_keeps_every_whole_record() {
        let commit = |number| Operation::Commit { writer: 0, number };
        let bytes = file(&[&[A, add(0, 1), commit(1)], &[add(0, 2), commit(2)], &[add(0, 4), commit(3)]]);
        let ends: Vec<usize> = (0..=bytes.len()).map(|cut| recover(&bytes[..cut]).bytes).collect();
        for (cut, end) in ends.iter().enumerate() {
            let recovered = recover(&bytes[..cut]);
            assert!(*end <= cut && recover(&bytes[..*end]).values.iter().eq(recovered.values.iter()));
        }
        let numbers: Vec<i64> =
            ends.iter().map(|end| recover(&bytes[..*end]).values.number("k").unwrap()).collect();
        assert!(numbers.is_sorted());
        assert_eq!((numbers[0], numbers[bytes.len() - 1], numbers[bytes.len()]), (0, 3, 7));
    }

    #[test]
    fn a_flipped_bit_never_returns_a_wrong_value() {
        let commit = |number| Operation::Commit { writer: 0, number };
        let bytes = file(&[&[A, add(0, 1), commit(1)], &[add(0, 2), commit(2)]]);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!([0, 1].contains(&recover(&flipped).values.number("k").unwrap()), "bit {bit}");
        }
    }

    #[test]
    fn a_record_with_an_unknown_or_overlong_operation_does_not_count() {
        for operations in [
            &[9, 0, 0][..],
            &[COMMIT, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0],
            &[ADD, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            &[DELETE, 0, 0, 1, 0, 0xff],
            &[SET, 0, 0, 1, 0, b'k', 0xff, 0xff, 0xff, 0xff],
        ] {
            let mut bytes = MAGIC.to_vec();
            bytes.extend_from_slice(&record_head(operations));
            bytes.extend_from_slice(operations);
            assert_eq!(recover(&bytes).bytes, MAGIC.len(), "{operations:?}");
        }
    }
}
