//! Which request is checked against which grammar, and what becomes of it.

use std::rc::Rc;

use afterbay_plugin::{AttributeIs, Attributes, ConfigureError, bad_setting};
use regex_lite::Regex;
use serde::Deserialize;

use crate::grammars::Grammars;
use crate::settings::RULES_MAX;
use crate::{GrammarText, Marker, OnEarlyEnd, OnViolation, Settings, Tokenizer};

/// The rules, in the order of the settings; the last is for all others.
pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// In which requests bring grammars of their own.
    grammar_attribute: Option<String>,
}

struct Rule {
    prefix: Option<String>,
    pattern: Option<Regex>,
    attribute: Option<AttributeIs>,
    /// Its place.
    grammar: Option<usize>,
    how: How,
}

/// How requests of a rule are checked.
pub(crate) struct How {
    pub(crate) begins_after: Option<Marker>,
    pub(crate) on_violation: OnViolation,
    pub(crate) on_early_end: OnEarlyEnd,
    pub(crate) whitespace_max: u32,
}

/// Against what a request is checked.
pub(crate) enum Against {
    /// Nothing.
    Nothing,
    /// The grammar of this place.
    Place(usize),
    /// One that it brings.
    Text(GrammarText),
    /// What it brings is none, for this reason.
    Wrong(String),
}

impl Rules {
    /// Compiles every grammar.
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
        let for_others = crate::settings::Rule { grammar: settings.grammar.clone(), ..Default::default() };
        let mut rules = Vec::new();
        for (index, rule) in settings.rules.iter().chain([&for_others]).enumerate() {
            let place = if index < settings.rules.len() { format!("/rules/{index}") } else { String::new() };
            let is_for_all =
                rule.rid_prefix.is_none() && rule.rid_pattern.is_none() && rule.attribute.is_none();
            if is_for_all && !place.is_empty() {
                return Err(bad_setting(
                    place,
                    "has neither rid_prefix nor rid_pattern nor attribute: it would be for every request",
                ));
            }
            let attribute = AttributeIs::of(rule.attribute.as_deref(), rule.equals.as_ref())
                .map_err(|wrong| wrong.within(&place))?;
            let pattern = rule.rid_pattern.as_deref().map(Regex::new).transpose();
            let pattern =
                pattern.map_err(|error| bad_setting(format!("{place}/rid_pattern"), error.to_string()))?;
            let grammar = rule.grammar.as_ref().map(|text| grammars.add(text)).transpose();
            let grammar = grammar.map_err(|wrong| wrong.within(&place))?;
            let begins_after = rule.begins_after.as_ref().or(settings.begins_after.as_ref());
            let how = How {
                begins_after: begins_after.and_then(|text| marker(text)),
                on_violation: rule.on_violation.unwrap_or(settings.on_violation),
                on_early_end: rule.on_early_end.unwrap_or(settings.on_early_end),
                whitespace_max: rule.whitespace_max.unwrap_or(settings.whitespace_max),
            };
            rules.push(Rule { prefix: rule.rid_prefix.clone(), pattern, attribute, grammar, how });
        }
        let grammar_attribute = settings.grammar_attribute.clone();
        if rules.iter().all(|rule| rule.grammar.is_none()) && grammar_attribute.is_none() {
            return Err(bad_setting(
                "/grammar",
                "is missing, no rule has one, and there is no grammar_attribute: nothing would be checked",
            ));
        }
        Ok(Self { rules, grammar_attribute })
    }

    /// The first rule for such a request, by its place, and against what it is checked.
    pub(crate) fn of(&self, rid: &str, attributes: &Attributes) -> (usize, Against) {
        let last = self.rules.len() - 1;
        let rule = self.rules.iter().position(|rule| rule.is_for(rid, attributes)).unwrap_or(last);
        let against = match self.brought(attributes) {
            Some(Ok(text)) => Against::Text(text),
            Some(Err(why)) => Against::Wrong(why),
            None => self.rules[rule].grammar.map_or(Against::Nothing, Against::Place),
        };
        (rule, against)
    }

    /// The grammar that a request brings, or why what it brings is none.
    pub(crate) fn brought(&self, attributes: &Attributes) -> Option<Result<GrammarText, String>> {
        let name = self.grammar_attribute.as_deref()?;
        // Anything else may be what a rule goes by.
        let value = attributes.get(name).filter(|value| value.is_object())?;
        Some(GrammarText::deserialize(value).map_err(|error| format!("{name}: {error}")))
    }

    /// Whether requests may bring grammars.
    pub(crate) fn may_be_brought(&self) -> bool {
        self.grammar_attribute.is_some()
    }

    /// Whether it must be asked for a request's attributes.
    pub(crate) fn read_attributes(&self) -> bool {
        self.may_be_brought() || self.rules.iter().any(|rule| rule.attribute.is_some())
    }

    /// How the requests of a rule are checked.
    pub(crate) fn how(&self, rule: usize) -> &How {
        &self.rules[rule].how
    }
}

impl Rule {
    fn is_for(&self, rid: &str, attributes: &Attributes) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| rid.starts_with(prefix))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(rid))
            && self.attribute.as_ref().is_none_or(|attribute| attribute.holds(attributes))
    }
}
