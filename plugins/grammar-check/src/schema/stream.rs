//! Checks a JSON text against a schema while it arrives.
//!
//! Objects and arrays are checked member by member, and a scalar when it is complete. A value whose schema
//! combines others (`oneOf`, `not`, `uniqueItems`) is collected and checked when it is complete.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde_json::Value;

use super::lexer::{Lexer, Token};
use super::{NodeId, Schema, Types, value};

/// The most bytes of a value that is collected.
const COLLECTED_MAX: usize = 1 << 20;
/// The most values in a value that is collected: it is read in one call.
pub(crate) const VALUES_MAX: usize = 1 << 15;
/// The deepest nesting of a text. The reader of a collected value allows as much.
const DEPTH_MAX: usize = 127;
/// The most names in `required` of an object that is checked member by member.
pub(super) const REQUIRED_MAX: usize = 64;
/// The most properties that are counted in an object.
const COUNTED_MAX: usize = 1 << 16;

/// The reason why a text cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// The schema does not allow this.
    NotAllowed,
    /// The text is beyond this limit.
    TooMuch(&'static str),
}

/// The place in a JSON text.
#[derive(Debug)]
pub(crate) struct JsonStream {
    schema: Schema,
    lexer: Lexer,
    frames: Vec<Frame>,
    /// The lexeme that may come next.
    next: Next,
    /// The schema of the value that comes next or is being read. `None` if any value is allowed.
    node: Option<NodeId>,
    /// The text of the scalar or key that is being read, if it matters.
    scalar: Vec<u8>,
    keeps_scalar: bool,
    /// The text of the value that is collected, the number of frames around it, and its schema.
    collected: Vec<u8>,
    /// The values in it.
    values: usize,
    collects: Option<(usize, NodeId)>,
    /// The steps of checks since the last [`JsonStream::take_steps`].
    steps: usize,
}

/// An open object or array.
#[derive(Debug)]
struct Frame {
    is_object: bool,
    /// `None` if any members are allowed.
    node: Option<NodeId>,
    /// The items, or the different names if their number matters.
    members: usize,
    /// The hashes of these names.
    names: HashSet<u64, BuildHasherDefault<DefaultHasher>>,
    /// One bit for each name of `required` that was seen.
    seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Value,
    /// A value, or the end of an empty array.
    ValueOrEnd,
    Key,
    /// A key, or the end of an empty object.
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// The text is complete.
    Nothing,
}

impl JsonStream {
    pub(crate) fn new(schema: Schema) -> Self {
        let node = Some(schema.root);
        Self {
            schema,
            lexer: Lexer::default(),
            frames: Vec::new(),
            next: Next::Value,
            node,
            scalar: Vec::new(),
            keeps_scalar: false,
            collected: Vec::new(),
            values: 0,
            collects: None,
            steps: 0,
        }
    }

    pub(crate) fn take_steps(&mut self) -> usize {
        std::mem::take(&mut self.steps)
    }

    pub(crate) fn is_in_string(&self) -> bool {
        self.lexer.is_string()
    }

    /// Whether the text stands in a string of which every plain character is allowed.
    pub(crate) fn is_in_free_string(&self) -> bool {
        self.lexer.is_in_text() && !self.keeps_scalar && self.collects.is_none()
    }

    /// Whether the text may end here.
    pub(crate) fn is_complete(&mut self) -> Result<bool, StreamFault> {
        match self.next {
            Next::Nothing => Ok(true),
            // Only a number has no end of its own.
            Next::Value if self.frames.is_empty() && self.lexer.may_end() => match self.scalar_matches() {
                Err(StreamFault::NotAllowed) => Ok(false),
                matches => matches.map(|()| true),
            },
            _ => Ok(false),
        }
    }

