//! One request's text, against the grammar.

use std::cell::RefCell;
use std::rc::Rc;

use afterbay_plugin::{FinishKind, TokenId};
use llguidance::derivre::StateID;
use llguidance::earley::Parser;

use crate::Vocabulary;
use crate::grammar::special_bytes;
use crate::paths::Paths;

/// What a token costs that the parser is given. Everything is counted in parts of it:
pub(crate) const TOKEN_COSTS: usize = 16;
/// a token that stays within a lexeme, as is known;
const PATH_COSTS: usize = 1;
/// to ask the lexer;
const ASKING_COSTS: usize = 4;
/// a transition that the lexer learns;
const LEARNING_COSTS: usize = 8 * TOKEN_COSTS;
/// a lexeme that is completed;
const LEXEME_COSTS: usize = 2 * TOKEN_COSTS;
/// and an item of it.
const ITEM_COSTS: usize = TOKEN_COSTS / 3;

/// The parser is given so many bytes at once.
const BEHIND_MAX: usize = 256;
/// It is given bytes, whatever token they are of.
const NO_TOKEN: u32 = u32::MAX;

/// What is found of a request: once at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The grammar does not allow the row's token at this place, or the output was to end before it.
    CannotContinue {
        /// Its place among the row's ids.
        at: usize,
    },
    /// A token ends the text before the grammar is complete, and the request goes on (`ignore_eos`).
    EndsText {
        /// Its place among the row's ids.
        at: usize,
    },
    /// The request ends before the grammar is complete.
    TooEarly {
        /// The place of the token that ends it among the row's ids; none where the row's finish reason ends it.
        at: Option<usize>,
    },
    /// More whitespace in a row than is allowed.
    Whitespace {
        /// The place of the first token too many among the row's ids.
        at: usize,
    },
    /// The grammar is too complex for this text: it is not checked any further. Not the text's fault.
    GaveUp {
        /// What is past its limit.
        why: String,
    },
}

/// One request's place in the grammar. It keeps the text so far, some 100 bytes a token, until it is dropped, which takes as
/// long as some ten tokens.
pub struct Matcher {
    parser: Parser,
    paths: Rc<RefCell<Paths>>,
    /// Bytes that the parser is yet to be given, all of one lexeme: they are allowed.
    behind: Vec<u8>,
    /// The lexer's state after those; none: it is to be asked for, and there are none.
    at: Option<StateID>,
    /// What was done, and not taken note of yet.
    costs: usize,
    state: State,
    whitespace_max: u32,
    /// Bytes of whitespace at the end so far.
    whitespace: u32,
}

enum State {
    /// The grammar is of what comes after a text that has not come yet.
    Before(Before),
    Matching,
    /// The grammar was complete at a token that ends the text.
    Ended,
    /// Something was found.
    Done,
}

/// A text, after which the grammar begins. As a token of its own it may be special, so that it has no bytes.
#[derive(Clone, Debug)]
pub struct Marker {
    /// Its bytes: some.
    pub text: Rc<[u8]>,
    /// The special token that is written so.
    pub special: Option<TokenId>,
}

struct Before {
    marker: Marker,
    /// The last bytes, fewer than the marker has.
    tail: Vec<u8>,
}

