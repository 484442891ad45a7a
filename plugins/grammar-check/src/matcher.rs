//! One request's text, against the grammar.

use std::rc::Rc;

use afterbay_plugin::{FinishKind, TokenId};
use llguidance::earley::Parser;

use crate::Vocabulary;
use crate::grammar::special_bytes;

/// What is found of a request: once at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The grammar does not allow the row's token at this place, or the output was to end before it.
    CannotContinue {
        /// Its place among the row's ids.
        at: usize,
    },
    /// The text ends before the grammar is complete.
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
    pub(crate) fn new(parser: Parser, whitespace_max: u32, begins_after: Option<&Marker>) -> Self {
        let state = match begins_after {
            Some(marker) => State::Before(Before { marker: marker.clone(), tail: Vec::new() }),
            None => State::Matching,
        };
        Self { parser, state, whitespace_max, whitespace: 0 }
    }

    /// What was done beyond looking at bytes, in the time that a token inside a string takes: each lexeme that was completed.
    pub(crate) fn work(&self) -> usize {
        let stats = self.parser.stats();
        2 * stats.rows + stats.all_items / 3
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
            if self.is_complete() {
                self.state = State::Ended;
                return Ok(());
            }
            let pushed = self.push(vocabulary, &[*last]);
            return match pushed {
                Ok(()) => self.must_be_complete(None),
                Err(Finding::GaveUp { why }) => Err(Finding::GaveUp { why }),
                Err(_) => Err(Finding::TooEarly { at: Some(before.len()) }),
            };
        }
        self.push(vocabulary, ids)?;
        if matches!(finish, FinishKind::Abort | FinishKind::Running) {
            Ok(())
        } else {
            self.must_be_complete(None)
        }
    }

    fn must_be_complete(&mut self, at: Option<usize>) -> Result<(), Finding> {
        let complete = self.is_complete();
        self.state = if complete { State::Ended } else { State::Done };
        if complete { Ok(()) } else { Err(Finding::TooEarly { at }) }
    }

    /// Whether the text may end here. True after a finding: nothing more is to be found.
    fn is_complete(&mut self) -> bool {
        match &mut self.state {
            State::Before(_) => false,
            State::Matching => self.parser.is_accepting(),
            State::Ended | State::Done => true,
        }
    }

    fn token(&mut self, vocabulary: &Vocabulary, id: TokenId, at: usize) -> Result<(), Finding> {
        let mut bytes = vocabulary.bytes(id);
        if let State::Before(before) = &mut self.state {
            let Some(rest) = before.rest(id, bytes) else {
                // Other special tokens (`<think>`) end nothing here.
                return if vocabulary.is_eos(id) { self.must_be_complete(Some(at)) } else { Ok(()) };
            };
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
        let parser = &mut self.parser;
        let cannot = |parser: &Parser| match parser.get_error() {
            Some(error) => Finding::GaveUp { why: error.message() },
            None => Finding::CannotContinue { at },
        };
        if let Ok(special) = u32::try_from(id)
            && vocabulary.is_special(id)
            && parser.validate_tokens(&[special]) == 1
        {
            // The grammar names it.
            parser.apply_token(&special_bytes(special), special).map_err(|_| cannot(parser))?;
            self.whitespace = 0;
            return Ok(());
        }
        if vocabulary.is_end(id) {
            return self.must_be_complete(Some(at));
        }
        // Of no token of the model's tokenizer nobody knows the text.
        if bytes.is_empty() {
            return Err(Finding::CannotContinue { at });
        }
        match parser.apply_token(bytes, vocabulary.size()) {
            Ok(0) => {}
            Ok(_) => return Err(Finding::GaveUp { why: "the grammar takes text back (stop=…)".into() }),
            Err(_) => return Err(cannot(parser)),
        }
        // Past a limit, a parser may go on with less than the grammar.
        if let Some(error) = parser.get_error() {
            return Err(Finding::GaveUp { why: error.message() });
        }
        self.count_whitespace(bytes, at)
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
