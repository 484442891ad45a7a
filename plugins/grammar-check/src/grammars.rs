//! The compiled grammars: those of the settings, and a limited number that requests brought.
//!
//! This module decides how many grammars of requests stay and which one is replaced.

use afterbay_plugin::ConfigureError;

use crate::grammar::{GrammarKind, GrammarLimits};
use crate::{Compiler, Grammar, GrammarText, Marker, Matcher};

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
    grammar: Grammar,
    /// The number of requests that are checked against this grammar.
    users: usize,
    /// The value of [`Grammars::uses`] at its last use.
    last_use: u64,
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
        self.all.push(GrammarEntry { text: text.clone(), grammar, users: 0, last_use: 0 });
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

    /// The index of a grammar that a request brings, and whether it had to be compiled. A new grammar replaces
    /// the least recently used one that no request uses. The error is the reason why the request is not
    /// checked.
    pub(crate) fn bring(&mut self, text: GrammarText) -> Result<(usize, bool), String> {
        self.uses += 1;
        let last_use = self.uses;
        if let Some(index) = self.all.iter().position(|entry| entry.text == text) {
            self.all[index].last_use = last_use;
            return Ok((index, false));
        }
        let of_requests = self.all.iter().enumerate().skip(self.of_settings);
        let unused = of_requests.filter(|(_, entry)| entry.users == 0);
        let oldest = unused.min_by_key(|(_, entry)| entry.last_use).map(|(index, _)| index);
        let has_room = self.all.len() < self.of_settings + self.of_requests_max;
        if !has_room && oldest.is_none() {
            return Err(format!("{} grammars of requests are in use, the limit", self.of_requests_max));
        }
        let compiled = self.compiler.compile_brought(&text);
        let grammar = compiled.map_err(|why| format!("its grammar cannot be compiled: {why}"))?;
        let entry = GrammarEntry { text, grammar, users: 0, last_use };
        match oldest {
            Some(index) if !has_room => {
                self.all[index] = entry;
                Ok((index, true))
            }
            _ => {
                self.all.push(entry);
                Ok((self.all.len() - 1, true))
            }
        }
    }

    pub(crate) fn text(&self, index: usize) -> &GrammarText {
        &self.all[index].text
    }

    /// Whether the matchers of a grammar store the tokens of their texts.
    pub(crate) fn stores_tokens(&self, index: usize) -> bool {
        matches!(self.all[index].grammar.kind, GrammarKind::Lark(_))
    }

    /// A matcher of a grammar.
    pub(crate) fn matcher(
        &self,
        index: usize,
        whitespace_max: u32,
        begins_after: Option<&Marker>,
    ) -> Matcher {
        self.all[index].grammar.matcher(whitespace_max, begins_after)
    }

    #[cfg(test)]
    pub(crate) fn learned(&self, index: usize) -> usize {
        match &self.all[index].grammar.kind {
            GrammarKind::Json(_) => 0,
            GrammarKind::Regex(regex) => regex.memory(),
            GrammarKind::Lark(lark) => lark.learned(),
        }
    }

    /// Resets a grammar for the requests to come.
    pub(crate) fn renew(&mut self, index: usize) {
        self.all[index].grammar.renew();
    }
}
