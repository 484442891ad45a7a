//! Regular expressions of a schema, found anywhere in a text: by an automaton, or by a backtracking engine if they
//! look around or refer back.

use std::cell::RefCell;

use fancy_regex::RegexBuilder;
use regex_automata::Input;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_syntax::hir::{Hir, HirKind, Look};

use super::ecma::{self, Translated};

/// A repetition of one character that goes further is checked by the length of the text.
const REPETITION_MAX: u32 = 256;
/// The most bytes of a compiled expression.
const PATTERN_BYTES_MAX: usize = 1 << 19;
/// The most bytes of all compiled expressions of a schema.
pub(super) const PATTERNS_BYTES_MAX: usize = 2 << 20;
/// The bytes that a byte of an expression that looks around counts.
const FANCY_BYTES: usize = 1 << 10;
/// The bytes of an automaton's states, which are made as texts need them. An automaton that needs them several times
/// over gives up.
const AUTOMATON_BYTES_MAX: usize = 1 << 18;
/// The bytes of states that an automaton keeps for the next text.
const AUTOMATON_KEPT_MAX: usize = 1 << 15;
/// The most times that the backtracking engine goes back in a text.
const BACKTRACKS_MAX: usize = 10_000;
/// The longest text for the backtracking engine. Each step may read the rest of the text.
const BACKTRACKED_BYTES_MAX: usize = 4 << 10;

/// A regular expression of ECMA 262.
#[derive(Debug)]
pub(super) struct Pattern {
    engine: Engine,
    /// The bounds on the number of characters, apart from the expression.
    length: (usize, usize),
}

#[derive(Debug)]
enum Engine {
    Automaton(Box<Automaton>),
    Backtracking(Box<fancy_regex::Regex>),
}

#[derive(Debug)]
struct Automaton {
    dfa: DFA,
    /// `None` before the first text.
    cache: RefCell<Option<Cache>>,
}

impl Pattern {
    /// Compiles an expression into at most this many bytes.
    pub(super) fn compile(text: &str, bytes_left: usize) -> Result<Pattern, String> {
        let Translated { regex, is_fancy } = ecma::translate(text)?;
        if is_fancy && FANCY_BYTES * regex.len() > bytes_left {
            return Err("the schema has too many expressions that look around".to_owned());
        }
        let bytes = PATTERN_BYTES_MAX.min(bytes_left);
        if is_fancy {
            let mut builder = RegexBuilder::new(&regex);
            builder.backtrack_limit(BACKTRACKS_MAX).delegate_size_limit(bytes);
            let regex = builder.delegate_dfa_size_limit(AUTOMATON_BYTES_MAX).build();
            let regex = regex.map_err(|error| error.to_string())?;
            return Ok(Pattern { engine: Engine::Backtracking(Box::new(regex)), length: (0, usize::MAX) });
        }
        let hir = regex_syntax::parse(&regex).map_err(|error| last_line(&error))?;
        let (hir, length) = length_of(&hir).unwrap_or((hir, (0, usize::MAX)));
        let automaton = Automaton::compile(&hir, bytes)?;
        Ok(Pattern { engine: Engine::Automaton(Box::new(automaton)), length })
    }

    /// The memory of the compiled expression. The backtracking engine counts by the time to compile its parts.
    pub(super) fn bytes(&self) -> usize {
        match &self.engine {
            Engine::Automaton(automaton) => automaton.dfa.get_nfa().memory_usage(),
            Engine::Backtracking(regex) => FANCY_BYTES * regex.as_str().len(),
        }
    }

    /// Whether a text matches. `None` if the search is at a limit.
    pub(super) fn is_match(&self, text: &str) -> Option<bool> {
        if self.length != (0, usize::MAX) {
            let length = text.chars().count();
            if !(self.length.0..=self.length.1).contains(&length) {
                return Some(false);
            }
        }
        match &self.engine {
            Engine::Automaton(automaton) => automaton.is_match(text),
            Engine::Backtracking(_) if text.len() > BACKTRACKED_BYTES_MAX => None,
            Engine::Backtracking(regex) => regex.is_match(text).ok(),
        }
    }

    /// The steps of a search in a text of this many bytes.
    pub(super) fn steps(&self, bytes: usize) -> usize {
        match self.engine {
            Engine::Automaton(_) => 1 + bytes / 32,
            Engine::Backtracking(_) => 8 + bytes,
        }
    }
}

