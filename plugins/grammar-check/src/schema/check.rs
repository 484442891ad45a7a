//! Checks a value against a compiled schema.

use serde_json::{Number, Value};

use super::{Node, NodeId, Pattern, Schema, Types};

/// The most steps of a check: a schema object that is applied to a value counts 1, and a comparison or a
/// regular expression counts by its size.
const CHECK_STEPS_MAX: usize = 100_000;
/// The deepest nesting of schemas.
const DEPTH_MAX: usize = 256;
/// The most bytes of a value in a message.
const SHOWN_MAX: usize = 24;

/// The reason why a value does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The value at this JSON pointer breaks a keyword, with a message.
    Invalid { pointer: String, why: String },
    /// The check takes more than [`CHECK_STEPS_MAX`] steps, or the schema refers to itself.
    TooMuch,
}

impl Schema {
    /// Checks a value.
    pub(crate) fn check(&self, value: &Value) -> Result<(), Mismatch> {
        self.check_node(self.root, value)
    }

    /// Checks a value against a part of the schema.
    pub(super) fn check_node(&self, id: NodeId, value: &Value) -> Result<(), Mismatch> {
        let mut check = Check { nodes: &self.nodes, steps: CHECK_STEPS_MAX, depth: 0 };
        check.node(id, value).map_err(|fault| match fault {
            Fault::TooMuch => Mismatch::TooMuch,
            Fault::Invalid { mut path, why } => {
                path.reverse();
                Mismatch::Invalid { pointer: path.concat(), why }
            }
        })
    }
}

impl Schema {
    /// Whether a property may have this value, as far as the schema of the property shows it.
    pub(crate) fn property_accepts(&self, name: &str, value: &Value) -> bool {
        let node = self.property_node(self.root, name, 8);
        node.is_none_or(|id| !matches!(self.check_node(id, value), Err(Mismatch::Invalid { .. })))
    }

    pub(crate) fn has_property(&self, name: &str) -> bool {
        self.property_node(self.root, name, 8).is_some()
    }

    /// The schema of a property, also behind references.
    fn property_node(&self, id: NodeId, name: &str, depth: usize) -> Option<NodeId> {
        let node = &self.nodes[id];
        let mut all_of = node.all_of.iter().filter(|_| depth > 0);
        node.property(name).or_else(|| all_of.find_map(|id| self.property_node(*id, name, depth - 1)))
    }

    /// The types that a schema allows, as far as its first levels show them.
    pub(super) fn types(&self, id: NodeId, depth: usize) -> Types {
        let node = &self.nodes[id];
        if depth == 0 {
            return node.types;
        }
        let mut types = node.types;
        if let Some(values) = &node.values {
            let of_values = values.iter().map(types_of).fold(Types(0), Types::with);
            types = Types(types.0 & of_values.0);
        }
        for id in &node.all_of {
            types = Types(types.0 & self.types(*id, depth - 1).0);
        }
        for some in [&node.any_of, &node.one_of].into_iter().filter(|some| !some.is_empty()) {
            let any = some.iter().map(|id| self.types(*id, depth - 1)).fold(Types(0), Types::with);
            types = Types(types.0 & any.0);
        }
        types
    }
}

enum Fault {
    /// The parts of the path, the innermost first.
    Invalid {
        path: Vec<String>,
        why: String,
    },
    TooMuch,
}

fn invalid<T>(why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Invalid { path: Vec::new(), why: why.into() })
}

impl Fault {
    fn within(self, part: impl FnOnce() -> String) -> Fault {
        match self {
            Fault::Invalid { mut path, why } => {
                path.push(format!("/{}", part()));
                Fault::Invalid { path, why }
            }
            fault => fault,
        }
    }
}

struct Check<'a> {
    nodes: &'a [Node],
    steps: usize,
    depth: usize,
}

