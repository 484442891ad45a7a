//! Checks a value against a compiled schema.

use serde_json::{Number, Value};

use super::decimal::Decimal;
use super::pattern::Pattern;
use super::value::{has_equal, types_of};
use super::{Node, NodeId, Schema, Types};

/// The most steps of a check: a schema object that is applied to a value counts 1, and a comparison or a
/// regular expression counts by its size.
const CHECK_STEPS_MAX: usize = 1 << 16;
/// The deepest nesting of schemas.
const DEPTH_MAX: usize = 256;
/// The most bytes of a value in a message.
const SHOWN_MAX: usize = 24;

/// The reason why a value does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The value at this JSON pointer breaks a keyword, with a message.
    Invalid { pointer: String, why: String },
    /// The check takes more than [`CHECK_STEPS_MAX`] steps, a schema refers to itself or a regular expression is at its
    /// limit.
    TooMuch,
}

impl Schema {
    /// Checks a value.
    pub(crate) fn check(&self, value: &Value) -> Result<(), Mismatch> {
        let mut check = Check::new(self, false);
        check.node(self.root, value, None).map_err(|fault| match fault {
            Fault::TooMuch => Mismatch::TooMuch,
            Fault::Invalid(reason) => {
                let Reason { mut path, why } = reason.map(|reason| *reason).unwrap_or_default();
                path.reverse();
                Mismatch::Invalid { pointer: path.concat(), why }
            }
        })
    }

    /// Whether a value matches a part of the schema. `None` if the check takes too long. Adds the steps.
    pub(super) fn matches(&self, id: NodeId, value: &Value, steps: &mut usize) -> Option<bool> {
        let mut check = Check::new(self, true);
        let matches = check.matches(id, value, None);
        *steps += check.steps;
        matches.ok()
    }

    /// Whether a property may have this value, as far as the schema of the property shows it.
    pub(crate) fn property_accepts(&self, name: &str, value: &Value) -> bool {
        let node = self.property_node(self.root, name, 8);
        node.is_none_or(|id| self.matches(id, value, &mut 0) != Some(false))
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
}

enum Fault {
    /// `None` if nobody asks for the reason.
    Invalid(Option<Box<Reason>>),
    TooMuch,
}

#[derive(Default)]
struct Reason {
    /// The parts of the path, the innermost first.
    path: Vec<String>,
    why: String,
}

impl Fault {
    fn within(self, part: impl FnOnce() -> String) -> Fault {
        match self {
            Fault::Invalid(Some(mut reason)) => {
                reason.path.push(format!("/{}", part()));
                Fault::Invalid(Some(reason))
            }
            fault => fault,
        }
    }
}

struct Check<'a> {
    schema: &'a Schema,
    /// Set where nobody asks why a value does not match.
    is_quiet: bool,
    steps: usize,
    depth: usize,
    /// The resources on the path to the schema, the outermost first. Empty without dynamic references.
    scopes: Vec<usize>,
}

/// For `unevaluated…`: which items of an array or members of an object a keyword has evaluated. `None` if nobody asks.
type Seen<'s> = Option<&'s mut [bool]>;

impl<'a> Check<'a> {
    fn new(schema: &'a Schema, is_quiet: bool) -> Self {
        Check { schema, is_quiet, steps: 0, depth: 0, scopes: Vec::new() }
    }

    fn invalid<T>(&self, why: impl FnOnce() -> String) -> Result<T, Fault> {
        let reason = || Box::new(Reason { path: Vec::new(), why: why() });
        Err(Fault::Invalid((!self.is_quiet).then(reason)))
    }

    fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps += steps;
        if self.steps > CHECK_STEPS_MAX { Err(Fault::TooMuch) } else { Ok(()) }
    }

    fn node(&mut self, id: NodeId, value: &Value, seen: Seen<'_>) -> Result<(), Fault> {
        self.spend(1)?;
        if self.depth >= DEPTH_MAX {
            return Err(Fault::TooMuch);
        }
        let types = match value {
            Value::Number(_) => Types::NUMBER,
            value => types_of(value, false),
        };
        let schema = self.schema;
        let node = &schema.nodes[schema.resolve(id, types)];
        let scopes = self.scopes.len();
        if schema.is_dynamic && self.scopes.last() != Some(&node.resource) {
            self.scopes.push(node.resource);
        }
        self.depth += 1;
        let result = match (node.unevaluated_items, node.unevaluated_properties) {
            (None, None) => self.keywords(node, value, seen),
            _ => self.with_unevaluated(node, value, seen),
        };
        self.depth -= 1;
        self.scopes.truncate(scopes);
        result
    }

    /// Whether a value matches, which is no fault. What a schema has seen counts if it does.
    fn matches(&mut self, id: NodeId, value: &Value, seen: Seen<'_>) -> Result<bool, Fault> {
        let mut own = seen.as_ref().map(|seen| vec![false; seen.len()]);
        self.spend(own.as_ref().map_or(0, |own| own.len() / 32))?;
        let was_quiet = std::mem::replace(&mut self.is_quiet, true);
        let result = self.node(id, value, own.as_deref_mut());
        self.is_quiet = was_quiet;
        match result {
            Ok(()) => {
                for (seen, own) in seen.into_iter().flatten().zip(own.iter().flatten()) {
                    *seen |= own;
                }
                Ok(true)
            }
            Err(Fault::TooMuch) => Err(Fault::TooMuch),
            Err(Fault::Invalid(_)) => Ok(false),
        }
    }

    /// Checks a value, and what no other keyword has evaluated.
    fn with_unevaluated(&mut self, node: &Node, value: &Value, seen: Seen<'_>) -> Result<(), Fault> {
        let (unevaluated, length) = match value {
            Value::Array(items) => (node.unevaluated_items, items.len()),
            Value::Object(members) => (node.unevaluated_properties, members.len()),
            _ => (None, 0),
        };
        let Some(id) = unevaluated else { return self.keywords(node, value, seen) };
        let mut own = vec![false; length];
        self.keywords(node, value, Some(&mut own))?;
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate().filter(|(index, _)| !own[*index]) {
                    self.node(id, item, None).map_err(|fault| fault.within(|| index.to_string()))?;
                }
            }
            Value::Object(members) => {
                for ((name, member), _) in members.iter().zip(&own).filter(|(_, seen)| !**seen) {
                    self.node(id, member, None).map_err(|fault| fault.within(|| escaped(name)))?;
                }
            }
            _ => {}
        }
        if let Some(seen) = seen {
            seen.fill(true);
        }
        Ok(())
    }

    fn keywords(&mut self, node: &Node, value: &Value, mut seen: Seen<'_>) -> Result<(), Fault> {
        if !node.types.has(types_of(value, node.is_draft_4)) {
            return self.invalid(|| match node.types {
                Types::NONE => "is not allowed".to_owned(),
                types => format!("{} is not {}", shown(value), types.names()),
            });
        }
        if let Some(values) = &node.values {
            let mut steps = 0;
            let is_allowed = values.has(value, &mut steps);
            self.spend(steps)?;
            if !is_allowed {
                return self.invalid(|| format!("{} is not one of the allowed values", shown(value)));
            }
        }
        match value {
            Value::Number(number) => self.number(node, number)?,
            Value::String(text) => self.string(node, text)?,
            Value::Array(items) => self.array(node, items, seen.as_deref_mut())?,
            Value::Object(_) => self.object(node, value, seen.as_deref_mut())?,
            Value::Null | Value::Bool(_) => {}
        }
        self.combinations(node, value, seen)
    }

    fn combinations(&mut self, node: &Node, value: &Value, mut seen: Seen<'_>) -> Result<(), Fault> {
        for id in &node.all_of {
            self.node(*id, value, seen.as_deref_mut())?;
        }
        if let Some(dynamic) = &node.dynamic {
            let of_scope = |scope: &usize| dynamic.targets.iter().find(|(resource, _)| resource == scope);
            let target = self.scopes.iter().find_map(of_scope).map_or(dynamic.default, |(_, target)| *target);
            self.node(target, value, seen.as_deref_mut())?;
        }
        if let [only] = node.any_of[..] {
            self.node(only, value, seen.as_deref_mut())?;
        } else if !node.any_of.is_empty() {
            let mut found = false;
            for id in &node.any_of {
                found |= self.matches(*id, value, seen.as_deref_mut())?;
                // The others matter only for what they have seen.
                if found && seen.is_none() {
                    break;
                }
            }
            if !found {
                return self.invalid(|| format!("{} matches no schema of anyOf", shown(value)));
            }
        }
        if !node.one_of.is_empty() {
            let mut found = 0;
            for id in &node.one_of {
                found += usize::from(self.matches(*id, value, seen.as_deref_mut())?);
            }
            if found != 1 {
                return self.invalid(|| format!("{} matches {found} schemas of oneOf, not 1", shown(value)));
            }
        }
        if let Some(not) = node.not
            && self.matches(not, value, None)?
        {
            return self.invalid(|| format!("{} matches the schema of not", shown(value)));
        }
        if let Some(condition) = node.condition {
            let branch = match self.matches(condition.test, value, seen.as_deref_mut())? {
                true => condition.then,
                false => condition.otherwise,
            };
            if let Some(id) = branch {
                self.node(id, value, seen)?;
            }
        }
        Ok(())
    }

    fn number(&mut self, node: &Node, number: &Number) -> Result<(), Fault> {
        if node.has_no_bounds() {
            return Ok(());
        }
        // A number of many digits takes a division for each.
        self.spend(number.as_str().len() / 64 * 64)?;
        let value = &Decimal::read(number.as_str());
        let wrong = node.minimum.as_ref().is_some_and(|bound| value < bound)
            || node.maximum.as_ref().is_some_and(|bound| value > bound)
            || node.above.as_ref().is_some_and(|bound| value <= bound)
            || node.below.as_ref().is_some_and(|bound| value >= bound);
        if wrong {
            return self.invalid(|| format!("{} is out of bounds", cut(number.as_str())));
        }
        match &node.multiple_of {
            Some(multiple) if !value.is_multiple_of(multiple) => {
                self.invalid(|| format!("{} is not a multiple of {multiple}", cut(number.as_str())))
            }
            _ => Ok(()),
        }
    }

    fn string(&mut self, node: &Node, text: &str) -> Result<(), Fault> {
        if node.min_length > 0 || node.max_length < usize::MAX {
            let length = text.chars().count();
            if !(node.min_length..=node.max_length).contains(&length) {
                return self.invalid(|| format!("a string of {length} characters is too short or too long"));
            }
        }
        let shown = || shown(&Value::String(text.to_owned()));
        if let Some(format) = node.format.filter(|format| !format.matches(text)) {
            return self.invalid(|| format!("{} is no {}", shown(), format.name()));
        }
        match &node.pattern {
            Some(pattern) if !self.is_match(pattern, text)? => {
                self.invalid(|| format!("{} does not match the pattern", shown()))
            }
            _ => Ok(()),
        }
    }

    fn is_match(&mut self, pattern: &Pattern, text: &str) -> Result<bool, Fault> {
        self.spend(pattern.steps(text.len()))?;
        pattern.is_match(text).ok_or(Fault::TooMuch)
    }

    fn array(&mut self, node: &Node, items: &[Value], mut seen: Seen<'_>) -> Result<(), Fault> {
        if !(node.min_items..=node.max_items).contains(&items.len()) {
            return self.invalid(|| format!("has {} items, too few or too many", items.len()));
        }
        for (index, item) in items.iter().enumerate() {
            let Some(id) = node.item(index) else { break };
            self.node(id, item, None).map_err(|fault| fault.within(|| index.to_string()))?;
            if let Some(seen) = seen.as_deref_mut() {
                seen[index] = true;
            }
        }
        if node.unique_items {
            let mut steps = items.len();
            let has_equal = has_equal(items, &mut steps);
            self.spend(steps)?;
            if has_equal {
                return self.invalid(|| "has two equal items".to_owned());
            }
        }
        if let Some(contains) = node.contains {
            let mut found = 0;
            for (index, item) in items.iter().enumerate() {
                let is_contained = self.matches(contains.node, item, None)?;
                found += usize::from(is_contained);
                if let Some(seen) = seen.as_deref_mut().filter(|_| contains.evaluates) {
                    seen[index] |= is_contained;
                }
            }
            if !(contains.min..=contains.max).contains(&found) {
                return self.invalid(|| format!("has {found} items of contains, too few or too many"));
            }
        }
        Ok(())
    }

    fn object(&mut self, node: &Node, value: &Value, mut seen: Seen<'_>) -> Result<(), Fault> {
        let Value::Object(members) = value else { return Ok(()) };
        if !(node.min_properties..=node.max_properties).contains(&members.len()) {
            return self.invalid(|| format!("has {} properties, too few or too many", members.len()));
        }
        if let Some(name) = node.required.iter().find(|name| !members.contains_key(&***name)) {
            return self.invalid(|| format!("the property {} is missing", cut(name)));
        }
        for (index, (name, value)) in members.iter().enumerate() {
            let mut is_known = false;
            if let Some(id) = node.property(name) {
                is_known = true;
                self.node(id, value, None).map_err(|fault| fault.within(|| escaped(name)))?;
            }
            for (pattern, id) in &node.pattern_properties {
                if self.is_match(pattern, name)? {
                    is_known = true;
                    self.node(*id, value, None).map_err(|fault| fault.within(|| escaped(name)))?;
                }
            }
            if let (false, Some(id)) = (is_known, node.additional_properties) {
                is_known = true;
                self.node(id, value, None).map_err(|fault| fault.within(|| escaped(name)))?;
            }
            if let Some(seen) = seen.as_deref_mut() {
                seen[index] |= is_known;
            }
            if let Some(id) = node.property_names {
                let name = Value::String(name.clone());
                self.node(id, &name, None)?;
            }
        }
        for (name, required) in &node.dependent_required {
            let missing = required.iter().find(|name| !members.contains_key(&***name));
            if let (true, Some(missing)) = (members.contains_key(&**name), missing) {
                return self.invalid(|| format!("the property {} is missing", cut(missing)));
            }
        }
        for (name, id) in &node.dependent_schemas {
            if members.contains_key(&**name) {
                self.node(*id, value, seen.as_deref_mut())?;
            }
        }
        Ok(())
    }
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    cut(name).replace('~', "~0").replace('/', "~1")
}

/// A value as a message shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => cut(&value.to_string()),
    }
}

fn cut(text: &str) -> String {
    match text.len() > SHOWN_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(SHOWN_MAX)]),
        false => text.to_owned(),
    }
}
