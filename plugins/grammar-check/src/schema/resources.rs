//! The parts of a schema's document that references name: by a JSON pointer, by an `$id` or by an anchor.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The drafts of JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Draft {
    D4,
    D6,
    D7,
    D2019,
    D2020,
}

impl Draft {
    const NAMES: [(&str, Draft); 6] = [
        ("draft-04", Draft::D4),
        ("draft-05", Draft::D4),
        ("draft-06", Draft::D6),
        ("draft-07", Draft::D7),
        ("2019-09", Draft::D2019),
        ("2020-12", Draft::D2020),
    ];

    /// Keywords with the first and the last draft that has them. All drafts have the others.
    const KEYWORDS: [(&str, Draft, Draft); 19] = [
        ("id", Draft::D4, Draft::D4),
        ("$id", Draft::D6, Draft::D2020),
        ("const", Draft::D6, Draft::D2020),
        ("contains", Draft::D6, Draft::D2020),
        ("propertyNames", Draft::D6, Draft::D2020),
        ("if", Draft::D7, Draft::D2020),
        ("additionalItems", Draft::D4, Draft::D2019),
        ("$anchor", Draft::D2019, Draft::D2020),
        ("dependentRequired", Draft::D2019, Draft::D2020),
        ("dependentSchemas", Draft::D2019, Draft::D2020),
        ("minContains", Draft::D2019, Draft::D2020),
        ("maxContains", Draft::D2019, Draft::D2020),
        ("unevaluatedItems", Draft::D2019, Draft::D2020),
        ("unevaluatedProperties", Draft::D2019, Draft::D2020),
        ("$recursiveAnchor", Draft::D2019, Draft::D2019),
        ("$recursiveRef", Draft::D2019, Draft::D2019),
        ("$dynamicAnchor", Draft::D2020, Draft::D2020),
        ("$dynamicRef", Draft::D2020, Draft::D2020),
        ("prefixItems", Draft::D2020, Draft::D2020),
    ];

    /// The draft that `$schema` names, `None` if it names none. Not supported is a meta-schema of others, which may
    /// change the meaning of keywords. Many schemas name their own address or a catalogue there, which changes nothing.
    fn of(meta_schema: &str) -> Result<Option<Draft>, ()> {
        let is_foreign = meta_schema.contains("://") && !meta_schema.contains("json-schema.org/");
        let name = meta_schema.rsplit('/').next().unwrap_or_default();
        match is_foreign && name.contains("meta") {
            true => Err(()),
            false => {
                Ok(Self::NAMES.iter().find(|(name, _)| meta_schema.contains(name)).map(|(_, draft)| *draft))
            }
        }
    }

    fn has(self, keyword: &str) -> bool {
        let known = Self::KEYWORDS.iter().find(|(name, ..)| *name == keyword);
        known.is_none_or(|(_, first, last)| (*first..=*last).contains(&self))
    }
}

/// The keywords that hold a schema.
const OF_A_SCHEMA: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// The keywords that hold a list of schemas.
const OF_A_LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// The keywords that hold schemas by name.
const OF_A_MAP: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// A part of a document with an `$id` of its own, or the whole document.
struct Resource<'a> {
    /// The absolute address, without a fragment. Empty if it has none.
    uri: String,
    root: &'a Value,
    /// `None` if `$schema` names none. Then the keywords of all drafts are known.
    draft: Option<Draft>,
}

struct Anchor<'a> {
    resource: usize,
    name: &'a str,
    schema: &'a Value,
    is_dynamic: bool,
}

/// A part of a document, and the index of its resource.
pub(super) type Part<'a> = (&'a Value, usize);

/// The target of a reference.
pub(super) struct Target<'a> {
    pub(super) part: Part<'a>,
    /// For `$dynamicRef` and `$recursiveRef`: the targets of the resources, of which the outermost on the path to the
    /// reference counts.
    pub(super) dynamic: Vec<Part<'a>>,
}

/// The resources of a document.
pub(super) struct Resources<'a> {
    all: Vec<Resource<'a>>,
    /// The resources by the place of their root.
    by_root: HashMap<*const Value, usize>,
    /// Empty until a reference needs it: the names that only a walk through the document finds.
    anchors: Vec<Anchor<'a>>,
    is_walked: bool,
}

impl<'a> Resources<'a> {
    /// The error is a message.
    pub(super) fn new(document: &'a Value, default: Option<Draft>) -> Result<Self, String> {
        let draft = draft_of(document, default)?;
        let uri = id_of(document, draft).unwrap_or_default().to_owned();
        let by_root = HashMap::from([(std::ptr::from_ref(document), 0)]);
        let all = vec![Resource { uri, root: document, draft }];
        Ok(Self { all, by_root, anchors: Vec::new(), is_walked: false })
    }

