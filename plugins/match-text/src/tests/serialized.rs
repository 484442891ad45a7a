//! Text may be serialized as JSON: it is masked as the plain text is, and stays JSON.

use super::corpus::samples;
use super::random::Random;
use super::tokens::{Tokens, rows_of_ids, run};
use crate::Preset;

/// Text directly before a value.
const BEFORE: [&str; 12] =
    ["", "\n", "\t", "\r\n", "a\n\n", "\u{8}", "\u{a0}", "\"", "\\", "\u{e9}", "\u{201c}", "\u{1f600}"];

/// The text as a string of JSON, as often as `depth` says.
pub fn serialized(text: &str, depth: usize, is_ascii: bool) -> String {
    (0..depth).fold(text.to_owned(), |text, _| {
        let json = serde_json::to_string(&text).unwrap();
        if !is_ascii {
            return json;
        }
        let escape = |character: char| match character {
            ' '..='~' => character.to_string(),
            _ => character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        };
        json.chars().map(escape).collect()
    })
}

/// The text that a reader gets of a text in rows of one byte, and the same of one row.
fn masked(settings: &str, text: &str) -> String {
    let tokens = Tokens::new([]);
    let mut plugin = tokens.plugin(settings);
    let ids: Vec<i64> = text.bytes().map(i64::from).collect();
    let whole = tokens.text(&run(&mut plugin, 1, &rows_of_ids(1, &ids, &[])).ids);
    let cuts: Vec<usize> = (1..ids.len()).collect();
    let cut = tokens.text(&run(&mut plugin, 2, &rows_of_ids(2, &ids, &cuts)).ids);
    assert_eq!(cut, whole, "{settings}: {text}");
    whole
}

