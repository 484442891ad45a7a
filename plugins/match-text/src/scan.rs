//! The way of one request's text through the automaton: where its candidates began, and the matches that were
//! found.

use crate::automaton::{Automaton, FRESH, PatternSet, StateIndex, Step, Transition};
use crate::patterns::{Candidate, Ends, Overlong, Patterns};

/// Longer candidates are looked at for their limits.
const CHECKED_FROM: u64 = 64;

/// A text that may still become a match.
#[derive(Clone, Debug)]
struct Thread {
    start: u64,
    /// The two bytes before `start`; 0 at the start of the text.
    before: [u8; 2],
    /// The longest match of each pattern so far.
    ends: Vec<(u8, u64)>,
    /// Set once a limit was reached: the text before `start` is masked, and the rest follows without a mask of its
    /// own.
    is_continued: bool,
}

/// A match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The position of its first byte.
    pub start: u64,
    /// The position after its last byte.
    pub end: u64,
    /// The index of its pattern.
    pub pattern: u8,
    /// Set if the match continues one that was found before.
    pub is_continued: bool,
}

/// The state of one request's text.
#[derive(Clone, Debug)]
pub struct Scan {
    pub state: StateIndex,
    /// One for each candidate of the state.
    threads: Vec<Thread>,
    /// The number of bytes so far.
    position: u64,
    /// The last two bytes.
    last: [u8; 2],
}

/// The text of the request that can be read: all of it that belongs to live candidates.
pub trait Text {
    /// The text from a position up to another one.
    fn text(&self, from: u64, to: u64) -> &[u8];
}

impl Scan {
    /// The state before the first byte.
    pub fn new(automaton: &mut Automaton, is_text_start: bool) -> Self {
        Self { state: automaton.start(is_text_start), threads: Vec::new(), position: 0, last: [0; 2] }
    }

    /// The position from which the text may still become a match.
    pub fn live_from(&self) -> Option<u64> {
        self.threads.iter().map(|thread| thread.start).min()
    }

    /// Reads the next bytes. `text` has them, too.
    pub fn read(
        &mut self,
        automaton: &mut Automaton,
        patterns: &Patterns,
        bytes: &[u8],
        text: &impl Text,
        found: &mut Vec<Found>,
    ) {
        for &byte in bytes {
            match automaton.step(self.state, byte) {
                Step::Simple(next) => self.state = next,
                Step::Full(transition) => {
                    self.state = transition.next;
                    self.step(transition, patterns, text, found);
                }
            }
            self.position += 1;
            self.last = [self.last[1], byte];
            if let Some(oldest) = self.threads.first()
                && self.position - oldest.start > CHECKED_FROM
            {
                let of_oldest = automaton.patterns(self.state, 0);
                self.limit(of_oldest, patterns, text, found);
            }
        }
    }

    /// Ends the text.
    pub fn end(
        &mut self,
        automaton: &mut Automaton,
        patterns: &Patterns,
        text: &impl Text,
        found: &mut Vec<Found>,
    ) {
        match automaton.step_end(self.state) {
            Step::Simple(next) => self.state = next,
            Step::Full(transition) => {
                self.state = transition.next;
                self.step(transition, patterns, text, found);
            }
        }
    }

