//! A grammar, compiled once for all requests.

use std::sync::Arc;

use afterbay_plugin::{ConfigureError, bad_setting};
use llguidance::api::TopLevelGrammar;
use llguidance::earley::Parser;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Vocabulary;
use crate::matcher::{Marker, Matcher};

/// The longest grammar that is compiled: 1 MiB.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

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

/// A compiled grammar. Its [`Matcher`]s share what they learn of it.
pub struct Grammar {
    /// Never fed: to begin anew from, where the one in use has given up.
    pristine: Parser,
    in_use: Parser,
}

impl Grammar {
    /// Compiles a grammar. The vocabulary says which tokens are special.
    ///
    /// # Errors
    /// It is too long, is no grammar, or uses what is not supported: what `llguidance` says, under the setting's name.
    pub fn compile(text: &GrammarText, vocabulary: &Vocabulary) -> Result<Self, ConfigureError> {
        Self::compile_within(LEXER_STATES_MAX, text, vocabulary)
    }

    pub(crate) fn compile_within(
        lexer_states_max: usize,
        text: &GrammarText,
        vocabulary: &Vocabulary,
    ) -> Result<Self, ConfigureError> {
        let (name, source) = match text {
            GrammarText::JsonSchema(source) => ("json_schema", source),
            GrammarText::Regex(source) => ("regex", source),
            GrammarText::Lark(source) => ("lark", source),
        };
        let wrong = |message: String| bad_setting(format!("/grammar/{name}"), message);
        if source.len() > GRAMMAR_BYTES_MAX {
            let bytes = source.len();
            return Err(wrong(format!("{bytes} bytes is over the limit of {GRAMMAR_BYTES_MAX}")));
        }
        let grammar = match text {
            GrammarText::JsonSchema(schema) => {
                let schema =
                    serde_json::from_str(schema).map_err(|error| wrong(format!("no JSON: {error}")))?;
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarText::Regex(regex) => TopLevelGrammar::from_regex(regex),
            GrammarText::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let compile = || {
            let mut factory = ParserFactory::new(&tokens(vocabulary), InferenceCapabilities::default(), &[])?;
            // It has no standard error here.
            factory.quiet();
            let limits = factory.limits_mut();
            limits.max_lexer_states = lexer_states_max;
            // This one is for each mask, of which there is one in all.
            limits.step_lexer_fuel = u64::MAX;
            // For masks, and of the vocabulary, which it does not have.
            limits.precompute_large_lexemes = false;
            limits.verbose_errors = false;
            factory.create_parser(grammar)
        };
        let mut start = compile().map_err(|error| wrong(error.to_string()))?;
        // The lexer's limit holds from its first mask on. What the mask says does not matter.
        start.start_without_prompt();
        let _ = start.compute_mask();
        // The mask, a bit for each token, would be copied for each request.
        start.parser.invalidate_bias_cache();
        let pristine = start.parser.deep_clone();
        let mut grammar = Self { pristine, in_use: start.parser.clone() };
        wander(&start, vocabulary.size() + 1);
        if grammar.in_use.get_error().is_some() {
            grammar.renew();
        }
        Ok(grammar)
    }

    /// How many transitions of the lexer all requests together have needed so far: a new one takes as long as some ten tokens.
    pub(crate) fn learned(&self) -> usize {
        self.in_use.lexer_stats().num_transitions
    }

    /// A request's matcher, at the beginning of a text. The grammar is of what comes after the marker, if there is one.
    #[must_use]
    pub fn matcher(&self, whitespace_max: u32, begins_after: Option<&Marker>) -> Matcher {
        Matcher::new(self.in_use.clone(), whitespace_max, begins_after)
    }

    /// Begins anew, for the requests to come: what matchers share is past its limits.
    pub fn renew(&mut self) {
        self.in_use = self.pristine.deep_clone();
    }
}

/// Some texts, up to so many bytes: what the lexer learns on the way is there when requests come.
const WALKS: usize = 16;
const STEPS: usize = 48;
/// What a walk goes on with, where it may: the ends of what most texts are made of, so that it gets on.
const PREFERRED: &[u8] = b"\"}],:a0 {[.-e";

/// Walks through the grammar, looking at each byte from where it stands. `bytes` is the id of the first of them.
fn wander(start: &TokenParser, bytes: u32) {
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
