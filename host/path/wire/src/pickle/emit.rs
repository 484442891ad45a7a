//! Writes opcodes and arguments in their shortest form, and numbers the memo. It knows nothing of trees.

use crate::pickle::opcode as op;

/// A memo entry of the written pickle.
#[derive(Clone, Copy)]
pub(crate) struct Memo(u32);

/// The written pickle, in one frame of its whole length: frames have no size limit, and CPython's loader is fastest
/// with one.
pub(crate) struct Emit {
    pub bytes: Vec<u8>,
    memoized: u32,
    has_frame: bool,
}

const PROTOCOL: usize = 1;
const FRAME_LENGTH: std::ops::Range<usize> = 3..11;
/// The opcode and the length of bytes.
const BINBYTES_HEAD: usize = 5;

impl Emit {
    pub fn new(protocol: u8) -> Emit {
        let mut bytes = vec![op::PROTO, protocol, op::FRAME];
        bytes.resize(FRAME_LENGTH.end, 0);
        Emit { bytes, memoized: 0, has_frame: true }
    }

    /// The number of memo entries.
    pub fn memoized(&self) -> u32 {
        self.memoized
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(op::STOP);
        if self.has_frame {
            let length = (self.bytes.len() - FRAME_LENGTH.end) as u64;
            self.bytes[FRAME_LENGTH].copy_from_slice(&length.to_le_bytes());
        }
        self.bytes
    }

    /// Makes the pickle this long once it is finished, without changing its value. Leaves the frame out, which is optional, if
    /// there is no room for its head. Returns false if the pickle is longer.
    pub fn pad_to(&mut self, length: usize) -> bool {
        // The STOP is still to come.
        let unused = |emit: &Emit| length.checked_sub(emit.bytes.len() + 1);
        if unused(self).is_none() && self.has_frame {
            self.bytes.drain(FRAME_LENGTH.start - 1..FRAME_LENGTH.end);
            self.has_frame = false;
        }
        unused(self).map(|unused| self.pad(unused)).is_some()
    }

    /// Adds this many bytes that change nothing, after the last value: bytes that are popped, or memo entries that nobody
    /// gets.
    fn pad(&mut self, bytes: usize) {
        match bytes.checked_sub(BINBYTES_HEAD + 1).map(u32::try_from) {
            Some(Ok(unused)) => {
                self.with(op::BINBYTES, unused.to_le_bytes());
                self.bytes.resize(self.bytes.len() + unused as usize, 0);
                self.opcode(op::POP);
            }
            _ => self.bytes.resize(self.bytes.len() + bytes, op::MEMOIZE),
        }
    }

    #[inline]
    pub fn opcode(&mut self, opcode: u8) {
        self.bytes.push(opcode);
    }

    #[inline]
    fn with<const N: usize>(&mut self, opcode: u8, argument: [u8; N]) {
        self.bytes.push(opcode);
        self.bytes.extend_from_slice(&argument);
    }

    /// Writes a value that is an opcode and maybe one byte, this often.
    pub fn repeat(&mut self, value: &[u8], count: usize) {
        match value {
            &[opcode] => self.bytes.resize(self.bytes.len() + count, opcode),
            value => self.bytes.extend_from_slice(&value.repeat(count)),
        }
    }

    pub fn bool(&mut self, value: bool) {
        self.opcode(if value { op::NEWTRUE } else { op::NEWFALSE });
    }

    #[inline]
    pub fn int(&mut self, int: i64) {
        if let Ok(int) = u8::try_from(int) {
            self.bytes.extend_from_slice(&[op::BININT1, int]);
        } else if let Ok(int) = u16::try_from(int) {
            self.with(op::BININT2, int.to_le_bytes());
        } else if let Ok(int) = i32::try_from(int) {
            self.with(op::BININT, int.to_le_bytes());
        } else {
            self.with(op::LONG1, [8]);
            self.bytes.extend_from_slice(&int.to_le_bytes());
        }
    }

    pub fn big_int(&mut self, bytes: &[u8]) {
        self.lengthy(op::LONG1, op::LONG4, bytes);
    }

    pub fn float(&mut self, float: f64) {
        self.with(op::BINFLOAT, float.to_be_bytes());
    }

    #[inline]
    pub fn str(&mut self, text: &[u8]) {
        self.lengthy(op::SHORT_BINUNICODE, op::BINUNICODE, text);
    }

    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.lengthy(op::SHORT_BINBYTES, op::BINBYTES, bytes);
    }

    pub fn byte_array(&mut self, bytes: &[u8]) {
        self.bytes[PROTOCOL] = 5;
        self.with(op::BYTEARRAY8, (bytes.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes bytes after their length in one or four bytes. The bound on a pickle's length limits it.
    #[inline]
    fn lengthy(&mut self, short: u8, long: u8, bytes: &[u8]) {
        self.length(short, long, bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    #[inline]
    fn length(&mut self, short: u8, long: u8, length: usize) {
        match u8::try_from(length) {
            Ok(length) => self.bytes.extend_from_slice(&[short, length]),
            Err(_) => self.with(long, (length as u32).to_le_bytes()),
        }
    }

    /// Writes the little-endian bytes of an `array('q')`.
    pub fn id_bytes(&mut self, ids: &[i64]) {
        self.length(op::SHORT_BINBYTES, op::BINBYTES, ids.len() * 8);
        self.bytes.reserve(ids.len() * 8);
        ids.iter().for_each(|id| self.bytes.extend_from_slice(&id.to_le_bytes()));
    }

    /// Writes bytes that stand one after the other as one value.
    pub fn bytes_of(&mut self, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        self.length(op::SHORT_BINBYTES, op::BINBYTES, length);
        self.bytes.reserve(length);
        for part in parts {
            match <[u8; 8]>::try_from(*part) {
                Ok(one) => self.bytes.extend_from_slice(&one),
                Err(_) => self.bytes.extend_from_slice(part),
            }
        }
    }

    /// Puts the value that was just written into the memo.
    pub fn memoize(&mut self) -> Memo {
        self.opcode(op::MEMOIZE);
        self.memoized += 1;
        Memo(self.memoized - 1)
    }

    pub fn get(&mut self, Memo(index): Memo) {
        match u8::try_from(index) {
            Ok(index) => self.bytes.extend_from_slice(&[op::BINGET, index]),
            Err(_) => self.with(op::LONG_BINGET, index.to_le_bytes()),
        }
    }
}
