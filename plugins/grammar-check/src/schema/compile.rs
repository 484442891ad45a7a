//! Compiles a schema: one node for each schema object that is reachable from the root.

use std::collections::HashMap;

use regex_lite::RegexBuilder;
use serde_json::{Map, Value};

use super::{Condition, Contains, Node, NodeId, Pattern, Schema, Types};

/// The most nodes of a schema.
const NODES_MAX: usize = 1 << 16;
/// The most bytes of a compiled regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 18;
/// Keywords that this module does not support.
const UNSUPPORTED: [&str; 5] =
    ["unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "extends"];

impl Schema {
    /// Compiles a schema. The error is a message with the pointer of the keyword.
    pub(crate) fn compile(document: &Value) -> Result<Schema, String> {
        let mut compiler = Compiler { document, nodes: Vec::new(), known: HashMap::new(), todo: Vec::new() };
        let root = compiler.node(document, String::new())?;
        while let Some((id, schema, pointer)) = compiler.todo.pop() {
            compiler.nodes[id] = compiler.compile(schema, &pointer)?;
        }
        Ok(Schema { nodes: compiler.nodes.into(), root })
    }
}

struct Compiler<'a> {
    document: &'a Value,
    nodes: Vec<Node>,
    /// The nodes by the address of their schema, so that references may be cyclic.
    known: HashMap<*const Value, NodeId>,
    todo: Vec<(NodeId, &'a Value, String)>,
}

impl<'a> Compiler<'a> {
    /// The node of a schema, which is compiled later.
    fn node(&mut self, schema: &'a Value, pointer: String) -> Result<NodeId, String> {
        if let Some(id) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(*id);
        }
        let id = self.nodes.len();
        if id >= NODES_MAX {
            return Err(format!("has over {NODES_MAX} schemas, the limit"));
        }
        self.nodes.push(Node::default());
        self.known.insert(std::ptr::from_ref(schema), id);
        self.todo.push((id, schema, pointer));
        Ok(id)
    }

    fn compile(&mut self, schema: &'a Value, at: &str) -> Result<Node, String> {
        let object = match schema {
            Value::Bool(true) => return Ok(Node::default()),
            Value::Bool(false) => return Ok(Node { types: Types(0), ..Node::default() }),
            Value::Object(object) => object,
            _ => return Err(format!("{at}: a schema must be an object or a boolean")),
        };
        if let Some(keyword) = UNSUPPORTED.iter().find(|keyword| object.contains_key(**keyword)) {
            return Err(format!("{at}/{keyword}: is not supported"));
        }
        let mut node = Node::default();
        self.references(object, at, &mut node)?;
        if let Some(types) = object.get("type") {
            node.types = types_of(types).ok_or_else(|| format!("{at}/type: unknown type {types}"))?;
        }
        // OpenAPI's way to allow null.
        if object.get("nullable") == Some(&Value::Bool(true)) {
            node.types = node.types.with(Types::NULL);
        }
        node.values = match (object.get("const"), object.get("enum")) {
            (Some(value), None) => Some(vec![value.clone()]),
            (None, None) => None,
            (value, Some(Value::Array(values))) => {
                let both = |other: &&Value| value.is_none_or(|value| super::check::equal(value, other));
                Some(values.iter().filter(both).cloned().collect())
            }
            (_, Some(_)) => return Err(format!("{at}/enum: must be an array")),
        };
        self.numbers(object, at, &mut node)?;
        node.min_length = count(object, "minLength", at)?.unwrap_or(0);
        node.max_length = count(object, "maxLength", at)?.unwrap_or(usize::MAX);
        if let Some(pattern) = object.get("pattern") {
            let text = pattern.as_str().ok_or_else(|| format!("{at}/pattern: must be a string"))?;
            node.pattern = Some(Pattern::compile(text).map_err(|why| format!("{at}/pattern: {why}"))?);
        }
        self.items(object, at, &mut node)?;
        self.properties(object, at, &mut node)?;
        node.all_of.extend(self.list(object, "allOf", at)?);
        node.any_of = self.list(object, "anyOf", at)?;
        node.one_of = self.list(object, "oneOf", at)?;
        node.not = self.sub(object, "not", at)?;
        if let Some(test) = self.sub(object, "if", at)? {
            let then = self.sub(object, "then", at)?;
            node.condition = Some(Condition { test, then, otherwise: self.sub(object, "else", at)? });
        }
        Ok(node)
    }

    fn references(
        &mut self,
        object: &'a Map<String, Value>,
        at: &str,
        node: &mut Node,
    ) -> Result<(), String> {
        let Some(reference) = object.get("$ref") else { return Ok(()) };
        let text = reference.as_str().ok_or_else(|| format!("{at}/$ref: must be a string"))?;
        let found = match text.strip_prefix('#') {
            Some("") => Some(self.document),
            Some(pointer) if pointer.starts_with('/') => self.document.pointer(&unescaped(pointer)),
            Some(anchor) => anchored(self.document, anchor),
            None => return Err(format!("{at}/$ref: {text:?} is in another document")),
        };
        let found = found.ok_or_else(|| format!("{at}/$ref: {text:?} does not exist"))?;
        node.all_of.push(self.node(found, text.trim_start_matches('#').to_owned())?);
        Ok(())
    }

    fn numbers(&mut self, object: &'a Map<String, Value>, at: &str, node: &mut Node) -> Result<(), String> {
        node.minimum = number(object, "minimum", at)?;
        node.maximum = number(object, "maximum", at)?;
        // In draft 4 these are booleans.
        let is_true = |keyword: &str| object.get(keyword) == Some(&Value::Bool(true));
        match object.get("exclusiveMinimum") {
            Some(Value::Bool(_)) if !is_true("exclusiveMinimum") => {}
            Some(Value::Bool(_)) => node.above = node.minimum,
            _ => node.above = number(object, "exclusiveMinimum", at)?,
        }
        match object.get("exclusiveMaximum") {
            Some(Value::Bool(_)) if !is_true("exclusiveMaximum") => {}
            Some(Value::Bool(_)) => node.below = node.maximum,
            _ => node.below = number(object, "exclusiveMaximum", at)?,
        }
        node.multiple_of = number(object, "multipleOf", at)?;
        match node.multiple_of {
            Some(multiple) if multiple <= 0.0 => Err(format!("{at}/multipleOf: must be above 0")),
            _ => Ok(()),
        }
    }

    fn items(&mut self, object: &'a Map<String, Value>, at: &str, node: &mut Node) -> Result<(), String> {
        node.prefix_items = self.list(object, "prefixItems", at)?;
        // Up to draft 2019-09 `items` may be a list, followed by `additionalItems`.
        node.items = match object.get("items") {
            Some(Value::Array(_)) => {
                node.prefix_items = self.list(object, "items", at)?;
                self.sub(object, "additionalItems", at)?
            }
            _ => self.sub(object, "items", at)?,
        };
        node.min_items = count(object, "minItems", at)?.unwrap_or(0);
        node.max_items = count(object, "maxItems", at)?.unwrap_or(usize::MAX);
        node.unique_items = object.get("uniqueItems") == Some(&Value::Bool(true));
        if let Some(contained) = self.sub(object, "contains", at)? {
            let min = count(object, "minContains", at)?.unwrap_or(1);
            let max = count(object, "maxContains", at)?.unwrap_or(usize::MAX);
            node.contains = Some(Contains { node: contained, min, max });
        }
        Ok(())
    }

    fn properties(
        &mut self,
        object: &'a Map<String, Value>,
        at: &str,
        node: &mut Node,
    ) -> Result<(), String> {
        for (name, schema) in map(object, "properties", at)? {
            let id = self.node(schema, format!("{at}/properties/{name}"))?;
            node.properties.push((name.as_str().into(), id));
        }
        node.properties.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (text, schema) in map(object, "patternProperties", at)? {
            let at = format!("{at}/patternProperties/{text}");
            let pattern = Pattern::compile(text).map_err(|why| format!("{at}: {why}"))?;
            node.pattern_properties.push((pattern, self.node(schema, at)?));
        }
        node.additional_properties = self.sub(object, "additionalProperties", at)?;
        node.property_names = self.sub(object, "propertyNames", at)?;
        // In draft 3 this is a boolean of the property.
        if let Some(Value::Array(_)) = object.get("required") {
            node.required = names(object.get("required"), at, "required")?;
        }
        node.min_properties = count(object, "minProperties", at)?.unwrap_or(0);
        node.max_properties = count(object, "maxProperties", at)?.unwrap_or(usize::MAX);
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            for (name, value) in map(object, keyword, at)? {
                let name: Box<str> = name.as_str().into();
                match value {
                    Value::Array(_) if keyword != "dependentSchemas" => {
                        node.dependent_required.push((name, names(Some(value), at, keyword)?));
                    }
                    schema if keyword != "dependentRequired" => {
                        let id = self.node(schema, format!("{at}/{keyword}/{name}"))?;
                        node.dependent_schemas.push((name, id));
                    }
                    _ => return Err(format!("{at}/{keyword}: must have arrays")),
                }
            }
        }
        Ok(())
    }

    /// The schema of a keyword.
    fn sub(
        &mut self,
        object: &'a Map<String, Value>,
        keyword: &str,
        at: &str,
    ) -> Result<Option<NodeId>, String> {
        let node = object.get(keyword).map(|schema| self.node(schema, format!("{at}/{keyword}")));
        node.transpose()
    }

    /// The list of schemas of a keyword.
    fn list(
        &mut self,
        object: &'a Map<String, Value>,
        keyword: &str,
        at: &str,
    ) -> Result<Vec<NodeId>, String> {
        match object.get(keyword) {
            None => Ok(Vec::new()),
            Some(Value::Array(schemas)) => {
                let schemas = schemas.iter().enumerate();
                schemas.map(|(index, schema)| self.node(schema, format!("{at}/{keyword}/{index}"))).collect()
            }
            Some(_) => Err(format!("{at}/{keyword}: must be an array")),
        }
    }
}

