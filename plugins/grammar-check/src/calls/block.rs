//! The formats of tool calls, from the first marker of a block to its end.
//!
//! Each format is a few steps over the block's text. A step waits for its end, so that the text may arrive in
//! any parts. The formats are those that SGLang's and vLLM's parsers of tool calls read.

mod harmony;
mod xml;

use serde_json::{Map, Value};

use super::extent::JsonExtent;
use super::tools::{NAME_BYTES_MAX, ToolsOf};

/// The most bytes of a block. A longer call is not checked.
const BLOCK_BYTES_MAX: usize = 256 << 10;

/// The reason why a request with a tool call ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFault {
    /// The call is invalid.
    Invalid(String),
    /// The request ended in a call.
    Cut,
}

impl CallFault {
    pub(super) fn invalid(why: impl Into<String>) -> Self {
        CallFault::Invalid(why.into())
    }
}

/// The step of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Behind `<tool_call>`.
    Hermes,
    HermesJson,
    HermesEnd,
    XmlName,
    XmlParameter,
    XmlKey,
    XmlValue,
    /// Behind `<|python_tag|>`.
    Llama,
    /// At the beginning of an output that begins like a call.
    LlamaBare,
    LlamaJson {
        bare: bool,
    },
    /// Behind a call, which another one may follow.
    LlamaAfter,
    LlamaNext,
    /// Behind `[TOOL_CALLS]`.
    Mistral,
    MistralList,
    MistralName,
    MistralId,
    MistralJson,
    /// Behind `<｜tool▁calls▁begin｜>`.
    DeepSeek,
    /// Behind `<｜tool▁call▁begin｜>`.
    DeepSeekCall,
    DeepSeekArguments,
    DeepSeekName,
    DeepSeekFence,
    DeepSeekFenced,
    DeepSeekFenceEnd,
    DeepSeekJson,
    DeepSeekEnd,
    /// In the header of a message, at the output's beginning if `first`.
    HarmonyHeader {
        first: bool,
    },
    Harmony,
    HarmonyJson,
    HarmonyEnd,
}

/// The result of more text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The block goes on.
    More,
    /// The block ended. The text behind it is free.
    Ended,
    /// The block is no call: all of its text is free.
    NoCall,
}

/// An open block.
#[derive(Debug)]
pub(super) struct Block {
    step: Step,
    text: Vec<u8>,
    /// The beginning of the part that the step reads.
    at: usize,
    /// The end of the part that the step has searched.
    searched: usize,
    extent: JsonExtent,
    name: String,
    key: String,
    /// The parameters of the XML form.
    parameters: Vec<(String, String)>,
    /// The valid calls since the last [`Block::take_valid`].
    valid: u32,
}

/// The result of one step: what comes next, or `None` if the step needs more text.
type Stepped = Result<Option<Next>, CallFault>;

enum Next {
    Step(Step),
    Ended,
    NoCall,
}

fn step(next: Step) -> Stepped {
    Ok(Some(Next::Step(next)))
}

fn invalid<T>(why: impl Into<String>) -> Result<T, CallFault> {
    Err(CallFault::invalid(why))
}

impl Block {
    pub(super) fn new(step: Step) -> Self {
        Self {
            step,
            text: Vec::new(),
            at: 0,
            searched: 0,
            extent: JsonExtent::default(),
            name: String::new(),
            key: String::new(),
            parameters: Vec::new(),
            valid: 0,
        }
    }

    /// Whether the block's call is not complete: its rows must not reach the reader yet.
    pub(super) fn is_open(&self) -> bool {
        match self.step {
            Step::LlamaAfter => false,
            Step::HarmonyHeader { first: true } => !self.text.is_empty(),
            _ => true,
        }
    }

    pub(super) fn take_valid(&mut self) -> u32 {
        std::mem::take(&mut self.valid)
    }