#[test]
fn a_serialized_text_is_masked_as_the_plain_text_is() {
    let tokens = Tokens::new([]);
    let settings = |preset: Preset| format!(r##"{{"presets": ["{}"], "mask": "#"}}"##, preset.name());
    let mut random = Random::new(5);
    for preset in Preset::ALL {
        let (mut plugin, mut request) = (tokens.plugin(&settings(preset)), 0);
        let mut masked = |text: &str| {
            request += 1;
            tokens.text(&run(&mut plugin, request, &rows_of_ids(request, &tokens.encode(text), &[])).ids)
        };
        for sample in samples(preset).iter().step_by(5) {
            // Before an `@`, the letter of an escape could be the name in an address of plain text.
            let before = if sample.item.starts_with('@') { "\u{1f600}" } else { random.pick(&BEFORE) };
            for text in [sample.text(), format!("{before}{}{}", sample.item, sample.after)] {
                let plain = masked(&text);
                let (depth, is_ascii) = (1 + random.below(3), random.below(2) == 0);
                let wanted = serialized(&plain, depth, is_ascii);
                assert_eq!(masked(&serialized(&text, depth, is_ascii)), wanted, "{preset:?}: {text:?}");
            }
        }
    }
}

#[test]
fn each_value_in_the_arguments_of_a_call_is_masked() {
    let settings = r##"{"presets": ["email", "card", "iban", "ip", "api-key"], "words": ["project bluebird"], "patterns": ["\\bEMP-[0-9]{6}\\b"], "mask": "#"}"##;
    for value in [
        "AKIAQ3EGRTZ5HX7M2PLK",
        "4111 1111 1111 1111",
        "DE89 3704 0044 0532 0130 00",
        "8.8.4.4",
        "project bluebird",
        "EMP-123456",
        "anna.river@example.org",
    ] {
        for newline in ["\\n", "\\\\n", "\\u000a", "\\r\\n", "\\t"] {
            let text =
                |value: &str| format!(r#"{{"path": ".env", "content": "A=1{newline}{value}{newline}B=2"}}"#);
            assert_eq!(masked(settings, &text(value)), text("#"));
        }
    }
}

#[test]
fn words_and_patterns_are_found_behind_an_escape() {
    let settings = r##"{"words": ["project bluebird", "\u00e4rger", "a/b"], "patterns": ["\\bEMP-[0-9]{6}\\b", "(?m)^id [0-9]+", "key\\s+[0-9]+", "say \"[a-z]+\""], "mask": "#"}"##;
    for text in [
        "A=1\nproject bluebird\nB=2",
        "\tEMP-123456\u{a0}EMP-123457 xEMP-123456",
        "x\nid 12, id 13\nid 14",
        "ein \u{c4}rger, ver\u{e4}rgert\n\u{e4}rger",
        "key\n12 key \t 13",
        "to say \"hello\" a/b",
        "caf\u{e9}project bluebird",
    ] {
        let plain = masked(settings, text);
        for (depth, is_ascii) in [(1, false), (1, true), (2, false), (2, true), (3, true)] {
            let wanted = serialized(&plain, depth, is_ascii);
            assert_eq!(masked(settings, &serialized(text, depth, is_ascii)), wanted, "{text:?}, {depth}");
        }
    }
    assert_eq!(masked(settings, "A=1\nproject bluebird\nB=2"), "A=1\n#\nB=2");
    // A slash may be escaped, too.
    assert_eq!(masked(settings, r#""a\/b""#), r##""#""##);
}

#[test]
fn a_backslash_of_plain_text_hides_nothing() {
    let settings = r##"{"words": ["bluebird", "news", "ulrich"], "presets": ["email"], "mask": "#"}"##;
    assert_eq!(masked(settings, r"C:\projects\bluebird\x"), r"C:\projects#\x");
    assert_eq!(masked(settings, r"\news \ulrich \dnews"), r"# # \dnews");
    // The letter may be that of an escape.
    assert_eq!(masked(settings, r"CORP\nick@example.org, CORP\anna@example.org"), r"CORP\n#, CORP\#");
    assert_eq!(masked(settings, r"\u00e9anna@example.org \u00zanna@example.org"), r"\u00e9# #");
}

#[test]
fn a_mask_neither_begins_nor_ends_inside_of_an_escape() {
    let of = |pattern: &str, text: &str| {
        masked(
            &format!(r##"{{"patterns": [{}], "mask": "#"}}"##, serde_json::to_string(pattern).unwrap()),
            text,
        )
    };
    assert_eq!(of("pin: [^\"]*", r#"{\"a\": \"pin: 12\", \"b\": 1}"#), r##"{\"a\": \"#\", \"b\": 1}"##);
    assert_eq!(of("pin: .{3}", r"pin: 1\u00e92"), r"#\u00e92");
    assert_eq!(of("pin: .{3}", r"pin: 12\\n"), r"#\\n");
    assert_eq!(of("0e", r"1\u00e92"), r"1\u00e92");
    assert_eq!(of("e9+2|9", r"1\u00e92"), r"1\u00e92");
    // A match longer than the limit is cut before an escape.
    for length in 240..270 {
        let text = format!(r#"pin: {}\"b"#, "x".repeat(length));
        assert_eq!(of("pin: [^\"]*", &text), r##"#\"b"##, "{length}");
    }
}

#[test]
fn random_texts_stay_json_behind_random_masks() {
    const PATTERNS: [&str; 6] =
        ["a[^\" ]{2}", "[^\" ]{3,5}", "n+", r"\b[a-z]+\b", "[0-9a-f]{2}", "b.?\u{e9}"];
    let tokens = Tokens::new([]);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let settings = format!(r##"{{"patterns": [{:?}], "mask": "#"}}"##, random.pick(&PATTERNS));
        let mut plugin = tokens.plugin(&settings);
        for request in 0..8 {
            let length = random.below(24);
            let text = random.text("aabnu0\u{e9}\\\"\n\t /", length);
            let depth = 1 + random.below(2);
            let json = serialized(&text, depth, random.below(2) == 0);
            let ids: Vec<i64> = json.bytes().map(i64::from).collect();
            let whole = tokens.text(&run(&mut plugin, 2 * request, &rows_of_ids(2 * request, &ids, &[])).ids);
            let cuts: Vec<usize> = (1..ids.len()).filter(|_| random.below(2) == 0).collect();
            let rows = rows_of_ids(2 * request + 1, &ids, &cuts);
            let cut = tokens.text(&run(&mut plugin, 2 * request + 1, &rows).ids);
            assert_eq!(cut, whole, "seed {seed}: {settings}: {json}");
            let inner: Result<String, _> = serde_json::from_str(&whole);
            let inner =
                inner.unwrap_or_else(|error| panic!("seed {seed}: {settings}: {json} -> {whole}: {error}"));
            if depth == 2 {
                let inner: Result<String, _> = serde_json::from_str(&inner);
                assert!(inner.is_ok(), "seed {seed}: {settings}: {json} -> {whole}");
            }
        }
    }
}
