//! JSON schemas: compiled from their JSON in microseconds, and checked against a whole value.
//!
//! The supported keywords are those of the drafts 4 to 2020-12 for validation, except `unevaluatedProperties`,
//! `unevaluatedItems`, `$dynamicRef` and references to other documents: a schema with one of these is refused.
//! `format` and the other annotations are ignored.

mod check;
mod compile;
mod lexer;
mod stream;

use std::rc::Rc;

use regex_lite::Regex;
use serde_json::Value;

pub(crate) use check::Mismatch;
pub(crate) use stream::{JsonStream, StreamFault};

#[cfg(test)]
mod tests;

/// The index of a node in [`Schema::nodes`].
type NodeId = usize;

/// The types of a value, as a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NULL: Types = Types(1);
    const BOOLEAN: Types = Types(2);
    const NUMBER: Types = Types(4);
    const INTEGER: Types = Types(8);
    const STRING: Types = Types(16);
    const ARRAY: Types = Types(32);
    const OBJECT: Types = Types(64);
    const ALL: Types = Types(127);

    const NAMES: [(&'static str, Types); 7] = [
        ("null", Types::NULL),
        ("boolean", Types::BOOLEAN),
        ("number", Types::NUMBER),
        ("integer", Types::INTEGER),
        ("string", Types::STRING),
        ("array", Types::ARRAY),
        ("object", Types::OBJECT),
    ];

    fn with(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// The names of the types, for a message.
    fn names(self) -> String {
        let names = Self::NAMES.iter().filter(|(_, types)| self.has(*types)).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(" or ")
    }
}

/// A compiled schema. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    nodes: Rc<[Node]>,
    root: NodeId,
}

/// The keywords of one schema object. A keyword that is absent allows everything.
#[derive(Debug)]
struct Node {
    types: Types,
    /// The values of `enum` or `const`.
    values: Option<Vec<Value>>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    above: Option<f64>,
    below: Option<f64>,
    multiple_of: Option<f64>,
    min_length: usize,
    max_length: usize,
    pattern: Option<Pattern>,
    prefix_items: Vec<NodeId>,
    items: Option<NodeId>,
    contains: Option<Contains>,
    min_items: usize,
    max_items: usize,
    unique_items: bool,
    /// Sorted by name.
    properties: Vec<(Box<str>, NodeId)>,
    pattern_properties: Vec<(Pattern, NodeId)>,
    additional_properties: Option<NodeId>,
    property_names: Option<NodeId>,
    required: Vec<Box<str>>,
    min_properties: usize,
    max_properties: usize,
    /// Properties, each with those that it requires.
    dependent_required: Vec<(Box<str>, Vec<Box<str>>)>,
    /// Properties, each with a schema that their object must match.
    dependent_schemas: Vec<(Box<str>, NodeId)>,
    /// `allOf` and `$ref`.
    all_of: Vec<NodeId>,
    any_of: Vec<NodeId>,
    one_of: Vec<NodeId>,
    not: Option<NodeId>,
    condition: Option<Condition>,
}

/// A regular expression that is found anywhere in a text.
#[derive(Debug)]
struct Pattern {
    regex: Regex,
    /// The length of the expression, which bounds the work for each byte of the text.
    length: usize,
}

/// `contains`, with the bounds on the number of matching items.
#[derive(Clone, Copy, Debug)]
struct Contains {
    node: NodeId,
    min: usize,
    max: usize,
}

/// `if`, `then` and `else`.
#[derive(Clone, Copy, Debug)]
struct Condition {
    test: NodeId,
    then: Option<NodeId>,
    otherwise: Option<NodeId>,
}

impl Default for Node {
    fn default() -> Self {
        Node {
            types: Types::ALL,
            values: None,
            minimum: None,
            maximum: None,
            above: None,
            below: None,
            multiple_of: None,
            min_length: 0,
            max_length: usize::MAX,
            pattern: None,
            prefix_items: Vec::new(),
            items: None,
            contains: None,
            min_items: 0,
            max_items: usize::MAX,
            unique_items: false,
            properties: Vec::new(),
            pattern_properties: Vec::new(),
            additional_properties: None,
            property_names: None,
            required: Vec::new(),
            min_properties: 0,
            max_properties: usize::MAX,
            dependent_required: Vec::new(),
            dependent_schemas: Vec::new(),
            all_of: Vec::new(),
            any_of: Vec::new(),
            one_of: Vec::new(),
            not: None,
            condition: None,
        }
    }
}

impl Node {
    /// The schema of a property's value, if one applies besides those of `patternProperties`.
    fn property(&self, name: &str) -> Option<NodeId> {
        let found = self.properties.binary_search_by(|(property, _)| (**property).cmp(name));
        found.ok().map(|index| self.properties[index].1)
    }
}
