//! The automaton: all patterns as one, made while texts run through it.
//!
//! A state of the automaton is an ordered list of *candidates*, oldest first. A candidate is a set of NFA states
//! that were all reached from one start position. The position itself is not in the state: each request keeps one
//! [`Thread`](crate::scan::Thread) for each candidate. A transition says which candidates live on, which one is
//! new, and which ones are a match here. So one look-up per byte gives the earliest start of all texts that may
//! still become a match, and the automaton reads each byte once.
//!
//! Two candidates with the same NFA state have the same future. The older one keeps the state, because its match
//! covers that of the younger one. A candidate without states is dead.
//!
//! Word borders depend on the byte after. A state therefore holds NFA states from before the borders were looked
//! at, and a transition looks at them with the byte in hand. The last transition of a text is that of its end.
//!
//! Behind an escape of JSON with a letter (see [`Escape`]) a text has two readings. The candidate that begins there stands before
//! the candidates that began inside of the escape: what both can become is a match of the former.

use std::collections::HashMap;

use regex_automata::nfa::thompson::{NFA, State};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::StateID;

use crate::escapes::Escape;

/// The most candidates of a text at once. Past this number, the two youngest become one, with the older start.
pub const CANDIDATES_MAX: usize = 32;
/// Past this number of states, the table starts anew between two batches. Tests start it anew often.
pub const STATES_MAX: usize = if cfg!(test) { 256 } else { 8192 };

/// Stands for the candidate that begins at the present byte.
pub const FRESH: u8 = u8::MAX;

/// A set of patterns, one bit for each: at most 64. Words are one pattern, the settings have up to 32, the presets 13.
pub type PatternSet = u64;

/// The number of a state.
pub type StateIndex = u32;

/// The facts before a byte, as far as borders look at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Before {
    /// The character before is part of a word, if it is no escape.
    joins: bool,
    escape: Escape,
    /// The number of candidates that began inside of the escape: the last ones.
    inside: u8,
    is_text_start: bool,
    is_line_start: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StateKey {
    before: Before,
    /// The NFA states of each candidate, sorted.
    candidates: Box<[Box<[StateID]>]>,
}

/// A transition that is more than a new state.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The state after.
    pub next: StateIndex,
    /// For each candidate after, the index of the candidate before, or [`FRESH`].
    pub survivors: Box<[u8]>,
    /// The byte belongs to an escape that has begun before, or an escape ends before it.
    pub is_escaped: bool,
    /// The candidates before that match up to this byte, without the byte.
    pub matches: Box<[(u8, PatternSet)]>,
    /// The candidates before, or [`FRESH`], that match up to this byte and with it, and cannot become longer.
    pub complete: Box<[(u8, PatternSet)]>,
}

/// The effect of a byte.
pub enum Step<'a> {
    /// All candidates live on.
    Simple(StateIndex),
    /// Candidates begin, match or die.
    Full(&'a Transition),
}

/// The automaton. Its table grows while texts run through it.
pub struct Automaton {
    nfa: NFA,
    /// For each NFA state, the patterns that it is a part of.
    patterns_of: Vec<PatternSet>,
    /// For each byte, its class: bytes of a class are the same to every state.
    classes: Box<[u8; 256]>,
    /// A byte of each class. The class after them is the end of the text.
    class_bytes: Vec<u8>,
    looks_at_words: bool,
    looks_at_text_start: bool,
    looks_at_lines: bool,
    keys: Vec<StateKey>,
    /// For each state, the patterns of each candidate.
    candidate_patterns: Vec<Box<[PatternSet]>>,
    by_key: HashMap<StateKey, StateIndex>,
    /// For each state and class: 0 if unknown, the next state with [`SIMPLE`], or the index of a transition plus 1.
    table: Vec<u32>,
    transitions: Vec<Transition>,
    work: Work,
}

const SIMPLE: u32 = 1 << 31;

/// Memory that is used again for each new transition.
#[derive(Default)]
struct Work {
    stack: Vec<StateID>,
    visited: Marks,
    claimed: Marks,
    reached: Vec<StateID>,
}

/// A set of NFA states that is emptied in no time.
#[derive(Default)]
struct Marks {
    rounds: Vec<u32>,
    round: u32,
}

impl Marks {
    fn clear(&mut self, states: usize) {
        self.rounds.resize(states, 0);
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.rounds.fill(0);
            self.round = 1;
        }
    }

    fn insert(&mut self, state: StateID) -> bool {
        let round = &mut self.rounds[state.as_usize()];
        std::mem::replace(round, self.round) != self.round
    }
}