impl Pattern {
    fn compile(text: &str) -> Result<Pattern, String> {
        let built = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
        let regex = built.map_err(|error| error.to_string())?;
        Ok(Pattern { regex, length: text.len() })
    }
}

fn types_of(types: &Value) -> Option<Types> {
    let one = |name: &str| Types::NAMES.iter().find(|(known, _)| *known == name).map(|(_, types)| *types);
    match types {
        Value::String(name) => one(name),
        Value::Array(names) => {
            names.iter().try_fold(Types(0), |all, name| Some(all.with(one(name.as_str()?)?)))
        }
        _ => None,
    }
}

fn number(object: &Map<String, Value>, keyword: &str, at: &str) -> Result<Option<f64>, String> {
    let Some(value) = object.get(keyword) else { return Ok(None) };
    value.as_f64().map(Some).ok_or_else(|| format!("{at}/{keyword}: must be a number"))
}

fn count(object: &Map<String, Value>, keyword: &str, at: &str) -> Result<Option<usize>, String> {
    let number = number(object, keyword, at)?;
    match number {
        Some(number) if number < 0.0 || number.fract() != 0.0 => {
            Err(format!("{at}/{keyword}: must be a whole number, 0 or more"))
        }
        // A float that is too large becomes the largest integer.
        number => Ok(number.map(|number| number as usize)),
    }
}

