//! The behaviour of each setting, and the limits.

use afterbay_plugin::testing::{Harness, Metric, Received, TestRow};
use afterbay_plugin::{Action, FinishKind, FinishReason, Opened};

use super::tokens::{SPECIAL, Tokens, rows_of_ids, run};
use crate::{MATCH_BYTES_MAX, MatchText};

fn tokens() -> Tokens {
    Tokens::new(["mail anna@river.com now", "the cat sat", "card 4111 1111 1111 1111 end", "[masked]"])
}

/// The text that a reader gets of a text in rows of one token.
fn text_of(settings: &str, text: &str) -> String {
    let tokens = tokens();
    let ids = tokens.encode(text);
    let received =
        run(&mut tokens.plugin(settings), 1, &rows_of_ids(1, &ids, &(1..ids.len()).collect::<Vec<_>>()));
    tokens.text(&received.ids)
}

/// The most rows for which a row waited.
fn longest_wait(received: &Received) -> u32 {
    received.times.iter().map(|(arrived, left)| left - arrived).max().unwrap_or(0)
}

#[test]
fn a_masked_match_leaves_the_ids_around_it_unchanged() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r#"{"presets": ["email"]}"#);
    let ids = tokens.encode("mail anna@river.com now");
    let received = run(&mut plugin, 1, &rows_of_ids(1, &ids, &[2, 3, 4]));
    assert_eq!(tokens.text(&received.ids), "mail [masked] now");
    assert_eq!((received.ids.first(), received.ids.last()), (ids.first(), ids.last()));
    // The space before the address is the rest of the token ` anna`.
    let mask = tokens.encode("[masked]");
    assert_eq!(received.ids[1..received.ids.len() - 1], [&[32][..], &mask].concat());
    assert_eq!(plugin.plugin().metric_with("matches", &[("pattern", "email")]), Some(Metric::Counter(1)));
}

#[test]
fn rows_that_cannot_begin_a_match_get_no_verdict() {
    let tokens = tokens();
    let mut plugin = Harness::<MatchText>::with_tokens(r#"{"words": ["bomb"]}"#, tokens.all.clone()).unwrap();
    plugin.open(1);
    for row in rows_of_ids(1, &tokens.encode("the cat sat"), &[1, 2]) {
        assert_eq!(plugin.process(&[row]), []);
    }
}

#[test]
fn a_possible_beginning_waits_and_leaves_with_the_row_that_decides() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r#"{"words": ["catalogue"]}"#);
    plugin.open(1);
    for (ids, wanted) in [("the cat", ""), ("a", ""), ("p", "the catap")] {
        plugin.process(&[TestRow::new(1).ids(tokens.encode(ids))]);
        assert_eq!(plugin.text(1), wanted);
    }
}

