//! The grammars that are compiled: those of the settings, and some that requests have brought.
//!
//! Owns how many of these there are, and which goes first. When one is compiled, the check says: it takes a call's time.

use afterbay_plugin::ConfigureError;
use llguidance::earley::Parser;

use crate::grammar::Limits;
use crate::rules::How;
use crate::{Compiler, Grammar, GrammarText, Matcher};

/// Parsers that are made before they are asked for, of each grammar: making one takes some 4 times as long as a token.
const SPARES_MAX: usize = 256;

pub(crate) struct Grammars {
    compiler: Compiler,
    of_settings: Limits,
    /// By place, which stays: those of the settings first.
    all: Vec<Entry>,
    settings: usize,
    /// So many more may be kept.
    of_requests_max: usize,
    /// How often one was asked for.
    asked: u64,
}

struct Entry {
    text: GrammarText,
    state: State,
    /// Parsers at the beginning of a text.
    spares: Vec<Parser>,
    /// Requests that are checked against it.
    users: usize,
    asked: u64,
}

/// What has become of a grammar.
pub(crate) enum State {
    /// It is yet to be compiled.
    New,
    /// It may be matched.
    Compiled(Box<Grammar>),
    /// It cannot be compiled, for this reason.
    Wrong(String),
}

impl Grammars {
    pub(crate) fn new(compiler: Compiler, of_settings: Limits, of_requests_max: usize) -> Self {
        Self { compiler, of_settings, all: Vec::new(), settings: 0, of_requests_max, asked: 0 }
    }

    /// Compiles one of the settings. Its place.
    pub(crate) fn add(&mut self, text: &GrammarText) -> Result<usize, ConfigureError> {
        if let Some(place) = self.all.iter().position(|entry| entry.text == *text) {
            return Ok(place);
        }
        let grammar = self.compiler.compile_for(&self.of_settings, text)?;
        let state = State::Compiled(Box::new(grammar));
        self.all.push(Entry { text: text.clone(), state, spares: Vec::new(), users: 0, asked: 0 });
        self.settings = self.all.len();
        Ok(self.settings - 1)
    }

    /// A request is to be checked against the grammar of this place.
    pub(crate) fn enter(&mut self, place: usize) {
        self.all[place].users += 1;
    }

    /// A request that was is no more.
    pub(crate) fn leave(&mut self, place: usize) {
        self.all[place].users -= 1;
    }

    /// The place of one that a request brings: it may be there, or comes in the place of the one that nobody has asked for
    /// for the longest time. The error is why there is no room.
    pub(crate) fn bring(&mut self, text: GrammarText) -> Result<usize, String> {
        self.asked += 1;
        let asked = self.asked;
        if let Some(place) = self.all.iter().position(|entry| entry.text == text) {
            self.all[place].asked = asked;
            return Ok(place);
        }
        let entry = Entry { text, state: State::New, spares: Vec::new(), users: 0, asked };
        if self.all.len() < self.settings + self.of_requests_max {
            self.all.push(entry);
            return Ok(self.all.len() - 1);
        }
        let of_requests = self.all.iter().enumerate().skip(self.settings);
        let free = of_requests.filter(|(_, entry)| entry.users == 0);
        let Some((place, _)) = free.min_by_key(|(_, entry)| entry.asked) else {
            return Err(format!("{} grammars of requests are in use, the limit", self.of_requests_max));
        };
        self.all[place] = entry;
        Ok(place)
    }

    /// Compiles one that a request waits for, the one that was asked for first. Whether there was any.
    pub(crate) fn compile_next(&mut self) -> bool {
        let new = |entry: &&mut Entry| matches!(entry.state, State::New) && entry.users > 0;
        let Some(entry) = self.all.iter_mut().filter(new).min_by_key(|entry| entry.asked) else {
            return false;
        };
        entry.state = match self.compiler.compile_within(&Limits::OF_REQUESTS, &entry.text) {
            Ok(grammar) => State::Compiled(Box::new(grammar)),
            Err(why) => State::Wrong(why),
        };
        true
    }

    pub(crate) fn text(&self, place: usize) -> &GrammarText {
        &self.all[place].text
    }

    pub(crate) fn state(&self, place: usize) -> &State {
        &self.all[place].state
    }

    /// A matcher of a grammar that is compiled, and whether its parser was made just now.
    pub(crate) fn matcher(&mut self, place: usize, how: &How) -> Option<(Matcher, bool)> {
        let entry = &mut self.all[place];
        let State::Compiled(grammar) = &entry.state else { return None };
        let spare = entry.spares.pop();
        let is_made = spare.is_none();
        let parser = spare.unwrap_or_else(|| grammar.parser());
        Some((grammar.matcher_with(parser, how.whitespace_max, how.begins_after.as_ref()), is_made))
    }

    #[cfg(test)]
    pub(crate) fn learned(&self, place: usize) -> usize {
        let State::Compiled(grammar) = &self.all[place].state else { return 0 };
        grammar.learned()
    }

    /// Begins a grammar anew, for the requests to come.
    pub(crate) fn renew(&mut self, place: usize) {
        let entry = &mut self.all[place];
        if let State::Compiled(grammar) = &mut entry.state {
            grammar.renew();
            entry.spares.clear();
        }
    }

    /// Makes at most so many parsers of the settings' grammars before they are asked for.
    pub(crate) fn spare(&mut self, at_most: usize) {
        let mut left = at_most;
        for entry in &mut self.all[..self.settings] {
            let State::Compiled(grammar) = &entry.state else { continue };
            while left > 0 && entry.spares.len() < SPARES_MAX {
                entry.spares.push(grammar.parser());
                left -= 1;
            }
        }
    }
}