/// The members of a keyword that is an object.
fn map<'a>(
    object: &'a Map<String, Value>,
    keyword: &str,
    at: &str,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, String> {
    match object.get(keyword) {
        None => Ok(None.into_iter().flatten()),
        Some(Value::Object(members)) => Ok(Some(members).into_iter().flatten()),
        Some(_) => Err(format!("{at}/{keyword}: must be an object")),
    }
}

fn names(list: Option<&Value>, at: &str, keyword: &str) -> Result<Vec<Box<str>>, String> {
    let names = list.and_then(Value::as_array).into_iter().flatten();
    let names: Option<Vec<Box<str>>> = names.map(|name| name.as_str().map(Box::from)).collect();
    names.ok_or_else(|| format!("{at}/{keyword}: must be an array of strings"))
}

/// A pointer without percent-encoding.
fn unescaped(pointer: &str) -> String {
    let mut bytes = Vec::with_capacity(pointer.len());
    let mut rest = pointer.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let encoded = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, encoded.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The schema with this `$anchor`, or with `$id` or `id` `#anchor`.
fn anchored<'a>(value: &'a Value, anchor: &str) -> Option<&'a Value> {
    match value {
        Value::Object(object) => {
            let id = |key: &str| object.get(key).and_then(Value::as_str);
            let is_it = id("$anchor") == Some(anchor)
                || ["$id", "id"]
                    .iter()
                    .any(|key| id(key).and_then(|id| id.strip_prefix('#')) == Some(anchor));
            if is_it {
                return Some(value);
            }
            object.values().find_map(|value| anchored(value, anchor))
        }
        Value::Array(values) => values.iter().find_map(|value| anchored(value, anchor)),
        _ => None,
    }
}
