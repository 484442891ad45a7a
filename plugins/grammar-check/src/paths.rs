//! The known paths: the lexer states to which tokens lead that stay within a lexeme, such as inside a string,
//! for all requests of a grammar.
//!
//! Asking the lexer takes a lock, which costs as much as a token, and the parser records each token that it
//! sees. If a token completes no lexeme, only the lexer state after it matters. A known path gives that state
//! without the lexer and the parser, and the parser later gets the bytes of many such tokens at once.

use std::cell::RefCell;
use std::rc::Rc;

use afterbay_plugin::TokenId;
use llguidance::derivre::StateID;
use llguidance::earley::Parser;

/// The size of the table, a power of two. A new path overwrites an old one with the same index.
const PATHS: usize = 8192;

/// The known paths of a lexer. The table is allocated at the first insertion.
#[derive(Default)]
pub(crate) struct Paths {
    known: Vec<TokenPath>,
    /// True if the grammar counts tokens (`max_tokens`). Its parser must see each token, so that no path is
    /// used.
    pub(crate) counts_tokens: bool,
    /// The number of the lexer's transitions when it was last read.
    pub(crate) transitions: usize,
}

#[derive(Clone, Copy)]
struct TokenPath {
    from: StateID,
    token: u32,
    /// The state after the token; dead if the token leaves the lexeme.
    to: StateID,
}

impl TokenPath {
    /// No parser is ever in the state `MISSING`.
    const NONE: TokenPath = TokenPath { from: StateID::MISSING, token: u32::MAX, to: StateID::MISSING };
}

fn table_index(from: StateID, token: u32) -> usize {
    let both = u64::from(from.as_u32()) << 32 | u64::from(token);
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PATHS
}

impl Paths {
    /// The empty table for the lexer of a parser.
    pub(crate) fn of(parser: &Parser, counts_tokens: bool) -> Rc<RefCell<Paths>> {
        let transitions = parser.lexer_stats().num_transitions;
        Rc::new(RefCell::new(Paths { known: Vec::new(), counts_tokens, transitions }))
    }

    /// The state to which a token leads, if the path is known.
    pub(crate) fn get(&self, from: StateID, token: TokenId) -> Option<StateID> {
        let token = u32::try_from(token).ok()?;
        let path = self.known.get(table_index(from, token))?;
        (path.from == from && path.token == token).then_some(path.to)
    }

    pub(crate) fn insert(&mut self, from: StateID, token: TokenId, to: StateID) {
        let Ok(token) = u32::try_from(token) else { return };
        if self.known.is_empty() {
            self.known = vec![TokenPath::NONE; PATHS];
        }
        self.known[table_index(from, token)] = TokenPath { from, token, to };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_until_another_one_overwrites_it() {
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
        assert_eq!(last, 1999, "the last one is known");
        assert_eq!(paths.get(state(12), 0), None);
    }
}
