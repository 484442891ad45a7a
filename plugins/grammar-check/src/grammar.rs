//! Grammars and their compiler. A grammar is compiled once for all its requests.

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
use crate::vocabulary::special_bytes;

/// The longest grammar of the settings: 1 MiB.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// The longest grammar of a request: 4 KiB.
pub const REQUEST_GRAMMAR_BYTES_MAX: usize = 4 << 10;

/// The most states of a grammar's lexer, which all its requests share. The lexer makes states as texts need
/// them, 1 to 2 kB each. A text that needs more is no longer checked
/// ([`Finding::GaveUp`](crate::Finding::GaveUp)).
pub const LEXER_STATES_MAX: usize = 16_384;

/// A grammar as the settings or a request write it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrammarText {
    /// A JSON schema as JSON text. The order of its properties counts.
    JsonSchema(String),
    /// A regular expression (Rust's syntax) for the whole output.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
}

impl GrammarText {
    /// The length of the text in bytes.
    pub(crate) fn len(&self) -> usize {
        self.parts().1.len()
    }

    /// The name of the setting, and the text.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            GrammarText::JsonSchema(source) => ("json_schema", source),
            GrammarText::Regex(source) => ("regex", source),
            GrammarText::Lark(source) => ("lark", source),
        }
    }
}

/// The limits of a grammar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrammarLimits {
    pub(crate) bytes: usize,
    pub(crate) lexer_states: usize,
    /// The cost of the lexer's regular expressions, as `llguidance` counts it.
    pub(crate) lexer_fuel: u64,
    /// The number of symbols in the productions.
    pub(crate) symbols: usize,
    /// The nesting depth of brackets.
    pub(crate) depth: usize,
    /// Whether sample texts are parsed at compile time, so that requests have less to learn.
    pub(crate) explores: bool,
}

impl GrammarLimits {
    /// The limits of grammars of requests, which are compiled between two batches.
    pub(crate) const OF_REQUESTS: GrammarLimits = GrammarLimits {
        bytes: REQUEST_GRAMMAR_BYTES_MAX,
        lexer_states: 1024,
        lexer_fuel: 20_000,
        symbols: 2_000,
        depth: 64,
        explores: false,
    };

    /// The limits of grammars of the settings, which are compiled before any request.
    pub(crate) const OF_SETTINGS: GrammarLimits = GrammarLimits {
        bytes: GRAMMAR_BYTES_MAX,
        lexer_states: LEXER_STATES_MAX,
        lexer_fuel: 1_000_000,
        symbols: 500_000,
        depth: usize::MAX,
        explores: true,
    };
}

/// Compiles grammars over one vocabulary.
pub struct Compiler {
    factory: ParserFactory,
    /// The id of the first of the 256 byte tokens, for [`explore`].
    first_byte: u32,
}

impl Compiler {
    /// Creates a compiler for a vocabulary.
    ///
    /// # Errors
    /// The error of `llguidance`.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, String> {
        let capabilities = InferenceCapabilities::default();
        let mut factory =
            ParserFactory::new(&tokens(vocabulary), capabilities, &[]).map_err(|error| error.to_string())?;
        // A component has no standard error.
        factory.quiet();
        Ok(Self { factory, first_byte: vocabulary.size() + 1 })
    }

    /// Compiles a grammar with the limits of the settings.
    ///
    /// # Errors
    /// If the grammar is too long, invalid, or uses an unsupported feature: the error of `llguidance`, under
    /// the name of the setting.
    pub fn compile(&mut self, text: &GrammarText) -> Result<Grammar, ConfigureError> {
        self.compile_for(&GrammarLimits::OF_SETTINGS, text)
    }

    /// Compiles a grammar within these limits. The error names the setting.
    pub(crate) fn compile_for(
        &mut self,
        limits: &GrammarLimits,
        text: &GrammarText,
    ) -> Result<Grammar, ConfigureError> {
        let name = |message| bad_setting(format!("/grammar/{}", text.parts().0), message);
        self.compile_within(limits, text).map_err(name)
    }

    /// Compiles a grammar within these limits. The error is a message.
    pub(crate) fn compile_within(
        &mut self,
        limits: &GrammarLimits,
        text: &GrammarText,
    ) -> Result<Grammar, String> {
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
                let schema =
                    serde_json::from_str(schema).map_err(|error| format!("invalid JSON: {error}"))?;
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarText::Regex(regex) => TopLevelGrammar::from_regex(regex),
            GrammarText::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let given = self.factory.limits_mut();
        given.max_lexer_states = limits.lexer_states;
        given.initial_lexer_fuel = limits.lexer_fuel;
        given.max_grammar_size = limits.symbols;
        // This limit applies to each mask, and only one mask is ever made.
        given.step_lexer_fuel = u64::MAX;
        // For masks of the vocabulary, which this factory does not have.
        given.precompute_large_lexemes = false;
        given.verbose_errors = false;
        let mut start = self.factory.create_parser(grammar).map_err(|error| error.to_string())?;
        // The lexer's limit applies from its first mask on.
        let _ = start.parser.compute_bias(&NoMask(self.factory.tok_env().clone()), b"not the beginning");
        let pristine = start.parser.deep_clone();
        // Only Lark can count tokens (`max_tokens`), in a rule or a lexeme.
        let counts_tokens = matches!(text, GrammarText::Lark(lark) if lark.contains("max_tokens"));
        if limits.explores {
            explore(&start, self.first_byte);
        }
        let paths = Paths::of(&start.parser, counts_tokens);
        let mut grammar = Grammar { pristine, in_use: start.parser, paths };
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

/// The nesting depth of the brackets in a text, also of those in strings.
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

/// A compiled grammar. Its [`Matcher`]s share what the lexer learns.
pub struct Grammar {
    /// A parser without any learned state, for [`Grammar::renew`].
    pristine: Parser,
    in_use: Parser,
    paths: Rc<RefCell<Paths>>,
}

impl Grammar {
    /// A parser at the beginning of a text.
    pub(crate) fn parser(&self) -> Parser {
        self.in_use.clone()
    }

    /// A request's matcher at the beginning of a text. With a marker, the grammar applies to the text after
    /// the marker.
    #[must_use]
    pub fn matcher(&self, whitespace_max: u32, begins_after: Option<&Marker>) -> Matcher {
        self.matcher_with(self.parser(), whitespace_max, begins_after)
    }

    /// A request's matcher with an existing parser.
    pub(crate) fn matcher_with(
        &self,
        parser: Parser,
        whitespace_max: u32,
        begins_after: Option<&Marker>,
    ) -> Matcher {
        Matcher::new(parser, self.paths.clone(), whitespace_max, begins_after)
    }

    /// Resets the shared state, which is past its limits, for the requests to come.
    pub fn renew(&mut self) {
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
fn tokens(vocabulary: &Vocabulary) -> TokEnv {
    let mut words = vec![Vec::new(); vocabulary.size() as usize + 1];
    for id in vocabulary.special().iter().filter_map(|id| u32::try_from(*id).ok()) {
        words[id as usize] = special_bytes(id);
    }
    words.extend((0..TokTrie::SPECIAL_TOKEN_MARKER).map(|byte| vec![byte]));
    let info = TokRxInfo::new(words.len() as u32, vocabulary.size());
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)))
}
