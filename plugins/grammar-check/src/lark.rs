//! Lark grammars, which llguidance compiles and matches.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use afterbay_plugin::TokenId;
use llguidance::api::TopLevelGrammar;
use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, Parser, ParserRecognizer};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use crate::grammar::GrammarLimits;
use crate::matcher::{EngineStop, TOKEN_COSTS};
use crate::paths::Paths;
use crate::vocabulary::special_bytes;

/// The work of a token on a known path within a lexeme.
const PATH_COSTS: usize = 1;
/// The work of asking the lexer.
const ASKING_COSTS: usize = 4;
/// The work of a transition that the lexer learns.
const LEARNING_COSTS: usize = 8 * TOKEN_COSTS;
/// The work of a completed lexeme.
const LEXEME_COSTS: usize = 2 * TOKEN_COSTS;
/// The work of a parser item of a lexeme.
const ITEM_COSTS: usize = TOKEN_COSTS / 3;

/// The most bytes that wait before the parser gets them.
const WAITING_BYTES_MAX: usize = 256;
/// The token id for bytes of ordinary tokens.
const NO_TOKEN: u32 = u32::MAX;

/// Compiles Lark grammars over one vocabulary.
pub(crate) struct LarkCompiler {
    factory: ParserFactory,
    /// The id of the first of the 256 byte tokens, for [`explore`].
    first_byte: u32,
}

impl LarkCompiler {
    /// `size` and `special` are the vocabulary's number of ids and its special tokens.
    pub(crate) fn new(size: u32, special: &[TokenId]) -> Result<Self, String> {
        let capabilities = InferenceCapabilities::default();
        let mut factory = ParserFactory::new(&tokens(size, special), capabilities, &[])
            .map_err(|error| error.to_string())?;
        // A component has no standard error.
        factory.quiet();
        Ok(Self { factory, first_byte: size + 1 })
    }

    pub(crate) fn compile(&mut self, limits: &GrammarLimits, lark: &str) -> Result<LarkGrammar, String> {
        let given = self.factory.limits_mut();
        given.max_lexer_states = limits.lexer_states;
        given.initial_lexer_fuel = limits.lexer_fuel;
        given.max_grammar_size = limits.symbols;
        // This limit applies to each mask, and only one mask is ever made.
        given.step_lexer_fuel = u64::MAX;
        // For masks of the vocabulary, which this factory does not have.
        given.precompute_large_lexemes = false;
        given.verbose_errors = false;
        let grammar = TopLevelGrammar::from_lark(lark.to_owned());
        let mut start = self.factory.create_parser(grammar).map_err(|error| error.to_string())?;
        // The lexer's limit applies from its first mask on.
        let _ = start.parser.compute_bias(&NoMask(self.factory.tok_env().clone()), b"not the beginning");
        let pristine = start.parser.deep_clone();
        // `max_tokens` counts tokens, in a rule or a lexeme.
        let counts_tokens = lark.contains("max_tokens");
        explore(&start, self.first_byte);
        let paths = Paths::of(&start.parser, counts_tokens);
        let mut grammar = LarkGrammar { pristine, in_use: start.parser, paths };
        if grammar.in_use.get_error().is_some() {
            grammar.renew();
        }
        Ok(grammar)
    }
}

/// Computes no mask: the parser would copy one bit for each token for each request.
struct NoMask(TokEnv);

impl BiasComputer for NoMask {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

/// A compiled grammar. Its matchers share what the lexer learns.
pub struct LarkGrammar {
    /// A parser without any learned state, for [`LarkGrammar::renew`].
    pristine: Parser,
    in_use: Parser,
    paths: Rc<RefCell<Paths>>,
}

impl LarkGrammar {
    /// A parser at the beginning of a text.
    pub(crate) fn parser(&self) -> Parser {
        self.in_use.clone()
    }

    /// A request's matcher with an existing parser.
    pub(crate) fn stream(&self, parser: Parser) -> LarkStream {
        let (waiting, lexer_state, costs) = (Vec::new(), None, 0);
        LarkStream { parser, paths: self.paths.clone(), waiting, lexer_state, costs }
    }