    /// Adds text.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), StreamFault> {
        let mut at = 0;
        while at < bytes.len() {
            if self.lexer.is_between() {
                at += self.between(bytes[at])?;
                continue;
            }
            // The lexeme goes up to its end or to the end of these bytes.
            let (length, token) = self.lexer.read(&bytes[at..]).ok_or(StreamFault::NotAllowed)?;
            self.keep(&bytes[at..at + length])?;
            at += length;
            match token {
                Some(token) => self.lexeme(token)?,
                None if self.keeps_scalar => self.partial()?,
                None => {}
            }
        }
        Ok(())
    }

    /// Stores bytes of a lexeme where they matter.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), StreamFault> {
        if self.keeps_scalar {
            self.scalar.extend_from_slice(bytes);
        }
        if self.collects.is_some() {
            self.collected.extend_from_slice(bytes);
        }
        match self.collected.len().max(self.scalar.len()) > COLLECTED_MAX {
            true => Err(StreamFault::TooMuch("a value of its JSON is over 1 MiB")),
            false => Ok(()),
        }
    }

    /// Reads a byte between two lexemes. Returns 1, or 0 if the byte begins a lexeme.
    fn between(&mut self, byte: u8) -> Result<usize, StreamFault> {
        if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            match (self.next, byte) {
                (Next::Value | Next::ValueOrEnd, b'{' | b'[') => self.open(byte == b'{')?,
                (Next::ValueOrEnd, b']') | (Next::KeyOrEnd, b'}') => {
                    self.collect(byte);
                    return self.close().map(|()| 1);
                }
                (Next::CommaOrEnd, b']' | b'}') => {
                    let is_object = self.frames.last().is_some_and(|frame| frame.is_object);
                    if is_object != (byte == b'}') {
                        return Err(StreamFault::NotAllowed);
                    }
                    self.collect(byte);
                    return self.close().map(|()| 1);
                }
                (Next::CommaOrEnd, b',') => match self.frames.last().is_some_and(|frame| frame.is_object) {
                    true => self.next = Next::Key,
                    false => self.item()?,
                },
                (Next::Colon, b':') => self.next = Next::Value,
                (Next::Value | Next::ValueOrEnd, _) => {
                    self.scalar_begins(byte)?;
                    return Ok(0);
                }
                (Next::Key | Next::KeyOrEnd, b'"') => {
                    self.lexer.begin(byte).ok_or(StreamFault::NotAllowed)?;
                    self.scalar.clear();
                    // The names in a collected or free object do not matter here.
                    self.keeps_scalar = self.frames.last().is_some_and(|frame| frame.node.is_some());
                    return Ok(0);
                }
                _ => return Err(StreamFault::NotAllowed),
            }
        }
        self.collect(byte);
        Ok(1)
    }

    fn collect(&mut self, byte: u8) {
        if self.collects.is_some() {
            self.collected.push(byte);
        }
    }

    /// Begins a scalar with its first byte, which the lexer reads next.
    fn scalar_begins(&mut self, byte: u8) -> Result<(), StreamFault> {
        let kind = self.lexer.begin(byte).ok_or(StreamFault::NotAllowed)?;
        self.next = Next::Value;
        self.scalar.clear();
        self.keeps_scalar = false;
        if self.collects.is_none()
            && let Some(node) = self.node
        {
            if !self.schema.nodes[node].all_types.has(kind) {
                return Err(StreamFault::NotAllowed);
            }
            self.keeps_scalar = !self.schema.nodes[node].allows_any(kind);
        }
        Ok(())
    }

    /// Handles the end of a lexeme.
    fn lexeme(&mut self, token: Token) -> Result<(), StreamFault> {
        if token == Token::String && matches!(self.next, Next::Key | Next::KeyOrEnd) {
            return self.key();
        }
        self.scalar_matches()?;
        self.value_ended()
    }

    /// Checks the scalar, if it matters.
    fn scalar_matches(&mut self) -> Result<(), StreamFault> {
        match self.node.filter(|_| self.keeps_scalar) {
            Some(node) => matches(&self.schema, node, &self.scalar, &mut self.steps),
            None => Ok(()),
        }
    }

    /// Handles a part of a key or of a scalar that matters.
    fn partial(&mut self) -> Result<(), StreamFault> {
        if !matches!(self.next, Next::Key | Next::KeyOrEnd) {
            return Ok(());
        }
        let Some(node) = self.frames.last().and_then(|frame| frame.node) else { return Ok(()) };
        let node = &self.schema.nodes[node];
        let part = self.scalar.get(1..).unwrap_or_default();
        if !node.is_closed(&self.schema) || part.contains(&b'\\') {
            return Ok(());
        }
        let first = node.properties.partition_point(|(name, _)| name.as_bytes() < part);
        match node.properties.get(first).is_some_and(|(name, _)| name.as_bytes().starts_with(part)) {
            true => Ok(()),
            false => Err(StreamFault::NotAllowed),
        }
    }

    /// Handles the end of a key.
    fn key(&mut self) -> Result<(), StreamFault> {
        self.next = Next::Colon;
        let Some(frame) = self.frames.last_mut() else { return Err(StreamFault::NotAllowed) };
        let Some(id) = frame.node else {
            self.node = None;
            return Ok(());
        };
        let node = &self.schema.nodes[id];
        let Some(Value::String(name)) = value::read(&self.scalar) else {
            return Err(StreamFault::NotAllowed);
        };
        if let Ok(index) = node.required.binary_search_by(|required| (**required).cmp(&name)) {
            frame.seen |= 1 << index;
        }
        if (node.min_properties, node.max_properties) != (0, usize::MAX) {
            frame.names.insert(frame.names.hasher().hash_one(&name));
            frame.members = frame.names.len();
            if frame.members > COUNTED_MAX {
                return Err(StreamFault::TooMuch("its JSON has over 65,536 properties"));
            }
        }
        if frame.members > node.max_properties {
            return Err(StreamFault::NotAllowed);
        }
        self.node = node.property(&name).or(node.additional_properties);
        match self.node {
            Some(id) if self.schema.nodes[id].all_types == Types::NONE => Err(StreamFault::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Begins an object or an array.
    fn open(&mut self, is_object: bool) -> Result<(), StreamFault> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(StreamFault::TooMuch("its JSON is nested too deeply"));
        }
        let mut inside = None;
        if self.collects.is_none()
            && let Some(node) = self.node
        {
            let kind = if is_object { Types::OBJECT } else { Types::ARRAY };
            if !self.schema.nodes[node].all_types.has(kind) {
                return Err(StreamFault::NotAllowed);
            }
            let node = self.schema.resolve(node, kind);
            match &self.schema.nodes[node] {
                found if found.allows_any(kind) => {}
                // The path to a dynamic reference begins at the root.
                found if found.is_by_member() && !self.schema.is_dynamic => inside = Some(node),
                _ => {
                    self.collects = Some((self.frames.len(), node));
                    self.collected.clear();
                    self.values = 0;
                }
            }
        }
        self.frames.push(Frame { is_object, node: inside, members: 0, names: HashSet::default(), seen: 0 });
        match is_object {
            true => self.next = Next::KeyOrEnd,
            false => {
                self.item()?;
                self.next = Next::ValueOrEnd;
            }
        }
        Ok(())
    }

    /// Prepares an array's next item. Its count is checked when it ends.
    fn item(&mut self) -> Result<(), StreamFault> {
        self.next = Next::Value;
        let Some(frame) = self.frames.last() else { return Err(StreamFault::NotAllowed) };
        self.node = None;
        if let Some(id) = frame.node {
            let node = &self.schema.nodes[id];
            if frame.members > 0 && frame.members >= node.max_items {
                return Err(StreamFault::NotAllowed);
            }
            self.node = node.item(frame.members);
        }
        Ok(())
    }

    /// Ends an object or an array.
    fn close(&mut self) -> Result<(), StreamFault> {
        let Some(frame) = self.frames.pop() else { return Err(StreamFault::NotAllowed) };
        if let Some(id) = frame.node {
            let node = &self.schema.nodes[id];
            let all = u64::MAX.checked_shr(64 - node.required.len() as u32).unwrap_or(0);
            let is_valid = match frame.is_object {
                true => frame.seen == all && frame.members >= node.min_properties,
                false => (node.min_items..=node.max_items).contains(&frame.members),
            };
            if !is_valid {
                return Err(StreamFault::NotAllowed);
            }
        }
        if let Some((depth, id)) = self.collects
            && depth == self.frames.len()
        {
            matches(&self.schema, id, &self.collected, &mut self.steps)?;
            (self.collects, self.collected) = (None, Vec::new());
        }
        self.value_ended()
    }

    fn value_ended(&mut self) -> Result<(), StreamFault> {
        self.values += usize::from(self.collects.is_some());
        if self.values > VALUES_MAX {
            return Err(StreamFault::TooMuch("its JSON has over 32,768 values"));
        }
        self.keeps_scalar = false;
        self.next = match self.frames.last_mut() {
            None => Next::Nothing,
            Some(frame) => {
                frame.members += usize::from(!frame.is_object);
                Next::CommaOrEnd
            }
        };
        Ok(())
    }
}

/// Checks a complete value.
fn matches(schema: &Schema, node: NodeId, text: &[u8], steps: &mut usize) -> Result<(), StreamFault> {
    let value = value::read(text).ok_or(StreamFault::NotAllowed)?;
    match schema.matches(node, &value, steps) {
        Some(true) => Ok(()),
        Some(false) => Err(StreamFault::NotAllowed),
        None => Err(StreamFault::TooMuch("the check of its JSON takes too long")),
    }
}
