//! The bytes of a pickle to a tree: the stack machine of pickle, with nodes in place of objects. It reads what
//! CPython's `pickle.dumps` writes in any protocol; an opcode that is not understood is an error that names it.

use bytes::Bytes;
use thiserror::Error;

use crate::bounds::{KEPT, MAX_OPCODES, MAX_PICKLE_BYTES};
use crate::opcode as op;
use crate::spare;
use crate::tree::{Arena, EMPTY_TUPLE, FALSE, NONE, NodeId, Raw, TRUE, Tag, Tree, small_int};

/// Why a pickle was not read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Longer than a pickle may be.
    #[error("pickle of {bytes} bytes is over the limit of {MAX_PICKLE_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The bytes end where an opcode should stand.
    #[error("pickle ends at offset {offset} without STOP")]
    NoStop {
        /// Its length.
        offset: usize,
    },
    /// Wrong at one opcode.
    #[error("opcode {opcode:#04x} at offset {offset} {fault}")]
    Opcode {
        /// The byte.
        opcode: u8,
        /// Where it stands.
        offset: usize,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong at an opcode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Not an opcode, or one that `pickle.dumps` writes for nothing that belongs on this wire.
    #[error("is not understood")]
    NotUnderstood,
    /// There are more opcodes than a pickle may have.
    #[error("is over the limit of {MAX_OPCODES} opcodes")]
    TooMany,
    /// Its argument is cut off, or its declared length is more than what follows.
    #[error("needs {needed} bytes, {left} are left")]
    Cut {
        /// As declared.
        needed: u64,
        /// To the end of the pickle.
        left: usize,
    },
    /// A protocol that did not exist when this was written.
    #[error("names protocol {0}, the limit is 5")]
    Protocol(u8),
    /// The stack is empty, down to the last mark.
    #[error("takes a value that is not on the stack")]
    NoValue,
    /// There is no mark.
    #[error("takes a mark that is not on the stack")]
    NoMark,
    /// Nothing was put there.
    #[error("gets memo entry {0}, which was not put")]
    NoMemo(u32),
    /// A memo index beyond what the pickle's length could fill.
    #[error("puts memo entry {0}, more than the pickle has bytes")]
    MemoIndex(u32),
    /// A value on the stack is of the wrong kind for it.
    #[error("does not go with the value on the stack")]
    WrongKind,
    /// A str that is not UTF-8, a number that is none.
    #[error("has an argument that cannot be read")]
    BadText,
    /// STOP is not the last byte.
    #[error("is followed by {0} bytes")]
    Trailing(usize),
    /// STOP does not find exactly one value.
    #[error("leaves {0} values or marks on the stack")]
    Unfinished(usize),
}

/// Reads pickles one after the other, and keeps its stack and memo between them.
#[derive(Debug, Default)]
pub struct Parser {
    arena: Arena,
    stack: Vec<NodeId>,
    /// Heights of the stack where marks were set.
    marks: Vec<u32>,
    /// The stack's height at the last mark; what is below is not to be touched.
    fence: usize,
    memo: Vec<NodeId>,
    /// How many memo entries were put; MEMOIZE takes the next.
    put: usize,
    protocol: u8,
}

/// A memo entry below one that was put, but not put itself.
const UNPUT: NodeId = NodeId(u32::MAX);

impl Tree {
    /// Reads one pickle. Where there are many, a [`Parser`] is faster.
    pub fn parse(pickle: Bytes) -> Result<Tree, ParseError> {
        Parser::new().parse(pickle)
    }
}

impl Parser {
    /// An empty one.
    pub fn new() -> Parser {
        Parser::default()
    }

    /// Reads one pickle, which is all of the bytes, in time and memory linear in their length.
    pub fn parse(&mut self, pickle: Bytes) -> Result<Tree, ParseError> {
        if pickle.len() > MAX_PICKLE_BYTES {
            return Err(ParseError::TooLong { bytes: pickle.len() });
        }
        self.clear();
        // About what a batch needs, so that it seldom grows.
        self.arena = spare::take(pickle.len() / 12, pickle.len() / 4);
        let read = self.run(&pickle);
        let arena = std::mem::take(&mut self.arena);
        match read {
            Ok(root) => Ok(Tree { pickle, arena, root, protocol: self.protocol }),
            Err((offset, fault)) => {
                spare::keep(arena);
                Err(match pickle.get(offset) {
                    Some(&opcode) => ParseError::Opcode { opcode, offset, fault },
                    None => ParseError::NoStop { offset },
                })
            }
        }
    }

