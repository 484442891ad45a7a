//! Checks a JSON text against a schema while it arrives.
//!
//! Objects and arrays are checked member by member, and a scalar when it is complete. A value whose schema
//! combines others (`oneOf`, `not`, `uniqueItems`) is collected and checked when it is complete.

use serde_json::Value;

use super::check::Mismatch;
use super::lexer::{Lexer, Token};
use super::{Node, NodeId, Schema, Types};

/// The most bytes of a value that is collected.
const COLLECTED_MAX: usize = 1 << 20;
/// The deepest nesting of a text. The reader of a collected value allows as much.
const DEPTH_MAX: usize = 127;
/// The most names in `required` of an object that is checked member by member.
const REQUIRED_MAX: usize = 64;

/// The reason why a text cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// The schema does not allow this.
    NotAllowed,
    /// The text is beyond a limit.
    TooMuch,
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
    collects: Option<(usize, NodeId)>,
}

/// An open object or array.
#[derive(Debug)]
struct Frame {
    is_object: bool,
    /// `None` if any members are allowed.
    node: Option<NodeId>,
    members: usize,
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
            collects: None,
        }
    }

    /// Whether the text stands in a string of which every plain character is allowed.
    pub(crate) fn is_in_free_string(&self) -> bool {
        self.lexer.is_in_string() && !self.keeps_scalar && self.collects.is_none()
    }

    /// Whether the text may end here.
    pub(crate) fn is_complete(&self) -> bool {
        match self.next {
            Next::Nothing => true,
            // Only a number has no end of its own.
            Next::Value if self.frames.is_empty() && self.lexer.may_end() => {
                !self.keeps_scalar || self.matches(self.node, &self.scalar)
            }
            _ => false,
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
            true => Err(StreamFault::TooMuch),
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
            if !self.schema.types(node, 8).has(kind) {
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
        if self.keeps_scalar && !self.matches(self.node, &self.scalar) {
            return Err(StreamFault::NotAllowed);
        }
        self.value_ended();
        Ok(())
    }

    fn matches(&self, node: Option<NodeId>, text: &[u8]) -> bool {
        let Some(node) = node else { return true };
        let value: Result<Value, _> = serde_json::from_slice(text);
        // A check that takes too long is not the text's fault.
        value
            .is_ok_and(|value| !matches!(self.schema.check_node(node, &value), Err(Mismatch::Invalid { .. })))
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
        match node.properties.iter().any(|(name, _)| name.as_bytes().starts_with(part)) {
            true => Ok(()),
            false => Err(StreamFault::NotAllowed),
        }
    }

    /// Handles the end of a key.
    fn key(&mut self) -> Result<(), StreamFault> {
        self.next = Next::Colon;
        let Some(frame) = self.frames.last_mut() else { return Err(StreamFault::NotAllowed) };
        frame.members += 1;
        let Some(id) = frame.node else {
            self.node = None;
            return Ok(());
        };
        let node = &self.schema.nodes[id];
        let Ok(name) = serde_json::from_slice::<String>(&self.scalar) else {
            return Err(StreamFault::NotAllowed);
        };
        if let Some(index) = node.required.iter().position(|required| **required == *name) {
            frame.seen |= 1 << index;
        }
        if frame.members > node.max_properties {
            return Err(StreamFault::NotAllowed);
        }
        self.node = node.property(&name).or(node.additional_properties);
        match self.node {
            Some(id) if self.schema.types(id, 8) == Types(0) => Err(StreamFault::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Begins an object or an array.
    fn open(&mut self, is_object: bool) -> Result<(), StreamFault> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(StreamFault::TooMuch);
        }
        let mut inside = None;
        if self.collects.is_none()
            && let Some(node) = self.node
        {
            let kind = if is_object { Types::OBJECT } else { Types::ARRAY };
            if !self.schema.types(node, 8).has(kind) {
                return Err(StreamFault::NotAllowed);
            }
            let node = self.schema.resolve(node, kind);
            match &self.schema.nodes[node] {
                found if found.allows_any(kind) => {}
                found if found.is_by_member() => inside = Some(node),
                _ => {
                    self.collects = Some((self.frames.len(), node));
                    self.collected.clear();
                }
            }
        }
        self.frames.push(Frame { is_object, node: inside, members: 0, seen: 0 });
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
            self.node = node.prefix_items.get(frame.members).copied().or(node.items);
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
            if !self.matches(Some(id), &self.collected) {
                return Err(StreamFault::NotAllowed);
            }
            (self.collects, self.collected) = (None, Vec::new());
        }
        self.value_ended();
        Ok(())
    }

    fn value_ended(&mut self) {
        self.keeps_scalar = false;
        self.next = match self.frames.last_mut() {
            None => Next::Nothing,
            Some(frame) => {
                frame.members += usize::from(!frame.is_object);
                Next::CommaOrEnd
            }
        };
    }
}

impl Schema {
    /// The schema that decides alone about a value of this type, behind references and alternatives of other
    /// types.
    fn resolve(&self, mut id: NodeId, kind: Types) -> NodeId {
        for _ in 0..8 {
            let node = &self.nodes[id];
            let fits = |id: &&NodeId| self.types(**id, 8).has(kind);
            let next = match (&node.all_of[..], &node.any_of[..], &node.one_of[..]) {
                ([next], [], []) => Some(*next),
                ([], some, []) | ([], [], some) if !some.is_empty() => {
                    let mut fitting = some.iter().filter(fits);
                    fitting.next().copied().filter(|_| fitting.next().is_none())
                }
                _ => None,
            };
            match next {
                Some(next) if node.is_only_combined() => id = next,
                _ => return id,
            }
        }
        id
    }
}

impl Node {
    /// Whether the only keywords that concern objects and arrays are `allOf`, `anyOf`, `oneOf` and `$ref`.
    fn is_only_combined(&self) -> bool {
        self.has_no_members() && self.values.is_none() && self.not.is_none() && self.condition.is_none()
    }

    fn has_no_combinations(&self) -> bool {
        self.values.is_none()
            && self.all_of.is_empty()
            && self.any_of.is_empty()
            && self.one_of.is_empty()
            && self.not.is_none()
            && self.condition.is_none()
    }

    /// Whether no keyword concerns members of objects or arrays.
    fn has_no_members(&self) -> bool {
        self.properties.is_empty()
            && self.additional_properties.is_none()
            && self.required.is_empty()
            && (self.min_properties, self.max_properties) == (0, usize::MAX)
            && self.prefix_items.is_empty()
            && self.items.is_none()
            && (self.min_items, self.max_items) == (0, usize::MAX)
            && self.is_by_member_alone()
    }

    /// Whether each member can be checked without the others.
    fn is_by_member_alone(&self) -> bool {
        self.pattern_properties.is_empty()
            && self.property_names.is_none()
            && self.dependent_required.is_empty()
            && self.dependent_schemas.is_empty()
            && self.contains.is_none()
            && !self.unique_items
            && self.required.len() <= REQUIRED_MAX
    }

    /// Whether an object or array can be checked member by member.
    fn is_by_member(&self) -> bool {
        self.has_no_combinations() && self.is_by_member_alone()
    }

    /// Whether every value of this type is allowed, if the type is.
    fn allows_any(&self, kind: Types) -> bool {
        let is_free = match kind {
            Types::STRING => (self.min_length, self.max_length) == (0, usize::MAX) && self.pattern.is_none(),
            Types::OBJECT | Types::ARRAY => self.has_no_members(),
            kind if kind.has(Types::NUMBER) => self.types.has(Types::NUMBER) && self.has_no_bounds(),
            _ => true,
        };
        is_free && self.has_no_combinations()
    }

    fn has_no_bounds(&self) -> bool {
        let bounds = [self.minimum, self.maximum, self.above, self.below, self.multiple_of];
        bounds.iter().all(Option::is_none)
    }

    /// Whether an object may have no other properties than those of `properties`.
    fn is_closed(&self, schema: &Schema) -> bool {
        self.additional_properties.is_some_and(|id| schema.nodes[id].types == Types(0))
    }
}
