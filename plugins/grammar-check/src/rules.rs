//! The rules: they select the grammar of a request and the actions on findings.

use std::rc::Rc;

use afterbay_plugin::{AttributeIs, Attributes, ConfigureError, RequestId, bad_setting};
use regex_lite::Regex;
use serde::Deserialize;

use crate::grammars::Grammars;
use crate::settings::RULES_MAX;
use crate::{GrammarText, Marker, OnEarlyEnd, OnViolation, Settings, Tokenizer};

/// The rules in the order of the settings. The last one has the general settings and matches every request.
pub(crate) struct Rules {
    rules: Vec<CompiledRule>,
    /// The attribute in which requests bring their own grammars.
    grammar_attribute: Option<String>,
    /// Whether requests are checked by the grammars that they asked their engine for.
    grammar_asked: bool,
}

/// The part of a request's record that is read.
#[derive(Deserialize)]
struct AskedRequest {
    grammar: Option<AskedGrammar>,
}

#[derive(Deserialize)]
struct AskedGrammar {
    kind: String,
    #[serde(default)]
    value: String,
    /// Whether the engine itself holds the output to it.
    #[serde(default)]
    enforced: bool,
}

struct CompiledRule {
    prefix: Option<String>,
    pattern: Option<Regex>,
    attribute: Option<AttributeIs>,
    /// An index into [`Grammars`].
    grammar: Option<usize>,
    options: CheckOptions,
}

/// The settings of a rule for its requests.
pub(crate) struct CheckOptions {
    pub(crate) begins_after: Option<Marker>,
    pub(crate) on_violation: OnViolation,
    pub(crate) on_early_end: OnEarlyEnd,
    pub(crate) whitespace_max: u32,
}

/// The grammar that a request is checked against.
pub(crate) enum RequestGrammar {
    /// The request is not checked.
    None,
    /// The grammar of this index in [`Grammars`].
    Compiled(usize),
    /// A grammar that the request brings.
    Brought(GrammarText),
    /// The request brings an invalid grammar, for this reason.
    Invalid(String),
}

impl Rules {
    /// Validates the rules and compiles their grammars.
    pub(crate) fn compile(
        settings: &Settings,
        tokenizer: &impl Tokenizer,
        grammars: &mut Grammars,
    ) -> Result<Self, ConfigureError> {
        if settings.rules.len() > RULES_MAX {
            let rules = settings.rules.len();
            return Err(bad_setting("/rules", format!("has {rules} rules, the limit is {RULES_MAX}")));
        }
        let marker = |text: &str| {
            let special = tokenizer.special_of(text);
            (!text.is_empty()).then(|| Marker { text: Rc::from(text.as_bytes()), special })
        };
        let general = crate::settings::Rule { grammar: settings.grammar.clone(), ..Default::default() };
        let mut rules = Vec::new();
        for (index, rule) in settings.rules.iter().chain([&general]).enumerate() {
            let pointer =
                if index < settings.rules.len() { format!("/rules/{index}") } else { String::new() };
            let has_condition =
                rule.rid_prefix.is_some() || rule.rid_pattern.is_some() || rule.attribute.is_some();
            if !has_condition && !pointer.is_empty() {
                return Err(bad_setting(
                    pointer,
                    "has neither rid_prefix nor rid_pattern nor attribute and would match every request",
                ));
            }
            let attribute = AttributeIs::of(rule.attribute.as_deref(), rule.equals.as_ref())
                .map_err(|error| error.within(&pointer))?;
            let pattern = rule.rid_pattern.as_deref().map(Regex::new).transpose();
            let pattern =
                pattern.map_err(|error| bad_setting(format!("{pointer}/rid_pattern"), error.to_string()))?;
            let grammar = rule.grammar.as_ref().map(|text| grammars.add(text)).transpose();
            let grammar = grammar.map_err(|error| error.within(&pointer))?;
            let begins_after = rule.begins_after.as_ref().or(settings.begins_after.as_ref());
            let options = CheckOptions {
                begins_after: begins_after.and_then(|text| marker(text)),
                on_violation: rule.on_violation.or(settings.on_violation).unwrap_or_default(),
                on_early_end: rule.on_early_end.unwrap_or(settings.on_early_end),
                whitespace_max: rule.whitespace_max.unwrap_or(settings.whitespace_max),
            };
            rules.push(CompiledRule {
                prefix: rule.rid_prefix.clone(),
                pattern,
                attribute,
                grammar,
                options,
            });
        }
        let grammar_attribute = settings.grammar_attribute.clone();
        let grammar_asked = settings.grammar_asked;
        let has_grammar =
            grammar_attribute.is_some() || grammar_asked || rules.iter().any(|rule| rule.grammar.is_some());
        if !has_grammar && settings.tool_calls.is_none() {
            return Err(bad_setting(
                "/grammar",
                "is missing, no rule has one, and there is neither grammar_attribute nor grammar_asked nor tool_calls: nothing would be checked",
            ));
        }
        Ok(Self { rules, grammar_attribute, grammar_asked })
    }

