//! A grammar, compiled once for all requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use afterbay_plugin::{ConfigureError, bad_setting};
use llguidance::api::TopLevelGrammar;
use llguidance::earley::{BiasComputer, Parser, ParserRecognizer};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Vocabulary;
use crate::matcher::{Marker, Matcher};
use crate::paths::Paths;

/// The longest grammar that is compiled: 1 MiB.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// The longest that a request may bring: 4 KiB.
pub const REQUEST_GRAMMAR_BYTES_MAX: usize = 4 << 10;

/// The most states of the lexer, which all requests share; it makes them as texts need them, 1 to 2 kB each. A grammar
/// that needs more is not checked any further ([`Finding::GaveUp`](crate::Finding::GaveUp)).
pub const LEXER_STATES_MAX: usize = 16_384;

/// A grammar, as written: one of these.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrammarText {
    /// A JSON schema, as JSON text: the order of its properties counts.
    JsonSchema(String),
    /// A regular expression (Rust's syntax) that the whole output matches.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
}

impl GrammarText {
    /// The length of its text.
    pub(crate) fn len(&self) -> usize {
        self.parts().1.len()
    }

    /// Its kind, as a setting is named, and the text.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            GrammarText::JsonSchema(source) => ("json_schema", source),
            GrammarText::Regex(source) => ("regex", source),
            GrammarText::Lark(source) => ("lark", source),
        }
    }
}

/// How much a grammar may need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: usize,
    pub(crate) lexer_states: usize,
    /// What the lexer's regular expressions may cost, as `llguidance` counts.
    pub(crate) lexer_fuel: u64,
    /// Symbols of its productions.
    pub(crate) symbols: usize,
    /// How deep its brackets may stand within one another.
    pub(crate) depth: usize,
    /// Whether some texts are tried, so that little is left to learn when requests come.
    pub(crate) wanders: bool,
}

impl Limits {
    /// For grammars of requests, which are compiled between two batches.
    pub(crate) const OF_REQUESTS: Limits = Limits {
        bytes: REQUEST_GRAMMAR_BYTES_MAX,
        lexer_states: 1024,
        lexer_fuel: 20_000,
        symbols: 2_000,
        depth: 64,
        wanders: false,
    };

    /// For the grammars of the settings, which are compiled before any request.
    pub(crate) const OF_SETTINGS: Limits = Limits {
        bytes: GRAMMAR_BYTES_MAX,
        lexer_states: LEXER_STATES_MAX,
        lexer_fuel: 1_000_000,
        symbols: 500_000,
        depth: usize::MAX,
        wanders: true,
    };
}

/// Compiles grammars over one vocabulary.
pub struct Compiler {
    factory: ParserFactory,
    /// The id of the first of the 256 bytes, for [`wander`].
    first_byte: u32,
}

