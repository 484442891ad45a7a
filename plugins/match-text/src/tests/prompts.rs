//! Matches that stand in the prompt.

use afterbay_plugin::testing::{Metric, Readers, TestRow};

use super::tokens::{Tokens, rows_of_ids, run};
use crate::{MATCH_BYTES_MAX, MatchText, PROMPT_BYTES_MAX};

const PROMPT: &str = "Write to anna@river.com or call +49 30 1234567.";
const EMAIL: &str = r##"{"presets": ["email"], "mask": "#", "allow_from_prompt": true}"##;

fn tokens() -> Tokens {
    Tokens::new([PROMPT, "I wrote to anna@river.com and bob@river.com."])
}

fn ask(plugin: &mut Readers<MatchText>, request: u64, prompt: &[i64]) {
    plugin.plugin().set_asked(request, "{}", prompt);
}

/// The text that a reader gets of an answer in rows of one byte, after a prompt.
fn answer(settings: &str, prompt: &str, text: &str) -> String {
    let tokens = tokens();
    let mut plugin = tokens.plugin(settings);
    ask(&mut plugin, 1, &tokens.encode(prompt));
    let ids: Vec<i64> = text.bytes().map(i64::from).collect();
    let rows = rows_of_ids(1, &ids, &(1..ids.len()).collect::<Vec<_>>());
    tokens.text(&run(&mut plugin, 1, &rows).ids)
}

#[test]
fn a_match_passes_if_its_exact_text_stands_in_the_prompt() {
    let text = "anna@river.com, bob@river.com, Anna@river.com and anna@river.co";
    assert_eq!(answer(EMAIL, PROMPT, text), "anna@river.com, #, # and anna@river.co");
    assert_eq!(answer(EMAIL, "no address", text), "#, #, # and #");
}

#[test]
fn without_the_setting_the_prompt_does_not_count() {
    assert_eq!(answer(r##"{"presets": ["email"], "mask": "#"}"##, PROMPT, "anna@river.com!"), "#!");
}

#[test]
fn finish_and_drop_act_at_the_first_match_that_is_not_in_the_prompt() {
    for action in ["finish", "drop"] {
        let settings =
            format!(r#"{{"words": ["river", "lake"], "action": "{action}", "allow_from_prompt": true}}"#);
        assert_eq!(answer(&settings, PROMPT, "A river and a lake."), "A river and a ", "{action}");
    }
}

#[test]
fn a_match_with_escapes_passes_if_the_prompt_has_its_characters() {
    let text = r#"{"to":"x\nanna@river.com\nbob@river.com","path":"C:\\anna@river.com"}"#;
    let masked = text.replace("bob@river.com", "#");
    assert_eq!(answer(EMAIL, PROMPT, text), masked);
    let word = r##"{"words": ["a/b"], "mask": "#", "allow_from_prompt": true}"##;
    assert_eq!(answer(word, "is a/b", r"a\/b a/b"), r"a\/b a/b");
    assert_eq!(answer(word, "is a/c", r"a\/b a/b"), "# #");
}

#[test]
fn a_match_that_is_too_long_to_wait_for_never_passes() {
    let long = format!("BEGIN{}END", "x".repeat(2 * MATCH_BYTES_MAX as usize));
    let settings = r##"{"patterns": ["BEGIN.*END"], "mask": "#", "allow_from_prompt": true}"##;
    assert_eq!(answer(settings, &long, &format!("a {long}\nb")), "a #\nb");
    assert_eq!(answer(settings, "BEGIN x END", "a BEGIN x END\nb"), "a BEGIN x END\nb");
}

#[test]
fn nothing_stands_in_a_prompt_that_is_not_known_or_too_long() {
    let mut tokens = tokens();
    let long = tokens.add(&[b'x'; 1 << 16]);
    let mut plugin = tokens.plugin(EMAIL);
    let mut prompt = vec![long; (PROMPT_BYTES_MAX >> 16) - 1];
    prompt.extend(std::iter::repeat_n(i64::from(b' '), (1 << 16) - "anna@river.com".len()));
    prompt.extend("anna@river.com".bytes().map(i64::from));
    let row = |request| rows_of_ids(request, &tokens.encode("anna@river.com!"), &[]);
    assert_eq!(tokens.text(&run(&mut plugin, 1, &row(1)).ids), "#!");
    ask(&mut plugin, 2, &prompt);
    assert_eq!(tokens.text(&run(&mut plugin, 2, &row(2)).ids), "anna@river.com!");
    prompt.push(b'x'.into());
    ask(&mut plugin, 3, &prompt);
    assert_eq!(tokens.text(&run(&mut plugin, 3, &row(3)).ids), "#!");
    let counted =
        |name, plugin: &mut Readers<MatchText>| plugin.plugin().metric_with(name, &[("pattern", "email")]);
    assert_eq!(counted("matches", &mut plugin), Some(Metric::Counter(2)));
    assert_eq!(counted("matches_from_prompt", &mut plugin), Some(Metric::Counter(1)));
}

#[test]
fn many_long_prompts_are_read_again_at_the_next_match() {
    let mut tokens = tokens();
    let long = tokens.add(&[b'x'; 1 << 16]);
    let mut plugin = tokens.plugin(EMAIL);
    let mut prompt = tokens.encode("anna@river.com ");
    prompt.resize(PROMPT_BYTES_MAX >> 17, long);
    for request in 1..=12 {
        ask(&mut plugin, request, &prompt);
        plugin.open(request);
    }
    for _ in 0..2 {
        for request in 1..=12 {
            plugin.process(&[TestRow::new(request).ids(tokens.encode("anna@river.com! bob@river.com! "))]);
        }
    }
    for request in 1..=12 {
        assert_eq!(plugin.text(request), "anna@river.com! #! anna@river.com! #! ", "{request}");
        plugin.close(request);
    }
}
