//! Matches one request's text against its grammar.

use std::rc::Rc;

use afterbay_plugin::{FinishKind, TokenId};

use crate::Vocabulary;
use crate::lark::LarkStream;
use crate::regex::{RegexFault, RegexStream};
use crate::schema::{JsonStream, StreamFault};

/// The work of a token that llguidance's parser sees. All work is counted in sixteenths of it.
pub(crate) const TOKEN_COSTS: usize = 16;
/// The work of a token of a JSON text or of a text with a regex.
const FAST_COSTS: usize = 1;
/// The bytes of such a token for one more unit of work.
const BYTES_PER_COST: usize = 8;
/// The steps of a check of a JSON value for one more unit of work.
const STEPS_PER_COST: usize = 16;
/// The work of growing the automaton of a regex.
const GROWTH_COSTS: usize = 4 * TOKEN_COSTS;

/// A finding about a request. A request has at most one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The grammar does not allow the token here, or the output should have ended before it.
    CannotContinue {
        /// The token's index in the row's ids.
        at: usize,
    },
    /// A token ends the text before the grammar is complete, and the request continues (`ignore_eos`).
    EndsText {
        /// The token's index in the row's ids.
        at: usize,
    },
    /// The request ends before the grammar is complete.
    TooEarly {
        /// The index of the token that ends it in the row's ids; `None` if the finish reason ends it.
        at: Option<usize>,
    },
    /// More whitespace in a row than allowed.
    Whitespace {
        /// The index of the first token too many in the row's ids.
        at: usize,
    },
    /// The grammar is too complex for this text, which is no longer checked. Not the text's fault.
    GaveUp {
        /// The limit that was exceeded.
        why: String,
    },
}

/// One request's position in its grammar.
pub struct Matcher {
    engine: Engine,
    /// The work since the last [`Matcher::take_costs`].
    costs: usize,
    state: MatcherState,
    whitespace_max: u32,
    /// The bytes of whitespace at the end of the text so far.
    whitespace: u32,
}

/// The matcher of a kind of grammar.
pub(crate) enum Engine {
    Json(JsonStream),
    Regex(RegexStream),
    Lark(Box<LarkStream>),
}

/// The reason why an engine stopped.
pub(crate) enum EngineStop {
    NotAllowed,
    GaveUp(String),
}

impl EngineStop {
    fn at(self, at: usize) -> Finding {
        match self {
            EngineStop::NotAllowed => Finding::CannotContinue { at },
            EngineStop::GaveUp(why) => Finding::GaveUp { why },
        }
    }
}

impl From<StreamFault> for EngineStop {
    fn from(fault: StreamFault) -> Self {
        match fault {
            StreamFault::NotAllowed => EngineStop::NotAllowed,
            StreamFault::TooMuch(limit) => EngineStop::GaveUp(limit.to_owned()),
        }
    }
}

impl From<RegexFault> for EngineStop {
    fn from(fault: RegexFault) -> Self {
        match fault {
            RegexFault::NotAllowed => EngineStop::NotAllowed,
            RegexFault::TooMuch => {
                EngineStop::GaveUp("the automaton of the regex is at its limit".to_owned())
            }
        }
    }
}

impl Engine {
    /// Adds a token. `bytes` are its bytes, or the last of them if not `is_whole`.
    fn push(
        &mut self,
        id: TokenId,
        bytes: &[u8],
        is_whole: bool,
        costs: &mut usize,
    ) -> Result<(), EngineStop> {
        match self {
            Engine::Json(json) => {
                let pushed = json.push(bytes);
                *costs += FAST_COSTS + bytes.len() / BYTES_PER_COST + json.take_steps() / STEPS_PER_COST;
                Ok(pushed?)
            }
            Engine::Regex(regex) => {
                let has_grown = regex.push(bytes)?;
                let growth = if has_grown { GROWTH_COSTS } else { 0 };
                *costs += FAST_COSTS + bytes.len() / BYTES_PER_COST + growth;
                Ok(())
            }
            Engine::Lark(lark) => {
                let pushed = lark.push(id, bytes, is_whole);
                *costs += lark.take_costs();
                pushed
            }
        }
    }

    /// Whether the text stands in a string of JSON.
    fn is_in_string(&self) -> bool {
        matches!(self, Engine::Json(json) if json.is_in_string())
    }

