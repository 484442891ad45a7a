//! The way of one request's text through the automaton: where its candidates began, and the matches that were
//! found.

use crate::automaton::{Automaton, FRESH, PatternSet, StateIndex, Step, Transition};
use crate::escapes::{ESCAPE_BYTES_MAX, Escape, open_bytes, plain};
use crate::patterns::{BEFORE_BYTES, Candidate, Check, Ends, Overlong, Patterns};

/// Longer candidates are looked at for their limits.
const CHECKED_FROM: u64 = 64;

/// A text that may still become a match.
#[derive(Clone, Debug, Default)]
struct Thread {
    start: u64,
    /// The bytes before `start` that belong to the escape in which `start` is, at most 16.
    escape_bytes: u8,
    /// The bytes before `start`, as [`plain`] text; 0 at the start of the text.
    before: [u8; BEFORE_BYTES],
    /// The longest match of each pattern so far.
    ends: Vec<(u8, u64)>,
    /// Set once a limit was reached: the text before `start` is masked, and the rest follows without a mask of its
    /// own.
    is_continued: bool,
}

/// A match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The position of its first byte, or of the escape that has this byte.
    pub start: u64,
    /// The position after its last byte. It is not inside of an escape.
    pub end: u64,
    /// The index of its pattern.
    pub pattern: u8,
    pub part: Part,
}

/// The part of a match that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The beginning of a match that is too long to wait for.
    First,
    /// More of a match of which a part was found before.
    Continued,
}

/// The state of one request's text.
#[derive(Clone, Debug)]
pub struct Scan {
    pub state: StateIndex,
    /// One for each candidate of the state.
    threads: Vec<Thread>,
    /// The number of bytes so far.
    position: u64,
    /// The last bytes.
    tail: [u8; ESCAPE_BYTES_MAX],
    /// The position of the escape that the text ends in.
    escape_from: Option<u64>,
}

/// The text of the request that can be read: all of it that belongs to live candidates.
pub trait Text {
    /// The text from a position up to another one.
    fn text(&self, from: u64, to: u64) -> &[u8];
}

impl Scan {
    /// The state before the first byte.
    pub fn new(automaton: &mut Automaton, is_text_start: bool) -> Self {
        let (state, threads, tail) = (automaton.start(is_text_start), Vec::new(), [0; ESCAPE_BYTES_MAX]);
        Self { state, threads, position: 0, tail, escape_from: None }
    }

    /// The position from which the text may still become a match.
    pub fn live_from(&self) -> Option<u64> {
        self.threads.iter().map(Thread::mask_start).chain(self.escape_from).min()
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
        for (at, &byte) in bytes.iter().enumerate() {
            match automaton.step(self.state, byte) {
                Step::Simple(next) => self.state = next,
                Step::Full(transition) => {
                    self.state = transition.next;
                    self.step(transition, &bytes[..=at], patterns, text, found);
                }
            }
            self.position += 1;
            if let Some(oldest) = self.threads.first()
                && self.position - oldest.start > CHECKED_FROM
            {
                self.limit(automaton, patterns, text, found);
            }
        }
        self.tail = self.last_bytes(bytes);
        let is_in_escape = automaton.is_in_escape(self.state);
        self.escape_from = is_in_escape.then(|| self.position - open_bytes(&self.tail) as u64);
    }

