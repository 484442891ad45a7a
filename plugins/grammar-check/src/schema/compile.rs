//! Compiles a schema: one node for each schema object that is reachable from the root.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::decimal::Decimal;
use super::format::Format;
use super::pattern::{PATTERNS_BYTES_MAX, Pattern};
use super::resources::{Draft, Part, Resources, Target, ignores_beside_ref, keyword};
use super::value::{Values, equal};
use super::{Condition, Contains, Dynamic, Node, NodeId, Schema, Types};

/// The most nodes of a schema.
const NODES_MAX: usize = 1 << 16;
/// The most levels of combined schemas that are looked into for the types of a value.
const TYPE_LEVELS_MAX: usize = 8;

/// How schemas are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SchemaOptions {
    /// Whether `format` is checked.
    pub(crate) formats: bool,
    /// The draft of a schema whose `$schema` names none. By default, the keywords of all drafts are known.
    pub(crate) draft: Option<Draft>,
}

impl Schema {
    /// Compiles a schema. The error is a message with the pointer of the keyword.
    pub(crate) fn compile(document: &Value, options: SchemaOptions) -> Result<Schema, String> {
        let mut compiler = Compiler {
            resources: Resources::new(document, options.draft)?,
            formats: options.formats,
            nodes: Vec::new(),
            known: HashMap::new(),
            todo: Vec::new(),
            pattern_bytes_left: PATTERNS_BYTES_MAX,
        };
        let root = compiler.node((document, 0), String::new())?;
        while let Some((id, part, pointer)) = compiler.todo.pop() {
            compiler.nodes[id] = compiler.compile(part, &pointer)?;
        }
        let mut nodes = compiler.nodes;
        finish(&mut nodes);
        let is_dynamic = nodes.iter().any(|node| node.dynamic.is_some());
        Ok(Schema { nodes: nodes.into(), root, is_dynamic })
    }
}

/// Derives the types that each node and those that it combines allow.
fn finish(nodes: &mut [Node]) {
    let mut combined = Vec::new();
    for (id, node) in nodes.iter_mut().enumerate() {
        node.is_wrapper = node.only_combines();
        let of_values = node.values.as_ref().map_or(Types::ALL, |values| values.types(node.is_draft_4));
        node.all_types = node.types.and(of_values);
        if !(node.all_of.is_empty() && node.any_of.is_empty() && node.one_of.is_empty()) {
            combined.push(id);
        }
    }
    for _ in 0..TYPE_LEVELS_MAX {
        let mut has_changed = false;
        for id in &combined {
            let (node, of) = (&nodes[*id], |id: &NodeId| nodes[*id].all_types);
            let mut types = node.all_of.iter().map(of).fold(node.all_types, Types::and);
            for some in [&node.any_of, &node.one_of].into_iter().filter(|some| !some.is_empty()) {
                types = types.and(some.iter().map(of).fold(Types::NONE, Types::with));
            }
            has_changed |= types != node.all_types;
            nodes[*id].all_types = types;
        }
        if !has_changed {
            return;
        }
    }
}

struct Compiler<'a> {
    resources: Resources<'a>,
    formats: bool,
    nodes: Vec<Node>,
    /// The nodes by the place of their schema, so that references may be cyclic.
    known: HashMap<*const Value, NodeId>,
    todo: Vec<(NodeId, Part<'a>, String)>,
    /// The room for compiled regular expressions.
    pattern_bytes_left: usize,
}

/// The keywords of a schema object.
#[derive(Clone, Copy)]
struct Keywords<'a, 'p> {
    object: &'a Map<String, Value>,
    draft: Option<Draft>,
    resource: usize,
    /// The pointer of the schema, for messages.
    at: &'p str,
}

