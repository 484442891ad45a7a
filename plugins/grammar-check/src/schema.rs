//! JSON schemas: compiled from their JSON in microseconds, and checked against a whole value or a text that arrives.
//!
//! All keywords of validation of the drafts 4 to 2020-12 are supported. A schema that refers to another document is
//! refused. `format` is checked on request; the other annotations are ignored.

mod check;
mod compile;
mod decimal;
mod ecma;
mod format;
mod lexer;
mod pattern;
mod resources;
mod stream;
mod value;

use std::rc::Rc;

use decimal::Decimal;
use format::Format;
use pattern::Pattern;
use value::Values;

pub(crate) use check::Mismatch;
pub(crate) use compile::SchemaOptions;
pub(crate) use stream::{JsonStream, StreamFault, VALUES_MAX};

#[cfg(test)]
mod tests;

/// The index of a node in [`Schema::nodes`].
type NodeId = usize;

/// The types of a value, as a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NONE: Types = Types(0);
    const NULL: Types = Types(1);
    const BOOLEAN: Types = Types(2);
    /// A number that is no integer.
    const FRACTION: Types = Types(4);
    const INTEGER: Types = Types(8);
    const NUMBER: Types = Types(12);
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

    fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    /// Whether the sets have a type in common.
    fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// The names of the types, for a message.
    fn names(self) -> String {
        let is_named = |(_, types): &&(&str, Types)| {
            self.and(*types) == *types && (*types != Types::INTEGER || !self.has(Types::FRACTION))
        };
        let names = Self::NAMES.iter().filter(is_named).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(" or ")
    }
}

/// A compiled schema. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    nodes: Rc<[Node]>,
    root: NodeId,
    /// Set if the target of a reference depends on the path to it (`$dynamicRef`).
    is_dynamic: bool,
}

/// The keywords of one schema object. A keyword that is absent allows everything.
#[derive(Debug)]
struct Node {
    types: Types,
    /// The types of the values that may match, as far as this schema and those that it combines show it.
    all_types: Types,
    /// Set in draft 4, where 1.0 is no integer.
    is_draft_4: bool,
    /// Set if the node only combines others: it has nothing but `$ref`, `allOf`, `anyOf`, `oneOf` and `type`.
    is_wrapper: bool,
    /// The part of the document with an `$id` of its own that the schema belongs to.
    resource: usize,
    /// The values of `enum` or `const`.
    values: Option<Values>,
    minimum: Option<Decimal>,
    maximum: Option<Decimal>,
    above: Option<Decimal>,
    below: Option<Decimal>,
    multiple_of: Option<Decimal>,
    min_length: usize,
    max_length: usize,
    pattern: Option<Pattern>,
    format: Option<Format>,
    prefix_items: Vec<NodeId>,
    items: Option<NodeId>,
    contains: Option<Contains>,
    min_items: usize,
    max_items: usize,
    unique_items: bool,
    unevaluated_items: Option<NodeId>,
    /// Sorted by name.
    properties: Vec<(Box<str>, NodeId)>,
    pattern_properties: Vec<(Pattern, NodeId)>,
    additional_properties: Option<NodeId>,
    unevaluated_properties: Option<NodeId>,
    property_names: Option<NodeId>,
    /// Sorted, each name once.
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
    dynamic: Option<Dynamic>,
}

/// `contains`, with the bounds on the number of matching items.
#[derive(Clone, Copy, Debug)]
struct Contains {
    node: NodeId,
    min: usize,
    max: usize,
    /// Set if a matching item counts as evaluated, as since draft 2020-12.
    evaluates: bool,
}

/// `if`, `then` and `else`.
#[derive(Clone, Copy, Debug)]
struct Condition {
    test: NodeId,
    then: Option<NodeId>,
    otherwise: Option<NodeId>,
}

/// A reference to the target of the outermost resource on the path to it.
#[derive(Debug)]
struct Dynamic {
    /// The target without such a resource.
    default: NodeId,
    /// The resources with a target.
    targets: Vec<(usize, NodeId)>,
}