    /// The last bytes of the text, of which `read` is the end.
    fn last_bytes(&self, read: &[u8]) -> [u8; ESCAPE_BYTES_MAX] {
        if let Some(last) = read.last_chunk() {
            return *last;
        }
        let mut last = self.tail;
        last.copy_within(read.len().., 0);
        last[ESCAPE_BYTES_MAX - read.len()..].copy_from_slice(read);
        last
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
                self.step(transition, &[], patterns, text, found);
            }
        }
    }

    /// Applies a transition to the threads. `position` is still that of the byte, which is the last one of `read`.
    fn step(
        &mut self,
        transition: &Transition,
        read: &[u8],
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
        for &(index, matched) in &transition.complete {
            let mut thread = match index {
                FRESH => self.fresh(transition, read),
                index => match self.threads.get_mut(usize::from(index)) {
                    // The stand-in dies without a match.
                    Some(thread) => std::mem::take(thread),
                    None => continue,
                },
            };
            thread.matches(matched, position + 1, patterns, text);
            found.extend(thread.found(position + 1, patterns, text));
        }
        let (mut index, survivors) = (0, &transition.survivors);
        let fresh_at = survivors.iter().rposition(|index| *index == FRESH);
        let fresh = fresh_at.map(|_| self.fresh(transition, read));
        let mut survivors = survivors.iter().copied().filter(|index| *index != FRESH).peekable();
        self.threads.retain(|thread| {
            let survives = survivors.next_if_eq(&index).is_some();
            index += 1;
            if !survives {
                found.extend(thread.found(position, patterns, text));
            }
            survives
        });
        if let Some((at, fresh)) = fresh_at.zip(fresh) {
            self.threads.insert(at, fresh);
        }
    }

    /// The thread that begins with the last byte of `read`.
    fn fresh(&self, transition: &Transition, read: &[u8]) -> Thread {
        let (byte, read) = read.split_last().map_or((0, read), |(byte, read)| (*byte, read));
        let tail = self.last_bytes(read);
        let is_wide = tail[ESCAPE_BYTES_MAX - 3] == 0xEF;
        let mut thread = Thread { start: self.position, ..Thread::default() };
        if transition.is_escaped || is_wide {
            let plain = plain(&tail);
            let from = plain.len().saturating_sub(BEFORE_BYTES);
            thread.before[BEFORE_BYTES - (plain.len() - from)..].copy_from_slice(&plain[from..]);
            let escape = Escape::after(&tail);
            // At most 16 bytes.
            let open = if escape.step(byte).goes_on_from(escape) { open_bytes(&tail) } else { 0 };
            thread.escape_bytes = open as u8;
        } else {
            thread.before.copy_from_slice(&tail[ESCAPE_BYTES_MAX - BEFORE_BYTES..]);
        }
        thread
    }

    /// Bounds the threads.
    fn limit(
        &mut self,
        automaton: &Automaton,
        patterns: &Patterns,
        text: &impl Text,
        found: &mut Vec<Found>,
    ) {
        let (state, position) = (self.state, self.position);
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let of_thread = automaton.patterns(state, index);
            let candidate = Candidate { text: text.text(thread.start, position), before: thread.before };
            let (limit, overlong) = patterns.limit(of_thread, &candidate);
            if position - thread.start <= limit {
                continue;
            }
            let has_match = thread.longest(patterns, text).is_some();
            if has_match || thread.is_continued || overlong == Overlong::Act {
                // An escape at the end belongs to the text that follows.
                let (start, is_continued) = (thread.mask_start(), thread.is_continued);
                let end = position - open_bytes(text.text(start, position)) as u64;
                let pattern = of_thread.trailing_zeros() as u8;
                let part = if is_continued { Part::Continued } else { Part::First };
                found.push(Found { start, end, pattern, part });
                *thread = Thread { start: end, is_continued: true, ..Thread::default() };
            } else {
                // Later starts may have the same NFA states.
                let start = position - limit;
                thread.escape_bytes = open_bytes(text.text(thread.start, start)) as u8;
                (thread.start, thread.before) = (start, [0; BEFORE_BYTES]);
            }
        }
    }
}

impl Thread {
    /// The position at which a mask begins: never inside of an escape.
    fn mask_start(&self) -> u64 {
        self.start - u64::from(self.escape_bytes)
    }

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
        let is_right = |check: Check| {
            let text = plain(text.text(self.start, end));
            check(&Candidate { text: &text, before: self.before })
        };
        self.is_continued || patterns.get(pattern).check.is_none_or(is_right)
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
        let (end, pattern) = match self.longest(patterns, text) {
            Some(longest) => longest,
            // The beginning is masked already, so the rest does not pass either.
            None if self.is_continued => (position, 0),
            None => return None,
        };
        let (start, is_continued) = (self.mask_start(), self.is_continued);
        let end = end - open_bytes(text.text(start, end)) as u64;
        let part = if is_continued { Part::Continued } else { Part::Whole };
        (start < end).then_some(Found { start, end, pattern, part })
    }
}