impl<'a> Compiler<'a> {
    /// The node of a schema that stands in a resource. The schema is compiled later.
    fn node(&mut self, (schema, outer): Part<'a>, pointer: String) -> Result<NodeId, String> {
        if let Some(id) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(*id);
        }
        let id = self.nodes.len();
        if id >= NODES_MAX {
            return Err(format!("has over {NODES_MAX} schemas, the limit"));
        }
        let resource = self.resources.enter(schema, outer)?;
        self.nodes.push(Node::default());
        self.known.insert(std::ptr::from_ref(schema), id);
        self.todo.push((id, (schema, resource), pointer));
        Ok(id)
    }

    fn compile(&mut self, (schema, resource): Part<'a>, at: &str) -> Result<Node, String> {
        let draft = self.resources.draft(resource);
        let mut node = Node { resource, is_draft_4: draft == Some(Draft::D4), ..Node::default() };
        let object = match schema {
            Value::Bool(true) => return Ok(node),
            Value::Bool(false) => return Ok(Node { types: Types::NONE, ..node }),
            Value::Object(object) => object,
            _ => return Err(format!("{at}: a schema must be an object or a boolean")),
        };
        let from = Keywords { object, draft, resource, at };
        self.references(from, &mut node)?;
        if object.contains_key("$ref") && ignores_beside_ref(draft) {
            return Ok(node);
        }
        if let Some(types) = from.get("type") {
            node.types = types_of(types).ok_or_else(|| format!("{at}/type: unknown type {types}"))?;
        }
        // OpenAPI's way to allow null.
        if from.is_true("nullable") {
            node.types = node.types.with(Types::NULL);
        }
        node.values = match (from.get("const"), from.get("enum")) {
            (Some(value), None) => Some(Values::new([value.clone()].into_iter())),
            (None, None) => None,
            (value, Some(Value::Array(values))) => {
                let both = |other: &&Value| value.is_none_or(|value| equal(value, other));
                Some(Values::new(values.iter().filter(both).cloned()))
            }
            (_, Some(_)) => return Err(format!("{at}/enum: must be an array")),
        };
        numbers(from, &mut node)?;
        self.strings(from, &mut node)?;
        self.items(from, &mut node)?;
        self.properties(from, &mut node)?;
        node.all_of.extend(self.list(from, "allOf")?);
        node.any_of = self.list(from, "anyOf")?;
        node.one_of = self.list(from, "oneOf")?;
        node.not = self.sub(from, "not")?;
        if let Some(test) = self.sub(from, "if")? {
            let then = self.sub(from, "then")?;
            node.condition = Some(Condition { test, then, otherwise: self.sub(from, "else")? });
        }
        self.unevaluated(from, &mut node)?;
        Ok(node)
    }

    fn references(&mut self, from: Keywords<'a, '_>, node: &mut Node) -> Result<(), String> {
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(reference) = from.get(keyword) else { continue };
            let at = |why: String| format!("{}/{keyword}: {why}", from.at);
            let text = reference.as_str().ok_or_else(|| at("must be a string".to_owned()))?;
            let found = match keyword {
                "$ref" => {
                    let part = self.resources.find(text, from.resource);
                    part.map(|part| Target { part, dynamic: Vec::new() })
                }
                "$dynamicRef" => self.resources.find_dynamic(text, from.resource),
                _ => self.resources.find_recursive(from.resource),
            };
            let Target { part, dynamic } = found.map_err(at)?;
            let pointer = text.trim_start_matches('#');
            let default = self.node(part, pointer.to_owned())?;
            // One resource is the target on every path.
            if dynamic.len() <= 1 {
                node.all_of.push(default);
                continue;
            }
            let mut targets = Vec::new();
            for part in dynamic {
                targets.push((part.1, self.node(part, pointer.to_owned())?));
            }
            node.dynamic = Some(Dynamic { default, targets });
        }
        Ok(())
    }

    fn strings(&mut self, from: Keywords<'a, '_>, node: &mut Node) -> Result<(), String> {
        node.min_length = from.count("minLength")?.unwrap_or(0);
        node.max_length = from.count("maxLength")?.unwrap_or(usize::MAX);
        if let Some(pattern) = from.get("pattern") {
            let text = pattern.as_str().ok_or_else(|| format!("{}/pattern: must be a string", from.at))?;
            node.pattern = Some(self.pattern(text).map_err(|why| format!("{}/pattern: {why}", from.at))?);
        }
        if self.formats {
            node.format = from.get("format").and_then(Value::as_str).and_then(Format::named);
        }
        Ok(())
    }

    fn pattern(&mut self, text: &str) -> Result<Pattern, String> {
        let pattern = Pattern::compile(text, self.pattern_bytes_left)?;
        self.pattern_bytes_left = self.pattern_bytes_left.saturating_sub(pattern.bytes());
        Ok(pattern)
    }

    fn items(&mut self, from: Keywords<'a, '_>, node: &mut Node) -> Result<(), String> {
        node.prefix_items = self.list(from, "prefixItems")?;
        // Up to draft 2019-09 `items` may be a list, followed by `additionalItems`.
        node.items = match from.get("items") {
            Some(Value::Array(_)) => {
                node.prefix_items = self.list(from, "items")?;
                self.sub(from, "additionalItems")?
            }
            _ => self.sub(from, "items")?,
        };
        node.min_items = from.count("minItems")?.unwrap_or(0);
        node.max_items = from.count("maxItems")?.unwrap_or(usize::MAX);
        node.unique_items = from.is_true("uniqueItems");
        if let Some(contained) = self.sub(from, "contains")? {
            let min = from.count("minContains")?.unwrap_or(1);
            let max = from.count("maxContains")?.unwrap_or(usize::MAX);
            let evaluates = from.draft != Some(Draft::D2019);
            node.contains = Some(Contains { node: contained, min, max, evaluates });
        }
        Ok(())
    }

    fn properties(&mut self, from: Keywords<'a, '_>, node: &mut Node) -> Result<(), String> {
        let at = from.at;
        for (name, schema) in from.map("properties")? {
            let id = self.node((schema, from.resource), format!("{at}/properties/{name}"))?;
            node.properties.push((name.as_str().into(), id));
        }
        node.properties.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (text, schema) in from.map("patternProperties")? {
            let at = format!("{at}/patternProperties/{text}");
            let pattern = self.pattern(text).map_err(|why| format!("{at}: {why}"))?;
            node.pattern_properties.push((pattern, self.node((schema, from.resource), at)?));
        }
        node.additional_properties = self.sub(from, "additionalProperties")?;
        node.property_names = self.sub(from, "propertyNames")?;
        // In draft 3 this is a boolean of the property.
        if let Some(Value::Array(required)) = from.get("required") {
            node.required = from.names("required", required)?;
            node.required.sort();
            node.required.dedup();
        }
        node.min_properties = from.count("minProperties")?.unwrap_or(0);
        node.max_properties = from.count("maxProperties")?.unwrap_or(usize::MAX);
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            for (name, value) in from.map(keyword)? {
                let of: Box<str> = name.as_str().into();
                match value {
                    Value::Array(required) if keyword != "dependentSchemas" => {
                        node.dependent_required.push((of, from.names(keyword, required)?));
                    }
                    schema if keyword != "dependentRequired" => {
                        let id = self.node((schema, from.resource), format!("{at}/{keyword}/{name}"))?;
                        node.dependent_schemas.push((of, id));
                    }
                    _ => return Err(format!("{at}/{keyword}: must have arrays")),
                }
            }
        }
        Ok(())
    }

    /// Reads `unevaluatedItems` and `unevaluatedProperties`. Without other schemas for the same value, they are the
    /// same as `items` and `additionalProperties`.
    fn unevaluated(&mut self, from: Keywords<'a, '_>, node: &mut Node) -> Result<(), String> {
        let items = self.sub(from, "unevaluatedItems")?;
        let properties = self.sub(from, "unevaluatedProperties")?;
        let is_alone = node.all_of.is_empty()
            && node.any_of.is_empty()
            && node.one_of.is_empty()
            && node.condition.is_none()
            && node.dynamic.is_none()
            && node.dependent_schemas.is_empty();
        match node.contains.is_none() && is_alone {
            true => node.items = node.items.or(items),
            false => node.unevaluated_items = items.filter(|_| node.items.is_none()),
        }
        match is_alone {
            true => node.additional_properties = node.additional_properties.or(properties),
            false => {
                node.unevaluated_properties = properties.filter(|_| node.additional_properties.is_none())
            }
        }
        Ok(())
    }

    /// The schema of a keyword.
    fn sub(&mut self, from: Keywords<'a, '_>, keyword: &str) -> Result<Option<NodeId>, String> {
        let schema = from.get(keyword);
        schema.map(|schema| self.node((schema, from.resource), format!("{}/{keyword}", from.at))).transpose()
    }

    /// The list of schemas of a keyword.
    fn list(&mut self, from: Keywords<'a, '_>, keyword: &str) -> Result<Vec<NodeId>, String> {
        let schemas = match from.get(keyword) {
            None => return Ok(Vec::new()),
            Some(Value::Array(schemas)) => schemas.iter().enumerate(),
            Some(_) => return Err(format!("{}/{keyword}: must be an array", from.at)),
        };
        let node = |(index, schema): (usize, &'a Value)| {
            self.node((schema, from.resource), format!("{}/{keyword}/{index}", from.at))
        };
        schemas.map(node).collect()
    }
}