    fn clear(&mut self) {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        self.stack.shrink_to(KEPT);
        self.marks.shrink_to(KEPT);
        self.memo.shrink_to(KEPT);
        (self.fence, self.put, self.protocol) = (0, 0, 0);
    }

    /// The value at STOP, or what is wrong and where.
    fn run(&mut self, pickle: &[u8]) -> Result<NodeId, (usize, Fault)> {
        let mut cursor = Cursor { pickle, rest: pickle, opcode: pickle };
        self.opcodes(&mut cursor).map_err(|fault| (pickle.len() - cursor.opcode.len(), fault))
    }

    /// Inlined, so that the cursor stays in registers.
    #[inline(always)]
    fn opcodes(&mut self, cursor: &mut Cursor) -> Result<NodeId, Fault> {
        for _ in 0..MAX_OPCODES {
            cursor.opcode = cursor.rest;
            let [opcode] = cursor.argument()?;
            match opcode {
                op::STOP => return self.stop(cursor.rest.len()),
                op::MARK => {
                    self.fence = self.stack.len();
                    self.marks.push(self.fence as u32);
                }
                op::POP => match self.stack.len() > self.fence {
                    true => self.stack.truncate(self.stack.len() - 1),
                    false => drop(self.pop_mark()?),
                },
                op::POP_MARK => {
                    let from = self.pop_mark()?;
                    self.stack.truncate(from);
                }
                op::DUP => {
                    let top = self.top()?;
                    self.arena.share(top);
                    self.push(top);
                }
                op::PROTO => {
                    [self.protocol] = cursor.argument()?;
                    if self.protocol > 5 {
                        return Err(Fault::Protocol(self.protocol));
                    }
                }
                op::FRAME => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    if length > cursor.rest.len() as u64 {
                        return Err(cursor.cut(length));
                    }
                }

                op::NONE => self.push(NONE),
                op::NEWTRUE => self.push(TRUE),
                op::NEWFALSE => self.push(FALSE),
                op::BININT1 => {
                    let [int] = cursor.argument()?;
                    self.push(small_int(int));
                }
                op::BININT2 => {
                    let int = u16::from_le_bytes(cursor.argument()?);
                    self.int(int.into());
                }
                op::BININT => {
                    let int = i32::from_le_bytes(cursor.argument()?);
                    self.int(int.into());
                }
                op::LONG1 => {
                    let [length] = cursor.argument()?;
                    self.long(cursor.span(Tag::BigInt, length.into())?);
                }
                op::LONG4 => {
                    let length = u32::from_le_bytes(cursor.argument()?);
                    self.long(cursor.span(Tag::BigInt, length.into())?);
                }
                op::INT => match cursor.line()? {
                    b"00" => self.push(FALSE),
                    b"01" => self.push(TRUE),
                    digits => self.int(number(digits)?),
                },
                op::LONG => {
                    let digits = cursor.line()?;
                    self.int(number(digits.strip_suffix(b"L").unwrap_or(digits))?);
                }
                op::BINFLOAT => {
                    let bits = u64::from_be_bytes(cursor.argument()?);
                    self.add(Raw::of_word(Tag::Float, bits));
                }
                op::FLOAT => {
                    let float: f64 = number(cursor.line()?)?;
                    self.add(Raw::of_word(Tag::Float, float.to_bits()));
                }

                op::SHORT_BINUNICODE => {
                    let [length] = cursor.argument()?;
                    self.str(cursor.span(Tag::Str, length.into())?)?;
                }
                op::BINUNICODE => {
                    let length = u32::from_le_bytes(cursor.argument()?);
                    self.str(cursor.span(Tag::Str, length.into())?)?;
                }
                op::BINUNICODE8 => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    self.str(cursor.span(Tag::Str, length)?)?;
                }
                op::UNICODE => {
                    let text = cursor.text_line()?;
                    self.add(text);
                }
                op::SHORT_BINBYTES => {
                    let [length] = cursor.argument()?;
                    self.add(cursor.span(Tag::Bytes, length.into())?.1);
                }
                op::BINBYTES => {
                    let length = u32::from_le_bytes(cursor.argument()?);
                    self.add(cursor.span(Tag::Bytes, length.into())?.1);
                }
                op::BINBYTES8 => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    self.add(cursor.span(Tag::Bytes, length)?.1);
                }
                op::BYTEARRAY8 => {
                    let length = u64::from_le_bytes(cursor.argument()?);
                    self.add(cursor.span(Tag::ByteArray, length)?.1);
                }

