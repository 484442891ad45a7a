//! Tool calls: their blocks are found in the requests' texts, and each call is checked against the tools of its
//! request.
//!
//! A row that contains a part of a call is held until the call is complete. A valid call is then released. An
//! invalid or cut call never reaches the reader: the request ends before the call's first token.
//!
//! The tools of a request are read when its first call begins, so that a request without calls costs nothing
//! for them.

mod block;
mod check;
mod extent;
mod format;
mod read;
mod reasoning;
mod scanner;
mod tools;

use std::rc::Rc;

use afterbay_plugin::{
    Attributes, ConfigureError, FinishKind, Opened, RequestId, Requests, TokenId, bad_setting,
};
use serde_json::Value;

use crate::{OnViolation, Settings, Tokenizer, Vocabulary};
use check::CallCheck;
use scanner::CallMarkers;
use tools::{Tools, ToolsCache};

pub(crate) use block::CallFault;
pub(crate) use check::{CallAction, CallResult};

#[cfg(test)]
mod tests;

/// The bytes of tools that one batch reads ahead, before their calls are complete. A list that must be compiled
/// counts 4 times.
const AHEAD_BYTES_MAX: usize = 128 << 10;
/// The costs of asking for a request's attributes, in bytes of tools.
const READ_COSTS: usize = 64;

/// The tool calls of a stream's requests.
pub(crate) struct ToolCalls {
    markers: CallMarkers,
    /// The tools of the settings, for requests that bring none.
    tools: Option<Rc<Tools>>,
    cache: ToolsCache,
    /// Whether the schemas of tools check `format`.
    formats: bool,
    on_violation: OnViolation,
    requests: Requests<RequestCalls>,
    /// The bytes of tools that this batch may still read ahead.
    ahead_left: usize,
}

struct RequestCalls {
    check: CallCheck,
    /// `None` until the first call begins.
    tools: Option<Rc<Tools>>,
    /// Set when a marker of another format has been reported.
    has_unread: bool,
}

impl ToolCalls {
    /// Reads the settings. `None` if they do not select a format.
    ///
    /// # Errors
    /// If the tools are invalid.
    pub(crate) fn new(
        settings: &Settings,
        vocabulary: &Vocabulary,
        tokenizer: &impl Tokenizer,
    ) -> Result<Option<Self>, ConfigureError> {
        let wrong = |why: String| bad_setting("/tools", why);
        let tools = match &settings.tools {
            Some(Value::String(text)) => {
                let list = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
                Some(Tools::read(&list, settings.formats).map_err(wrong)?)
            }
            Some(list) => Some(Tools::read(list, settings.formats).map_err(wrong)?),
            None => None,
        };
        if let Some(why) = tools.as_ref().and_then(|tools| tools.unchecked().first()) {
            return Err(wrong(why.clone()));
        }
        let Some(format) = settings.tool_calls else {
            return match tools {
                Some(_) => Err(bad_setting("/tools", "needs tool_calls")),
                None => Ok(None),
            };
        };
        Ok(Some(Self {
            markers: CallMarkers::new(format, (settings.reasoning, settings.engine), vocabulary, tokenizer),
            tools: tools.map(Rc::new),
            cache: ToolsCache::default(),
            formats: settings.formats,
            on_violation: settings.on_violation.unwrap_or(OnViolation::Abort),
            requests: Requests::new(),
            ahead_left: AHEAD_BYTES_MAX,
        }))
    }

    pub(crate) fn on_violation(&self) -> OnViolation {
        self.on_violation
    }

    pub(crate) fn open(&mut self, request: &Opened) {
        let holds = self.on_violation != OnViolation::Report;
        let check = CallCheck::new(&self.markers, request.received_tokens == 0, holds);
        self.requests.insert(request.request, RequestCalls { check, tools: None, has_unread: false });
    }

    pub(crate) fn close(&mut self, request: RequestId) {
        self.requests.remove(request);
    }

    pub(crate) fn begin_batch(&mut self) {
        self.ahead_left = AHEAD_BYTES_MAX;
    }

    /// Checks a row. `None` if the row has no part of a call.
    pub(crate) fn row(
        &mut self,
        vocabulary: &Vocabulary,
        request: RequestId,
        ids: &[TokenId],
        waiting: u32,
        finish: FinishKind,
    ) -> Option<CallResult> {
        let RequestCalls { check, tools, has_unread } = self.requests.get_mut(request)?;
        if check.is_free() && ids.iter().all(|id| self.markers.is_plain(*id)) {
            return None;
        }
        let (cache, of_settings) = (&mut self.cache, self.tools.as_ref());
        let mut source = Source { cache, of_settings, formats: self.formats, request };
        let mut tools_of = || tools.get_or_insert_with(|| source.tools()).clone();
        let given = (&self.markers, vocabulary);
        let mut result = check.row(given, &mut tools_of, ids, waiting, finish);
        let unread = ids.iter().find_map(|id| self.markers.unread(*id)).filter(|_| !*has_unread);
        if unread.is_some() {
            *has_unread = true;
            result.unread = unread.filter(|_| !tools.get_or_insert_with(|| source.tools()).allows_all());
        }
        // The tools are read ahead, while the call's rows arrive.
        if tools.is_none() && check.is_open() && self.ahead_left > 0 {
            let (read, costs) = source.tools_ahead();
            self.ahead_left = self.ahead_left.saturating_sub(costs);
            *tools = Some(read);
        }
        if tools.as_ref().is_some_and(|tools| tools.allows_all()) {
            result.action = check.stop(&result.action);
            result.valid = 0;
        }
        Some(result)
    }
}

/// The source of a request's tools.
struct Source<'a> {
    cache: &'a mut ToolsCache,
    of_settings: Option<&'a Rc<Tools>>,
    formats: bool,
    request: RequestId,
}

impl Source<'_> {
    fn tools(&mut self) -> Rc<Tools> {
        self.tools_ahead().0
    }

    /// The request's tools, and the costs of reading them in bytes.
    fn tools_ahead(&mut self) -> (Rc<Tools>, usize) {
        let attributes = Attributes::of(self.request);
        let Some(list) = attributes.get("tools").filter(|list| !list.is_null()) else {
            return (self.of_settings.cloned().unwrap_or_else(|| Rc::new(Tools::all())), READ_COSTS);
        };
        let json = list.to_string();
        if let Some(tools) = self.cache.get(&json) {
            return (tools, READ_COSTS + json.len());
        }
        let tools = self.cache.compile(&json, list, self.formats);
        for why in tools.unchecked() {
            afterbay_plugin::warn!(request: self.request, "{why}");
        }
        (tools, READ_COSTS + 4 * json.len())
    }
}
