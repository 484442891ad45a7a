//! The tools of requests: the functions that a request may call, with the compiled schemas of their arguments.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value;

use super::block::CallFault;
use super::read::{Arguments, Conversions};
use crate::literal::{Notation, literal, number};
use crate::schema::{Mismatch, Schema, SchemaOptions};
use crate::settings::Engine;

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
    /// Reads a list of tools in OpenAI's format. `formats` says whether their schemas check `format`.
    ///
    /// # Errors
    /// A message, if the value is no list of tools.
    pub(crate) fn read(list: &Value, formats: bool) -> Result<Tools, String> {
        let options = SchemaOptions { formats, draft: None };
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
                Some(schema) => Schema::compile(schema, options).map(Parameters::Schema),
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

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Checks a call. `false` if the check takes too long.
    pub(super) fn check_call(
        &self,
        name: &str,
        arguments: Arguments,
        engine: Option<Engine>,
    ) -> Result<bool, CallFault> {
        match arguments {
            _ if self.allows_all => Ok(true),
            Arguments::Fault(fault) => Err(fault),
            Arguments::Value(value) => self.check(name, &value),
            Arguments::Texts(texts, conversions) => {
                let value = |(key, text): (String, String)| {
                    let value = self.value_of((name, &key), &text, engine, conversions);
                    (key, value)
                };
                self.check(name, &Value::Object(texts.into_iter().map(value).collect()))
            }
            Arguments::AnyTool(value) => self.check_best(&value),
        }
    }

    /// Checks a call that names no tool: SGLang takes the tool that has the most of the arguments as properties.
    fn check_best(&self, arguments: &Value) -> Result<bool, CallFault> {
        let score = |parameters: &Parameters| match (parameters, arguments.as_object()) {
            (Parameters::Schema(schema), Some(arguments)) => {
                arguments.keys().filter(|key| schema.has_property(key)).count()
            }
            _ => 0,
        };
        let best = self.by_name.values().map(score).max().unwrap_or(0);
        let tools = self.by_name.iter().filter(|(_, parameters)| score(parameters) == best);
        let checked = tools.filter_map(|(name, _)| self.check(name, arguments).ok()).max();
        checked.ok_or_else(|| CallFault::invalid("names no tool, and none takes its arguments"))
    }

    /// The value of a parameter that a call has as text. The parsers convert it to the type in the tool's schema: the
    /// first conversion is taken that the schema allows.
    fn value_of(
        &self,
        (function, name): (&str, &str),
        text: &str,
        engine: Option<Engine>,
        conversions: Conversions,
    ) -> Value {
        let (trimmed, lower) = (text.trim(), text.trim().to_lowercase());
        let (is_vllm, is_sglang) = (engine == Some(Engine::Vllm), engine == Some(Engine::Sglang));
        let python = literal(trimmed, Notation::Python).ok().filter(|(_, end)| *end == trimmed.len());
        let string = Value::String(text.to_owned());
        let json = literal(trimmed, Notation::Json).ok().filter(|(_, end)| *end == trimmed.len());
        // A number beyond a float is infinite, which is no JSON.
        let json = json.map(|(value, _)| value).filter(|json| !json.is_number() || json.as_f64().is_some());
        let is_whole = |json: &Value| json.is_object() || json.is_array();
        let json = json.filter(|json| !(is_vllm && conversions.vllm_takes_scalars && is_whole(json)));
        let conversions = [
            // SGLang makes `null` of this text for any type.
            (lower == "null" && is_sglang).then_some(Value::Null),
            Some(string.clone()).filter(|_| lower != "null" || !is_sglang),
            json.clone(),
            number(trimmed),
            match &*lower {
                "true" | "1" => Some(Value::Bool(true)),
                "false" | "0" => Some(Value::Bool(false)),
                "null" => Some(Value::Null),
                // SGLang takes any other text for false.
                _ => is_sglang.then_some(Value::Bool(false)),
            },
            python.map(|(value, _)| value).filter(|_| conversions.sglang_takes_python && !is_vllm),
        ];
        let is_allowed = |value: &Value| match self.by_name.get(function) {
            Some(Parameters::Schema(schema)) => schema.property_accepts(name, value),
            _ => true,
        };
        let allowed = conversions.into_iter().flatten().find(is_allowed);
        allowed.or(json.filter(|json| !json.is_string())).unwrap_or(string)
    }

    /// Checks the arguments of a call. `false` if the check takes too long, which is not the call's fault.
    fn check(&self, name: &str, arguments: &Value) -> Result<bool, CallFault> {
        if self.allows_all {
            return Ok(true);
        }
        let Some(parameters) = self.by_name.get(name) else {
            let shown = &name[..name.floor_char_boundary(64)];
            return Err(CallFault::invalid(format!("no tool has the name {shown:?}")));
        };
        if !arguments.is_object() {
            return Err(CallFault::invalid(format!("{name}: the arguments are no object")));
        }
        match parameters {
            Parameters::Any => Ok(true),
            Parameters::Schema(schema) => match schema.check(arguments) {
                Ok(()) => Ok(true),
                Err(Mismatch::TooMuch) => Ok(false),
                Err(Mismatch::Invalid { pointer, why }) => {
                    let space = if pointer.is_empty() { "" } else { " " };
                    Err(CallFault::invalid(format!("{name}: {pointer}{space}{why}")))
                }
            },
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
    pub(crate) fn compile(&mut self, json: &str, list: &Value, formats: bool) -> Rc<Tools> {
        if self.lists.len() >= LISTS_MAX {
            let oldest = self.lists.iter().min_by_key(|(_, (_, last_use))| *last_use);
            if let Some(oldest) = oldest.map(|(json, _)| json.clone()) {
                self.lists.remove(&oldest);
            }
        }
        let tools = Rc::new(Tools::read(list, formats).unwrap_or_else(|why| Tools {
            unchecked: vec![format!("the request's tools are not checked: {why}")],
            ..Tools::all()
        }));
        self.lists.insert(json.into(), (tools.clone(), self.uses));
        tools
    }
}