    pub(super) fn draft(&self, resource: usize) -> Option<Draft> {
        self.all[resource].draft
    }

    /// The resource of a schema that stands in this resource: its own, if it has an `$id`.
    pub(super) fn enter(&mut self, schema: &'a Value, resource: usize) -> Result<usize, String> {
        let Resource { uri, draft, .. } = &self.all[resource];
        let Some(id) = id_of(schema, *draft) else { return Ok(resource) };
        let place = std::ptr::from_ref(schema);
        if let Some(known) = self.by_root.get(&place) {
            return Ok(*known);
        }
        let uri = resolve(uri, id);
        let draft = draft_of(schema, *draft)?;
        self.by_root.insert(place, self.all.len());
        self.all.push(Resource { uri, root: schema, draft });
        Ok(self.all.len() - 1)
    }

    /// The target of `$ref`.
    pub(super) fn find(&mut self, reference: &str, from: usize) -> Result<Part<'a>, String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let mut resource = from;
        if !uri.is_empty() {
            self.walk()?;
            let uri = resolve(&self.all[from].uri, uri);
            let found = self.all.iter().position(|resource| resource.uri == uri);
            resource = found.ok_or_else(|| format!("{reference:?} is in another document"))?;
        }
        let fragment = unescaped(fragment);
        let part = match fragment.starts_with('/') {
            _ if fragment.is_empty() => Some((self.all[resource].root, resource)),
            // Many documents have an `$id` in their parts and mean pointers from the root of the document.
            true => match self.at_pointer(resource, &fragment)? {
                None if uri.is_empty() => self.at_pointer(0, &fragment)?,
                found => found,
            },
            false => self.anchor(resource, &fragment)?.map(|anchor| (anchor.schema, resource)),
        };
        part.ok_or_else(|| format!("{reference:?} does not exist"))
    }

    /// The target of `$dynamicRef`.
    pub(super) fn find_dynamic(&mut self, reference: &str, from: usize) -> Result<Target<'a>, String> {
        let part = self.find(reference, from)?;
        let name = unescaped(reference.split_once('#').unwrap_or_default().1);
        let is_dynamic = self.anchor(part.1, &name)?.is_some_and(|anchor| anchor.is_dynamic);
        let same =
            self.anchors.iter().filter(|anchor| is_dynamic && anchor.is_dynamic && anchor.name == name);
        Ok(Target { part, dynamic: same.map(|anchor| (anchor.schema, anchor.resource)).collect() })
    }

    /// The target of `$recursiveRef`, which is always `#`.
    pub(super) fn find_recursive(&mut self, from: usize) -> Result<Target<'a>, String> {
        self.walk()?;
        let is_dynamic = |root: &Value| root.get("$recursiveAnchor") == Some(&Value::Bool(true));
        let part = (self.all[from].root, from);
        let same = self.all.iter().enumerate().filter(|(_, one)| is_dynamic(part.0) && is_dynamic(one.root));
        Ok(Target { part, dynamic: same.map(|(resource, one)| (one.root, resource)).collect() })
    }

    /// The part at a JSON pointer from a resource's root.
    fn at_pointer(&mut self, mut resource: usize, pointer: &str) -> Result<Option<Part<'a>>, String> {
        let mut part = self.all[resource].root;
        for name in pointer.split('/').skip(1) {
            let name = name.replace("~1", "/").replace("~0", "~");
            let next = match part {
                Value::Object(members) => members.get(&name),
                Value::Array(items) => name.parse().ok().and_then(|index: usize| items.get(index)),
                _ => None,
            };
            let Some(next) = next else { return Ok(None) };
            part = next;
            resource = self.enter(part, resource)?;
        }
        Ok(Some((part, resource)))
    }

    fn anchor(&mut self, resource: usize, name: &str) -> Result<Option<&Anchor<'a>>, String> {
        self.walk()?;
        Ok(self.anchors.iter().find(|anchor| anchor.resource == resource && anchor.name == name))
    }

    /// Finds all resources and anchors, once.
    fn walk(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.is_walked, true) {
            return Ok(());
        }
        let mut todo = vec![(self.all[0].root, 0)];
        while let Some((schema, outer)) = todo.pop() {
            let Value::Object(object) = schema else { continue };
            let resource = self.enter(schema, outer)?;
            let draft = self.all[resource].draft;
            let mut add = |name: Option<&'a str>, is_dynamic| {
                self.anchors.extend(name.map(|name| Anchor { resource, name, schema, is_dynamic }));
            };
            add(text(object, "$anchor", draft), false);
            add(text(object, "$dynamicAnchor", draft), true);
            for keyword in ["$id", "id"] {
                add(text(object, keyword, draft).and_then(|id| id.strip_prefix('#')), false);
            }
            let one = OF_A_SCHEMA.iter().filter_map(|keyword| object.get(*keyword));
            let list = OF_A_LIST.iter().filter_map(|keyword| object.get(*keyword)?.as_array()).flatten();
            let map = OF_A_MAP.iter().filter_map(|keyword| object.get(*keyword)?.as_object());
            let all = one.chain(list).chain(map.flat_map(Map::values));
            todo.extend(all.map(|schema| (schema, resource)));
        }
        Ok(())
    }
}

