//! Reads the calls of a complete or cut block: what the parsers of SGLang and vLLM hand to a client.
//!
//! The parsers hand out a call as soon as they have read its name. A text without a name is text.

use serde_json::{Map, Value};

use super::block::CallFault;
use crate::literal::{NoLiteral, Notation, literal, python_calls};
use crate::settings::Engine;

/// The quotes of an attribute.
const QUOTES: [char; 2] = ['"', '\''];

/// A block that is to be read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    /// The text of the block, with its first marker.
    pub(super) text: &'a str,
    /// The text between the first and the last marker.
    pub(super) body: &'a str,
    /// Whether the output ends in the block.
    pub(super) is_cut: bool,
    /// Set if the last marker cannot be a part of a string: the block ends here.
    pub(super) is_last: bool,
    /// `None` if any engine may read the output.
    pub(super) engine: Option<Engine>,
}

/// A call that a client gets.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Arguments,
    /// Whether this is text if no tool has the name.
    pub(super) needs_tool: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Arguments {
    Value(Value),
    /// The arguments as texts, which the parsers convert by the types in the tool's schema.
    Texts(Vec<(String, String)>, Conversions),
    Fault(CallFault),
    /// The parser finds the tool by the arguments.
    AnyTool(Value),
}

impl Call {
    fn new(name: impl Into<String>, arguments: Arguments) -> Self {
        Self { name: name.into(), arguments, needs_tool: false }
    }

    /// A call in a tag without parameters.
    pub(super) fn without_arguments(name: &str) -> Self {
        Self::new(name.trim().trim_matches(QUOTES), Arguments::Texts(Vec::new(), Conversions::default()))
    }

    fn fault(name: impl Into<String>, fault: CallFault) -> Self {
        Self::new(name, Arguments::Fault(fault))
    }
}

/// The conversions of texts that only some parsers have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Conversions {
    /// SGLang's parser reads Python literals.
    pub(super) sglang_takes_python: bool,
    /// vLLM's parser reads no lists and no objects.
    pub(super) vllm_takes_scalars: bool,
}

/// The calls of a block, which is text if there are none. `None` if the block goes on behind this marker.
pub(super) type Calls = Option<Vec<Call>>;

impl Reading<'_> {
    fn is(&self, engine: Engine) -> bool {
        self.engine == Some(engine)
    }

    /// The fault of a call that is not complete.
    fn broken(&self, why: impl Into<String>) -> CallFault {
        if self.is_cut { CallFault::Cut } else { CallFault::invalid(why) }
    }
}

fn no_json(why: &str) -> CallFault {
    CallFault::invalid(format!("is no JSON: {why}"))
}

/// The calls of a JSON value, with the keys that the formats have. Whatever has no name is left out.
fn calls_of(value: &Value) -> Vec<Call> {
    let entries = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let call = |entry: &Value| {
        let name = entry.get("name")?.as_str()?;
        let is_set = |value: &&Value| !matches!(value, Value::Null) && **value != Value::Object(Map::new());
        let parameters = entry.get("parameters").filter(is_set);
        let arguments = parameters.or(entry.get("arguments")).or(entry.get("parameters"));
        let arguments = arguments.cloned().unwrap_or_else(|| Value::Object(Map::new()));
        Some(Call::new(name, Arguments::Value(arguments)))
    };
    entries.iter().filter_map(call).collect()
}

/// The value of `"name"` in a JSON text that cannot be read.
fn name_in(text: &str) -> Option<&str> {
    let after =
        |text: &'static str| move |rest: &str| -> Option<usize> { rest.find(text).map(|at| at + text.len()) };
    let mut rest = text;
    while let Some(at) = after("\"name\"")(rest) {
        rest = &rest[at..];
        let value =
            rest.trim_start().strip_prefix(':').and_then(|value| value.trim_start().strip_prefix('"'));
        if let Some((name, _)) = value.and_then(|value| value.split_once('"')) {
            return Some(name).filter(|name| !name.is_empty());
        }
    }
    None
}

/// The call in a JSON text that cannot be read: the parsers stream its name, and its arguments if these are complete.
fn broken_json(reading: &Reading<'_>, text: &str, why: &NoLiteral) -> Vec<Call> {
    let Some(name) = name_in(text) else { return Vec::new() };
    let arguments = text.find("\"arguments\"").map(|at| text[at + 11..].trim_start());
    if let Some(arguments) = arguments.and_then(|text| text.strip_prefix(':')).map(str::trim_start)
        && let Ok((value, length)) = literal(arguments, Notation::Json)
        && value.is_object()
        && !reading.is_cut
        && arguments[length..].trim().is_empty()
    {
        return vec![Call::new(name, Arguments::Value(value))];
    }
    let fault = match why {
        NoLiteral::Wrong(why) => no_json(why),
        NoLiteral::Cut { .. } => reading.broken("is no JSON: it ends too early"),
    };
    vec![Call::fault(name, fault)]
}