    /// The index of the first rule that matches a request, and the request's grammar.
    pub(crate) fn of(
        &self,
        request: RequestId,
        rid: &str,
        attributes: &Attributes,
    ) -> (usize, RequestGrammar) {
        let last = self.rules.len() - 1;
        let rule = self.rules.iter().position(|rule| rule.matches(rid, attributes)).unwrap_or(last);
        let grammar = match self.brought(attributes).or_else(|| self.asked(request).map(Ok)) {
            Some(Ok(text)) => RequestGrammar::Brought(text),
            Some(Err(reason)) => RequestGrammar::Invalid(reason),
            None => self.rules[rule].grammar.map_or(RequestGrammar::None, RequestGrammar::Compiled),
        };
        (rule, grammar)
    }

    /// The grammar that a request brings, or the reason why it is invalid.
    pub(crate) fn brought(&self, attributes: &Attributes) -> Option<Result<GrammarText, String>> {
        let name = self.grammar_attribute.as_deref()?;
        // Other values may be for the rules.
        let value = attributes.get(name).filter(|value| value.is_object())?;
        Some(GrammarText::deserialize(value).map_err(|error| format!("{name}: {error}")))
    }

    /// The grammar that a request asked its engine for, which does not hold the output to it. `None` if it is of a kind that is not
    /// checked.
    fn asked(&self, request: RequestId) -> Option<GrammarText> {
        let asked = if self.grammar_asked { afterbay_plugin::asked(request)? } else { return None };
        let asked: AskedRequest = serde_json::from_str(&asked).ok()?;
        let AskedGrammar { kind, value, .. } = asked.grammar.filter(|grammar| !grammar.enforced)?;
        match &*kind {
            "json_schema" => Some(GrammarText::JsonSchema(value)),
            "json_object" => Some(GrammarText::JsonSchema(r#"{"type": "object"}"#.to_owned())),
            "regex" => Some(GrammarText::Regex(value)),
            _ => None,
        }
    }

    /// Whether requests may bring grammars.
    pub(crate) fn may_be_brought(&self) -> bool {
        self.grammar_attribute.is_some()
    }

    /// Whether the rules depend on a request's attributes.
    pub(crate) fn read_attributes(&self) -> bool {
        self.may_be_brought() || self.grammar_asked || self.rules.iter().any(|rule| rule.attribute.is_some())
    }

    /// The settings of a rule for its requests.
    pub(crate) fn options(&self, rule: usize) -> &CheckOptions {
        &self.rules[rule].options
    }
}

impl CompiledRule {
    fn matches(&self, rid: &str, attributes: &Attributes) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| rid.starts_with(prefix))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(rid))
            && self.attribute.as_ref().is_none_or(|attribute| attribute.holds(attributes))
    }
}