/// Whether a character that starts with this byte is part of a word. A continuation byte has the answer of its
/// character.
///
/// Words are joined by ASCII letters, digits and `_`, and by the characters U+00C0 to U+07FF and U+0800 to U+1FFF:
/// the alphabets of Europe, the Near East and India. Punctuation and symbols from U+2000 on join nothing. Neither do
/// the scripts of East Asia, in which words stand side by side without spaces.
pub fn joins_words(byte: u8, before: bool) -> bool {
    match byte {
        0x80..=0xBF => before,
        0xC3..=0xE1 => true,
        _ => byte.is_ascii_alphanumeric() || byte == b'_',
    }
}

impl Automaton {
    /// The automaton of these patterns. Each pattern of the NFA matches at least one byte.
    pub fn new(nfa: NFA) -> Self {
        let looks = nfa.look_set_any();
        let patterns_of = patterns_of(&nfa);
        let (classes, class_bytes) = classes(&nfa);
        let mut automaton = Self {
            looks_at_words: looks.contains_word(),
            looks_at_text_start: looks.contains(Look::Start) || looks.contains(Look::StartLF),
            looks_at_lines: looks.contains(Look::StartLF),
            nfa,
            patterns_of,
            classes,
            class_bytes,
            keys: Vec::new(),
            candidate_patterns: Vec::new(),
            by_key: HashMap::new(),
            table: Vec::new(),
            transitions: Vec::new(),
            work: Work::default(),
        };
        automaton.start(true);
        automaton
    }

    /// The state of an empty text. Without `is_text_start`, the text began before.
    pub fn start(&mut self, is_text_start: bool) -> StateIndex {
        let before = Before {
            is_text_start: self.looks_at_text_start && is_text_start,
            is_line_start: self.looks_at_lines && is_text_start,
            ..Before::default()
        };
        self.state(StateKey { before, candidates: Box::default() })
    }

    /// The number of states.
    pub fn states(&self) -> usize {
        self.keys.len()
    }

