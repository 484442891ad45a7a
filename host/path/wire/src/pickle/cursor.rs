//! Reads opcodes and their arguments from a pickle's bytes. Arguments are checked against the remaining bytes first.

use crate::pickle::arena::{RawNode, Tag};
use crate::pickle::error::OpcodeError;

/// The position in a pickle.
pub(crate) struct Cursor<'p> {
    pub pickle: &'p [u8],
    pub rest: &'p [u8],
    /// The remaining bytes at the opcode.
    pub opcode: &'p [u8],
}

impl<'p> Cursor<'p> {
    pub fn at(&self) -> usize {
        self.pickle.len() - self.rest.len()
    }

    pub fn cut(&self, needed: u64) -> OpcodeError {
        OpcodeError::Cut { needed, left: self.rest.len() }
    }

    #[inline(always)]
    pub fn argument<const N: usize>(&mut self) -> Result<[u8; N], OpcodeError> {
        let Some((argument, rest)) = self.rest.split_first_chunk() else { return Err(self.cut(N as u64)) };
        self.rest = rest;
        Ok(*argument)
    }

    /// Reads bytes of a declared length, and makes a node of them.
    #[inline(always)]
    pub fn span(&mut self, tag: Tag, length: u64) -> Result<(&'p [u8], RawNode), OpcodeError> {
        let start = self.at();
        // A pickle's length fits into 32 bits, so a longer length is past its end.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.cut(length as u64));
        };
        self.rest = rest;
        Ok((bytes, RawNode::new(tag, start as u32, length as u32)))
    }

    #[inline(always)]
    pub fn line(&mut self) -> Result<&'p [u8], OpcodeError> {
        let Some(length) = line_length(self.rest) else { return Err(self.cut(self.rest.len() as u64 + 1)) };
        let line = &self.rest[..length];
        self.rest = &self.rest[length + 1..];
        Ok(line)
    }

    /// Reads a line of text as a str. Escapes are not supported.
    #[inline(always)]
    pub fn text_line(&mut self) -> Result<RawNode, OpcodeError> {
        let start = self.at() as u32;
        let line = self.line()?;
        if !line.is_ascii() || line.contains(&b'\\') {
            return Err(OpcodeError::NotUnderstood);
        }
        Ok(RawNode::ascii(start, line.len() as u32))
    }
}

#[inline(never)]
fn line_length(rest: &[u8]) -> Option<usize> {
    rest.iter().position(|byte| *byte == b'\n')
}

/// Checks UTF-8 that may have lone surrogates, as CPython writes a str.
#[inline(never)]
pub(crate) fn is_text(mut bytes: &[u8]) -> bool {
    while let Err(error) = std::str::from_utf8(bytes) {
        match &bytes[error.valid_up_to()..] {
            [0xed, 0xa0..=0xbf, 0x80..=0xbf, rest @ ..] => bytes = rest,
            _ => return false,
        }
    }
    true
}
