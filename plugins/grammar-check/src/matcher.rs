//! Matches one request's text against its grammar.

use std::cell::RefCell;
use std::rc::Rc;

use afterbay_plugin::{FinishKind, TokenId};
use llguidance::derivre::StateID;
use llguidance::earley::Parser;

use crate::Vocabulary;
use crate::paths::Paths;
use crate::vocabulary::special_bytes;

/// The work of a token that the parser sees. All work is counted in sixteenths of it.
pub(crate) const TOKEN_COSTS: usize = 16;
/// The work of a token on a known path within a lexeme.
const PATH_COSTS: usize = 1;
/// The work of asking the lexer.
const ASKING_COSTS: usize = 4;
/// The work of a transition that the lexer learns.
const LEARNING_COSTS: usize = 8 * TOKEN_COSTS;
/// The work of a completed lexeme.
const LEXEME_COSTS: usize = 2 * TOKEN_COSTS;
/// The work of a parser item of a lexeme.
const ITEM_COSTS: usize = TOKEN_COSTS / 3;

/// The most bytes that wait before the parser gets them.
const WAITING_BYTES_MAX: usize = 256;
/// The token id for bytes of ordinary tokens.
const NO_TOKEN: u32 = u32::MAX;

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

/// One request's position in its grammar. A matcher stores the text so far, about 100 bytes a token, until it
/// is dropped. Dropping it takes as long as about ten tokens.
pub struct Matcher {
    parser: Parser,
    paths: Rc<RefCell<Paths>>,
    /// Bytes that the parser has not seen yet. They are all of one lexeme and allowed.
    waiting: Vec<u8>,
    /// The lexer's state after these bytes; `None` if it must be asked for and no bytes wait.
    lexer_state: Option<StateID>,
    /// The work since the last [`Matcher::take_costs`].
    costs: usize,
    state: MatcherState,
    whitespace_max: u32,
    /// The bytes of whitespace at the end of the text so far.
    whitespace: u32,
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
        let length = self.marker.text.len();
        self.tail.extend(bytes);
        let position = self.tail.windows(length).position(|window| *window == *self.marker.text);
        if let Some(start) = position {
            let after = self.tail.len() - start - length;
            // The marker ends in this token, because the tail did not contain it.
            return Some(&bytes[bytes.len() - after..]);
        }
        let keep = self.tail.len().min(length - 1);
        self.tail.drain(..self.tail.len() - keep);
        None
    }
}

impl Matcher {
    pub(crate) fn new(
        parser: Parser,
        paths: Rc<RefCell<Paths>>,
        whitespace_max: u32,
        begins_after: Option<&Marker>,
    ) -> Self {
        let state = match begins_after {
            Some(marker) => {
                MatcherState::AwaitsMarker(MarkerSearch { marker: marker.clone(), tail: Vec::new() })
            }
            None => MatcherState::Matching,
        };
        let (waiting, lexer_state, costs) = (Vec::new(), None, 0);
        Self { parser, paths, waiting, lexer_state, costs, state, whitespace_max, whitespace: 0 }
    }

    /// Returns the work since the last call: see [`TOKEN_COSTS`].
    pub(crate) fn take_costs(&mut self) -> usize {
        std::mem::take(&mut self.costs)
    }