    /// Applies a transition to the threads. `position` is still that of the byte.
    fn step(
        &mut self,
        transition: &Transition,
        patterns: &Patterns,
        text: &impl Text,
        found: &mut Vec<Found>,
    ) {
        let position = self.position;
        for &(index, matched) in &transition.matches {
            if let Some(thread) = self.threads.get_mut(usize::from(index)) {
                thread.matches(matched, position, patterns, text);
            }
        }
        let fresh = Thread { start: position, before: self.last, ends: Vec::new(), is_continued: false };
        for &(index, matched) in &transition.complete {
            let mut thread = match index {
                FRESH => fresh.clone(),
                index => match self.threads.get_mut(usize::from(index)) {
                    // The stand-in dies without a match.
                    Some(thread) => std::mem::replace(thread, fresh.clone()),
                    None => continue,
                },
            };
            thread.matches(matched, position + 1, patterns, text);
            found.extend(thread.found(position + 1, patterns, text));
        }
        let (mut index, mut survivors) = (0, transition.survivors.iter().copied().peekable());
        self.threads.retain(|thread| {
            let survives = survivors.next_if_eq(&index).is_some();
            index += 1;
            if !survives {
                found.extend(thread.found(position, patterns, text));
            }
            survives
        });
        if survivors.next_if_eq(&FRESH).is_some() {
            self.threads.push(fresh);
        }
    }

    /// Bounds the oldest thread: each thread in its turn becomes the oldest.
    fn limit(
        &mut self,
        of_oldest: PatternSet,
        patterns: &Patterns,
        text: &impl Text,
        found: &mut Vec<Found>,
    ) {
        let position = self.position;
        let Some(oldest) = self.threads.first_mut() else { return };
        let candidate = Candidate { text: text.text(oldest.start, position), before: oldest.before };
        let (limit, overlong) = patterns.limit(of_oldest, &candidate);
        let length = position - oldest.start;
        if length <= limit {
            return;
        }
        let fresh = Thread { start: position, before: [0; 2], ends: Vec::new(), is_continued: true };
        let has_match = oldest.longest(patterns, text).is_some();
        if has_match || oldest.is_continued || overlong == Overlong::Act {
            let pattern = of_oldest.trailing_zeros() as u8;
            let Thread { start, is_continued, .. } = std::mem::replace(oldest, fresh);
            found.push(Found { start, end: position, pattern, is_continued });
        } else {
            // Later starts may have the same NFA states.
            oldest.start = position - limit;
            oldest.before = [0; 2];
        }
    }
}

impl Thread {
    /// Notes matches of these patterns that end at this position.
    fn matches(&mut self, matched: PatternSet, end: u64, patterns: &Patterns, text: &impl Text) {
        let mut rest = matched;
        while rest != 0 {
            let pattern = rest.trailing_zeros() as u8;
            rest &= rest - 1;
            let rule = patterns.get(pattern);
            let is_valid = match rule.ends {
                Ends::LongestValid => self.is_valid(pattern, end, patterns, text),
                Ends::Longest => true,
            };
            if is_valid {
                match self.ends.iter_mut().find(|(known, _)| *known == pattern) {
                    Some((_, known)) => *known = end,
                    None => self.ends.push((pattern, end)),
                }
            }
        }
    }

    fn is_valid(&self, pattern: u8, end: u64, patterns: &Patterns, text: &impl Text) -> bool {
        let candidate = Candidate { text: text.text(self.start, end), before: self.before };
        patterns.get(pattern).check.is_none_or(|check| self.is_continued || check(&candidate))
    }

    /// The longest match, and its pattern.
    fn longest(&self, patterns: &Patterns, text: &impl Text) -> Option<(u64, u8)> {
        let ends = self.ends.iter().map(|(pattern, end)| (*end, *pattern));
        ends.filter(|&(end, pattern)| match patterns.get(pattern).ends {
            Ends::LongestValid => true,
            Ends::Longest => self.is_valid(pattern, end, patterns, text),
        })
        .max_by_key(|(end, _)| *end)
    }

    /// The thread's match, once the thread has ended.
    fn found(&self, position: u64, patterns: &Patterns, text: &impl Text) -> Option<Found> {
        let &Thread { start, is_continued, .. } = self;
        match self.longest(patterns, text) {
            Some((end, pattern)) => Some(Found { start, end, pattern, is_continued }),
            // The beginning is masked already, so the rest does not pass either.
            None if is_continued && start < position => {
                Some(Found { start, end: position, pattern: 0, is_continued })
            }
            None => None,
        }
    }
}
