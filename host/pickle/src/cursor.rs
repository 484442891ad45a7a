//! The bytes of a pickle, opcode by opcode: arguments, checked against what is left before anything is made of them.

use crate::arena::{Raw, Tag};
use crate::error::Fault;

/// What is left of the pickle.
pub(crate) struct Cursor<'p> {
    pub pickle: &'p [u8],
    pub rest: &'p [u8],
    /// What was left when the opcode was read.
    pub opcode: &'p [u8],
}

impl<'p> Cursor<'p> {
    fn at(&self) -> usize {
        self.pickle.len() - self.rest.len()
    }

    pub fn cut(&self, needed: u64) -> Fault {
        Fault::Cut { needed, left: self.rest.len() }
    }

    #[inline(always)]
    pub fn argument<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let Some((argument, rest)) = self.rest.split_first_chunk() else { return Err(self.cut(N as u64)) };
        self.rest = rest;
        Ok(*argument)
    }

    /// Bytes of a declared length, and the node that holds them.
    #[inline(always)]
    pub fn span(&mut self, tag: Tag, length: u64) -> Result<(&'p [u8], Raw), Fault> {
        let start = self.at();
        // A pickle's length fits 32 bits, so what is longer is beyond its end.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.cut(length as u64));
        };
        self.rest = rest;
        Ok((bytes, Raw::new(tag, start as u32, length as u32)))
    }

    #[inline(always)]
    pub fn line(&mut self) -> Result<&'p [u8], Fault> {
        let Some(length) = line_length(self.rest) else { return Err(self.cut(self.rest.len() as u64 + 1)) };
        let line = &self.rest[..length];
        self.rest = &self.rest[length + 1..];
        Ok(line)
    }

    /// A line of text, as a str: nothing in it may be escaped.
    #[inline(always)]
    pub fn text_line(&mut self) -> Result<Raw, Fault> {
        let start = self.at() as u32;
        let line = self.line()?;
        if !line.is_ascii() || line.contains(&b'\\') {
            return Err(Fault::NotUnderstood);
        }
        Ok(Raw::new(Tag::Str, start, line.len() as u32))
    }
}

#[inline(never)]
fn line_length(rest: &[u8]) -> Option<usize> {
    rest.iter().position(|byte| *byte == b'\n')
}
