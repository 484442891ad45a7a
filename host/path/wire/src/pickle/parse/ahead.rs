//! Reading ahead: the values of a column are often of one form, and the parser reads those that follow at once. The tree is the
//! same as opcode by opcode.

use crate::pickle::arena::{NodeId, RawNode, small_int};
use crate::pickle::bounds::MAX_RUNS;
use crate::pickle::cursor::Cursor;
use crate::pickle::error::OpcodeError;
use crate::pickle::opcode as op;
use crate::pickle::repeat::{AlikeRead, Output, ValueStart};

use super::{Parser, STARTS};

impl Parser {
    /// The number of opcodes that may be read together with the current one. In a test of the plain parser there are none.
    #[inline(always)]
    pub(super) fn ahead(&self, left: usize) -> usize {
        #[cfg(test)]
        if self.is_plain {
            return 0;
        }
        left
    }

    /// Pushes a value for its opcode and for the same opcodes after it, as in a column of `None`.
    #[inline(always)]
    pub(super) fn push_all(&mut self, id: NodeId, cursor: &mut Cursor, left: &mut usize) {
        self.push(id);
        self.push_again::<1>(id, cursor, left);
    }

    /// Pushes a value again for each opcode after it that is the same, with the same argument, as in a column of `None`.
    #[inline(always)]
    fn push_again<const N: usize>(&mut self, id: NodeId, cursor: &mut Cursor, left: &mut usize) {
        let (Some(opcode), (opcodes, _)) = (cursor.opcode.first_chunk::<N>(), cursor.rest.as_chunks()) else {
            return;
        };
        let more = leading(opcodes, self.ahead(*left), |next| next == opcode);
        self.stack.resize(self.stack.len() + more, id);
        (cursor.rest, *left) = (&cursor.rest[N * more..], *left - more);
    }

    /// Pushes the small ints after a small int, as in a column of counts.
    #[inline(always)]
    pub(super) fn push_small_ints(&mut self, cursor: &mut Cursor, left: &mut usize) {
        let (pairs, _) = cursor.rest.as_chunks();
        let more = leading(pairs, self.ahead(*left), |[opcode, _]| *opcode == op::BININT1);
        self.stack.extend(pairs[..more].iter().map(|[_, int]| small_int(*int)));
        (cursor.rest, *left) = (&cursor.rest[2 * more..], *left - more);
    }

    /// Pushes the ASCII texts after a text of the same length, as in a column of rids: all memoized, or none.
    #[inline(always)]
    pub(super) fn push_texts(&mut self, length: u8, cursor: &mut Cursor, left: &mut usize) {
        let head = [op::MEMOIZE, op::SHORT_BINUNICODE, length];
        if cursor.rest.starts_with(&head) {
            let entries = self.arena.nodes.len() as u32 - 1;
            let texts = self.push_texts_after(head, length, *left / 2, cursor);
            self.memo.extend((entries..entries + texts as u32).map(NodeId));
            *left -= 2 * texts;
        } else if cursor.rest.starts_with(&head[1..]) {
            *left -= self.push_texts_after([op::SHORT_BINUNICODE, length], length, *left, cursor);
        }
    }

    /// Pushes at most `max` ASCII texts of this length after the same opcodes. Returns their number.
    fn push_texts_after<const N: usize>(
        &mut self,
        head: [u8; N],
        length: u8,
        max: usize,
        cursor: &mut Cursor,
    ) -> usize {
        let bytes = N + usize::from(length);
        let is_alike = |text: &&[u8]| text.first_chunk() == Some(&head) && text[N..].is_ascii();
        let texts = cursor.rest.chunks_exact(bytes).take(self.ahead(max)).take_while(is_alike).count();
        let (first, start) = (self.arena.nodes.len() as u32, (cursor.at() + N) as u32);
        let node = |number| RawNode::ascii(start + number * bytes as u32, length.into());
        self.arena.nodes.extend((0..texts as u32).map(node));
        self.stack.extend((first..first + texts as u32).map(NodeId));
        cursor.rest = &cursor.rest[texts * bytes..];
        texts
    }

    /// Gets a memo entry. If the last value began with the same entry, also reads the values alike that begin here.
    pub(super) fn get_values<const N: usize>(
        &mut self,
        entry: u32,
        cursor: &mut Cursor,
        left: &mut usize,
    ) -> Result<(), OpcodeError> {
        let here = ValueStart {
            entry,
            at: cursor.pickle.len() - cursor.opcode.len(),
            marks: self.marks.len(),
            height: self.stack.len(),
            nodes: self.arena.nodes.len() as u32,
            children: self.arena.children.len() as u32,
            memo: self.memo.len() as u32,
        };
        let last = self.starts[here.marks % STARTS].replace(here);
        match last.filter(|last| last.entry == entry && last.marks == here.marks) {
            Some(last) if self.read_alike(last, here, cursor, left) => Ok(()),
            _ => {
                let id = self.get(entry)?;
                self.push_again::<N>(id, cursor, left);
                Ok(())
            }
        }
    }

    /// Reads the values alike at the last opcode if it ends a value. Returns whether there are any.
    fn read_alike(
        &mut self,
        start: ValueStart,
        end: ValueStart,
        cursor: &mut Cursor,
        left: &mut usize,
    ) -> bool {
        if self.ahead(*left) == 0 {
            return false;
        }
        let Parser { arena, memo, stack, alike, .. } = self;
        let output = Output { arena, memo, stack };
        if !alike.learn(cursor.pickle, start, end, &output) {
            return false;
        }
        // The opcode here is counted already.
        let AlikeRead { bytes, opcodes, run } = alike.read(cursor.opcode, *left + 1, output);
        if bytes == 0 {
            return false;
        }
        if self.runs.len() < MAX_RUNS {
            self.runs.push(run);
        }
        self.starts[end.marks % STARTS] = None;
        (cursor.rest, *left) = (&cursor.opcode[bytes..], *left + 1 - opcodes);
        true
    }
}

/// The number of items at the head, at most `max`, for which `is` holds. Whole chunks are checked without an early exit, so
/// that the compiler can check many items at a time.
#[inline(always)]
fn leading<T>(items: &[T], max: usize, is: impl Fn(&T) -> bool) -> usize {
    // Most values stand alone.
    if max == 0 || !items.first().is_some_and(&is) {
        return 0;
    }
    let items = &items[..items.len().min(max)];
    let (chunks, _) = items.as_chunks::<16>();
    let all = |chunk: &&[T; 16]| chunk.iter().fold(true, |all, item| all & is(item));
    let whole = 16 * chunks.iter().take_while(all).count();
    whole + items[whole..].iter().take_while(|item| is(item)).count()
}