    /// Resets the shared state, which is past its limits, for the requests to come.
    pub(crate) fn renew(&mut self) {
        self.in_use = self.pristine.deep_clone();
        let counts_tokens = self.paths.borrow().counts_tokens;
        self.paths = Paths::of(&self.in_use, counts_tokens);
    }

    /// Makes the parser see each token.
    #[cfg(test)]
    pub(crate) fn counts_each_token(&self) {
        self.paths.borrow_mut().counts_tokens = true;
    }

    /// The number of transitions that the lexer has learned.
    #[cfg(test)]
    pub(crate) fn learned(&self) -> usize {
        self.in_use.lexer_stats().num_transitions
    }
}

/// One request's position in its grammar. It stores the text so far, about 130 bytes a token, until it is
/// dropped. Dropping it takes as long as about ten tokens.
pub(crate) struct LarkStream {
    parser: Parser,
    paths: Rc<RefCell<Paths>>,
    /// Bytes that the parser has not seen yet. They are all of one lexeme and allowed.
    waiting: Vec<u8>,
    /// The lexer's state after these bytes; `None` if it must be asked for and no bytes wait.
    lexer_state: Option<StateID>,
    /// The work since the last [`LarkStream::take_costs`].
    costs: usize,
}

impl LarkStream {
    pub(crate) fn take_costs(&mut self) -> usize {
        std::mem::take(&mut self.costs)
    }

    /// Whether the state that it shares with the other matchers of its grammar is past its limits.
    pub(crate) fn is_past_limits(&self) -> bool {
        self.parser.lexer_stats().error
    }

    /// Whether the text may end here.
    pub(crate) fn is_complete(&mut self) -> Result<bool, EngineStop> {
        self.catch_up()?;
        self.costs += TOKEN_COSTS;
        Ok(self.parser.is_accepting())
    }

    /// Adds a special token if the grammar names it here. Returns whether it does.
    pub(crate) fn special(&mut self, id: u32) -> Result<bool, EngineStop> {
        self.catch_up()?;
        if self.parser.validate_tokens(&[id]) != 1 {
            return Ok(false);
        }
        self.lexer_state = None;
        self.give(&special_bytes(id), id).map(|()| true)
    }

    /// Adds a token. `bytes` are its bytes, or the last of them if not `is_whole`.
    pub(crate) fn push(&mut self, id: TokenId, bytes: &[u8], is_whole: bool) -> Result<(), EngineStop> {
        let known = self.lexer_state.and_then(|from| self.paths.borrow().get(from, id)).filter(|_| is_whole);
        if let Some(to) = known.filter(|to| !to.is_dead()) {
            self.costs += PATH_COSTS;
            return self.follow(bytes, to);
        }
        self.costs += TOKEN_COSTS;
        // A known path leads out of the lexeme here.
        if known.is_none()
            && let Some((from, to)) = self.ask(bytes)
        {
            if is_whole {
                self.paths.borrow_mut().insert(from, id, to);
            }
            if !to.is_dead() {
                return self.follow(bytes, to);
            }
        }
        self.lexer_state = None;
        match self.waiting.is_empty() {
            true => self.give(bytes, NO_TOKEN),
            false => {
                self.waiting.extend_from_slice(bytes);
                self.catch_up()
            }
        }
    }

    /// Adds a token that stays within the lexeme.
    fn follow(&mut self, bytes: &[u8], to: StateID) -> Result<(), EngineStop> {
        self.lexer_state = Some(to);
        self.waiting.extend_from_slice(bytes);
        match self.waiting.len() > WAITING_BYTES_MAX {
            true => self.catch_up(),
            false => Ok(()),
        }
    }