impl Check<'_> {
    fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps = self.steps.checked_sub(steps).ok_or(Fault::TooMuch)?;
        Ok(())
    }

    fn node(&mut self, id: NodeId, value: &Value) -> Result<(), Fault> {
        self.spend(1)?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::TooMuch);
        }
        let result = self.keywords(&self.nodes[id], value);
        self.depth -= 1;
        result
    }

    /// Whether a value matches, which is no fault.
    fn matches(&mut self, id: NodeId, value: &Value) -> Result<bool, Fault> {
        let depth = self.depth;
        match self.node(id, value) {
            Ok(()) => Ok(true),
            Err(Fault::TooMuch) => Err(Fault::TooMuch),
            Err(Fault::Invalid { .. }) => {
                self.depth = depth;
                Ok(false)
            }
        }
    }

    fn keywords(&mut self, node: &Node, value: &Value) -> Result<(), Fault> {
        if !node.types.has(types_of(value)) {
            let names = node.types.names();
            return match names.is_empty() {
                true => invalid("is not allowed"),
                false => invalid(format!("{} is not {names}", shown(value))),
            };
        }
        if let Some(values) = &node.values {
            self.spend(values.len())?;
            if !values.iter().any(|allowed| equal(allowed, value)) {
                return invalid(format!("{} is not one of the allowed values", shown(value)));
            }
        }
        match value {
            Value::Number(number) => numbers(node, number)?,
            Value::String(text) => self.string(node, text)?,
            Value::Array(items) => self.array(node, items)?,
            Value::Object(_) => self.object(node, value)?,
            Value::Null | Value::Bool(_) => {}
        }
        self.combinations(node, value)
    }

    fn combinations(&mut self, node: &Node, value: &Value) -> Result<(), Fault> {
        for id in &node.all_of {
            self.node(*id, value)?;
        }
        if let [only] = node.any_of[..] {
            self.node(only, value)?;
        } else if !node.any_of.is_empty() {
            let mut found = false;
            for id in &node.any_of {
                if self.matches(*id, value)? {
                    found = true;
                    break;
                }
            }
            if !found {
                return invalid(format!("{} matches no schema of anyOf", shown(value)));
            }
        }
        if !node.one_of.is_empty() {
            let mut found = 0;
            for id in &node.one_of {
                found += usize::from(self.matches(*id, value)?);
            }
            if found != 1 {
                return invalid(format!("{} matches {found} schemas of oneOf, not 1", shown(value)));
            }
        }
        if let Some(not) = node.not
            && self.matches(not, value)?
        {
            return invalid(format!("{} matches the schema of not", shown(value)));
        }
        if let Some(condition) = node.condition {
            let branch = match self.matches(condition.test, value)? {
                true => condition.then,
                false => condition.otherwise,
            };
            if let Some(id) = branch {
                self.node(id, value)?;
            }
        }
        Ok(())
    }

    fn string(&mut self, node: &Node, text: &str) -> Result<(), Fault> {
        if node.min_length > 0 || node.max_length < usize::MAX {
            let length = text.chars().count();
            if !(node.min_length..=node.max_length).contains(&length) {
                return invalid(format!("a string of {length} characters is too short or too long"));
            }
        }
        match &node.pattern {
            Some(pattern) if !self.is_match(pattern, text)? => {
                invalid(format!("{} does not match the pattern", shown(&Value::String(text.to_owned()))))
            }
            _ => Ok(()),
        }
    }

    fn is_match(&mut self, pattern: &Pattern, text: &str) -> Result<bool, Fault> {
        self.spend(1 + text.len() * pattern.length / 16)?;
        Ok(pattern.regex.is_match(text))
    }

    fn array(&mut self, node: &Node, items: &[Value]) -> Result<(), Fault> {
        if !(node.min_items..=node.max_items).contains(&items.len()) {
            return invalid(format!("has {} items, too few or too many", items.len()));
        }
        for (index, item) in items.iter().enumerate() {
            if let Some(id) = node.prefix_items.get(index).copied().or(node.items) {
                self.node(id, item).map_err(|fault| fault.within(|| index.to_string()))?;
            }
        }
        if node.unique_items {
            self.spend(items.len() * items.len() / 2)?;
            let is_equal = |index: usize| items[..index].iter().any(|item| equal(item, &items[index]));
            if (1..items.len()).any(is_equal) {
                return invalid("has two equal items");
            }
        }
        if let Some(contains) = node.contains {
            let mut found = 0;
            for item in items {
                found += usize::from(self.matches(contains.node, item)?);
            }
            if !(contains.min..=contains.max).contains(&found) {
                return invalid(format!("has {found} items of contains, too few or too many"));
            }
        }
        Ok(())
    }

    fn object(&mut self, node: &Node, value: &Value) -> Result<(), Fault> {
        let Value::Object(members) = value else { return Ok(()) };
        if !(node.min_properties..=node.max_properties).contains(&members.len()) {
            return invalid(format!("has {} properties, too few or too many", members.len()));
        }
        if let Some(name) = node.required.iter().find(|name| !members.contains_key(&***name)) {
            return invalid(format!("the property {} is missing", shown_name(name)));
        }
        for (name, value) in members {
            let mut is_known = false;
            if let Some(id) = node.property(name) {
                is_known = true;
                self.node(id, value).map_err(|fault| fault.within(|| shown_name(name)))?;
            }
            for (pattern, id) in &node.pattern_properties {
                if self.is_match(pattern, name)? {
                    is_known = true;
                    self.node(*id, value).map_err(|fault| fault.within(|| shown_name(name)))?;
                }
            }
            if let (false, Some(id)) = (is_known, node.additional_properties) {
                self.node(id, value).map_err(|fault| fault.within(|| shown_name(name)))?;
            }
            if let Some(id) = node.property_names {
                self.node(id, &Value::String(name.clone()))?;
            }
        }
        for (name, others) in &node.dependent_required {
            let missing = others.iter().find(|other| !members.contains_key(&***other));
            if let (true, Some(missing)) = (members.contains_key(&**name), missing) {
                return invalid(format!("the property {} is missing", shown_name(missing)));
            }
        }
        for (name, id) in &node.dependent_schemas {
            if members.contains_key(&**name) {
                self.node(*id, value)?;
            }
        }
        Ok(())
    }
}