pub(super) const HERMES_END: &str = "</tool_call>";

/// `<tool_call>{"name": …}</tool_call>`.
pub(super) fn hermes(reading: &Reading<'_>) -> Calls {
    let (is_vllm, is_sglang) = (reading.is(Engine::Vllm), reading.is(Engine::Sglang));
    let mut body = reading.body;
    // SGLang's parser of Qwen begins at a marker that ends its line, so that one in prose is none.
    if !is_vllm
        && !body.starts_with('\n')
        && let Some(at) = body.rfind("<tool_call>\n")
    {
        body = &body[at + 12..];
    }
    let mut text = body.trim();
    if reading.is_cut {
        // A part of the last marker is no part of the call.
        let part = (1..HERMES_END.len()).rev().find_map(|length| text.strip_suffix(&HERMES_END[..length]));
        text = part.unwrap_or(text).trim();
    }
    if !text.starts_with(['{', '[']) {
        let name = name_in(text).filter(|_| !is_sglang);
        let call = name.map(|name| Call::fault(name, reading.broken("has text before its JSON")));
        return Some(call.into_iter().collect());
    }
    let notation = if is_sglang { Notation::JsonWithCommas } else { Notation::Json };
    let mut calls = Vec::new();
    loop {
        match literal(text, notation) {
            Ok((value, length)) => {
                calls.extend(calls_of(&value));
                // vLLM takes the first name, wherever it stands.
                let name = name_in(&text[..length]).filter(|_| calls.is_empty() && !is_sglang);
                if let Some(name) = name {
                    return Some(vec![Call::fault(name, CallFault::invalid("has no name of its own"))]);
                }
                text = text[length..].trim();
                let keyed = |call: &Call| value.get("arguments").is_some() || call.name.is_empty();
                if is_vllm && !calls.iter().all(keyed) {
                    let name = calls.first().map_or("", |call| &call.name).to_owned();
                    return Some(vec![Call::fault(name, CallFault::invalid("is no object with arguments"))]);
                }
            }
            Err(NoLiteral::Cut { in_string: true }) if !reading.is_last && !is_vllm => return None,
            Err(why) => {
                calls.extend(broken_json(reading, text, &why));
                return Some(calls);
            }
        }
        match calls.first() {
            Some(call) if !text.is_empty() && !is_sglang => {
                let fault = reading.broken("has text behind it");
                return Some(vec![Call::fault(call.name.clone(), fault)]);
            }
            _ if !text.starts_with(['{', '[']) => return Some(calls),
            _ => {}
        }
    }
}

/// `{"name": …}` of Llama, anywhere in the text.
pub(super) fn llama(reading: &Reading<'_>) -> Calls {
    let text = reading.text;
    let read = literal(text, Notation::Json);
    let read = match (read, reading.engine) {
        (Err(NoLiteral::Wrong(_)), None | Some(Engine::Sglang)) if !text.contains("\"name\"") => {
            literal(text, Notation::Python)
        }
        (read, _) => read,
    };
    let (value, _) = match read {
        Ok(read) => read,
        Err(why) => return Some(broken_json(reading, text, &why)),
    };
    let mut calls = calls_of(&value);
    for call in &mut calls {
        // The answer may be an object with a name.
        let keyed = ["parameters", "arguments"].iter().any(|key| value.get(key).is_some());
        call.needs_tool = !keyed && !reading.is(Engine::Vllm);
    }
    Some(calls)
}

/// `[{"name": …}, …]` behind the marker, as Granite writes it.
pub(super) fn granite(reading: &Reading<'_>) -> Calls {
    let mut rest = reading.body.trim_start().strip_prefix('[')?.trim_start();
    let mut calls = Vec::new();
    loop {
        match literal(rest, Notation::Json) {
            Ok((value, length)) => {
                // Only `arguments` are read.
                if let Some(name) = value.get("name").and_then(Value::as_str) {
                    let arguments = value.get("arguments").filter(|value| value.is_object()).cloned();
                    let arguments = arguments.unwrap_or_else(|| Value::Object(Map::new()));
                    calls.push(Call::new(name, Arguments::Value(arguments)));
                }
                rest = rest[length..].trim_start();
                rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
                if !rest.starts_with('{') {
                    return Some(calls);
                }
            }
            Err(why) => {
                calls.extend(broken_json(reading, rest, &why));
                return Some(calls);
            }
        }
    }
}