    /// Asks the lexer for the states before and after these bytes. The state after them is dead if they
    /// complete a lexeme or are not allowed. `None` if the parser must see every token, and between two
    /// lexemes, where most tokens complete one.
    fn ask(&mut self, bytes: &[u8]) -> Option<(StateID, StateID)> {
        let is_within = self.lexer_state.is_some() || self.parser.has_pending_lexeme_bytes();
        if !is_within || self.paths.borrow().counts_tokens {
            return None;
        }
        let known = self.lexer_state;
        let (from, to) = self.parser.with_recognizer(|parser| {
            let from = known.unwrap_or_else(|| parser.lexer_state());
            let lexer = parser.lexer_mut();
            let mut to = from;
            for byte in bytes {
                to = lexer.transition_start_state(to, Some(*byte), &None);
                // At a lowest match a lexeme ends by itself.
                if to.is_dead() || to.has_lowest_match() {
                    return (from, StateID::DEAD);
                }
            }
            (from, to)
        });
        self.costs += ASKING_COSTS;
        let is_past_limits = self.learned();
        (!is_past_limits).then_some((from, to))
    }

    /// Gives the waiting bytes to the parser.
    fn catch_up(&mut self) -> Result<(), EngineStop> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let result = self.give(&waiting, NO_TOKEN);
        self.waiting = waiting;
        self.waiting.clear();
        result
    }

    fn give(&mut self, bytes: &[u8], id: u32) -> Result<(), EngineStop> {
        let work = |parser: &Parser| {
            let stats = parser.stats();
            LEXEME_COSTS * stats.rows + ITEM_COSTS * stats.all_items
        };
        let before = work(&self.parser);
        let given = self.parser.apply_token(bytes, id);
        self.costs += bytes.len() + work(&self.parser).saturating_sub(before);
        self.learned();
        // Past a limit, a parser may continue with only a part of the grammar.
        match (given, self.parser.get_error()) {
            (_, Some(error)) => Err(EngineStop::GaveUp(error.message())),
            (Ok(0), None) => Ok(()),
            (Ok(_), None) => Err(EngineStop::GaveUp("the grammar takes text back (stop=…)".into())),
            // The parser reports this limit only as an error text.
            (Err(error), None) if error.to_string().starts_with("Current row has ") => {
                Err(EngineStop::GaveUp(error.to_string()))
            }
            (Err(_), None) => Err(EngineStop::NotAllowed),
        }
    }

    /// Counts the transitions that the lexer learned since the last call. Returns whether it is past its
    /// limits.
    fn learned(&mut self) -> bool {
        let stats = self.parser.lexer_stats();
        let mut paths = self.paths.borrow_mut();
        self.costs += LEARNING_COSTS * stats.num_transitions.saturating_sub(paths.transitions);
        paths.transitions = stats.num_transitions;
        stats.error
    }
}

/// The sample texts, and the most bytes of each.
const WALKS: usize = 16;
const STEPS: usize = 48;
/// The bytes that a sample text tries first: the ends of the usual lexemes, so that the text makes progress.
const PREFERRED: &[u8] = b"\"}],:a0 {[.-e";

/// Parses sample texts, so that the lexer learns transitions in advance. `bytes` is the id of the first byte
/// token.
fn explore(start: &TokenParser, bytes: u32) {
    let mut start = start.clone();
    start.start_without_prompt();
    for walk in 0..WALKS {
        let mut at = start.clone();
        for step in 0..STEPS {
            let Ok(mask) = at.compute_mask() else { break };
            let rotated =
                (0..PREFERRED.len()).map(|index| PREFERRED[(index + walk + step * walk) % PREFERRED.len()]);
            let mut candidates =
                rotated.chain(0..TokTrie::SPECIAL_TOKEN_MARKER).map(|byte| bytes + u32::from(byte));
            let Some(next) = candidates.find(|token| mask.is_allowed(*token)) else { break };
            if at.consume_token(next).is_err() {
                break;
            }
        }
    }
}

/// The vocabulary that the parser needs: the special tokens under their ids. The parser gets the bytes of all
/// other tokens with each call, under an id that no token has, and needs no trie of them. The last ids are
/// the 256 bytes, for [`explore`].
fn tokens(size: u32, special: &[TokenId]) -> TokEnv {
    let mut words = vec![Vec::new(); size as usize + 1];
    for id in special.iter().filter_map(|id| u32::try_from(*id).ok()) {
        words[id as usize] = special_bytes(id);
    }
    words.extend((0..TokTrie::SPECIAL_TOKEN_MARKER).map(|byte| vec![byte]));
    let info = TokRxInfo::new(words.len() as u32, size);
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)))
}