                op::EMPTY_LIST => self.add(Raw::new(Tag::List, 0, 0)),
                op::EMPTY_DICT => self.add(Raw::new(Tag::Dict, 0, 0)),
                op::EMPTY_SET => self.add(Raw::new(Tag::Set, 0, 0)),
                op::EMPTY_TUPLE => self.push(EMPTY_TUPLE),
                op::LIST => {
                    let from = self.pop_mark()?;
                    self.gather(Tag::List, from)?;
                }
                op::DICT => {
                    let from = self.pop_mark()?;
                    self.gather(Tag::Dict, from)?;
                }
                op::FROZENSET => {
                    let from = self.pop_mark()?;
                    self.gather(Tag::FrozenSet, from)?;
                }
                op::TUPLE => {
                    let from = self.pop_mark()?;
                    self.gather(Tag::Tuple, from)?;
                }
                op::TUPLE1 => self.gather(Tag::Tuple, self.down(1)?)?,
                op::TUPLE2 => self.gather(Tag::Tuple, self.down(2)?)?,
                op::TUPLE3 => self.gather(Tag::Tuple, self.down(3)?)?,
                op::APPEND => self.fill(Tag::List, self.down(1)?)?,
                op::APPENDS => {
                    let from = self.pop_mark()?;
                    self.fill(Tag::List, from)?;
                }
                op::SETITEM => self.fill(Tag::Dict, self.down(2)?)?,
                op::SETITEMS => {
                    let from = self.pop_mark()?;
                    self.fill(Tag::Dict, from)?;
                }
                op::ADDITEMS => {
                    let from = self.pop_mark()?;
                    self.fill(Tag::Set, from)?;
                }

                op::GLOBAL => {
                    let module = cursor.text_line()?;
                    let name = cursor.text_line()?;
                    let (module, name) = (self.arena.add(module), self.arena.add(name));
                    self.add(Raw::new(Tag::Global, module.0, name.0));
                }
                op::STACK_GLOBAL => self.stack_global(cursor.pickle)?,
                op::REDUCE => self.make(Tag::Reduce)?,
                op::NEWOBJ => self.make(Tag::NewObj)?,
                op::NEWOBJ_EX => self.make_ex()?,
                op::BUILD => self.build()?,

