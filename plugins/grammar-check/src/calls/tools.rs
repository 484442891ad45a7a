//! The tools of requests: the functions that a request may call, with the compiled schemas of their arguments.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::block::CallFault;
use crate::schema::{Mismatch, Schema};

/// The most different lists of tools that stay compiled.
const LISTS_MAX: usize = 64;
/// The longest name of a function, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 128;

/// Gives the tools of a request when a call is checked.
pub(super) type ToolsOf<'a> = &'a mut dyn FnMut() -> Rc<Tools>;

/// A list of tools.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Set for a request without tools: its text is free.
    allows_all: bool,
    by_name: HashMap<Box<str>, Parameters>,
    /// The functions whose arguments are only checked to be a JSON object, and why.
    unchecked: Vec<String>,
}

#[derive(Debug)]
enum Parameters {
    /// The arguments must match the schema.
    Schema(Schema),
    /// The schema is not supported. The arguments must be an object.
    Any,
}

impl Tools {
    /// Reads a list of tools in OpenAI's format.
    ///
    /// # Errors
    /// A message, if the value is no list of tools.
    pub(crate) fn read(list: &Value) -> Result<Tools, String> {
        let list = list.as_array().ok_or("must be a list")?;
        let mut all = Tools::default();
        for (index, tool) in list.iter().enumerate() {
            let function = tool.get("function").unwrap_or(tool);
            // A tool without a name is of another type, such as a search that the server runs.
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(format!("tool {index}: a name has 1 to {NAME_BYTES_MAX} bytes"));
            }
            let parameters = match function.get("parameters") {
                None | Some(Value::Null) => Ok(Parameters::Any),
                Some(schema) => Schema::compile(schema).map(Parameters::Schema),
            };
            let parameters = parameters.unwrap_or_else(|why| {
                all.unchecked.push(format!("the arguments of {name} are not checked: {why}"));
                Parameters::Any
            });
            all.by_name.insert(name.into(), parameters);
        }
        Ok(all)
    }

    /// The tools of a request that has none.
    pub(crate) fn all() -> Tools {
        Tools { allows_all: true, ..Tools::default() }
    }

    pub(crate) fn allows_all(&self) -> bool {
        self.allows_all
    }

    /// Messages about functions whose schema is not supported.
    pub(crate) fn unchecked(&self) -> &[String] {
        &self.unchecked
    }

    /// Checks a call in a JSON object, as most formats write it.
    pub(super) fn check_call(&self, call: &Map<String, Value>) -> Result<(), CallFault> {
        if self.allows_all {
            return Ok(());
        }
        let Some(name) = call.get("name").and_then(Value::as_str) else {
            return Err(CallFault::invalid("has no name"));
        };
        match (call.get("arguments"), call.get("parameters")) {
            (Some(_), Some(_)) => Err(CallFault::invalid("has both arguments and parameters")),
            (None, None) => self.check(name, &Value::Object(Map::new())),
            (Some(arguments), None) | (None, Some(arguments)) => self.check(name, arguments),
        }
    }

    /// Checks the arguments of a call.
    pub(super) fn check(&self, name: &str, arguments: &Value) -> Result<(), CallFault> {
        if self.allows_all {
            return Ok(());
        }
        let Some(parameters) = self.by_name.get(name) else {
            let shown = &name[..name.floor_char_boundary(64)];
            return Err(CallFault::invalid(format!("no tool has the name {shown:?}")));
        };
        if !arguments.is_object() {
            return Err(CallFault::invalid(format!("{name}: the arguments are no object")));
        }
        match parameters {
            Parameters::Any => Ok(()),
            Parameters::Schema(schema) => match schema.check(arguments) {
                // A check that takes too long is not the call's fault.
                Ok(()) | Err(Mismatch::TooMuch) => Ok(()),
                Err(Mismatch::Invalid { pointer, why }) => {
                    let space = if pointer.is_empty() { "" } else { " " };
                    Err(CallFault::invalid(format!("{name}: {pointer}{space}{why}")))
                }
            },
        }
    }

    /// Whether the schema of a function's parameter allows a string, and whether it allows anything else.
    pub(super) fn parameter(&self, function: &str, name: &str) -> (bool, bool) {
        match self.by_name.get(function) {
            Some(Parameters::Schema(schema)) => schema.property_allows(name),
            _ => (true, true),
        }
    }
}

/// The lists of tools by their JSON, so that a list that many requests bring is compiled once.
#[derive(Default)]
pub(crate) struct ToolsCache {
    lists: HashMap<Box<str>, (Rc<Tools>, u64)>,
    uses: u64,
}

impl ToolsCache {
    /// The tools of a JSON text, if they are in the cache.
    pub(crate) fn get(&mut self, json: &str) -> Option<Rc<Tools>> {
        self.uses += 1;
        let (tools, last_use) = self.lists.get_mut(json)?;
        *last_use = self.uses;
        Some(tools.clone())
    }

    /// Compiles the tools of a JSON text. An unreadable list allows everything and says so. The list that was used the longest ago leaves the cache.
    pub(crate) fn compile(&mut self, json: &str, list: &Value) -> Rc<Tools> {
        if self.lists.len() >= LISTS_MAX {
            let oldest = self.lists.iter().min_by_key(|(_, (_, last_use))| *last_use);
            if let Some(oldest) = oldest.map(|(json, _)| json.clone()) {
                self.lists.remove(&oldest);
            }
        }
        let tools = Rc::new(Tools::read(list).unwrap_or_else(|why| Tools {
            unchecked: vec![format!("the request's tools are not checked: {why}")],
            ..Tools::all()
        }));
        self.lists.insert(json.into(), (tools.clone(), self.uses));
        tools
    }
}