    /// Whether the text may end here.
    fn is_complete(&mut self) -> Result<bool, EngineStop> {
        match self {
            Engine::Json(json) => Ok(json.is_complete()?),
            Engine::Regex(regex) => Ok(regex.is_complete()?),
            Engine::Lark(lark) => lark.is_complete(),
        }
    }
}

enum MatcherState {
    /// The text has not reached the marker yet.
    AwaitsMarker(MarkerSearch),
    Matching,
    /// The grammar was complete at a token that ends the text.
    Ended,
    /// There was a finding.
    Done,
}

/// The text after which a grammar begins. If it is a special token, it has no bytes in the output.
#[derive(Clone, Debug)]
pub struct Marker {
    /// The bytes of the text; not empty.
    pub text: Rc<[u8]>,
    /// The special token with this text, if there is one.
    pub special: Option<TokenId>,
}

struct MarkerSearch {
    marker: Marker,
    /// The last bytes of the output, fewer than the marker has.
    tail: Vec<u8>,
}

impl MarkerSearch {
    /// Adds a token. Returns the bytes after the marker, once the marker is complete.
    fn rest<'b>(&mut self, id: TokenId, bytes: &'b [u8]) -> Option<&'b [u8]> {
        if self.marker.special == Some(id) {
            return Some(&[]);
        }
        let (text, length) = (&self.marker.text, self.marker.text.len());
        if self.tail.is_empty() && !bytes.contains(&text[0]) {
            return None;
        }
        self.tail.extend(bytes);
        let position = self.tail.windows(length).position(|window| *window == **text);
        if let Some(start) = position {
            let after = self.tail.len() - start - length;
            // The marker ends in this token, because the tail did not contain it.
            return Some(&bytes[bytes.len() - after..]);
        }
        // The longest end of the text with which the marker may begin.
        let begin = (0..self.tail.len()).find(|begin| text.starts_with(&self.tail[*begin..]));
        self.tail.drain(..begin.unwrap_or(self.tail.len()));
        None
    }
}

impl Matcher {
    pub(crate) fn new(engine: Engine, whitespace_max: u32, begins_after: Option<&Marker>) -> Self {
        let state = match begins_after {
            Some(marker) => {
                MatcherState::AwaitsMarker(MarkerSearch { marker: marker.clone(), tail: Vec::new() })
            }
            None => MatcherState::Matching,
        };
        Self { engine, costs: 0, state, whitespace_max, whitespace: 0 }
    }

    /// Returns the work since the last call: see [`TOKEN_COSTS`].
    pub(crate) fn take_costs(&mut self) -> usize {
        std::mem::take(&mut self.costs)
    }

    /// Whether the state that it shares with the other matchers of its grammar is past its limits, after it
    /// gave up.
    pub(crate) fn is_past_limits(&self) -> bool {
        match &self.engine {
            Engine::Json(_) => false,
            Engine::Regex(regex) => regex.is_past_limits(),
            Engine::Lark(lark) => lark.is_past_limits(),
        }
    }

    /// Checks a row's ids. After a finding it ignores all ids.
    ///
    /// # Errors
    /// The finding.
    pub fn push(&mut self, vocabulary: &Vocabulary, ids: &[TokenId]) -> Result<(), Finding> {
        for (at, id) in ids.iter().enumerate() {
            if let Err(finding) = self.token(vocabulary, *id, at) {
                self.state = MatcherState::Done;
                return Err(finding);
            }
        }
        Ok(())
    }

    /// Checks the ids and the finish reason of a request's last row. An aborted request may end anywhere.
    ///
    /// A stop token need not match the grammar: it is no part of the text.
    ///
    /// # Errors
    /// The finding.
    pub fn end(
        &mut self,
        vocabulary: &Vocabulary,
        ids: &[TokenId],
        finish: FinishKind,
    ) -> Result<(), Finding> {
        if let (FinishKind::Stop, Some((last, before))) = (finish, ids.split_last()) {
            self.push(vocabulary, before)?;
            if self.is_complete()? {
                self.state = MatcherState::Ended;
                return Ok(());
            }
            let pushed = self.push(vocabulary, &[*last]);
            return match pushed {
                Ok(()) => self.must_be_complete(Finding::TooEarly { at: None }),
                Err(Finding::GaveUp { why }) => Err(Finding::GaveUp { why }),
                Err(_) => Err(Finding::TooEarly { at: Some(before.len()) }),
            };
        }
        self.push(vocabulary, ids).map_err(|finding| match finding {
            Finding::EndsText { at } if at + 1 == ids.len() => Finding::TooEarly { at: Some(at) },
            finding => finding,
        })?;
        if matches!(finish, FinishKind::Abort | FinishKind::Running) {
            Ok(())
        } else {
            self.must_be_complete(Finding::TooEarly { at: None })
        }
    }

