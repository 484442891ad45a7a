//! Where tokens lead that stay within a lexeme, as inside a string: what the lexer has said of them, for all requests.
//!
//! The lexer is behind a lock that takes as long as a token does, and the parser keeps an account of each token that it
//! is given. Of a token that completes no lexeme only the state after it counts: that is found here without either, and the
//! parser is given many such tokens at once.

use std::cell::RefCell;
use std::rc::Rc;

use afterbay_plugin::TokenId;
use llguidance::derivre::StateID;
use llguidance::earley::Parser;

/// How many are known: a power of two. Of two that fall on one place the later stands.
const PATHS: usize = 8192;

/// What is known of tokens at states of a lexer. Empty until the first is.
#[derive(Default)]
pub(crate) struct Paths {
    known: Vec<Path>,
    /// The grammar counts tokens (`max_tokens`), so that its parser must see each: nothing is known here.
    pub(crate) counts_tokens: bool,
    /// Transitions that the lexer had when it was looked at last.
    pub(crate) transitions: usize,
}

#[derive(Clone, Copy)]
struct Path {
    from: StateID,
    token: u32,
    /// Dead: it does not stay within the lexeme.
    to: StateID,
}

impl Path {
    /// No parser is at a state that is none.
    const NONE: Path = Path { from: StateID::MISSING, token: u32::MAX, to: StateID::MISSING };
}

fn place(from: StateID, token: u32) -> usize {
    let both = u64::from(from.as_u32()) << 32 | u64::from(token);
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PATHS
}

impl Paths {
    /// Of a parser's lexer, of which nothing is known yet.
    pub(crate) fn of(parser: &Parser, counts_tokens: bool) -> Rc<RefCell<Paths>> {
        let transitions = parser.lexer_stats().num_transitions;
        Rc::new(RefCell::new(Paths { known: Vec::new(), counts_tokens, transitions }))
    }

    /// Where a token leads from this state.
    pub(crate) fn get(&self, from: StateID, token: TokenId) -> Option<StateID> {
        let token = u32::try_from(token).ok()?;
        let path = self.known.get(place(from, token))?;
        (path.from == from && path.token == token).then_some(path.to)
    }

    pub(crate) fn insert(&mut self, from: StateID, token: TokenId, to: StateID) {
        let Ok(token) = u32::try_from(token) else { return };
        if self.known.is_empty() {
            self.known = vec![Path::NONE; PATHS];
        }
        self.known[place(from, token)] = Path { from, token, to };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_last_of_a_state_and_a_token_is_known_and_of_no_other() {
        let mut paths = Paths::default();
        let state = StateID::new;
        assert_eq!(paths.get(state(7), 5), None);
        let all = || (2..12).flat_map(|from| (0..2000).map(move |token| (from, token)));
        for (from, token) in all() {
            paths.insert(state(from), token, state(from + token as u32));
        }
        let (mut known, mut last) = (0, 0);
        for (from, token) in all() {
            if let Some(to) = paths.get(state(from), token) {
                assert_eq!(to, state(from + token as u32));
                known += 1;
                last = token;
            }
        }
        assert!((PATHS / 2..=PATHS).contains(&known), "{known}");
        assert_eq!(last, 1999, "the last one is");
        assert_eq!(paths.get(state(12), 0), None);
    }
}