/// The begin of a JSON value, or of the name before it, behind `[TOOL_CALLS`.
pub(super) fn behind_mistral(text: &str) -> &str {
    let rest = text["[TOOL_CALLS".len()..].trim_start_matches(']');
    let mut rest = rest.trim_start();
    while let Some(behind) = rest.strip_prefix("[TOOL_CALLS]") {
        rest = behind.trim_start();
    }
    rest
}

/// `[TOOL_CALLS][{"name": …}]` and `[TOOL_CALLS]name[ARGS]{…}`.
pub(super) fn mistral(reading: &Reading<'_>) -> Calls {
    let rest = behind_mistral(reading.text);
    let is_sglang = reading.is(Engine::Sglang);
    if rest.starts_with(['{', '[']) {
        if is_sglang && !reading.text.starts_with("[TOOL_CALLS] [{") {
            return Some(Vec::new());
        }
        let (value, _) = match literal(rest, Notation::Json) {
            Ok(read) => read,
            Err(why) => return Some(broken_json(reading, rest, &why)),
        };
        let mut calls = calls_of(&value);
        for call in &mut calls {
            // vLLM takes arguments that are a string as their text.
            if let Arguments::Value(Value::String(text)) = &call.arguments
                && !is_sglang
                && let Ok((value, _)) = literal(text, Notation::Json)
            {
                call.arguments = Arguments::Value(value);
            }
        }
        return Some(calls);
    }
    let end = rest.find(['[', '{']).unwrap_or(rest.len());
    let (name, rest) = (rest[..end].trim(), &rest[end..]);
    let arguments =
        if rest.starts_with('{') { rest } else { rest.split_once("[ARGS]").map_or("", |(_, rest)| rest) };
    let call = named(reading, name, arguments);
    // SGLang takes a call with complete arguments behind `[ARGS]` only.
    let is_read = !is_sglang || rest.starts_with('[') && !matches!(call.arguments, Arguments::Fault(_));
    Some(vec![call].into_iter().filter(|_| is_read).collect())
}

/// A call whose arguments are JSON behind its name.
fn named(reading: &Reading<'_>, name: &str, arguments: &str) -> Call {
    let text = arguments.trim();
    if text.is_empty() {
        return match reading.is_cut || reading.is(Engine::Vllm) {
            true => Call::fault(name, reading.broken("has no arguments")),
            false => Call::new(name, Arguments::Value(Value::Object(Map::new()))),
        };
    }
    if !text.starts_with(['{', '[']) {
        return Call::fault(name, reading.broken("has no JSON behind its name"));
    }
    match literal(text, Notation::Json) {
        Ok((value, length)) if text[length..].is_empty() => Call::new(name, Arguments::Value(value)),
        Ok(_) => Call::fault(name, reading.broken("has text behind its arguments")),
        Err(NoLiteral::Wrong(why)) => Call::fault(name, no_json(&why)),
        Err(NoLiteral::Cut { .. }) => Call::fault(name, reading.broken("is no JSON: it ends too early")),
    }
}

pub(super) const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";

/// `function<｜tool▁sep｜>name`, a line with a fence and the arguments (V3), or `name<｜tool▁sep｜>{…}` (V3.1).
pub(super) fn deepseek(reading: &Reading<'_>) -> Calls {
    let Some((kind, rest)) = reading.body.split_once(DEEPSEEK_SEPARATOR) else { return Some(Vec::new()) };
    let text = rest.trim();
    if text.starts_with('{') || kind.trim() != "function" {
        // A cut call has no arguments yet, and vLLM has streamed its name.
        return Some(vec![named(reading, kind.trim(), text)]);
    }
    let Some((name, fence)) = text.split_once('\n') else {
        let call = Call::fault(text, reading.broken("has no JSON behind its name"));
        return Some(if reading.is_cut { Vec::new() } else { vec![call] });
    };
    let Some(arguments) = fence.trim_start().strip_prefix("```json") else {
        return Some(vec![Call::fault(name.trim(), reading.broken("has no JSON behind its name"))]);
    };
    let arguments = arguments.trim();
    let arguments =
        arguments.strip_suffix("```").or(arguments.strip_suffix("``")).or(arguments.strip_suffix('`'));
    let arguments =
        arguments.unwrap_or_else(|| fence.trim_start().strip_prefix("```json").unwrap_or_default());
    Some(vec![named(reading, name.trim(), arguments)])
}