                op::MEMOIZE => self.put(self.put, cursor.pickle)?,
                op::BINPUT => {
                    let [index] = cursor.argument()?;
                    self.put(index.into(), cursor.pickle)?;
                }
                op::LONG_BINPUT => {
                    let index = u32::from_le_bytes(cursor.argument()?);
                    self.put(index as usize, cursor.pickle)?;
                }
                op::PUT => {
                    let index: u32 = number(cursor.line()?)?;
                    self.put(index as usize, cursor.pickle)?;
                }
                op::BINGET => {
                    let [index] = cursor.argument()?;
                    self.get(index.into())?;
                }
                op::LONG_BINGET => {
                    let index = u32::from_le_bytes(cursor.argument()?);
                    self.get(index)?;
                }
                op::GET => {
                    let index = number(cursor.line()?)?;
                    self.get(index)?;
                }
                _ => return Err(Fault::NotUnderstood),
            }
        }
        cursor.opcode = cursor.rest;
        Err(Fault::TooMany)
    }

    fn stop(&mut self, left: usize) -> Result<NodeId, Fault> {
        match (self.stack.as_slice(), left) {
            (&[root], 0) if self.marks.is_empty() => Ok(root),
            ([_], 1..) => Err(Fault::Trailing(left)),
            (stack, _) => Err(Fault::Unfinished(stack.len() + self.marks.len())),
        }
    }

    // Values.

    fn tag(&self, id: NodeId) -> Tag {
        self.arena.nodes[id.0 as usize].tag
    }

    #[inline(always)]
    fn push(&mut self, id: NodeId) {
        self.stack.push(id);
    }

    #[inline(always)]
    fn add(&mut self, raw: Raw) {
        let id = self.arena.add(raw);
        self.push(id);
    }

    fn int(&mut self, int: i64) {
        self.add(Raw::of_word(Tag::Int, int as u64));
    }

    fn long(&mut self, (bytes, long): (&[u8], Raw)) {
        if bytes.len() > 8 {
            return self.add(long);
        }
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut word = [if negative { 0xff } else { 0 }; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        self.int(i64::from_le_bytes(word));
    }

    fn str(&mut self, (bytes, text): (&[u8], Raw)) -> Result<(), Fault> {
        if !is_text(bytes) {
            return Err(Fault::BadText);
        }
        self.add(text);
        Ok(())
    }

    // The stack.

    fn top(&self) -> Result<NodeId, Fault> {
        Ok(self.stack[self.down(1)?])
    }

    /// Where the topmost `count` values begin.
    #[inline]
    fn down(&self, count: usize) -> Result<usize, Fault> {
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= self.fence => Ok(from),
            _ => Err(Fault::NoValue),
        }
    }

    fn pop<const N: usize>(&mut self) -> Result<[NodeId; N], Fault> {
        let from = self.down(N)?;
        let mut values = [NONE; N];
        values.copy_from_slice(&self.stack[from..]);
        self.stack.truncate(from);
        Ok(values)
    }

    /// Where the values above the last mark begin.
    #[inline]
    fn pop_mark(&mut self) -> Result<usize, Fault> {
        let from = self.marks.pop().ok_or(Fault::NoMark)?;
        self.fence = self.marks.last().map_or(0, |height| *height as usize);
        Ok(from as usize)
    }

    /// A new parent of the values from there on.
    #[inline]
    fn gather(&mut self, tag: Tag, from: usize) -> Result<(), Fault> {
        let children = &self.stack[from..];
        let id = match (tag, children.len()) {
            (Tag::Tuple, 0) => EMPTY_TUPLE,
            (Tag::Dict, count) if !count.is_multiple_of(2) => return Err(Fault::WrongKind),
            _ => self.arena.add_parent(tag, children),
        };
        self.stack.truncate(from);
        self.push(id);
        Ok(())
    }

    /// Puts the values from there on into the one below them: a parent of the kind, or an object that acts as one.
    #[inline]
    fn fill(&mut self, kind: Tag, from: usize) -> Result<(), Fault> {
        if from <= self.fence {
            return Err(Fault::NoValue);
        }
        let (target, items) = (self.stack[from - 1], &self.stack[from..]);
        if kind == Tag::Dict && !items.len().is_multiple_of(2) {
            return Err(Fault::WrongKind);
        }
        if self.tag(target) == kind {
            self.arena.extend(target, items);
        } else {
            let change = match kind {
                Tag::List => Tag::Append,
                Tag::Dict => Tag::SetItems,
                _ => return Err(Fault::WrongKind),
            };
            let items = self.arena.add_parent(kind, items);
            self.change(target, change, items)?;
        }
        self.stack.truncate(from);
        Ok(())
    }

    // Objects.

    fn stack_global(&mut self, pickle: &[u8]) -> Result<(), Fault> {
        let names: [NodeId; 2] = self.pop()?;
        for id in names {
            let name = self.arena.nodes[id.0 as usize];
            if name.tag != Tag::Str {
                return Err(Fault::WrongKind);
            }
            if std::str::from_utf8(&pickle[name.a as usize..][..name.b as usize]).is_err() {
                return Err(Fault::BadText);
            }
        }
        self.add(Raw::new(Tag::Global, names[0].0, names[1].0));
        Ok(())
    }

    #[inline]
    fn make(&mut self, tag: Tag) -> Result<(), Fault> {
        let [callable, args] = self.pop()?;
        let maker = self.tag(callable);
        if (maker != Tag::Global && !maker.is_object()) || self.tag(args) != Tag::Tuple {
            return Err(Fault::WrongKind);
        }
        self.add(Raw::new(tag, callable.0, args.0));
        Ok(())
    }

    fn make_ex(&mut self) -> Result<(), Fault> {
        let [class, args, kwargs] = self.pop()?;
        if [class, args, kwargs].map(|id| self.tag(id)) != [Tag::Global, Tag::Tuple, Tag::Dict] {
            return Err(Fault::WrongKind);
        }
        let at = self.arena.children.len() as u32;
        self.arena.children.extend([args, kwargs]);
        self.add(Raw::new(Tag::NewObjEx, class.0, at));
        Ok(())
    }

    #[inline]
    fn build(&mut self) -> Result<(), Fault> {
        let [object, state] = self.pop()?;
        self.change(object, Tag::Build, state)?;
        self.push(object);
        Ok(())
    }

    /// An object is changed where it stands, so that whoever refers to it, the memo too, sees it changed: the node
    /// becomes the change, and what it was moves to a new one.
    #[inline]
    fn change(&mut self, object: NodeId, change: Tag, with: NodeId) -> Result<(), Fault> {
        let was = self.arena.nodes[object.0 as usize];
        if !was.tag.is_object() {
            return Err(Fault::WrongKind);
        }
        let moved = self.arena.add(Raw { shared: 0, ..was });
        let now = Raw::new(change, moved.0, with.0);
        self.arena.nodes[object.0 as usize] = Raw { shared: was.shared, ..now };
        Ok(())
    }

    // The memo.

    #[inline]
    fn put(&mut self, index: usize, pickle: &[u8]) -> Result<(), Fault> {
        let value = self.top()?;
        let memo = &mut self.memo;
        if index == memo.len() {
            memo.push(value);
            self.put += 1;
            return Ok(());
        }
        // Whoever numbers without gaps stays below the count of opcodes.
        if index > pickle.len() {
            return Err(Fault::MemoIndex(index as u32));
        }
        if index > memo.len() {
            memo.resize(index + 1, UNPUT);
        }
        self.put += usize::from(memo[index] == UNPUT);
        memo[index] = value;
        Ok(())
    }

    #[inline]
    fn get(&mut self, index: u32) -> Result<(), Fault> {
        match self.memo.get(index as usize) {
            Some(&id) if id != UNPUT => {
                self.arena.share(id);
                self.push(id);
                Ok(())
            }
            _ => Err(Fault::NoMemo(index)),
        }
    }
}