impl Automaton {
    fn compile(hir: &Hir, bytes: usize) -> Result<Automaton, String> {
        let thompson = thompson::Config::new().nfa_size_limit(Some(bytes));
        let nfa = thompson::Compiler::new().configure(thompson).build_from_hir(hir);
        let config = DFA::config()
            .cache_capacity(AUTOMATON_BYTES_MAX)
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(2));
        let nfa = nfa.map_err(|error| last_line(&error))?;
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa).map_err(|error| last_line(&error))?;
        Ok(Automaton { dfa, cache: RefCell::new(None) })
    }

    fn is_match(&self, text: &str) -> Option<bool> {
        let mut cache = self.cache.borrow_mut();
        let used = cache.get_or_insert_with(|| self.dfa.create_cache());
        let found = self.dfa.try_search_fwd(used, &Input::new(text).earliest(true));
        if used.memory_usage() > AUTOMATON_KEPT_MAX || used.clear_count() > 0 {
            *cache = None;
        }
        found.ok().map(|found| found.is_some())
    }
}

/// For `^x{0,9999}$`, which takes much room: `^x*$`, and the bounds on the number of characters.
fn length_of(hir: &Hir) -> Option<(Hir, (usize, usize))> {
    let HirKind::Concat(parts) = hir.kind() else { return None };
    let [start, repeated, end] = &parts[..] else { return None };
    let HirKind::Repetition(repetition) = repeated.kind() else { return None };
    let is_whole = (start.kind(), end.kind()) == (&HirKind::Look(Look::Start), &HirKind::Look(Look::End));
    let goes_far = repetition.min.max(repetition.max.unwrap_or(0)) > REPETITION_MAX;
    if !(is_whole && is_char(&repetition.sub) && goes_far) {
        return None;
    }
    let length = (repetition.min as usize, repetition.max.map_or(usize::MAX, |max| max as usize));
    let mut any = repetition.clone();
    (any.min, any.max) = (0, None);
    Some((Hir::concat(vec![start.clone(), Hir::repetition(any), end.clone()]), length))
}

/// Whether an expression matches one character.
fn is_char(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Class(_) => true,
        HirKind::Literal(literal) => {
            std::str::from_utf8(&literal.0).is_ok_and(|text| text.chars().count() == 1)
        }
        HirKind::Alternation(all) => all.iter().all(is_char),
        _ => false,
    }
}