pub(super) const KIMI_CALL: &str = "<|tool_call_begin|>";

/// `functions.name:0<|tool_call_argument_begin|>{…}`.
pub(super) fn kimi(reading: &Reading<'_>) -> Calls {
    // A call that begins anew leaves what stood before.
    let body = reading.body.rsplit(KIMI_CALL).next().unwrap_or_default();
    let (id, arguments) = match body.split_once("<|tool_call_argument_begin|>") {
        Some((id, arguments)) => (id.trim(), Some(arguments)),
        None => (body.trim(), None),
    };
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let is_count = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let call = match (name.split_once(':'), arguments) {
        (Some((name, count)), Some(arguments)) if is_count(count) => named(reading, name, arguments),
        (Some((name, _)), None) => named(reading, name, ""),
        // vLLM streams a name that is cut.
        (None, None) if reading.is_cut && name != id && !reading.is(Engine::Sglang) => {
            Call::fault(name, CallFault::Cut)
        }
        (None, Some(arguments)) if is_count(id) && !reading.is(Engine::Vllm) => {
            let call = named(reading, "call", arguments);
            match call.arguments {
                Arguments::Value(value) => Call::new(id, Arguments::AnyTool(value)),
                _ => call,
            }
        }
        _ => return Some(Vec::new()),
    };
    Some(vec![call])
}

/// The most bytes of harmony's header of a message.
pub(super) const HARMONY_HEADER_MAX: usize = 256;

/// The recipient in the header of a message: the last one, as in SGLang's parser.
pub(super) fn harmony_recipient(header: &str) -> Option<&str> {
    let (_, after) = header.rsplit_once("to=")?;
    after.split(|char: char| char.is_whitespace() || char == '<').next().filter(|name| !name.is_empty())
}

/// `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`.
pub(super) fn harmony(reading: &Reading<'_>) -> Calls {
    let Some((header, body)) = reading.text.split_once("<|message|>") else {
        let function = harmony_recipient(reading.text).filter(|name| name.starts_with("functions."));
        let fault = function.map(|name| Call::fault(&name["functions.".len()..], CallFault::Cut));
        return Some(fault.into_iter().filter(|_| !reading.is(Engine::Sglang)).collect());
    };
    let Some(recipient) = harmony_recipient(header) else { return Some(Vec::new()) };
    let is_call = reading.text.ends_with("<|call|>");
    let body =
        ["<|call|>", "<|end|>", "<|return|>"].iter().find_map(|end| body.strip_suffix(end)).unwrap_or(body);
    if reading.is(Engine::Sglang) {
        let channel = header.rsplit("<|channel|>").next().unwrap_or_default();
        let is_read = is_call && channel.starts_with("commentary to=") && channel.contains("<|constrain|>");
        let is_json = body.trim().is_empty()
            || literal(body.trim(), Notation::Json).is_ok_and(|(_, end)| end == body.trim().len());
        if !is_read || !is_json {
            return Some(Vec::new());
        }
    }
    let (first, name) = (recipient.split('.').next(), recipient.rsplit('.').next().unwrap_or_default());
    // Tools that the models have besides functions. SGLang takes a function of this name for them.
    let is_built_in =
        first.is_some_and(|first| ["assistant", "browser", "container", "python"].contains(&first));
    if is_built_in && recipient == name {
        return Some(Vec::new());
    }
    let empty = body.trim().is_empty() && !is_call && !reading.is_cut;
    let mut call = match (body.trim().is_empty(), empty) {
        (true, false) => Call::new(name, Arguments::Value(Value::Object(Map::new()))),
        _ => named(reading, name, body),
    };
    call.needs_tool = is_built_in;
    Some(vec![call])
}

/// `[f(a=1), g()]`.
pub(super) fn pythonic(reading: &Reading<'_>) -> Calls {
    let (calls, is_complete) = python_calls(reading.text);
    if !is_complete && reading.is(Engine::Sglang) {
        return Some(Vec::new());
    }
    let call = |(name, arguments)| match arguments {
        Ok(value) => Call::new(name, Arguments::Value(value)),
        Err(_) => Call::fault(name, reading.broken("has arguments that are no literals")),
    };
    Some(calls.into_iter().map(call).collect())
}