/// What is left of the pickle.
struct Cursor<'p> {
    pickle: &'p [u8],
    rest: &'p [u8],
    /// What was left when the opcode was read.
    opcode: &'p [u8],
}

impl<'p> Cursor<'p> {
    fn at(&self) -> usize {
        self.pickle.len() - self.rest.len()
    }

    fn cut(&self, needed: u64) -> Fault {
        Fault::Cut { needed, left: self.rest.len() }
    }

    #[inline(always)]
    fn argument<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let Some((argument, rest)) = self.rest.split_first_chunk() else { return Err(self.cut(N as u64)) };
        self.rest = rest;
        Ok(*argument)
    }

    /// Bytes of a declared length, and the node that holds them.
    #[inline(always)]
    fn span(&mut self, tag: Tag, length: u64) -> Result<(&'p [u8], Raw), Fault> {
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
    fn line(&mut self) -> Result<&'p [u8], Fault> {
        let Some(length) = line_length(self.rest) else { return Err(self.cut(self.rest.len() as u64 + 1)) };
        let line = &self.rest[..length];
        self.rest = &self.rest[length + 1..];
        Ok(line)
    }

    /// A line of text, as a str: nothing in it may be escaped.
    #[inline(always)]
    fn text_line(&mut self) -> Result<Raw, Fault> {
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

fn number<T: std::str::FromStr>(digits: &[u8]) -> Result<T, Fault> {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(Fault::BadText)
}

/// UTF-8 in which lone surrogates may stand, as CPython writes a str.
fn is_text(mut bytes: &[u8]) -> bool {
    while let Err(error) = std::str::from_utf8(bytes) {
        match &bytes[error.valid_up_to()..] {
            [0xed, 0xa0..=0xbf, 0x80..=0xbf, rest @ ..] => bytes = rest,
            _ => return false,
        }
    }
    true
}
