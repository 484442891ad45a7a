//! Words, patterns and presets as one NFA, with the rules of each.

use afterbay_plugin::{ConfigureError, bad_setting};
use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::Hir;

use crate::automaton::PatternSet;
use crate::escapes::with_escapes;
use crate::settings::Settings;
use crate::words;

/// The longest match, in bytes. At this length a match counts, whether it is complete or not.
pub const MATCH_BYTES_MAX: u64 = 256;
/// The bytes before a candidate that its check reads.
pub const BEFORE_BYTES: usize = 8;
/// The most patterns in the settings.
pub const SETTINGS_PATTERNS_MAX: usize = 32;
/// The most bytes of a pattern in the settings.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// The most memory of the NFA of one pattern, and of all.
const NFA_BYTES_MAX: usize = 1 << 20;
const ALL_NFA_BYTES_MAX: usize = 16 << 20;

/// A text that a pattern matches, without escapes.
pub struct Candidate<'a> {
    /// The text.
    pub text: &'a [u8],
    /// The bytes before it; 0 if there are none.
    pub before: [u8; BEFORE_BYTES],
}

/// A further condition of a match.
pub type Check = fn(&Candidate<'_>) -> bool;

/// The end of a match that can end at several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The last place at which the check holds.
    LongestValid,
    /// The last place: without the check, there is no match.
    Longest,
}

/// The treatment of a candidate of [`MATCH_BYTES_MAX`] bytes that is not a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlong {
    /// It counts as a match.
    Act,
    /// Its first bytes leave, because no match is that long.
    Slide,
}

/// A pattern's rules.
pub struct Rule {
    /// The pattern's name in metrics and finish reasons.
    pub name: String,
    pub check: Option<Check>,
    pub ends: Ends,
    pub overlong: Overlong,
    /// The most bytes of a candidate, if less than [`MATCH_BYTES_MAX`].
    pub limit: Option<fn(&Candidate<'_>) -> u64>,
}

/// The rules of all patterns.
pub struct Patterns {
    rules: Vec<Rule>,
}

impl Patterns {
    /// Compiles the settings.
    pub fn new(settings: &Settings) -> Result<(Self, NFA), ConfigureError> {
        let (mut rules, mut all) = (Vec::new(), Vec::new());
        if let Some(words) = words::pattern(settings)? {
            let words = with_escapes(words, false);
            let rule = Rule::of_settings("words".to_owned());
            compile(&[&words], ALL_NFA_BYTES_MAX).map_err(|error| bad_setting("/words", error))?;
            all.push(words);
            rules.push(rule);
        }
        if settings.patterns.len() > SETTINGS_PATTERNS_MAX {
            let given = settings.patterns.len();
            let message = format!("has {given} patterns, must have at most {SETTINGS_PATTERNS_MAX}");
            return Err(bad_setting("/patterns", message));
        }
        for (index, pattern) in settings.patterns.iter().enumerate() {
            let hir = parse(pattern).map(|hir| with_escapes(hir, false));
            let hir = hir.and_then(|hir| compile(&[&hir], NFA_BYTES_MAX).map(|_| hir));
            all.push(hir.map_err(|error| bad_setting(format!("/patterns/{index}"), error))?);
            rules.push(Rule::of_settings(format!("pattern-{index}")));
        }
        let mut presets = settings.presets.clone();
        presets.sort_unstable();
        presets.dedup();
        for preset in presets {
            for (pattern, rule) in preset.patterns() {
                let hir = parse(pattern).map_err(|error| bad_setting("/presets", error))?;
                all.push(with_escapes(hir, preset.is_of_digits()));
                rules.push(rule);
            }
        }
        if all.is_empty() {
            return Err(bad_setting("", "must have at least one of words, patterns and presets"));
        }
        let nfa = compile(&all.iter().collect::<Vec<_>>(), ALL_NFA_BYTES_MAX);
        let nfa = nfa.map_err(|error| bad_setting("", error))?;
        Ok((Self { rules }, nfa))
    }

    /// The rules of the pattern of this index.
    pub fn get(&self, pattern: u8) -> &Rule {
        &self.rules[usize::from(pattern)]
    }

    /// The most bytes of a candidate of these patterns, and what happens past it.
    pub fn limit(&self, patterns: PatternSet, candidate: &Candidate<'_>) -> (u64, Overlong) {
        let of = self.rules.iter().enumerate().filter(|(index, _)| patterns & (1 << index) != 0);
        let (mut limit, mut overlong) = (0, Overlong::Slide);
        for (_, rule) in of {
            let own = rule.limit.map_or(MATCH_BYTES_MAX, |limit| limit(candidate));
            limit = limit.max(own);
            if rule.overlong == Overlong::Act {
                overlong = Overlong::Act;
            }
        }
        (limit, overlong)
    }
}

impl Rule {
    fn of_settings(name: String) -> Self {
        Self { name, check: None, ends: Ends::Longest, overlong: Overlong::Act, limit: None }
    }
}

/// Reads a pattern. The error is for the operator.
fn parse(pattern: &str) -> Result<Hir, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!("has {} bytes, must have at most {PATTERN_BYTES_MAX}", pattern.len()));
    }
    let hir = ParserBuilder::new().utf8(false).nest_limit(64).build().parse(pattern);
    let hir = hir.map_err(|error| format!("is no regular expression: {error}"))?;
    if hir.properties().minimum_len().unwrap_or(0) == 0 {
        return Err(format!("is {pattern:?}, which matches the empty text"));
    }
    let looks = hir.properties().look_set();
    if looks.contains(regex_syntax::hir::Look::StartCRLF) || looks.contains(regex_syntax::hir::Look::EndCRLF)
    {
        return Err(format!("is {pattern:?}, and the flag R (CRLF) is not supported"));
    }
    Ok(hir)
}

/// Compiles patterns. The error is for the operator.
fn compile(patterns: &[&Hir], bytes_max: usize) -> Result<NFA, String> {
    let config =
        NFA::config().utf8(false).which_captures(WhichCaptures::None).nfa_size_limit(Some(bytes_max));
    let nfa = NFA::compiler().configure(config).build_many_from_hir(patterns);
    nfa.map_err(|error| match error.size_limit() {
        Some(limit) => format!("is too large: over the limit of {limit} bytes when compiled"),
        None => format!("cannot be compiled: {error}"),
    })
}