fn numbers(node: &Node, number: &Number) -> Result<(), Fault> {
    let Some(value) = number.as_f64() else { return Ok(()) };
    let wrong = node.minimum.is_some_and(|bound| value < bound)
        || node.maximum.is_some_and(|bound| value > bound)
        || node.above.is_some_and(|bound| value <= bound)
        || node.below.is_some_and(|bound| value >= bound);
    if wrong {
        return invalid(format!("{number} is out of bounds"));
    }
    match node.multiple_of {
        Some(multiple) if !is_multiple(value, multiple) => {
            invalid(format!("{number} is not a multiple of {multiple}"))
        }
        _ => Ok(()),
    }
}

/// Whether a number is a multiple, up to the rounding of decimal fractions.
fn is_multiple(value: f64, multiple: f64) -> bool {
    if value.fract() == 0.0 && multiple.fract() == 0.0 {
        return value % multiple == 0.0;
    }
    let quotient = value / multiple;
    (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
}

fn types_of(value: &Value) -> Types {
    match value {
        Value::Null => Types::NULL,
        Value::Bool(_) => Types::BOOLEAN,
        Value::Number(number) if number.as_f64().is_some_and(|value| value.fract() == 0.0) => {
            Types::INTEGER.with(Types::NUMBER)
        }
        Value::Number(_) => Types::NUMBER,
        Value::String(_) => Types::STRING,
        Value::Array(_) => Types::ARRAY,
        Value::Object(_) => Types::OBJECT,
    }
}

/// Whether two values are equal. 1 and 1.0 are.
pub(super) fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, value): (&String, &Value)| other.get(name).is_some_and(|it| equal(value, it));
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

/// A value as a message shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => cut(&value.to_string()),
    }
}

fn shown_name(name: &str) -> String {
    cut(name)
}

fn cut(text: &str) -> String {
    match text.len() > SHOWN_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(SHOWN_MAX)]),
        false => text.to_owned(),
    }
}