    /// The bytes of the table and of all that belongs to it.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let of_key = |key: &StateKey| {
            let states: usize = key.candidates.iter().map(|states| 16 + 4 * states.len()).sum();
            size_of::<StateKey>() + states
        };
        let of_transition = |transition: &Transition| {
            let Transition { survivors, matches, complete, .. } = transition;
            size_of::<Transition>() + survivors.len() + 16 * (matches.len() + complete.len())
        };
        let keys: usize = self.keys.iter().map(of_key).sum();
        let patterns: usize = self.candidate_patterns.iter().map(|patterns| 16 + 8 * patterns.len()).sum();
        let transitions: usize = self.transitions.iter().map(of_transition).sum();
        // Each key is in the list and in the map.
        2 * keys + patterns + 4 * self.table.len() + transitions
    }

    /// The patterns of a state's candidate.
    pub fn patterns(&self, state: StateIndex, candidate: usize) -> PatternSet {
        self.candidate_patterns[state as usize].get(candidate).copied().unwrap_or(0)
    }

    /// Whether the text ends inside of an escape.
    pub fn is_in_escape(&self, state: StateIndex) -> bool {
        self.keys[state as usize].before.escape.is_open()
    }

    /// The effect of a byte.
    #[inline]
    pub fn step(&mut self, state: StateIndex, byte: u8) -> Step<'_> {
        let class = self.classes[usize::from(byte)];
        self.step_class(state, usize::from(class))
    }

    /// The effect of the end of the text.
    pub fn step_end(&mut self, state: StateIndex) -> Step<'_> {
        self.step_class(state, self.class_bytes.len())
    }

    #[inline]
    fn step_class(&mut self, state: StateIndex, class: usize) -> Step<'_> {
        let at = state as usize * self.stride() + class;
        let mut entry = self.table[at];
        if entry == 0 {
            entry = self.make(state, class);
            self.table[at] = entry;
        }
        if entry & SIMPLE != 0 {
            return Step::Simple(entry & !SIMPLE);
        }
        Step::Full(&self.transitions[entry as usize - 1])
    }

    fn stride(&self) -> usize {
        self.class_bytes.len() + 1
    }

    /// Forgets all states but these, which get new numbers.
    pub fn shrink<'a>(&mut self, used: impl Iterator<Item = &'a mut StateIndex>) {
        let keys = std::mem::take(&mut self.keys);
        self.candidate_patterns.clear();
        self.by_key.clear();
        self.table.clear();
        self.transitions.clear();
        self.start(true);
        for state in used {
            *state = self.state(keys[*state as usize].clone());
        }
    }

    fn state(&mut self, key: StateKey) -> StateIndex {
        if let Some(&state) = self.by_key.get(&key) {
            return state;
        }
        let state = self.keys.len() as StateIndex;
        let patterns = key.candidates.iter().map(|states| {
            states.iter().fold(0, |patterns, state| patterns | self.patterns_of[state.as_usize()])
        });
        self.candidate_patterns.push(patterns.collect());
        self.keys.push(key.clone());
        self.by_key.insert(key, state);
        self.table.resize(self.keys.len() * self.stride(), 0);
        state
    }

    /// Makes the table's entry for a state and a class.
    fn make(&mut self, state: StateIndex, class: usize) -> u32 {
        let key = self.keys[state as usize].clone();
        let byte = self.class_bytes.get(class).copied();
        let mut work = std::mem::take(&mut self.work);
        work.claimed.clear(self.nfa.states().len());
        let (mut candidates, mut survivors) = (Vec::<Box<[StateID]>>::new(), Vec::new());
        let (mut matches, mut complete) = (Vec::new(), Vec::new());
        let fresh = [self.nfa.start_anchored()];
        let escape = key.before.escape;
        let inside_from = key.candidates.len() - usize::from(key.before.inside);
        let fresh_at = if escape.is_open() { key.candidates.len() } else { inside_from };
        let mut all: Vec<(u8, &[StateID])> =
            (0..).zip(key.candidates.iter().map(|states| &**states)).collect();
        all.insert(fresh_at, (FRESH, &fresh[..]));
        // The candidates that began inside of the escape read its bytes as they are.
        let as_it_is = Before { escape: Escape::None, ..key.before };
        for (index, states) in all {
            let is_inside = index != FRESH && usize::from(index) >= inside_from;
            let before = if is_inside { as_it_is } else { key.before };
            let matched = self.step_candidate(states, before, byte, &mut work);
            if matched != 0 && index != FRESH {
                matches.push((index, matched));
            }
            // An older candidate keeps a state that both have.
            let Work { reached, claimed, .. } = &mut work;
            reached.retain(|state| claimed.insert(*state));
            reached.sort_unstable();
            if reached.is_empty() {
                continue;
            }
            let mut states = std::mem::take(reached);
            match self.end_of(&states, &mut work) {
                Some(patterns) => complete.push((index, patterns)),
                None if candidates.len() == CANDIDATES_MAX => {
                    // The youngest candidate takes the states over.
                    let last = candidates.last_mut().map(std::mem::take).unwrap_or_default();
                    states.extend(last);
                    states.sort_unstable();
                    candidates.pop();
                    candidates.push(states.into());
                }
                None => {
                    candidates.push(states.into());
                    survivors.push(index);
                }
            }
        }
        self.work = work;
        let next_escape = byte.map_or(Escape::None, |byte| escape.step(byte));
        if next_escape.is_behind_number(escape) {
            // The digits of a whole number are no text.
            complete.retain(|(index, _)| usize::from(*index) < inside_from);
            survivors.retain(|index| usize::from(*index) < inside_from);
            candidates.truncate(survivors.len());
        }
        let inside = survivors.iter().filter(|index| usize::from(**index) >= inside_from).count();
        let before = Before {
            joins: self.looks_at_words && byte.is_some_and(|byte| joins_words(byte, key.before.joins)),
            escape: next_escape,
            // At most 32 candidates.
            inside: if next_escape.goes_on_from(escape) { inside as u8 } else { 0 },
            is_text_start: false,
            is_line_start: self.looks_at_lines && byte == Some(b'\n'),
        };
        let next = self.state(StateKey { before, candidates: candidates.into() });
        let all_survive = survivors.iter().copied().eq((0..).take(key.candidates.len()));
        if all_survive && matches.is_empty() && complete.is_empty() {
            return next | SIMPLE;
        }
        let (survivors, matches, complete) = (survivors.into(), matches.into(), complete.into());
        let is_escaped = escape != Escape::None;
        self.transitions.push(Transition { next, survivors, is_escaped, matches, complete });
        self.transitions.len() as u32
    }

    /// Puts into `work.reached` the NFA states after the byte. Returns the patterns that match before the byte.
    fn step_candidate(
        &self,
        from: &[StateID],
        before: Before,
        byte: Option<u8>,
        work: &mut Work,
    ) -> PatternSet {
        let mut matched = 0;
        let Work { stack, visited, reached, .. } = work;
        visited.clear(self.nfa.states().len());
        stack.extend_from_slice(from);
        while let Some(id) = stack.pop() {
            if !visited.insert(id) {
                continue;
            }
            match self.nfa.state(id) {
                State::ByteRange { trans } => {
                    reached.extend(byte.filter(|byte| trans.matches_byte(*byte)).map(|_| trans.next));
                }
                State::Sparse(sparse) => reached.extend(byte.and_then(|byte| sparse.matches_byte(byte))),
                State::Dense(dense) => reached.extend(byte.and_then(|byte| dense.matches_byte(byte))),
                State::Look { look, next } => {
                    if holds(*look, before, byte) {
                        stack.push(*next);
                    }
                }
                State::Union { alternates } => stack.extend_from_slice(alternates),
                State::BinaryUnion { alt1, alt2 } => stack.extend([*alt1, *alt2]),
                State::Capture { next, .. } => stack.push(*next),
                State::Fail => {}
                State::Match { pattern_id } => matched |= 1 << pattern_id.as_usize(),
            }
        }
        matched
    }

    /// The patterns that match in these states, if nothing can follow and no border must be looked at.
    fn end_of(&self, states: &[StateID], work: &mut Work) -> Option<PatternSet> {
        let mut matched = 0;
        let Work { stack, visited, .. } = work;
        visited.clear(self.nfa.states().len());
        stack.extend_from_slice(states);
        while let Some(id) = stack.pop() {
            if !visited.insert(id) {
                continue;
            }
            match self.nfa.state(id) {
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) | State::Look { .. } => {
                    stack.clear();
                    return None;
                }
                State::Union { alternates } => stack.extend_from_slice(alternates),
                State::BinaryUnion { alt1, alt2 } => stack.extend([*alt1, *alt2]),
                State::Capture { next, .. } => stack.push(*next),
                State::Fail => {}
                State::Match { pattern_id } => matched |= 1 << pattern_id.as_usize(),
            }
        }
        Some(matched)
    }
}

