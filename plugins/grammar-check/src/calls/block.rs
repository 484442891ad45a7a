//! A block: the text from a marker of tool calls to its end, and the check of its calls.

use super::extent::JsonExtent;
use super::format::{Begin, End, Start};
use super::read::{Arguments, Call, Calls, Reading};
use super::tools::{NAME_BYTES_MAX, ToolsOf};
use crate::schema::VALUES_MAX;
use crate::settings::Engine;

/// The most bytes of a block. A longer call is not checked.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// The most ends of a block that may stand in its strings, so that a block is read a bounded number of times.
const ENDS_MAX: u32 = 16;

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

/// The result of more text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The block goes on.
    More,
    /// The block ended. The text behind it is free.
    Ended,
}

/// An open block.
#[derive(Debug)]
pub(super) struct Block {
    begin: &'static Begin,
    engine: Option<Engine>,
    /// The text from the marker on.
    text: Vec<u8>,
    /// Set when what stands behind the marker may be a call.
    has_started: bool,
    /// The end of the part in which the block's end was looked for.
    searched: usize,
    extent: JsonExtent,
    /// The ends that stood in the block's strings.
    ends: u32,
    /// The end of the block.
    end: usize,
    /// The valid calls.
    valid: u32,
    /// The reason why a call was not checked.
    unchecked: Option<String>,
}

impl Block {
    pub(super) fn new(begin: &'static Begin, engine: Option<Engine>) -> Self {
        Self {
            begin,
            engine,
            text: begin.marker.as_bytes().to_vec(),
            has_started: false,
            searched: begin.marker.len(),
            extent: JsonExtent::default(),
            ends: 0,
            end: 0,
            valid: 0,
            unchecked: None,
        }
    }

    /// Whether the rows of the block must not reach the reader yet.
    pub(super) fn is_open(&self) -> bool {
        !self.text.is_empty()
    }

    pub(super) fn valid(&self) -> u32 {
        self.valid
    }

    pub(super) fn take_unchecked(&mut self) -> Option<String> {
        self.unchecked.take()
    }

    /// Whether the block has so many values that it takes too long to read them in one call.
    fn has_many_values(&self) -> bool {
        self.text.len() > VALUES_MAX && self.text.iter().filter(|byte| **byte == b',').count() > VALUES_MAX
    }

    /// Ends the block without a check.
    fn give_up(&mut self, why: &str) -> Progress {
        self.unchecked = Some(why.to_owned()).filter(|_| self.has_started);
        self.end = self.text.len();
        Progress::Ended
    }

    /// The text behind the block's end.
    pub(super) fn rest(mut self) -> Vec<u8> {
        self.text.split_off(self.end)
    }

    /// Adds text.
    pub(super) fn push(&mut self, tools: ToolsOf<'_>, bytes: &[u8]) -> Result<Progress, CallFault> {
        self.text.extend_from_slice(bytes);
        if self.text.len() > BLOCK_BYTES_MAX {
            return Ok(self.give_up("it is over 256 KiB"));
        }
        if !self.has_started {
            match (self.begin.start)(&String::from_utf8_lossy(&self.text)) {
                Start::More => return Ok(Progress::More),
                Start::No => {
                    self.end = self.begin.marker.len();
                    return Ok(Progress::Ended);
                }
                Start::At(at) => {
                    self.has_started = true;
                    self.searched = match self.begin.end {
                        End::Value => at,
                        End::Marker(_) => at.max(self.searched),
                    };
                    // A Python literal has strings in apostrophes.
                    self.extent = JsonExtent::new(!self.text[1..].trim_ascii_start().starts_with(b"\""));
                }
                Start::Whole => return self.ended(tools, self.text.len(), 0),
            }
        }
        loop {
            let from = self.searched;
            self.searched = self.text.len();
            let (end, length) = match self.begin.end {
                End::Value => match self.extent.find_end(&self.text[from..]) {
                    Some(length) => (from + length, 0),
                    None => return Ok(Progress::More),
                },
                End::Marker(markers) => match find(&self.text, from, markers) {
                    Some(found) => found,
                    None => return Ok(Progress::More),
                },
            };
            if self.ended(tools, end, length)? == Progress::Ended {
                return Ok(Progress::Ended);
            }
            (self.searched, self.ends) = (end + length.max(1), self.ends + 1);
            if self.ends > 4 * ENDS_MAX {
                return Ok(self.give_up("its end cannot be told"));
            }
        }
    }

    /// Reads the block up to this end, whose marker has this length.
    fn ended(&mut self, tools: ToolsOf<'_>, end: usize, length: usize) -> Result<Progress, CallFault> {
        if self.has_many_values() {
            return Ok(self.give_up("it has over 32,768 values"));
        }
        let Some(calls) = self.read(end, length, false) else { return Ok(Progress::More) };
        self.end = end + length;
        self.check(tools, calls)?;
        Ok(Progress::Ended)
    }

    fn read(&self, end: usize, length: usize, is_cut: bool) -> Calls {
        let text = String::from_utf8_lossy(&self.text[..end + length]);
        let body = &text[self.begin.marker.len()..];
        let body = if is_cut { body } else { &body[..body.len() - length] };
        let is_last = is_cut || self.ends >= ENDS_MAX;
        (self.begin.read)(&Reading { text: &text, body, is_cut, is_last, engine: self.engine })
    }

    /// Ends the block with its request. A call that is complete except for its last marker is whole: the marker
    /// may be a stop string or a stop token that the scheduler has removed.
    pub(super) fn end(&mut self, tools: ToolsOf<'_>) -> Result<(), CallFault> {
        if self.has_many_values() {
            self.give_up("it has over 32,768 values");
            return Ok(());
        }
        let calls = self.read(self.text.len(), 0, true).unwrap_or_default();
        self.check(tools, calls)
    }

    fn check(&mut self, tools: ToolsOf<'_>, calls: Vec<Call>) -> Result<(), CallFault> {
        for call in calls {
            let tools = tools();
            let is_known = tools.has(&call.name);
            let is_name = (1..=NAME_BYTES_MAX).contains(&call.name.len())
                && call.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte));
            let is_counted = matches!(call.arguments, Arguments::AnyTool(_));
            // A name that no model writes is prose about the format. vLLM hands it out as a call.
            let takes_any = self.engine == Some(Engine::Vllm) && self.begin.vllm_takes_any_name;
            let is_prose = !is_name && !takes_any;
            if !is_known && !is_counted && (is_prose || call.needs_tool) {
                continue;
            }
            match tools.check_call(&call.name, call.arguments, self.engine)? {
                true => self.valid += 1,
                false => self.unchecked = Some("the check of its arguments takes too long".to_owned()),
            }
        }
        Ok(())
    }
}

/// The first of these markers: its place, and its length if it belongs to the block.
fn find(text: &[u8], from: usize, markers: &[(&str, bool)]) -> Option<(usize, usize)> {
    let found = markers.iter().filter_map(|(marker, is_inside)| {
        // A marker may begin in what was searched before.
        let from = from.saturating_sub(marker.len() - 1);
        let at = text[from..].windows(marker.len()).position(|window| window == marker.as_bytes())?;
        Some((from + at, if *is_inside { marker.len() } else { 0 }))
    });
    found.min_by_key(|(at, _)| *at)
}