impl Compiler {
    /// For a vocabulary, which says which tokens are special.
    ///
    /// # Errors
    /// What `llguidance` says.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, String> {
        let capabilities = InferenceCapabilities::default();
        let mut factory =
            ParserFactory::new(&tokens(vocabulary), capabilities, &[]).map_err(|error| error.to_string())?;
        // It has no standard error here.
        factory.quiet();
        Ok(Self { factory, first_byte: vocabulary.size() + 1 })
    }

    /// Compiles a grammar of the settings.
    ///
    /// # Errors
    /// It is too long, is no grammar, or uses what is not supported: what `llguidance` says, under the setting's name.
    pub fn compile(&mut self, text: &GrammarText) -> Result<Grammar, ConfigureError> {
        self.compile_for(&Limits::OF_SETTINGS, text)
    }

    /// The same within these limits.
    pub(crate) fn compile_for(
        &mut self,
        limits: &Limits,
        text: &GrammarText,
    ) -> Result<Grammar, ConfigureError> {
        let wrong = |message| bad_setting(format!("/grammar/{}", text.parts().0), message);
        self.compile_within(limits, text).map_err(wrong)
    }

    /// Compiles a grammar that needs no more than this. The error is what is wrong with it.
    pub(crate) fn compile_within(&mut self, limits: &Limits, text: &GrammarText) -> Result<Grammar, String> {
        let (_, source) = text.parts();
        if source.len() > limits.bytes {
            return Err(format!("{} bytes is over the limit of {}", source.len(), limits.bytes));
        }
        let depth = depth(source);
        if depth > limits.depth {
            return Err(format!("brackets {depth} deep, the limit is {}", limits.depth));
        }
        let grammar = match text {
            GrammarText::JsonSchema(schema) => {
                let schema = serde_json::from_str(schema).map_err(|error| format!("no JSON: {error}"))?;
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarText::Regex(regex) => TopLevelGrammar::from_regex(regex),
            GrammarText::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let given = self.factory.limits_mut();
        given.max_lexer_states = limits.lexer_states;
        given.initial_lexer_fuel = limits.lexer_fuel;
        given.max_grammar_size = limits.symbols;
        // This one is for each mask, of which there is one in all.
        given.step_lexer_fuel = u64::MAX;
        // For masks, and of the vocabulary, which it does not have.
        given.precompute_large_lexemes = false;
        given.verbose_errors = false;
        let mut start = self.factory.create_parser(grammar).map_err(|error| error.to_string())?;
        // The lexer's limit holds from its first mask on.
        let _ = start.parser.compute_bias(&NoMask(self.factory.tok_env().clone()), b"not the beginning");
        let pristine = start.parser.deep_clone();
        // Where tokens are counted (`max_tokens`), only a text says so: a rule may have it, or a lexeme.
        let counts_tokens = matches!(text, GrammarText::Lark(lark) if lark.contains("max_tokens"));
        if limits.wanders {
            wander(&start, self.first_byte);
        }
        let paths = Paths::of(&start.parser, counts_tokens);
        let mut grammar = Grammar { pristine, in_use: start.parser, paths };
        if grammar.in_use.get_error().is_some() {
            grammar.renew();
        }
        Ok(grammar)
    }
}

/// A mask of which nothing is computed, and which is not kept: a bit for each token would be copied for each request.
struct NoMask(TokEnv);

impl BiasComputer for NoMask {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

/// How deep brackets stand within one another, wherever they stand.
fn depth(source: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => now += 1,
            b')' | b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// A compiled grammar. Its [`Matcher`]s share what they learn of it.
pub struct Grammar {
    /// Never fed: to begin anew from, where the one in use has given up.
    pristine: Parser,
    in_use: Parser,
    paths: Rc<RefCell<Paths>>,
}

impl Grammar {
    /// A parser at the beginning of a text.
    pub(crate) fn parser(&self) -> Parser {
        self.in_use.clone()
    }

    /// A request's matcher, at the beginning of a text. The grammar is of what comes after the marker, if there is one.
    #[must_use]
    pub fn matcher(&self, whitespace_max: u32, begins_after: Option<&Marker>) -> Matcher {
        self.matcher_with(self.parser(), whitespace_max, begins_after)
    }

    /// The same with a parser that was made before.
    pub(crate) fn matcher_with(
        &self,
        parser: Parser,
        whitespace_max: u32,
        begins_after: Option<&Marker>,
    ) -> Matcher {
        Matcher::new(parser, self.paths.clone(), whitespace_max, begins_after)
    }

    /// Begins anew, for the requests to come: what matchers share is past its limits.
    pub fn renew(&mut self) {
        self.in_use = self.pristine.deep_clone();
        let counts_tokens = self.paths.borrow().counts_tokens;
        self.paths = Paths::of(&self.in_use, counts_tokens);
    }

    /// As one of which the parser must see each token.
    #[cfg(test)]
    pub(crate) fn counts_each_token(&self) {
        self.paths.borrow_mut().counts_tokens = true;
    }

    /// How many transitions its requests have needed so far.
    #[cfg(test)]
    pub(crate) fn learned(&self) -> usize {
        self.in_use.lexer_stats().num_transitions
    }
}

/// Some texts, up to so many bytes: what the lexer learns on the way is there when requests come.
const WALKS: usize = 16;
const STEPS: usize = 48;
/// What a walk goes on with, where it may: the ends of what most texts are made of, so that it gets on.
const PREFERRED: &[u8] = b"\"}],:a0 {[.-e";

/// Walks through the grammar, looking at each byte from where it stands. `bytes` is the id of the first of them.
fn wander(start: &TokenParser, bytes: u32) {
    let mut start = start.clone();
    start.start_without_prompt();
    for walk in 0..WALKS {
        let mut at = start.clone();
        for step in 0..STEPS {
            let Ok(mask) = at.compute_mask() else { break };
            let turned =
                (0..PREFERRED.len()).map(|index| PREFERRED[(index + walk + step * walk) % PREFERRED.len()]);
            let mut ways = turned.chain(0..TokTrie::SPECIAL_TOKEN_MARKER).map(|byte| bytes + u32::from(byte));
            let Some(next) = ways.find(|token| mask.is_allowed(*token)) else { break };
            if at.consume_token(next).is_err() {
                break;
            }
        }
    }
}

/// A token's bytes for the parser, which knows special ones by a first byte that no text has.
pub(crate) fn special_bytes(id: u32) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER][..], format!("<{id}>").as_bytes()].concat()
}

/// The vocabulary, as far as the parser looks at it: the special tokens under their ids. It is given the bytes of the
/// others with each call, under an id that no token has; so it needs no trie of them. Behind that one are the 256 bytes, for
/// [`wander`].
fn tokens(vocabulary: &Vocabulary) -> TokEnv {
    let mut words = vec![Vec::new(); vocabulary.size() as usize + 1];
    for id in vocabulary.special().iter().filter_map(|id| u32::try_from(*id).ok()) {
        words[id as usize] = special_bytes(id);
    }
    words.extend((0..TokTrie::SPECIAL_TOKEN_MARKER).map(|byte| vec![byte]));
    let info = TokRxInfo::new(words.len() as u32, vocabulary.size());
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)))
}