    fn must_be_complete(&mut self, or: Finding) -> Result<(), Finding> {
        let complete = self.is_complete()?;
        self.state = if complete { MatcherState::Ended } else { MatcherState::Done };
        if complete { Ok(()) } else { Err(or) }
    }

    /// Whether the text may end here. True after a finding, because nothing more is reported.
    fn is_complete(&mut self) -> Result<bool, Finding> {
        match &mut self.state {
            MatcherState::AwaitsMarker(_) => Ok(false),
            MatcherState::Matching => self.engine.is_complete().map_err(|stop| stop.at(0)),
            MatcherState::Ended | MatcherState::Done => Ok(true),
        }
    }

    fn token(&mut self, vocabulary: &Vocabulary, id: TokenId, at: usize) -> Result<(), Finding> {
        let mut bytes = vocabulary.bytes(id);
        let is_matching = matches!(self.state, MatcherState::Matching);
        if let Engine::Json(json) = &self.engine
            && is_matching
            && json.is_in_free_string()
            && vocabulary.is_plain(id)
        {
            self.costs += FAST_COSTS;
            return Ok(());
        }
        let mut is_whole = true;
        if let MatcherState::AwaitsMarker(search) = &mut self.state {
            self.costs += FAST_COSTS;
            let Some(rest) = search.rest(id, bytes) else {
                // Other special tokens (`<think>`) end nothing here.
                return match vocabulary.is_eos(id) {
                    true => self.must_be_complete(Finding::EndsText { at }),
                    false => Ok(()),
                };
            };
            is_whole = rest.len() == bytes.len();
            bytes = rest;
            self.state = MatcherState::Matching;
            if bytes.is_empty() {
                return Ok(());
            }
        }
        match &self.state {
            MatcherState::Matching => {}
            // Several tokens may end a text, one after another.
            MatcherState::Ended if vocabulary.is_end(id) => return Ok(()),
            MatcherState::Ended => return Err(Finding::CannotContinue { at }),
            MatcherState::AwaitsMarker(_) | MatcherState::Done => return Ok(()),
        }
        if vocabulary.is_end(id) {
            if let (Engine::Lark(lark), Ok(special), true) =
                (&mut self.engine, u32::try_from(id), vocabulary.is_special(id))
                && lark.special(special).map_err(|stop| stop.at(at))?
            {
                self.whitespace = 0;
                return Ok(());
            }
            return self.must_be_complete(Finding::EndsText { at });
        }
        // An id without bytes is no token of the model.
        if bytes.is_empty() {
            return Err(Finding::CannotContinue { at });
        }
        let was_in_string = self.engine.is_in_string();
        self.engine.push(id, bytes, is_whole, &mut self.costs).map_err(|stop| stop.at(at))?;
        self.count_whitespace(bytes, was_in_string, at)
    }

    /// Counts whitespace in a row. Blanks in a string of JSON are content.
    fn count_whitespace(&mut self, bytes: &[u8], was_in_string: bool, at: usize) -> Result<(), Finding> {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let begin = bytes.iter().take_while(|byte| is_space(byte)).count();
        let most = if was_in_string { 0 } else { self.whitespace.saturating_add(begin as u32) };
        self.whitespace = match begin == bytes.len() {
            _ if self.engine.is_in_string() => 0,
            true => most,
            false => bytes.iter().rev().take_while(|byte| is_space(byte)).count() as u32,
        };
        match most.max(self.whitespace) > self.whitespace_max && self.whitespace_max > 0 {
            true => Err(Finding::Whitespace { at }),
            false => Ok(()),
        }
    }
}