/// How a format writes a function and its parameters as tags.
pub(super) struct Tags {
    /// The text before the name, or nothing if the name follows the block's marker.
    pub(super) open: &'static str,
    pub(super) name_ends: &'static [&'static str],
    pub(super) key: &'static str,
    pub(super) key_end: &'static str,
    /// The text between the key and the value.
    pub(super) value: &'static str,
    /// The ends of a value. Those behind the first belong to what follows.
    pub(super) value_ends: &'static [&'static str],
    /// The end of a function inside of a block, or nothing if the block's last marker is its end.
    pub(super) close: &'static str,
    /// Whether a newline at each end of a value is no part of it.
    pub(super) trims: bool,
    /// Whether the parameters may be a JSON object instead.
    pub(super) takes_json: bool,
    /// Whether vLLM's parser hands out no call of an unknown tool.
    pub(super) is_validated: bool,
    pub(super) conversions: Conversions,
    /// Whether the parsers leave out a parameter with `<` in its value.
    pub(super) skips_angles: bool,
}

/// The first of these texts: its place and its index.
fn first(text: &str, ends: &[&str]) -> Option<(usize, usize)> {
    let found = ends.iter().enumerate().filter_map(|(index, end)| Some((text.find(end)?, index)));
    found.min()
}

/// Functions with parameters as tags.
pub(super) fn tagged(tags: &Tags, reading: &Reading<'_>) -> Calls {
    let mut calls = Vec::new();
    let mut rest = reading.body;
    if !tags.open.is_empty() {
        let Some(at) = rest.find(tags.open) else { return Some(calls) };
        rest = &rest[at + tags.open.len()..];
    }
    loop {
        let (function, behind) = match tags.open {
            "" => (rest, None),
            open => rest.split_once(open).map_or((rest, None), |(function, behind)| (function, Some(behind))),
        };
        let function = if tags.name_ends.len() > 1 { function.trim_start() } else { function };
        let Some((end, index)) = first(function, tags.name_ends) else {
            let name = function.trim().trim_matches(QUOTES);
            match (tags.open.is_empty(), reading.is_cut) {
                // A name alone is a call without parameters where the block ends behind it.
                (true, false) if tags.name_ends.len() > 1 => calls.push(Call::without_arguments(name)),
                // vLLM hands out a name that is cut.
                (true, true) if !tags.is_validated && !reading.is(Engine::Sglang) => {
                    calls.push(Call::fault(name, CallFault::Cut));
                }
                _ => {}
            }
            return Some(calls);
        };
        let name = function[..end].trim().trim_matches(QUOTES);
        let parameters = match tags.name_ends[index] {
            behind if behind == tags.key => &function[end..],
            behind => &function[end + behind.len()..],
        };
        let is_cut = reading.is_cut && (tags.close.is_empty() || !parameters.contains(tags.close));
        let arguments = match parameters.trim() {
            json if tags.takes_json && json.starts_with('{') && !reading.is(Engine::Vllm) => {
                named(reading, name, json).arguments
            }
            _ => match texts(tags, parameters) {
                Some(_) if is_cut => Arguments::Fault(CallFault::Cut),
                Some(texts) => Arguments::Texts(texts, tags.conversions),
                None if !reading.is_last => return None,
                None => Arguments::Fault(reading.broken("has a parameter without an end")),
            },
        };
        let needs_tool = tags.is_validated && (reading.is_cut || reading.is(Engine::Vllm));
        calls.push(Call { needs_tool, ..Call::new(name, arguments) });
        match behind {
            Some(behind) => rest = behind,
            None => return Some(calls),
        }
    }
}

/// The parameters as texts. `None` if the last one has no end.
fn texts(tags: &Tags, parameters: &str) -> Option<Vec<(String, String)>> {
    let mut texts = Vec::new();
    let mut rest = parameters;
    while let Some((_, behind)) = rest.split_once(tags.key) {
        let (key, behind) = behind.split_once(tags.key_end)?;
        // An attribute may stand behind a key in quotes.
        let key = key.trim().trim_start_matches(['"', '\'']).split(['"', '\'']).next().unwrap_or_default();
        let (_, behind) = behind.split_once(tags.value)?;
        let (end, index) = first(behind, tags.value_ends)?;
        let mut value = &behind[..end];
        if tags.trims {
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        // The parsers of Step 3 leave out a value with `<`.
        if !tags.skips_angles || !value.contains('<') {
            texts.push((key.trim().to_owned(), value.to_owned()));
        }
        rest = if index == 0 { &behind[end + tags.value_ends[0].len()..] } else { &behind[end..] };
    }
    Some(texts)
}
