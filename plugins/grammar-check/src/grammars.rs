//! The compiled grammars: those of the settings, and a limited number that requests brought.
//!
//! This module decides how many grammars of requests stay and which one is replaced. The check decides when
//! one is compiled, because compiling takes a whole call.

use afterbay_plugin::ConfigureError;
use llguidance::earley::Parser;

use crate::grammar::GrammarLimits;
use crate::{Compiler, Grammar, GrammarText, Marker, Matcher};

/// The spare parsers of each grammar. Making a parser takes about 4 times as long as a token.
const SPARES_MAX: usize = 256;

pub(crate) struct Grammars {
    compiler: Compiler,
    settings_limits: GrammarLimits,
    /// The grammars by index; those of the settings come first and an index stays valid.
    all: Vec<GrammarEntry>,
    /// The number of grammars of the settings.
    of_settings: usize,
    /// The most grammars of requests.
    of_requests_max: usize,
    /// A counter of the uses of grammars of requests, for the least recently used one.
    uses: u64,
}

struct GrammarEntry {
    text: GrammarText,
    state: GrammarState,
    /// Spare parsers at the beginning of a text.
    spares: Vec<Parser>,
    /// The number of requests that are checked against this grammar.
    users: usize,
    /// The value of [`Grammars::uses`] at its last use.
    last_use: u64,
}

/// The state of a grammar.
pub(crate) enum GrammarState {
    /// The grammar is not compiled yet.
    New,
    /// The grammar is ready.
    Compiled(Box<Grammar>),
    /// The grammar cannot be compiled, for this reason.
    Invalid(String),
}

impl Grammars {
    pub(crate) fn new(compiler: Compiler, settings_limits: GrammarLimits, of_requests_max: usize) -> Self {
        Self { compiler, settings_limits, all: Vec::new(), of_settings: 0, of_requests_max, uses: 0 }
    }

    /// Compiles a grammar of the settings and returns its index.
    pub(crate) fn add(&mut self, text: &GrammarText) -> Result<usize, ConfigureError> {
        if let Some(index) = self.all.iter().position(|entry| entry.text == *text) {
            return Ok(index);
        }
        let grammar = self.compiler.compile_for(&self.settings_limits, text)?;
        let state = GrammarState::Compiled(Box::new(grammar));
        self.all.push(GrammarEntry { text: text.clone(), state, spares: Vec::new(), users: 0, last_use: 0 });
        self.of_settings = self.all.len();
        Ok(self.of_settings - 1)
    }

    /// Adds a request to the users of the grammar of this index.
    pub(crate) fn add_user(&mut self, index: usize) {
        self.all[index].users += 1;
    }

    /// Removes a request from the users of the grammar of this index.
    pub(crate) fn remove_user(&mut self, index: usize) {
        self.all[index].users -= 1;
    }

    /// The index of a grammar that a request brings. A new grammar replaces the least recently used one that
    /// no request uses. The error is the reason why there is no room.
    pub(crate) fn bring(&mut self, text: GrammarText) -> Result<usize, String> {
        self.uses += 1;
        let last_use = self.uses;
        if let Some(index) = self.all.iter().position(|entry| entry.text == text) {
            self.all[index].last_use = last_use;
            return Ok(index);
        }
        let entry = GrammarEntry { text, state: GrammarState::New, spares: Vec::new(), users: 0, last_use };
        if self.all.len() < self.of_settings + self.of_requests_max {
            self.all.push(entry);
            return Ok(self.all.len() - 1);
        }
        let of_requests = self.all.iter().enumerate().skip(self.of_settings);
        let unused = of_requests.filter(|(_, entry)| entry.users == 0);
        let Some((index, _)) = unused.min_by_key(|(_, entry)| entry.last_use) else {
            return Err(format!("{} grammars of requests are in use, the limit", self.of_requests_max));
        };
        self.all[index] = entry;
        Ok(index)
    }

    /// Compiles the least recently requested grammar that a request waits for. Returns false if there is
    /// none.
    pub(crate) fn compile_next(&mut self) -> bool {
        let is_needed =
            |entry: &&mut GrammarEntry| matches!(entry.state, GrammarState::New) && entry.users > 0;
        let Some(entry) = self.all.iter_mut().filter(is_needed).min_by_key(|entry| entry.last_use) else {
            return false;
        };
        entry.state = match self.compiler.compile_within(&GrammarLimits::OF_REQUESTS, &entry.text) {
            Ok(grammar) => GrammarState::Compiled(Box::new(grammar)),
            Err(reason) => GrammarState::Invalid(reason),
        };
        true
    }

    pub(crate) fn text(&self, index: usize) -> &GrammarText {
        &self.all[index].text
    }

    pub(crate) fn state(&self, index: usize) -> &GrammarState {
        &self.all[index].state
    }

    /// A matcher of a compiled grammar, and whether its parser had to be made. `None` if the grammar is not
    /// compiled.
    pub(crate) fn matcher(
        &mut self,
        index: usize,
        whitespace_max: u32,
        begins_after: Option<&Marker>,
    ) -> Option<(Matcher, bool)> {
        let entry = &mut self.all[index];
        let GrammarState::Compiled(grammar) = &entry.state else { return None };
        let spare = entry.spares.pop();
        let is_new = spare.is_none();
        let parser = spare.unwrap_or_else(|| grammar.parser());
        Some((grammar.matcher_with(parser, whitespace_max, begins_after), is_new))
    }

    #[cfg(test)]
    pub(crate) fn learned(&self, index: usize) -> usize {
        let GrammarState::Compiled(grammar) = &self.all[index].state else { return 0 };
        grammar.learned()
    }

    /// Resets a grammar for the requests to come.
    pub(crate) fn renew(&mut self, index: usize) {
        let entry = &mut self.all[index];
        if let GrammarState::Compiled(grammar) = &mut entry.state {
            grammar.renew();
            entry.spares.clear();
        }
    }

    /// Makes at most `count` spare parsers for the grammars of the settings.
    pub(crate) fn make_spares(&mut self, mut count: usize) {
        for entry in &mut self.all[..self.of_settings] {
            let GrammarState::Compiled(grammar) = &entry.state else { continue };
            while count > 0 && entry.spares.len() < SPARES_MAX {
                entry.spares.push(grammar.parser());
                count -= 1;
            }
        }
    }
}