fn numbers(from: Keywords<'_, '_>, node: &mut Node) -> Result<(), String> {
    node.minimum = from.number("minimum")?;
    node.maximum = from.number("maximum")?;
    // In draft 4 these are booleans.
    match from.get("exclusiveMinimum") {
        Some(Value::Bool(is_exclusive)) => node.above = node.minimum.clone().filter(|_| *is_exclusive),
        _ => node.above = from.number("exclusiveMinimum")?,
    }
    match from.get("exclusiveMaximum") {
        Some(Value::Bool(is_exclusive)) => node.below = node.maximum.clone().filter(|_| *is_exclusive),
        _ => node.below = from.number("exclusiveMaximum")?,
    }
    node.multiple_of = from.number("multipleOf")?;
    match &node.multiple_of {
        Some(multiple) if !multiple.is_divisor() => {
            Err(format!("{}/multipleOf: must be above 0, of 37 digits or fewer", from.at))
        }
        _ => Ok(()),
    }
}

impl<'a> Keywords<'a, '_> {
    fn get(self, name: &str) -> Option<&'a Value> {
        keyword(self.object, name, self.draft)
    }

    fn is_true(self, name: &str) -> bool {
        self.get(name) == Some(&Value::Bool(true))
    }

    fn number(self, name: &str) -> Result<Option<Decimal>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(Decimal::read(number.as_str()))),
            Some(_) => Err(format!("{}/{name}: must be a number", self.at)),
        }
    }

    fn count(self, name: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        // A count that is too large becomes the largest integer.
        match value.as_f64() {
            Some(count) if count >= 0.0 && count.fract() == 0.0 => Ok(Some(count as usize)),
            _ => Err(format!("{}/{name}: must be a whole number, 0 or more", self.at)),
        }
    }

    /// The members of a keyword that is an object.
    fn map(self, name: &str) -> Result<impl Iterator<Item = (&'a String, &'a Value)> + use<'a>, String> {
        match self.get(name) {
            None => Ok(None.into_iter().flatten()),
            Some(Value::Object(members)) => Ok(Some(members).into_iter().flatten()),
            Some(_) => Err(format!("{}/{name}: must be an object", self.at)),
        }
    }

    fn names(self, name: &str, list: &[Value]) -> Result<Vec<Box<str>>, String> {
        let names: Option<Vec<Box<str>>> = list.iter().map(|name| name.as_str().map(Box::from)).collect();
        names.ok_or_else(|| format!("{}/{name}: must be an array of strings", self.at))
    }
}

fn types_of(types: &Value) -> Option<Types> {
    let one = |name: &str| Types::NAMES.iter().find(|(known, _)| *known == name).map(|(_, types)| *types);
    match types {
        Value::String(name) => one(name),
        Value::Array(names) => {
            names.iter().try_fold(Types::NONE, |all, name| Some(all.with(one(name.as_str()?)?)))
        }
        _ => None,
    }
}