/// Whether the border is here. `None` is the end of the text. Behind an escape, a border of words is here if it is here
/// in one of the two readings.
fn holds(look: Look, before: Before, byte: Option<u8>) -> bool {
    let after = byte.is_some_and(|byte| joins_words(byte, before.joins));
    let (escape_joins, is_escaped_newline) = match before.escape {
        Escape::Behind { joins, is_newline } => (joins, is_newline),
        _ => (before.joins, false),
    };
    let of_words = |holds: fn(bool, bool) -> bool| holds(before.joins, after) || holds(escape_joins, after);
    match look {
        Look::Start => before.is_text_start,
        Look::End => byte.is_none(),
        Look::StartLF => before.is_text_start || before.is_line_start || is_escaped_newline,
        Look::EndLF => byte.is_none_or(|byte| byte == b'\n'),
        Look::WordAscii | Look::WordUnicode => of_words(|before, after| before != after),
        Look::WordAsciiNegate | Look::WordUnicodeNegate => of_words(|before, after| before == after),
        Look::WordStartAscii | Look::WordStartUnicode => of_words(|before, after| !before && after),
        Look::WordEndAscii | Look::WordEndUnicode => of_words(|before, after| before && !after),
        Look::WordStartHalfAscii | Look::WordStartHalfUnicode => of_words(|before, _| !before),
        Look::WordEndHalfAscii | Look::WordEndHalfUnicode => !after,
        // The settings refuse these.
        Look::StartCRLF | Look::EndCRLF => false,
    }
}

/// For each NFA state, the patterns from whose start it can be reached.
fn patterns_of(nfa: &NFA) -> Vec<PatternSet> {
    let mut patterns_of = vec![0; nfa.states().len()];
    for pattern in nfa.patterns() {
        let bit: PatternSet = 1 << pattern.as_usize();
        let mut stack: Vec<StateID> = nfa.start_pattern(pattern).into_iter().collect();
        while let Some(id) = stack.pop() {
            let patterns = &mut patterns_of[id.as_usize()];
            if *patterns & bit != 0 {
                continue;
            }
            *patterns |= bit;
            match nfa.state(id) {
                State::ByteRange { trans } => stack.push(trans.next),
                State::Sparse(sparse) => stack.extend(sparse.transitions.iter().map(|trans| trans.next)),
                State::Dense(dense) => {
                    stack.extend((0..=u8::MAX).filter_map(|byte| dense.matches_byte(byte)))
                }
                State::Look { next, .. } | State::Capture { next, .. } => stack.push(*next),
                State::Union { alternates } => stack.extend_from_slice(alternates),
                State::BinaryUnion { alt1, alt2 } => stack.extend([*alt1, *alt2]),
                State::Fail | State::Match { .. } => {}
            }
        }
    }
    patterns_of
}

/// The class of each byte, and a byte of each class.
fn classes(nfa: &NFA) -> (Box<[u8; 256]>, Vec<u8>) {
    let mut classes = Box::new([0; 256]);
    let mut known = HashMap::new();
    let mut bytes = Vec::new();
    for byte in 0..=u8::MAX {
        let joins = [false, true].map(|before| joins_words(byte, before));
        let in_escape = Escape::class(byte);
        let class = (nfa.byte_classes().get(byte), joins, in_escape, byte == b'\n');
        let class = *known.entry(class).or_insert_with(|| {
            bytes.push(byte);
            // At most 256 classes.
            (bytes.len() - 1) as u8
        });
        classes[usize::from(byte)] = class;
    }
    (classes, bytes)
}
