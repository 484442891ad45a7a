//! A grammar, compiled once for all requests.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::Parser;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::Vocabulary;
use crate::matcher::Matcher;

/// The longest grammar that is compiled: 1 MiB.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// The most states of the lexer, which all requests share; it makes them as texts need them, 1 to 2 kB each. A grammar
/// that needs more is not checked any further ([`Finding::GaveUp`](crate::Finding::GaveUp)).
pub const LEXER_STATES_MAX: usize = 16_384;

/// A grammar, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarText {
    /// A JSON schema, JSON text.
    JsonSchema(String),
    /// A regular expression that a whole output matches.
    Regex(String),
    /// llguidance's dialect of Lark.
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
    pub fn compile(text: &GrammarText, vocabulary: &Vocabulary) -> Result<Self, String> {
        Self::compile_within(LEXER_STATES_MAX, text, vocabulary)
    }

    pub(crate) fn compile_within(
        lexer_states_max: usize,
        text: &GrammarText,
        vocabulary: &Vocabulary,
    ) -> Result<Self, String> {
        let (name, source) = match text {
            GrammarText::JsonSchema(source) => ("json_schema", source),
            GrammarText::Regex(source) => ("regex", source),
            GrammarText::Lark(source) => ("lark", source),
        };
        let wrong = |error: String| format!("grammar.{name}: {error}");
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
        let mut pristine = compile().map_err(|error| wrong(error.to_string()))?;
        // The lexer's limit holds from its first mask on. What the mask says does not matter.
        pristine.start_without_prompt();
        let _ = pristine.compute_mask();
        let pristine = pristine.parser;
        let in_use = pristine.deep_clone();
        Ok(Self { pristine, in_use })
    }

    /// A request's matcher, at the beginning of a text.
    #[must_use]
    pub fn matcher(&self, whitespace_max: u32) -> Matcher {
        Matcher::new(self.in_use.clone(), whitespace_max)
    }

    /// Begins anew, for the requests to come: what matchers share is past its limits.
    pub fn renew(&mut self) {
        self.in_use = self.pristine.deep_clone();
    }
}

/// A token's bytes for the parser, which knows special ones by a first byte that no text has.
pub(crate) fn special_bytes(id: u32) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER][..], format!("<{id}>").as_bytes()].concat()
}

/// The vocabulary, as far as the parser looks at it: the special tokens under their ids. It is given the bytes of the
/// others with each call, under an id that no token has, the last; so it needs no trie of them.
fn tokens(vocabulary: &Vocabulary) -> TokEnv {
    let mut words = vec![Vec::new(); vocabulary.size() as usize + 1];
    for id in vocabulary.special().iter().filter_map(|id| u32::try_from(*id).ok()) {
        words[id as usize] = special_bytes(id);
    }
    let info = TokRxInfo::new(words.len() as u32, vocabulary.size());
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)))
}