/// The value of a keyword, if the draft has it.
pub(super) fn keyword<'a>(
    object: &'a Map<String, Value>,
    name: &str,
    draft: Option<Draft>,
) -> Option<&'a Value> {
    object.get(name).filter(|_| draft.is_none_or(|draft| draft.has(name)))
}

fn text<'a>(object: &'a Map<String, Value>, name: &str, draft: Option<Draft>) -> Option<&'a str> {
    keyword(object, name, draft)?.as_str()
}

/// Whether the keywords beside `$ref` are ignored.
pub(super) fn ignores_beside_ref(draft: Option<Draft>) -> bool {
    draft.is_some_and(|draft| draft <= Draft::D7)
}

fn draft_of(schema: &Value, outer: Option<Draft>) -> Result<Option<Draft>, String> {
    let Some(name) = schema.get("$schema").and_then(Value::as_str) else { return Ok(outer) };
    let named = Draft::of(name).map_err(|()| format!("/$schema: {name:?} is in another document"))?;
    Ok(named.or(outer))
}

/// The `$id` of a schema without a fragment.
fn id_of(schema: &Value, draft: Option<Draft>) -> Option<&str> {
    let object = schema.as_object()?;
    let name = if draft == Some(Draft::D4) { "id" } else { "$id" };
    let id = object.get(name)?.as_str()?;
    if ignores_beside_ref(draft) && object.contains_key("$ref") {
        return None;
    }
    let id = id.split_once('#').map_or(id, |(uri, _)| uri);
    (!id.is_empty()).then_some(id)
}

/// The scheme of an address, if it has one, and the rest.
fn split_scheme(uri: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = uri.split_once(':')?;
    let is_scheme = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some((scheme, rest))
}

/// The absolute address of a reference without a fragment (RFC 3986, 5.2).
fn resolve(base: &str, reference: &str) -> String {
    if base.is_empty() || split_scheme(reference).is_some() {
        return reference.to_owned();
    }
    let (scheme, rest) =
        split_scheme(base).map_or((String::new(), base), |(scheme, rest)| (format!("{scheme}:"), rest));
    if reference.starts_with("//") {
        return scheme + reference;
    }
    let authority = match rest.strip_prefix("//") {
        Some(after) => 2 + after.find('/').unwrap_or(after.len()),
        None => 0,
    };
    let (authority, path) = rest.split_at(authority);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let folder = path.rfind('/').map_or("", |at| &path[..=at]);
    let path = match reference.as_bytes().first() {
        Some(b'/') => reference.to_owned(),
        Some(b'?') => format!("{path}{reference}"),
        _ if path.is_empty() && !authority.is_empty() => format!("/{reference}"),
        _ => format!("{folder}{reference}"),
    };
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if parts.len() > 1 => drop(parts.pop()),
            ".." => {}
            part => parts.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        parts.push("");
    }
    format!("{scheme}{authority}{}{query}", parts.join("/"))
}

/// A fragment without percent-encoding.
fn unescaped(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_against_their_base() {
        let base = "http://a/b/c/d;p?q";
        // The examples of RFC 3986, 5.4.
        for (reference, resolved) in [
            ("g:h", "g:h"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            (";x", "http://a/b/c/;x"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../../../g", "http://a/g"),
            ("g/../h", "http://a/b/c/h"),
        ] {
            assert_eq!(resolve(base, reference), resolved, "{reference}");
        }
        assert_eq!(resolve("", "node.json"), "node.json");
        assert_eq!(resolve("http://a", "g"), "http://a/g");
        assert_eq!(resolve("urn:uuid:1", "urn:uuid:2"), "urn:uuid:2");
        assert_eq!(resolve("dir/one.json", "two.json"), "dir/two.json");
    }
}