impl Before {
    /// A token more: the bytes behind the marker, once it is there.
    fn rest<'b>(&mut self, id: TokenId, bytes: &'b [u8]) -> Option<&'b [u8]> {
        if self.marker.special == Some(id) {
            return Some(&[]);
        }
        let length = self.marker.text.len();
        self.tail.extend(bytes);
        let found = self.tail.windows(length).position(|window| *window == *self.marker.text);
        if let Some(start) = found {
            let behind = self.tail.len() - start - length;
            // It ends in this token: it was not in the tail before.
            return Some(&bytes[bytes.len() - behind..]);
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
            Some(marker) => State::Before(Before { marker: marker.clone(), tail: Vec::new() }),
            None => State::Matching,
        };
        let (behind, at, costs) = (Vec::new(), None, 0);
        Self { parser, paths, behind, at, costs, state, whitespace_max, whitespace: 0 }
    }

    /// What was done since this was asked last, in parts of a token: see [`TOKEN_COSTS`].
    pub(crate) fn take_costs(&mut self) -> usize {
        std::mem::take(&mut self.costs)
    }

    /// What it shares with the other matchers of its grammar is past its limits.
    pub(crate) fn is_past_limits(&self) -> bool {
        self.parser.lexer_stats().error
    }

    /// A row's ids, of a request that goes on. After a finding nothing more is looked at.
    ///
    /// # Errors
    /// What is found.
    pub fn push(&mut self, vocabulary: &Vocabulary, ids: &[TokenId]) -> Result<(), Finding> {
        for (at, id) in ids.iter().enumerate() {
            if let Err(finding) = self.token(vocabulary, *id, at) {
                self.state = State::Done;
                return Err(finding);
            }
        }
        Ok(())
    }

    /// The ids of a request's last row, and why it ended. Of an aborted one only the tokens are judged, not that it ends.
    ///
    /// A stop token need not be of the grammar: it is no part of the text.
    ///
    /// # Errors
    /// What is found.
    pub fn end(
        &mut self,
        vocabulary: &Vocabulary,
        ids: &[TokenId],
        finish: FinishKind,
    ) -> Result<(), Finding> {
        if let (FinishKind::Stop, Some((last, before))) = (finish, ids.split_last()) {
            self.push(vocabulary, before)?;
            if self.is_complete()? {
                self.state = State::Ended;
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
        self.state = if complete { State::Ended } else { State::Done };
        if complete { Ok(()) } else { Err(or) }
    }

    /// Whether the text may end here. True after a finding: nothing more is to be found.
    fn is_complete(&mut self) -> Result<bool, Finding> {
        match &mut self.state {
            State::Before(_) => Ok(false),
            State::Matching => {
                self.catch_up().map_err(|refused| refused.at(0))?;
                self.costs += TOKEN_COSTS;
                Ok(self.parser.is_accepting())
            }
            State::Ended | State::Done => Ok(true),
        }
    }

    fn token(&mut self, vocabulary: &Vocabulary, id: TokenId, at: usize) -> Result<(), Finding> {
        let mut bytes = vocabulary.bytes(id);
        let mut known = None;
        if let (State::Matching, Some(from)) = (&self.state, self.at) {
            known = self.paths.borrow().get(from, id);
            if let Some(to) = known.filter(|to| !to.is_dead()) {
                self.costs += PATH_COSTS;
                return self.follow(bytes, to, at);
            }
        }
        self.costs += TOKEN_COSTS;
        let mut is_whole = true;
        if let State::Before(before) = &mut self.state {
            let Some(rest) = before.rest(id, bytes) else {
                // Other special tokens (`<think>`) end nothing here.
                return match vocabulary.is_eos(id) {
                    true => self.must_be_complete(Finding::EndsText { at }),
                    false => Ok(()),
                };
            };
            is_whole = rest.len() == bytes.len();
            bytes = rest;
            self.state = State::Matching;
            if bytes.is_empty() {
                return Ok(());
            }
        }
        match &self.state {
            State::Matching => {}
            // Several tokens may end a text, one after another.
            State::Ended if vocabulary.is_end(id) => return Ok(()),
            State::Ended => return Err(Finding::CannotContinue { at }),
            State::Before(_) | State::Done => return Ok(()),
        }
        if let Ok(special) = u32::try_from(id)
            && vocabulary.is_special(id)
        {
            self.catch_up().map_err(|refused| refused.at(at))?;
            if self.parser.validate_tokens(&[special]) == 1 {
                // The grammar names it.
                self.at = None;
                self.whitespace = 0;
                return self.give(&special_bytes(special), special).map_err(|refused| refused.at(at));
            }
        }
        if vocabulary.is_end(id) {
            return self.must_be_complete(Finding::EndsText { at });
        }
        // Of no token of the model's tokenizer nobody knows the text.
        if bytes.is_empty() {
            return Err(Finding::CannotContinue { at });
        }
        // Known by now is only that it leads out of the lexeme.
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
        self.at = None;
        let given = match self.behind.is_empty() {
            true => self.give(bytes, NO_TOKEN),
            false => {
                self.behind.extend_from_slice(bytes);
                self.catch_up()
            }
        };
        given.map_err(|refused| refused.at(at))?;
        self.count_whitespace(bytes, at)
    }

    /// A token that stays within the lexeme.
    fn follow(&mut self, bytes: &[u8], to: StateID, at: usize) -> Result<(), Finding> {
        self.at = Some(to);
        self.behind.extend_from_slice(bytes);
        if self.behind.len() > BEHIND_MAX {
            self.catch_up().map_err(|refused| refused.at(at))?;
        }
        self.count_whitespace(bytes, at)
    }

    /// Asks the lexer from where to where these bytes lead: to a dead state where they complete a lexeme or are not allowed.
    /// None where the parser is to see every token, and between two lexemes, where most tokens complete one.
    fn ask(&mut self, bytes: &[u8]) -> Option<(StateID, StateID)> {
        let is_within = self.at.is_some() || self.parser.has_pending_lexeme_bytes();
        if !is_within || self.paths.borrow().counts_tokens {
            return None;
        }
        let known = self.at;
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

    /// Gives the parser the bytes that it is behind with.
    fn catch_up(&mut self) -> Result<(), Refused> {
        if self.behind.is_empty() {
            return Ok(());
        }
        let behind = std::mem::take(&mut self.behind);
        let given = self.give(&behind, NO_TOKEN);
        self.behind = behind;
        self.behind.clear();
        given
    }

    fn give(&mut self, bytes: &[u8], id: u32) -> Result<(), Refused> {
        let work = |parser: &Parser| {
            let stats = parser.stats();
            LEXEME_COSTS * stats.rows + ITEM_COSTS * stats.all_items
        };
        let before = work(&self.parser);
        let given = self.parser.apply_token(bytes, id);
        self.costs += bytes.len() + work(&self.parser).saturating_sub(before);
        self.learned();
        // Past a limit, a parser may go on with less than the grammar.
        match (given, self.parser.get_error()) {
            (_, Some(error)) => Err(Refused::GaveUp(error.message())),
            (Ok(0), None) => Ok(()),
            (Ok(_), None) => Err(Refused::GaveUp("the grammar takes text back (stop=…)".into())),
            // Of this one it says nothing else.
            (Err(error), None) if error.to_string().starts_with("Current row has ") => {
                Err(Refused::GaveUp(error.to_string()))
            }
            (Err(_), None) => Err(Refused::Cannot),
        }
    }

    /// Counts what the lexer has learned since it was looked at last; whether it is past its limits.
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

/// Why the parser does not go on.
enum Refused {
    Cannot,
    GaveUp(String),
}

impl Refused {
    fn at(self, at: usize) -> Finding {
        match self {
            Refused::Cannot => Finding::CannotContinue { at },
            Refused::GaveUp(why) => Finding::GaveUp { why },
        }
    }
}