    /// Whether the state that it shares with the other matchers of its grammar is past its limits.
    pub(crate) fn is_past_limits(&self) -> bool {
        self.parser.lexer_stats().error
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
            MatcherState::Matching => {
                self.catch_up().map_err(|stop| stop.at(0))?;
                self.costs += TOKEN_COSTS;
                Ok(self.parser.is_accepting())
            }
            MatcherState::Ended | MatcherState::Done => Ok(true),
        }
    }

    fn token(&mut self, vocabulary: &Vocabulary, id: TokenId, at: usize) -> Result<(), Finding> {
        let mut bytes = vocabulary.bytes(id);
        let mut known = None;
        if let (MatcherState::Matching, Some(from)) = (&self.state, self.lexer_state) {
            known = self.paths.borrow().get(from, id);
            if let Some(to) = known.filter(|to| !to.is_dead()) {
                self.costs += PATH_COSTS;
                return self.follow(bytes, to, at);
            }
        }
        self.costs += TOKEN_COSTS;
        let mut is_whole = true;
        if let MatcherState::AwaitsMarker(search) = &mut self.state {
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
        if let Ok(special) = u32::try_from(id)
            && vocabulary.is_special(id)
        {
            self.catch_up().map_err(|stop| stop.at(at))?;
            if self.parser.validate_tokens(&[special]) == 1 {
                // The grammar names this token.
                self.lexer_state = None;
                self.whitespace = 0;
                return self.give(&special_bytes(special), special).map_err(|stop| stop.at(at));
            }
        }
        if vocabulary.is_end(id) {
            return self.must_be_complete(Finding::EndsText { at });
        }
        // An id without bytes is no token of the model.
        if bytes.is_empty() {
            return Err(Finding::CannotContinue { at });
        }
        // A known path leads out of the lexeme here.
        if known.is_none()
            && let Some((from, to)) = self.ask(bytes)
        {
            if is_whole {
                self.paths.borrow_mut().insert(from, id, to);
            }
            if !to.is_dead() {
                return self.follow(bytes, to, at);
            }
        }
        self.lexer_state = None;
        let given = match self.waiting.is_empty() {
            true => self.give(bytes, NO_TOKEN),
            false => {
                self.waiting.extend_from_slice(bytes);
                self.catch_up()
            }
        };
        given.map_err(|stop| stop.at(at))?;
        self.count_whitespace(bytes, at)
    }

    /// Adds a token that stays within the lexeme.
    fn follow(&mut self, bytes: &[u8], to: StateID, at: usize) -> Result<(), Finding> {
        self.lexer_state = Some(to);
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() > WAITING_BYTES_MAX {
            self.catch_up().map_err(|stop| stop.at(at))?;
        }
        self.count_whitespace(bytes, at)
    }

    /// Asks the lexer for the states before and after these bytes. The state after them is dead if they
    /// complete a lexeme or are not allowed. `None` if the parser must see every token, and between two
    /// lexemes, where most tokens complete one.
    fn ask(&mut self, bytes: &[u8]) -> Option<(StateID, StateID)> {
        let is_within = self.lexer_state.is_some() || self.parser.has_pending_lexeme_bytes();
        if !is_within || self.paths.borrow().counts_tokens {
            return None;
        }
        let known = self.lexer_state;
        let (from, to) = self.parser.with_recognizer(|parser| {
            let from = known.unwrap_or_else(|| parser.lexer_state());
            let lexer = parser.lexer_mut();
            let mut to = from;
            for byte in bytes {
                to = lexer.transition_start_state(to, Some(*byte), &None);
                // At a lowest match a lexeme ends by itself.
                if to.is_dead() || to.has_lowest_match() {
                    return (from, StateID::DEAD);
                }
            }
            (from, to)
        });
        self.costs += ASKING_COSTS;
        let is_past_limits = self.learned();
        (!is_past_limits).then_some((from, to))
    }

    /// Gives the waiting bytes to the parser.
    fn catch_up(&mut self) -> Result<(), ParserStop> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let result = self.give(&waiting, NO_TOKEN);
        self.waiting = waiting;
        self.waiting.clear();
        result
    }

    fn give(&mut self, bytes: &[u8], id: u32) -> Result<(), ParserStop> {
        let work = |parser: &Parser| {
            let stats = parser.stats();
            LEXEME_COSTS * stats.rows + ITEM_COSTS * stats.all_items
        };
        let before = work(&self.parser);
        let given = self.parser.apply_token(bytes, id);
        self.costs += bytes.len() + work(&self.parser).saturating_sub(before);
        self.learned();
        // Past a limit, a parser may continue with only a part of the grammar.
        match (given, self.parser.get_error()) {
            (_, Some(error)) => Err(ParserStop::GaveUp(error.message())),
            (Ok(0), None) => Ok(()),
            (Ok(_), None) => Err(ParserStop::GaveUp("the grammar takes text back (stop=…)".into())),
            // The parser reports this limit only as an error text.
            (Err(error), None) if error.to_string().starts_with("Current row has ") => {
                Err(ParserStop::GaveUp(error.to_string()))
            }
            (Err(_), None) => Err(ParserStop::NotAllowed),
        }
    }

    /// Counts the transitions that the lexer learned since the last call. Returns whether it is past its
    /// limits.
    fn learned(&mut self) -> bool {
        let stats = self.parser.lexer_stats();
        let mut paths = self.paths.borrow_mut();
        self.costs += LEARNING_COSTS * stats.num_transitions.saturating_sub(paths.transitions);
        paths.transitions = stats.num_transitions;
        stats.error
    }

    fn count_whitespace(&mut self, bytes: &[u8], at: usize) -> Result<(), Finding> {
        for byte in bytes {
            self.whitespace = if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                self.whitespace.saturating_add(1)
            } else {
                0
            };
            if self.whitespace > self.whitespace_max && self.whitespace_max > 0 {
                return Err(Finding::Whitespace { at });
            }
        }
        Ok(())
    }
}

/// The reason why the parser stopped.
enum ParserStop {
    NotAllowed,
    GaveUp(String),
}

impl ParserStop {
    fn at(self, at: usize) -> Finding {
        match self {
            ParserStop::NotAllowed => Finding::CannotContinue { at },
            ParserStop::GaveUp(why) => Finding::GaveUp { why },
        }
    }
}
