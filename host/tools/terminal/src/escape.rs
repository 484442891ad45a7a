//! Texts of others on a terminal: a text writes nothing but its own characters, and only Afterbay's own colours are colours.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// The beginning of a colour in a text that is not printed yet. It holds a random number, so no text of others can have it.
static MARK: LazyLock<String> =
    LazyLock::new(|| format!("\x1b{:016x}[", RandomState::new().build_hasher().finish()));

/// The text with a colour.
pub(crate) fn with_colour(text: &str, code: &str) -> String {
    let mark = &*MARK;
    format!("{mark}{code}m{text}{mark}0m")
}

/// Splits a text that is coloured as a whole into the code of the colour and the text.
pub(crate) fn without_colour(text: &str) -> (Option<&str>, &str) {
    let end = |text| str::strip_suffix(text, "0m").and_then(|text| text.strip_suffix(&**MARK));
    let coloured = text.strip_prefix(&**MARK).and_then(end).and_then(|text| text.split_once('m'));
    match coloured.filter(|(_, inner)| !inner.contains(&**MARK)) {
        Some((code, inner)) => (Some(code), inner),
        None => (None, text),
    }
}

/// The number of characters that the terminal shows.
pub(crate) fn length(text: &str) -> usize {
    let mut parts = text.split(&**MARK);
    let first = parts.next().map_or(0, |text| text.chars().count());
    // A code is ASCII.
    first + parts.map(|part| part.chars().count() - part.find('m').map_or(0, |code| code + 1)).sum::<usize>()
}

/// The text as a terminal gets it.
pub(crate) fn printed(text: &str) -> String {
    text.replace(&**MARK, "\x1b[")
}

/// One line that writes nothing but its own characters to a terminal: control characters, line breaks, and characters that are
/// invisible or change the direction of writing are escaped as `\u{1b}`.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (number, part) in text.split(&**MARK).enumerate() {
        if number > 0 {
            out += &MARK;
        }
        for c in part.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                _ if is_unsafe(c) => out.extend(c.escape_unicode()),
                _ => out.push(c),
            }
        }
    }
    out
}

/// JSON in which a text writes nothing but its own characters to a terminal. Its value stays.
pub(crate) fn escaped_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        // Line breaks are between values: inside a text, JSON has escaped them.
        if c != '\n' && is_unsafe(c) {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a character controls the terminal, has no width of its own, or changes the order of the characters beside it.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_text_has_no_control_character_and_no_change_of_direction() {
        assert_eq!(escaped("a\x1b]0;owned\x07b"), "a\\u{1b}]0;owned\\u{7}b");
        assert_eq!(escaped("a\u{9b}31mb\r\nc\td"), "a\\u{9b}31mb\\r\\nc\\td");
        assert_eq!(escaped("abc\u{202e}dcba\u{200b}"), "abc\\u{202e}dcba\\u{200b}");
        assert_eq!(escaped("日本語 é"), "日本語 é");
    }

    #[test]
    fn a_colour_is_afterbays_own_and_a_colour_of_another_text_is_escaped() {
        let line = escaped(&format!("{} is \x1b[31mred", with_colour("\x1b[2Jok", "32")));
        assert_eq!(printed(&line), "\x1b[32m\\u{1b}[2Jok\x1b[0m is \\u{1b}[31mred");
        assert_eq!(length(&with_colour("ok é", "32")), 4);
        assert_eq!(without_colour(&with_colour("ok", "32")), (Some("32"), "ok"));
        assert_eq!(without_colour("\x1b[32mok\x1b[0m"), (None, "\x1b[32mok\x1b[0m"));
    }

    #[test]
    fn json_keeps_its_value_and_has_no_control_character() {
        let json = "{\"rid\":\"a\u{9b}31m\u{7f}\u{e0041}é\"}";
        assert_eq!(escaped_json(json), "{\"rid\":\"a\\u009b31m\\u007f\\udb40\\udc41é\"}");
    }
}
