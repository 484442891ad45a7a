//! Which request is checked against which grammar, and what becomes of it.

use std::rc::Rc;

use afterbay_plugin::{AttributeIs, Attributes, ConfigureError, bad_setting};
use regex_lite::Regex;

use crate::settings::RULES_MAX;
use crate::{
    Grammar, GrammarText, Marker, Matcher, OnEarlyEnd, OnViolation, Settings, Tokenizer, Vocabulary,
};

/// Matchers that are made before they are asked for, of each grammar: making one takes some 10 times as long as a token.
const SPARES_MAX: usize = 256;

/// The rules, in the order of the settings; the last is for all others.
pub(crate) struct Rules(Vec<Rule>);

struct Rule {
    prefix: Option<String>,
    pattern: Option<Regex>,
    attribute: Option<AttributeIs>,
    checked: Option<Checked>,
}

/// How requests of a rule are checked.
pub(crate) struct Checked {
    grammar: Grammar,
    spares: Vec<Matcher>,
    begins_after: Option<Marker>,
    pub(crate) on_violation: OnViolation,
    pub(crate) on_early_end: OnEarlyEnd,
    pub(crate) whitespace_max: u32,
}

impl Rules {
    /// Compiles every grammar.
    pub(crate) fn compile(
        lexer_states_max: usize,
        settings: &Settings,
        tokenizer: &impl Tokenizer,
        vocabulary: &Vocabulary,
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
        let compile = |rule: &crate::settings::Rule, grammar: &GrammarText| {
            let begins_after = rule.begins_after.as_ref().or(settings.begins_after.as_ref());
            let grammar = Grammar::compile_within(lexer_states_max, grammar, vocabulary)?;
            Ok::<_, ConfigureError>(Checked {
                grammar,
                spares: Vec::new(),
                begins_after: begins_after.and_then(|text| marker(text)),
                on_violation: rule.on_violation.unwrap_or(settings.on_violation),
                on_early_end: rule.on_early_end.unwrap_or(settings.on_early_end),
                whitespace_max: rule.whitespace_max.unwrap_or(settings.whitespace_max),
            })
        };
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
            let checked = rule.grammar.as_ref().map(|grammar| compile(rule, grammar)).transpose();
            let checked = checked.map_err(|wrong| wrong.within(&place))?;
            rules.push(Rule { prefix: rule.rid_prefix.clone(), pattern, attribute, checked });
        }
        if rules.iter().all(|rule| rule.checked.is_none()) {
            return Err(bad_setting("/grammar", "is missing, and no rule has one: nothing would be checked"));
        }
        Ok(Self(rules))
    }

    /// The first rule for such a request, by its place; none where it is not checked.
    pub(crate) fn of(&self, rid: &str, attributes: &Attributes) -> Option<usize> {
        let place = self.0.iter().position(|rule| rule.is_for(rid, attributes))?;
        self.0[place].checked.as_ref().map(|_| place)
    }

    /// How the requests of a rule are checked that [`Rules::of`] has given.
    pub(crate) fn checked(&mut self, place: usize) -> Option<&mut Checked> {
        self.0.get_mut(place)?.checked.as_mut()
    }

    /// Makes at most so many matchers before they are asked for.
    pub(crate) fn spare(&mut self, at_most: usize) {
        let mut left = at_most;
        for checked in self.0.iter_mut().filter_map(|rule| rule.checked.as_mut()) {
            while left > 0 && checked.spares.len() < SPARES_MAX {
                let spare = checked.make();
                checked.spares.push(spare);
                left -= 1;
            }
        }
    }
}

impl Rule {
    fn is_for(&self, rid: &str, attributes: &Attributes) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| rid.starts_with(prefix))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(rid))
            && self.attribute.as_ref().is_none_or(|attribute| attribute.holds(attributes))
    }
}

impl Checked {
    fn make(&self) -> Matcher {
        self.grammar.matcher(self.whitespace_max, self.begins_after.as_ref())
    }

    /// A matcher at the beginning of a text, and whether it was made just now.
    pub(crate) fn matcher(&mut self) -> (Matcher, bool) {
        match self.spares.pop() {
            Some(spare) => (spare, false),
            None => (self.make(), true),
        }
    }

    /// See [`Grammar::learned`].
    pub(crate) fn learned(&self) -> usize {
        self.grammar.learned()
    }

    /// Begins the grammar anew, for the requests to come.
    pub(crate) fn renew(&mut self) {
        self.grammar.renew();
        self.spares.clear();
    }
}
