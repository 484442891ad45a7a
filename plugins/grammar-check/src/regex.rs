//! Matches a whole text against a regular expression while it arrives.
//!
//! The automaton is built as texts need it. All requests of a grammar share it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::hybrid::{CacheError, LazyStateID};
use regex_automata::nfa::thompson;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

/// The limits of an expression.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegexLimits {
    /// The size of the compiled expression in bytes.
    pub(crate) compiled: usize,
    /// The size of the automaton that its texts build, in bytes.
    pub(crate) automaton: usize,
}

/// A compiled expression with its automaton.
#[derive(Debug)]
pub(crate) struct RegexGrammar {
    dfa: DFA,
    cache: RefCell<Cache>,
    /// For states that report a match: whether a text may go on or end there. The automaton reports a match one
    /// byte late, so that such a state may be the end of all.
    alive: RefCell<HashMap<LazyStateID, bool>>,
}

impl RegexGrammar {
    pub(crate) fn compile(pattern: &str, limits: RegexLimits) -> Result<Self, String> {
        let dfa = DFA::builder()
            .configure(
                DFA::config()
                    // A text must match as a whole, so that all alternatives count.
                    .match_kind(MatchKind::All)
                    .cache_capacity(limits.automaton)
                    .skip_cache_capacity_check(true)
                    // States must keep their ids: the automaton never forgets, but gives up.
                    .minimum_cache_clear_count(Some(0)),
            )
            .thompson(thompson::Config::new().nfa_size_limit(Some(limits.compiled)))
            .build(pattern)
            .map_err(|error| {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                source.unwrap_or_else(|| error.to_string())
            })?;
        Ok(Self::new(dfa))
    }

    fn new(dfa: DFA) -> Self {
        let cache = RefCell::new(dfa.create_cache());
        Self { dfa, cache, alive: RefCell::default() }
    }

    /// The same expression with an empty automaton.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.dfa.clone())
    }

    /// Whether a text may go on or end in a state that reports a match.
    fn is_alive(&self, cache: &mut Cache, state: LazyStateID) -> Result<bool, CacheError> {
        if let Some(alive) = self.alive.borrow().get(&state) {
            return Ok(*alive);
        }
        let mut alive = self.dfa.next_eoi_state(cache, state)?.is_match();
        for unit in self.dfa.byte_classes().representatives(0..=u8::MAX) {
            let (false, Some(byte)) = (alive, unit.as_u8()) else { break };
            alive = !self.dfa.next_state(cache, state, byte)?.is_dead();
        }
        self.alive.borrow_mut().insert(state, alive);
        Ok(alive)
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.cache.borrow().memory_usage()
    }
}

/// The reason why a text cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegexFault {
    NotAllowed,
    /// The automaton has reached its limit.
    TooMuch,
}

/// The place in a text.
#[derive(Debug)]
pub(crate) struct RegexStream {
    grammar: Rc<RegexGrammar>,
    /// `None` before the first byte.
    state: Option<LazyStateID>,
    /// The last state that is known to be alive.
    alive: Option<LazyStateID>,
    is_past_limits: bool,
}

impl RegexStream {
    pub(crate) fn new(grammar: Rc<RegexGrammar>) -> Self {
        Self { grammar, state: None, alive: None, is_past_limits: false }
    }

    pub(crate) fn is_past_limits(&self) -> bool {
        self.is_past_limits
    }

    fn too_much(&mut self) -> RegexFault {
        self.is_past_limits = true;
        RegexFault::TooMuch
    }

    fn state(&mut self, cache: &mut Cache) -> Result<LazyStateID, RegexFault> {
        if let Some(state) = self.state {
            return Ok(state);
        }
        let config = start::Config::new().anchored(Anchored::Yes);
        let state = self.grammar.dfa.start_state(cache, &config).map_err(|_| self.too_much())?;
        self.state = Some(state);
        Ok(state)
    }

    /// Adds text. Returns whether the automaton has grown.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<bool, RegexFault> {
        let grammar = self.grammar.clone();
        let mut cache = grammar.cache.borrow_mut();
        let before = cache.memory_usage();
        let mut state = self.state(&mut cache)?;
        for byte in bytes {
            state = grammar.dfa.next_state(&mut cache, state, *byte).map_err(|_| self.too_much())?;
            if state.is_tagged() && state.is_dead() {
                return Err(RegexFault::NotAllowed);
            }
        }
        if state.is_tagged() && state.is_match() && self.alive != Some(state) && !bytes.is_empty() {
            if !grammar.is_alive(&mut cache, state).map_err(|_| self.too_much())? {
                return Err(RegexFault::NotAllowed);
            }
            self.alive = Some(state);
        }
        self.state = Some(state);
        Ok(cache.memory_usage() != before)
    }

    /// Whether the text may end here.
    pub(crate) fn is_complete(&mut self) -> Result<bool, RegexFault> {
        let grammar = self.grammar.clone();
        let mut cache = grammar.cache.borrow_mut();
        let state = self.state(&mut cache)?;
        let end = grammar.dfa.next_eoi_state(&mut cache, state).map_err(|_| self.too_much())?;
        Ok(end.is_match())
    }
}
