//! Grammars and their compiler. A grammar is compiled once for all its requests.

use std::rc::Rc;

use afterbay_plugin::{ConfigureError, TokenId, bad_setting};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Vocabulary;
use crate::lark::{LarkCompiler, LarkGrammar};
use crate::matcher::{Engine, Marker, Matcher};
use crate::regex::{RegexGrammar, RegexLimits, RegexStream};
use crate::schema::{JsonStream, Schema, SchemaOptions};

/// The longest grammar of the settings: 1 MiB.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// The longest grammar of a request: 16 KiB, as much as the attributes of a request may have.
pub const REQUEST_GRAMMAR_BYTES_MAX: usize = 16 << 10;

/// A grammar as the settings or a request write it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrammarText {
    /// A JSON schema as JSON text.
    JsonSchema(String),
    /// A regular expression (Rust's syntax) for the whole output.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark. Only in the settings.
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
    pub(crate) regex: RegexLimits,
    /// The states of a Lark grammar's lexer, 1 to 2 kB each, which all its requests share. The lexer makes
    /// states as texts need them. A text that needs more is no longer checked.
    pub(crate) lexer_states: usize,
    /// The cost of the lexer's regular expressions, as `llguidance` counts it.
    pub(crate) lexer_fuel: u64,
    /// The number of symbols in the productions of a Lark grammar.
    pub(crate) symbols: usize,
    pub(crate) allows_lark: bool,
}

impl GrammarLimits {
    /// The limits of grammars of requests, which are compiled as the request opens.
    pub(crate) const OF_REQUESTS: GrammarLimits = GrammarLimits {
        bytes: REQUEST_GRAMMAR_BYTES_MAX,
        regex: RegexLimits { compiled: 256 << 10, automaton: 1 << 20 },
        allows_lark: false,
        ..GrammarLimits::OF_SETTINGS
    };

    /// The limits of grammars of the settings, which are compiled before any request.
    pub(crate) const OF_SETTINGS: GrammarLimits = GrammarLimits {
        bytes: GRAMMAR_BYTES_MAX,
        regex: RegexLimits { compiled: 4 << 20, automaton: 8 << 20 },
        lexer_states: 16_384,
        lexer_fuel: 1_000_000,
        symbols: 500_000,
        allows_lark: true,
    };
}

/// Compiles grammars over one vocabulary.
pub struct Compiler {
    vocabulary_size: u32,
    special: Vec<TokenId>,
    /// Whether JSON schemas check `format`.
    formats: bool,
    /// `None` before the first Lark grammar.
    lark: Option<LarkCompiler>,
}

impl Compiler {
    /// Creates a compiler for a vocabulary.
    #[must_use]
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let special = vocabulary.special().to_vec();
        Self { vocabulary_size: vocabulary.size(), special, formats: false, lark: None }
    }

    /// Sets whether JSON schemas check `format`.
    #[must_use]
    pub fn with_formats(self, formats: bool) -> Self {
        Self { formats, ..self }
    }

    /// Compiles a grammar with the limits of the settings.
    ///
    /// # Errors
    /// An error of the setting `/grammar/KIND`.
    pub fn compile(&mut self, text: &GrammarText) -> Result<Grammar, ConfigureError> {
        self.compile_for(&GrammarLimits::OF_SETTINGS, text)
    }

    /// Compiles a grammar with the limits of requests.
    ///
    /// # Errors
    /// The reason.
    pub fn compile_brought(&mut self, text: &GrammarText) -> Result<Grammar, String> {
        self.compile_within(&GrammarLimits::OF_REQUESTS, text)
    }

    /// Compiles a grammar of the settings within these limits.
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
        match text {
            GrammarText::JsonSchema(schema) => {
                let schema =
                    serde_json::from_str(schema).map_err(|error| format!("invalid JSON: {error}"))?;
                let options = SchemaOptions { formats: self.formats, draft: None };
                Ok(Grammar { kind: GrammarKind::Json(Schema::compile(&schema, options)?) })
            }
            GrammarText::Regex(regex) => {
                let regex = RegexGrammar::compile(regex, limits.regex)?;
                Ok(Grammar { kind: GrammarKind::Regex(Rc::new(regex)) })
            }
            GrammarText::Lark(_) if !limits.allows_lark => {
                Err("a Lark grammar must stand in the settings, where a rule selects it".to_owned())
            }
            GrammarText::Lark(lark) => {
                let compiler = match &mut self.lark {
                    Some(compiler) => compiler,
                    none => none.insert(LarkCompiler::new(self.vocabulary_size, &self.special)?),
                };
                Ok(Grammar { kind: GrammarKind::Lark(Box::new(compiler.compile(limits, lark)?)) })
            }
        }
    }
}

/// A compiled grammar. Its [`Matcher`]s share what it learns.
pub struct Grammar {
    pub(crate) kind: GrammarKind,
}

/// The kinds of grammars.
pub(crate) enum GrammarKind {
    Json(Schema),
    Regex(Rc<RegexGrammar>),
    Lark(Box<LarkGrammar>),
}

impl Grammar {
    /// A request's matcher at the beginning of a text. With a marker, the grammar applies to the text after
    /// the marker.
    #[must_use]
    pub fn matcher(&self, whitespace_max: u32, begins_after: Option<&Marker>) -> Matcher {
        let engine = match &self.kind {
            GrammarKind::Json(schema) => Engine::Json(JsonStream::new(schema.clone())),
            GrammarKind::Regex(regex) => Engine::Regex(RegexStream::new(regex.clone())),
            GrammarKind::Lark(lark) => Engine::Lark(Box::new(lark.stream(lark.parser()))),
        };
        Matcher::new(engine, whitespace_max, begins_after)
    }

    /// Resets the shared state, which is past its limits, for the requests to come.
    pub fn renew(&mut self) {
        match &mut self.kind {
            GrammarKind::Json(_) => {}
            GrammarKind::Regex(regex) => *regex = Rc::new(regex.renewed()),
            GrammarKind::Lark(lark) => lark.renew(),
        }
    }
}