/// The last line of an error, which says what is wrong.
fn last_line(error: &dyn std::error::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::compile(text, PATTERNS_BYTES_MAX).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    /// Expressions of ECMA 262 with texts that match, and texts that do not.
    #[test]
    fn an_expression_means_what_ecma_262_says() {
        for (regex, matching, others) in [
            ("^(?!x)", &["", "y"][..], &["x", "xy"][..]),
            ("^(?=.*[0-9])(?=.*[a-z]).{4,8}$", &["abc1", "1234567a"], &["abcd", "abc", "1a3456789"]),
            ("(?<=a)b(?!c)", &["ab", "xabd"], &["b", "abc"]),
            ("(?<!a|bc)d", &["d", "bd"], &["ad", "bcd"]),
            (r"^(['\x22]).*\1$", &["'a'", "\"\""], &["'a\"", "a"]),
            (r"^(?<quote>['`])\w+\k<quote>$", &["'a'", "`b`"], &["'a`"]),
            (r"^\p{L}+$", &["aé日"], &["a1"]),
            (r"^\p{Letter}\P{Lu}\p{Script=Greek}$", &["éxα"], &["éXα", "1xα"]),
            (r"^\p{digit}+$", &["42", "৪২"], &["-"]),
            (r"^[\w-.]+$", &["a-b.c"], &["a b"]),
            (r"^[a-\d]$", &["a", "-", "5"], &["b"]),
            (r"^[^\W\d]$", &["a", "_"], &["5", "-"]),
            ("^{a}$", &["{a}"], &["a"]),
            ("^a{,3}$", &["a{,3}"], &["aa", ""]),
            ("^a{2}b{1,}c{0,1}$", &["aab", "aabbc"], &["ab", "aabcc"]),
            ("^x{$", &["x{"], &["x"]),
            ("^]}$", &["]}"], &[""]),
            (r"^\cJ\cj$", &["\n\n"], &["cJcj"]),
            (r"^[\cA\b]$", &["\u{1}", "\u{8}"], &["A", "b"]),
            ("^[^]$", &["a", "\n", "日"], &["", "ab"]),
            ("^[]$|^b$", &["b"], &["", "a"]),
            (r"^\0$", &["\0"], &["0"]),
            (r"^\x41\u0042\u{43}\103$", &["ABCC"], &["ABC"]),
            (r"^\ud83d\udc32*$", &["", "🐲", "🐲🐲"], &["🐉"]),
            (r"^[\ud83d\udc32x]$", &["🐲", "x"], &["🐉"]),
            (
                r"^(?:\ud83c[\udf00-\udfff]|[\ud83d-\ud83e][\udc00-\udfff])$",
                &["🌀", "🐲", "🤖"],
                &["a", "𠮷"],
            ),
            (r"^[\ud800-\udbff][\udc00-\udfff]$", &["🐲", "𠮷"], &["a", "日"]),
            (r"^[^\ud800-\udfff]$", &["a", "🐲"], &["ab"]),
            ("^[a&&b]$", &["a", "&", "b"], &["c"]),
            ("^[+--b]$|^[~~]$", &["+", ",", "-", "b", "~"], &["a", "-b"]),
            ("^(?!x)[!-~]$|^[-x]$|^[&-]$", &["!", "-", "&", "~", "a"], &["\u{7f}", " "]),
            ("^[[a]$", &["[", "a"], &["]"]),
            ("^[a-c[d]e]$", &["ae]", "[e]"], &["d", "e"]),
            ("^.$", &["a", "日"], &["\n", "\r", "\u{2028}", ""]),
            (r"^\s\S$", &["\u{feff}a", "\u{a0}\u{200b}"], &["a ", "\u{200b}a"]),
            (r"^\d\w$", &["0a"], &["৪a", "0é"]),
            (r"\bfoo\B", &["a food"], &["afood", "foo"]),
            (r"(?!x)\bé\B|^\bx\b", &["aé日", "x"], &["é"]),
            (r#"^a\/b\-c\_d\"\@\ $"#, &["a/b-c_d\"@ "], &["a\\/b"]),
            (r"\A[a-z]+\Z", &["abc"], &["abc\n", "1a"]),
            ("(?i)^abc$", &["aBC"], &["ab"]),
            ("^(?:a|ab)(?:c|bcd)(?:d*)$", &["abcd", "acdd"], &["abd"]),
            ("^abc$", &["abc"], &["abc\n", "xabc"]),
            ("a+?b*?", &["xa"], &["b"]),
            ("^#.-&~ $", &["#x-&~ "], &["#"]),
        ] {
            let pattern = pattern(regex);
            for (texts, expected) in [(matching, true), (others, false)] {
                for text in texts {
                    assert_eq!(pattern.is_match(text), Some(expected), "{regex} {text:?}");
                }
            }
        }
    }

    #[test]
    fn a_long_repetition_of_a_character_takes_no_room() {
        for regex in ["^.{0,100000}$", "^([ -~]|a){0,100000}$", r"^\S{1,99999}$", "^x{9000,}$"] {
            let pattern = pattern(regex);
            assert_eq!(pattern.is_match(&"x".repeat(99_000)), Some(true), "{regex}");
            assert_eq!(pattern.is_match(&"x".repeat(100_001)), Some(regex.ends_with(",}$")), "{regex}");
            assert_eq!(pattern.is_match("x\n"), Some(false), "{regex}");
        }
        for regex in ["(?:日本|.){90000}".to_owned(), format!("^(?!{})", "[ab]".repeat(1000))] {
            assert!(Pattern::compile(&regex, PATTERNS_BYTES_MAX).is_err());
        }
        assert_eq!(pattern(&"{".repeat(16_000)).is_match("{{"), Some(false));
    }

    #[test]
    fn a_search_past_its_limits_is_no_match_and_no_mismatch() {
        let nested = pattern(r"^(?!z)(a|a)*\1$");
        assert_eq!(nested.is_match(&format!("{}b", "a".repeat(40))), None);
        assert_eq!(nested.is_match(&"a".repeat(5_000)), None);
        // Nearly every byte needs a new state.
        let states = pattern("^(?:.*a.{14}){3}b$");
        let mut seed = 1_u64;
        let mut a_or_b = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 63 == 0 { 'a' } else { 'b' }
        };
        let text: String = (0..30_000).map(|_| a_or_b()).collect();
        assert_eq!(states.is_match(&text), None);
        assert_eq!(states.is_match("b"), Some(false), "the next text is searched");
        // Once too much for the engine: 57 characters and a long text.
        let long = pattern("^(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z]+)*$");
        assert_eq!(long.is_match(&"a-b/".repeat(7_500)), Some(false));
    }

    #[test]
    fn what_is_no_expression_of_ecma_262_is_refused() {
        for regex in ["(", "[", r"\", "[b-a]", r"\y", "(?x)a", "*", r"\p{Nothing}", "(?<=a*)b"] {
            assert!(Pattern::compile(regex, PATTERNS_BYTES_MAX).is_err(), "{regex}");
        }
    }
}