impl Default for Node {
    fn default() -> Self {
        Node {
            types: Types::ALL,
            all_types: Types::ALL,
            is_draft_4: false,
            is_wrapper: false,
            resource: 0,
            values: None,
            minimum: None,
            maximum: None,
            above: None,
            below: None,
            multiple_of: None,
            min_length: 0,
            max_length: usize::MAX,
            pattern: None,
            format: None,
            prefix_items: Vec::new(),
            items: None,
            contains: None,
            min_items: 0,
            max_items: usize::MAX,
            unique_items: false,
            unevaluated_items: None,
            properties: Vec::new(),
            pattern_properties: Vec::new(),
            additional_properties: None,
            unevaluated_properties: None,
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
            dynamic: None,
        }
    }
}

impl Schema {
    /// The schema that decides alone about a value of these types, behind references and alternatives of other types.
    fn resolve(&self, mut id: NodeId, types: Types) -> NodeId {
        // The resources on the way to a dynamic reference matter.
        let hops = if self.is_dynamic { 0 } else { 16 };
        for _ in 0..hops {
            let node = &self.nodes[id];
            if !node.is_wrapper || node.types.and(types) != types {
                break;
            }
            let next = match (&node.all_of[..], &node.any_of[..], &node.one_of[..]) {
                ([next], [], []) => Some(next),
                ([], some, []) | ([], [], some) => {
                    let mut fitting = some.iter().filter(|id| self.nodes[**id].all_types.has(types));
                    fitting.next().filter(|_| fitting.next().is_none())
                }
                _ => None,
            };
            let Some(next) = next else { break };
            id = *next;
        }
        id
    }
}

impl Node {
    /// The schema of a property's value, if one applies besides those of `patternProperties`.
    fn property(&self, name: &str) -> Option<NodeId> {
        let found = self.properties.binary_search_by(|(property, _)| (**property).cmp(name));
        found.ok().map(|index| self.properties[index].1)
    }

    /// The schema of an item.
    fn item(&self, index: usize) -> Option<NodeId> {
        self.prefix_items.get(index).copied().or(self.items)
    }

    fn has_no_combinations(&self) -> bool {
        self.all_of.is_empty() && self.any_of.is_empty() && self.one_of.is_empty() && self.has_no_conditions()
    }

    /// Whether no keyword concerns whole values, except those that combine schemas.
    fn has_no_conditions(&self) -> bool {
        self.values.is_none()
            && self.not.is_none()
            && self.condition.is_none()
            && self.dynamic.is_none()
            && self.unevaluated_items.is_none()
            && self.unevaluated_properties.is_none()
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
            && self.required.len() <= stream::REQUIRED_MAX
    }

    /// Whether an object or array can be checked member by member.
    fn is_by_member(&self) -> bool {
        self.has_no_combinations() && self.is_by_member_alone()
    }

    fn is_free_string(&self) -> bool {
        (self.min_length, self.max_length) == (0, usize::MAX)
            && self.pattern.is_none()
            && self.format.is_none()
    }

    fn has_no_bounds(&self) -> bool {
        [&self.minimum, &self.maximum, &self.above, &self.below, &self.multiple_of]
            .iter()
            .all(|one| one.is_none())
    }

    /// Whether every value of these types is allowed, if the types are.
    fn allows_any(&self, types: Types) -> bool {
        let is_free = match types {
            Types::STRING => self.is_free_string(),
            Types::OBJECT | Types::ARRAY => self.has_no_members(),
            Types::NUMBER => self.types.and(Types::NUMBER) == Types::NUMBER && self.has_no_bounds(),
            _ => true,
        };
        is_free && self.has_no_combinations()
    }

    /// Whether the node has nothing but schemas that it combines, and `type`.
    fn only_combines(&self) -> bool {
        !self.has_no_combinations()
            && self.has_no_conditions()
            && self.has_no_members()
            && self.is_free_string()
            && self.has_no_bounds()
    }

    /// Whether an object may have no other properties than those of `properties`.
    fn is_closed(&self, schema: &Schema) -> bool {
        self.additional_properties.is_some_and(|id| schema.nodes[id].types == Types::NONE)
    }
}