    /// The text behind the block's end.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.text.split_off(self.at)
    }

    /// Adds text.
    pub(super) fn push(&mut self, tools: ToolsOf<'_>, bytes: &[u8]) -> Result<Progress, CallFault> {
        if self.text.len() + bytes.len() > BLOCK_BYTES_MAX {
            return Ok(Progress::NoCall);
        }
        self.text.extend_from_slice(bytes);
        loop {
            match self.advance(tools)? {
                None => return Ok(Progress::More),
                Some(Next::Ended) => return Ok(Progress::Ended),
                Some(Next::NoCall) => return Ok(Progress::NoCall),
                Some(Next::Step(next)) => {
                    self.step = next;
                    self.searched = self.at;
                    self.extent = JsonExtent::default();
                }
            }
        }
    }

    /// Ends the block with its request. A call that is complete except for its last marker is whole: the marker
    /// may be a stop string or a stop token that the scheduler has removed.
    pub(super) fn end(&mut self, tools: ToolsOf<'_>) -> Result<(), CallFault> {
        match self.step {
            Step::HermesEnd
            | Step::LlamaAfter
            | Step::DeepSeekFenceEnd
            | Step::DeepSeekEnd
            | Step::HarmonyEnd => {
                // A part of the marker, and nothing else.
                let rest = self.text[self.at..].trim_ascii();
                let markers: &[&[u8]] = match self.step {
                    Step::HermesEnd => &[b"</tool_call>"],
                    Step::DeepSeekFenceEnd => &[b"```"],
                    Step::DeepSeekEnd => &[DEEPSEEK_END.as_bytes()],
                    _ => &[b""],
                };
                match markers.iter().any(|marker| marker.starts_with(rest)) || rest.is_empty() {
                    true => Ok(()),
                    false => Err(CallFault::Cut),
                }
            }
            // Nothing shows yet that this is a call.
            Step::Llama | Step::LlamaBare | Step::HarmonyHeader { .. } => match self.names_a_function() {
                true => Err(CallFault::Cut),
                false => Ok(()),
            },
            Step::Harmony if self.text[self.at..].trim_ascii().is_empty() => {
                self.check(tools, &Value::Object(Map::new()))
            }
            _ => Err(CallFault::Cut),
        }
    }

    /// Whether the header of a message addresses a function.
    fn names_a_function(&self) -> bool {
        matches!(self.step, Step::HarmonyHeader { .. }) && harmony::recipient(&self.text).is_some()
            || self.step == Step::Llama
    }

    fn advance(&mut self, tools: ToolsOf<'_>) -> Stepped {
        match self.step {
            Step::Hermes => match self.next_byte() {
                None => Ok(None),
                Some(b'<') => match self.literal("<function=") {
                    Some(true) => step(Step::XmlName),
                    Some(false) => invalid("is neither JSON nor a function"),
                    None => Ok(None),
                },
                Some(b'{') => step(Step::HermesJson),
                Some(_) => invalid("is neither JSON nor a function"),
            },
            Step::HermesJson => self.json_call(tools, Step::HermesEnd),
            Step::HermesEnd => self.closed_by("</tool_call>"),
            Step::XmlName | Step::XmlParameter | Step::XmlKey | Step::XmlValue => self.xml(tools),
            Step::Llama | Step::LlamaBare | Step::LlamaJson { .. } | Step::LlamaAfter | Step::LlamaNext => {
                self.llama(tools)
            }
            Step::Mistral | Step::MistralList | Step::MistralName | Step::MistralId | Step::MistralJson => {
                self.mistral(tools)
            }
            Step::HarmonyHeader { .. } | Step::Harmony | Step::HarmonyJson | Step::HarmonyEnd => {
                self.harmony(tools)
            }
            _ => self.deepseek(tools),
        }
    }

    fn llama(&mut self, tools: ToolsOf<'_>) -> Stepped {
        match self.step {
            Step::Llama => match self.next_byte() {
                None => Ok(None),
                Some(b'{' | b'[') => step(Step::LlamaJson { bare: false }),
                // Code for an interpreter.
                Some(_) => Ok(Some(Next::NoCall)),
            },
            Step::LlamaBare => match begins_like_a_call(&self.text) {
                Some(true) => {
                    self.next_byte();
                    step(Step::LlamaJson { bare: true })
                }
                Some(false) => Ok(Some(Next::NoCall)),
                None => Ok(None),
            },
            Step::LlamaJson { bare } => {
                let Some(json) = self.json()? else { return Ok(None) };
                let calls = match json {
                    Value::Array(calls) => calls,
                    call => vec![call],
                };
                let is_call =
                    |call: &Value| ["parameters", "arguments"].iter().any(|key| call.get(key).is_some());
                // The answer may be an object with a name.
                if bare && !calls.iter().any(is_call) {
                    return Ok(Some(Next::NoCall));
                }
                self.check_calls(tools, &calls)?;
                step(Step::LlamaAfter)
            }
            Step::LlamaAfter => match self.next_byte() {
                None => Ok(None),
                Some(b';') => {
                    self.at += 1;
                    step(Step::LlamaNext)
                }
                Some(_) => Ok(Some(Next::Ended)),
            },
            _ => match self.next_byte() {
                None => Ok(None),
                Some(b'{') => step(Step::LlamaJson { bare: false }),
                Some(_) => invalid("is no JSON"),
            },
        }
    }

    fn mistral(&mut self, tools: ToolsOf<'_>) -> Stepped {
        match self.step {
            Step::Mistral => match self.next_byte() {
                None => Ok(None),
                Some(b'[') => step(Step::MistralList),
                Some(_) => step(Step::MistralName),
            },
            Step::MistralList => {
                let Some(json) = self.json()? else { return Ok(None) };
                let calls = json.as_array().cloned().unwrap_or_default();
                self.check_calls(tools, &calls)?;
                Ok(Some(Next::Ended))
            }
            Step::MistralName => match self.name_until(&["{", "[ARGS]", "[CALL_ID]"])? {
                None => Ok(None),
                Some(0) => {
                    self.at -= 1;
                    step(Step::MistralJson)
                }
                Some(1) => step(Step::MistralJson),
                Some(_) => step(Step::MistralId),
            },
            Step::MistralId => match self.until(&["[ARGS]"], NAME_BYTES_MAX)? {
                Some(_) => step(Step::MistralJson),
                None => Ok(None),
            },
            _ => match self.arguments(tools)? {
                Some(()) => Ok(Some(Next::Ended)),
                None => Ok(None),
            },
        }
    }

    fn deepseek(&mut self, tools: ToolsOf<'_>) -> Stepped {
        match self.step {
            Step::DeepSeek => match self.next_byte().and_then(|_| self.literal(DEEPSEEK_CALL)) {
                None => Ok(None),
                Some(true) => step(Step::DeepSeekCall),
                Some(false) => invalid("has text before it"),
            },
            Step::DeepSeekCall => match self.name_until(&[DEEPSEEK_SEPARATOR])? {
                Some(_) => step(Step::DeepSeekArguments),
                None => Ok(None),
            },
            // V3 writes `function`, the name and a fence; V3.1 the name and the arguments.
            Step::DeepSeekArguments => match self.next_byte() {
                None => Ok(None),
                Some(b'{') => step(Step::DeepSeekJson),
                Some(_) if self.name == "function" => step(Step::DeepSeekName),
                Some(_) => invalid("has no JSON behind its name"),
            },
            Step::DeepSeekName => match self.name_until(&["\n"])? {
                Some(_) => step(Step::DeepSeekFence),
                None => Ok(None),
            },
            Step::DeepSeekFence => match self.next_byte().and_then(|_| self.literal("```json")) {
                None => Ok(None),
                Some(true) => step(Step::DeepSeekFenced),
                Some(false) => invalid("has no JSON behind its name"),
            },
            Step::DeepSeekFenced => match self.arguments(tools)? {
                Some(()) => step(Step::DeepSeekFenceEnd),
                None => Ok(None),
            },
            Step::DeepSeekFenceEnd => match self.next_byte().and_then(|_| self.literal("```")) {
                None => Ok(None),
                Some(true) => step(Step::DeepSeekEnd),
                Some(false) => invalid("has text behind its arguments"),
            },
            Step::DeepSeekJson => match self.arguments(tools)? {
                Some(()) => step(Step::DeepSeekEnd),
                None => Ok(None),
            },
            _ => self.closed_by(DEEPSEEK_END),
        }
    }

    /// Skips whitespace. The next byte, if there is one.
    fn next_byte(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        let space = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += space;
        rest.get(space).copied()
    }

    /// Whether a text comes next, which is then read. `None` if only a part of it has arrived.
    fn literal(&mut self, text: &str) -> Option<bool> {
        let rest = &self.text[self.at..];
        if rest.starts_with(text.as_bytes()) {
            self.at += text.len();
            return Some(true);
        }
        if text.as_bytes().starts_with(rest) { None } else { Some(false) }
    }

    /// Reads whitespace and the block's last marker.
    fn closed_by(&mut self, marker: &str) -> Stepped {
        match self.next_byte().and_then(|_| self.literal(marker)) {
            None => Ok(None),
            Some(true) => Ok(Some(Next::Ended)),
            Some(false) => invalid("has text behind it"),
        }
    }

    /// Reads up to the first of these markers. Returns the text before it and the marker's index.
    fn until(&mut self, markers: &[&str], most: usize) -> Result<Option<(String, usize)>, CallFault> {
        // A marker may begin in what was searched before.
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(1);
        let from = self.searched.saturating_sub(longest - 1).max(self.at);
        let first = markers.iter().enumerate().filter_map(|(index, marker)| {
            let found =
                self.text[from..].windows(marker.len()).position(|window| window == marker.as_bytes());
            found.map(|found| (from + found, index))
        });
        let found = first.min();
        let length = found.map_or(self.text.len(), |(end, _)| end) - self.at;
        if length > most {
            return invalid(format!("has a name of over {most} bytes"));
        }
        self.searched = self.text.len();
        let Some((end, index)) = found else { return Ok(None) };
        let Ok(text) = std::str::from_utf8(&self.text[self.at..end]) else { return invalid("is no text") };
        let text = text.to_owned();
        self.at = end + markers[index].len();
        Ok(Some((text, index)))
    }

    /// Reads the function's name up to one of these markers. Returns the marker's index.
    fn name_until(&mut self, markers: &[&str]) -> Result<Option<usize>, CallFault> {
        let Some((name, index)) = self.until(markers, NAME_BYTES_MAX)? else { return Ok(None) };
        self.name = name.trim().to_owned();
        Ok(Some(index))
    }

    /// Reads a JSON object or array.
    fn json(&mut self) -> Result<Option<Value>, CallFault> {
        if self.next_byte().is_none() {
            return Ok(None);
        }
        if !matches!(self.text[self.at], b'{' | b'[') {
            return invalid("is no JSON");
        }
        let from = self.searched.max(self.at);
        self.searched = self.text.len();
        let Some(length) = self.extent.find_end(&self.text[from..]) else { return Ok(None) };
        let json = &self.text[self.at..from + length];
        let value =
            serde_json::from_slice(json).map_err(|error| CallFault::invalid(format!("is no JSON: {error}")));
        self.at = from + length;
        value.map(Some)
    }

    /// Reads the arguments of a function and checks them.
    fn arguments(&mut self, tools: ToolsOf<'_>) -> Result<Option<()>, CallFault> {
        let Some(arguments) = self.json()? else { return Ok(None) };
        self.check(tools, &arguments).map(Some)
    }

    fn check(&mut self, tools: ToolsOf<'_>, arguments: &Value) -> Result<(), CallFault> {
        tools().check(&self.name, arguments)?;
        self.valid += 1;
        Ok(())
    }

    /// Reads a call in a JSON object and checks it.
    fn json_call(&mut self, tools: ToolsOf<'_>, next: Step) -> Stepped {
        let Some(call) = self.json()? else { return Ok(None) };
        self.check_calls(tools, &[call])?;
        step(next)
    }

    fn check_calls(&mut self, tools: ToolsOf<'_>, calls: &[Value]) -> Result<(), CallFault> {
        if calls.is_empty() {
            return invalid("is an empty list");
        }
        for call in calls {
            let Value::Object(call) = call else { return invalid("is no object") };
            tools().check_call(call)?;
            self.valid += 1;
        }
        Ok(())
    }
}

pub(super) const DEEPSEEK_CALLS: &str = "<｜tool▁calls▁begin｜>";
pub(super) const DEEPSEEK_CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const DEEPSEEK_END: &str = "<｜tool▁call▁end｜>";

/// Whether a text begins like a call without a marker: `{"name":`, perhaps in a list. `None` if the text is too
/// short.
pub(super) fn begins_like_a_call(text: &[u8]) -> Option<bool> {
    let mut rest = text.trim_ascii_start();
    if let Some(list) = rest.strip_prefix(b"[") {
        rest = list.trim_ascii_start();
    }
    for part in [&b"{"[..], b"\"name\"", b":"] {
        match rest.strip_prefix(part) {
            Some(after) => rest = after.trim_ascii_start(),
            None if part.starts_with(rest) => return None,
            None => return Some(false),
        }
    }
    Some(true)
}