#[test]
fn the_last_row_keeps_nothing_back() {
    assert_eq!(text_of(r#"{"words": ["catalogue"]}"#, "the catalog"), "the catalog");
    assert_eq!(text_of(r#"{"words": ["catalogue"]}"#, "the catalogue"), "the [masked]");
}

#[test]
fn finish_ends_a_request_before_the_match() {
    let tokens = tokens();
    let settings = r#"{"words": ["cat"], "action": "finish"}"#;
    // In one row.
    let mut plugin = tokens.plugin(settings);
    let received = run(&mut plugin, 1, &rows_of_ids(1, &tokens.encode("the cat sat"), &[]));
    assert_eq!(tokens.text(&received.ids), "the ");
    let reason = FinishReason::Stop("match-text: words".into());
    assert!(matches!(&received.end, Some(Action::Finish(ending)) if ending.reason == reason), "{received:?}");
    // The request ends one row later if rows are held.
    let ids: Vec<i64> = "the cat sat on".bytes().map(i64::from).collect();
    let received = run(&mut plugin, 2, &rows_of_ids(2, &ids, &(1..ids.len()).collect::<Vec<_>>()));
    assert_eq!(tokens.text(&received.ids), "the ");
    assert!(received.end.is_some() && received.times.len() == 9, "{received:?}");
}

#[test]
fn drop_removes_the_rest_of_the_text_and_the_request_goes_on() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r#"{"words": ["cat"], "action": "drop"}"#);
    let ids = tokens.encode("the cat sat");
    let received = run(&mut plugin, 1, &rows_of_ids(1, &ids, &[1, 2]));
    assert_eq!(tokens.text(&received.ids), "the ");
    assert!(received.end.is_none());
}

#[test]
fn words_have_borders_and_no_case_by_default() {
    let masked =
        |text: &str| text_of(r##"{"words": ["bomb", "c++", "\u00e4rger", "炸弹"], "mask": "#"}"##, text);
    assert_eq!(masked("A BOMB, bombs, bombe, x_bomb and “bomb”"), "A #, bombs, bombe, x_bomb and “#”");
    assert_eq!(masked("做bomb的炸弹 ÄRGER verärgert c++11"), "做#的# # verärgert #11");
    let exact = r##"{"words": ["Bomb"], "mask": "#", "case_sensitive": true, "whole_words": false}"##;
    assert_eq!(text_of(exact, "Bombs bomb"), "#s bomb");
}

#[test]
fn overlapping_matches_become_one_mask() {
    let settings = r##"{"patterns": ["abc", "cde", "[0-9]{4}"], "mask": "#"}"##;
    assert_eq!(text_of(settings, "abcde 123456 abc"), "# # #");
}

#[test]
fn a_special_token_does_not_hide_a_match() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r##"{"words": ["cat"], "mask": "#"}"##);
    let ids = [b'c'.into(), SPECIAL, b'a'.into(), b't'.into(), SPECIAL];
    let received = run(&mut plugin, 1, &rows_of_ids(1, &ids, &[1, 2, 3]));
    assert_eq!(received.ids, [i64::from(b'#'), SPECIAL]);
}

#[test]
fn after_a_time_out_the_rest_of_the_match_is_masked() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r##"{"presets": ["card"], "mask": "#"}"##);
    plugin.open(1);
    plugin.process(&[TestRow::new(1).ids(tokens.encode("card 4111 1111"))]);
    assert_eq!(plugin.text(1), "");
    plugin.time_out(1);
    assert_eq!(plugin.text(1), "card 4111 1111");
    plugin.process(&[TestRow::new(1).ids(tokens.encode(" 1111 11"))]);
    plugin.process(&[TestRow::new(1).ids(tokens.encode("11 end"))]);
    assert_eq!(plugin.text(1), "card 4111 1111# end");
    assert_eq!(plugin.plugin().metric("late"), Some(Metric::Counter(1)));
}

#[test]
fn a_match_longer_than_the_limit_is_masked_as_it_arrives() {
    let long = "x".repeat(3 * MATCH_BYTES_MAX as usize);
    let settings = r##"{"patterns": ["BEGIN.*END"], "mask": "#"}"##;
    assert_eq!(text_of(settings, &format!("a BEGIN{long}END b BEGIN c END\nd")), "a #\nd");
    // Without an end, too: a part of it has left, so the rest of the line does not.
    assert_eq!(text_of(settings, &format!("a BEGIN{long}\nd")), "a #\nd");
    assert_eq!(text_of(settings, "a BEGIN b\nd"), "a BEGIN b\nd");
    let key = format!("a sk-{}1a1a1a. b", "Ab1".repeat(200));
    assert_eq!(text_of(r##"{"presets": ["api-key"], "mask": "#"}"##, &key), "a #. b");
}

#[test]
fn a_long_word_does_not_wait_for_an_address_longer_than_its_local_part_can_be() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r##"{"presets": ["email"], "mask": "#"}"##);
    let ids: Vec<i64> = "x".repeat(400).bytes().map(i64::from).collect();
    let received = run(&mut plugin, 1, &rows_of_ids(1, &ids, &(1..ids.len()).collect::<Vec<_>>()));
    assert_eq!(received.ids, ids);
    assert!(longest_wait(&received) < 80, "{}", longest_wait(&received));
    // The local part ends with the last 64 bytes.
    let mut text = "x".repeat(100) + "anna@river.com";
    text = text_of(r##"{"presets": ["email"], "mask": "#"}"##, &text);
    assert_eq!(text, "x".repeat(40) + "#");
}

#[test]
fn numbers_that_follow_each_other_do_not_stop_the_text() {
    let tokens = tokens();
    let mut plugin = tokens.plugin(r##"{"presets": ["card", "phone"], "mask": "#"}"##);
    let text = "4019 4020 4021 4022 ".repeat(40);
    let ids = tokens.encode(&text);
    let received = run(&mut plugin, 1, &rows_of_ids(1, &ids, &(1..ids.len()).collect::<Vec<_>>()));
    assert_eq!(tokens.text(&received.ids), text);
    assert!(longest_wait(&received) < 40, "{}", longest_wait(&received));
}

#[test]
fn a_resumed_request_is_judged_from_its_next_row() {
    let tokens = tokens();
    let mut plugin = Harness::<MatchText>::with_tokens(r#"{"words": ["cat"]}"#, tokens.all.clone()).unwrap();
    plugin.open_as(Opened {
        request: 1,
        rid: "r".into(),
        front_end: String::new(),
        sink: String::new(),
        arrived_ms: 0,
        prompt_tokens: 3,
        received_tokens: 9,
        resumed: true,
    });
    let row = TestRow::new(1).ids(tokens.encode("cat")).finish(FinishKind::Length);
    let verdicts = plugin.process(&[row]);
    assert!(matches!(&verdicts[0].action, Action::Replace(_)), "{verdicts:?}");
}

#[test]
fn wrong_settings_are_named_with_their_limit() {
    let long = "a".repeat(129);
    let many = format!("{:?}", vec!["a"; 33]);
    for (settings, message) in [
        ("{}".to_owned(), "must have at least one of words, patterns and presets"),
        (r#"{"patterns": ["a("]}"#.to_owned(), "is no regular expression"),
        (r#"{"patterns": ["b", "a*"]}"#.to_owned(), "is \"a*\", which matches the empty text"),
        (r#"{"patterns": ["(?mR)a$"]}"#.to_owned(), "the flag R (CRLF) is not supported"),
        (
            r#"{"patterns": ["\\w{1000}"]}"#.to_owned(),
            "is too large: over the limit of 1048576 bytes when compiled",
        ),
        (format!(r#"{{"patterns": {many}}}"#), "has 33 patterns, must have at most 32"),
        (format!(r#"{{"words": ["{long}"]}}"#), "has 129 bytes, must have 1 to 128"),
        (r#"{"words": [""]}"#.to_owned(), "has 0 bytes, must have 1 to 128"),
        (format!(r#"{{"words": ["a"], "mask": "{long}"}}"#), "has 129 bytes, must have at most 64"),
        (r#"{"presets": ["ssn"]}"#.to_owned(), "unknown variant `ssn`"),
    ] {
        let error = Harness::<MatchText>::with_tokens(&settings, tokens().all).err();
        let error = error.unwrap_or_else(|| panic!("{settings} is accepted"));
        assert!(error.message().contains(message), "{settings}: {error}");
    }
}

#[test]
fn ten_thousand_words_are_one_pattern() {
    let words: Vec<String> = (0..10_000).map(|number| format!("word{}x", number * 7919)).collect();
    let settings = format!(r##"{{"words": {words:?}, "mask": "#"}}"##);
    assert_eq!(text_of(&settings, "a word7919x b word7918x WORD79182081X"), "a # b word7918x #");
    let more = format!(r#"{{"words": {:?}}}"#, vec!["a"; 10_001]);
    let error = Harness::<MatchText>::with_tokens(&more, tokens().all).err().unwrap();
    assert!(error.message().contains("has 10001 words, must have at most 10000"), "{error}");
}
