//! Reads JSON values and Python literals, also the beginning of a text that goes on.

use serde_json::{Map, Number, Value};

/// The deepest nesting of a literal.
const DEPTH_MAX: usize = 127;

/// The notation of a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    Json,
    /// JSON in which a comma may stand before a closing bracket, as SGLang's streaming parsers read it.
    JsonWithCommas,
    Python,
}

/// The reason why a text does not begin with a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoLiteral {
    /// The text ends in the literal, `in_string` in one of its strings.
    Cut {
        in_string: bool,
    },
    Wrong(String),
}

/// Reads the literal with which a text begins. Returns its length too.
pub(crate) fn literal(text: &str, notation: Notation) -> Result<(Value, usize), NoLiteral> {
    if notation != Notation::Python {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let why = match values.next() {
            Some(Ok(value)) => return Ok((value, values.byte_offset())),
            Some(Err(error)) => error.to_string(),
            None => return Err(NoLiteral::Cut { in_string: false }),
        };
        // Python, which the engines are written in, reads a lone surrogate.
        let is_read = ["surrogate", "hex escape"].iter().any(|part| why.contains(part));
        if notation == Notation::Json && !is_read && !why.contains("EOF") {
            return Err(NoLiteral::Wrong(why));
        }
    }
    let mut reader = Reader { text: text.as_bytes(), at: 0, notation };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

/// A number as Python's `int` and `float` read it: `007`, `+3`, `.5`, `1_000`.
pub(crate) fn number(text: &str) -> Option<Value> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|char: char| char.is_ascii_digit() || char == '.') {
        return None;
    }
    let plain = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let (sign, whole) = plain.strip_prefix('-').map_or(("", &*plain), |whole| ("-", whole));
    if !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit()) {
        let (last, first) = (&whole[whole.len() - 1..], whole[..whole.len() - 1].trim_start_matches('0'));
        return serde_json::from_str(&format!("{sign}{first}{last}")).ok();
    }
    Number::from_f64(plain.parse().ok()?).map(Value::Number)
}

/// The name of a call, and its arguments.
pub(crate) type PythonCall = (String, Result<Value, NoLiteral>);

/// Reads `[f(a=1), g()]`, the calls of a list in Python's notation. `true` says that the list is complete. A call
/// whose first argument cannot be read is none. Positional arguments are left out, as in vLLM's parser.
pub(crate) fn python_calls(text: &str) -> (Vec<PythonCall>, bool) {
    let mut reader = Reader { text: text.as_bytes(), at: 0, notation: Notation::Python };
    let mut calls = Vec::new();
    if reader.next() != Some(b'[') {
        return (calls, false);
    }
    reader.at += 1;
    loop {
        let begin = {
            reader.skip();
            reader.at
        };
        reader.word();
        let name = text[begin..reader.at].to_owned();
        if name.is_empty() || reader.next() != Some(b'(') {
            return (calls, false);
        }
        reader.at += 1;
        match reader.arguments() {
            (arguments, Ok(())) => calls.push((name, Ok(Value::Object(arguments)))),
            (arguments, Err(why)) => {
                if !arguments.is_empty() || why == (NoLiteral::Cut { in_string: true }) {
                    calls.push((name, Err(why)));
                }
                return (calls, false);
            }
        }
        match reader.next() {
            Some(b',') => reader.at += 1,
            end => return (calls, end == Some(b']')),
        }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    notation: Notation,
}

fn wrong<T>(why: &str) -> Result<T, NoLiteral> {
    Err(NoLiteral::Wrong(why.to_owned()))
}

impl Reader<'_> {
    fn skip(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    /// Skips whitespace. The next byte, which is not read yet.
    fn next(&mut self) -> Option<u8> {
        self.skip();
        self.text.get(self.at).copied()
    }

    /// Reads a name.
    fn word(&mut self) -> &str {
        let begin = self.at;
        let is_word =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.') || *byte >= 0x80;
        while self.text.get(self.at).is_some_and(is_word) {
            self.at += 1;
        }
        std::str::from_utf8(&self.text[begin..self.at]).unwrap_or_default()
    }

    fn value(&mut self, depth: usize) -> Result<Value, NoLiteral> {
        let is_python = self.notation == Notation::Python;
        match self.next() {
            None => Err(NoLiteral::Cut { in_string: false }),
            Some(_) if depth > DEPTH_MAX => wrong("is nested too deeply"),
            Some(b'{') => {
                let mut map = Map::new();
                self.items(b'}', |reader| {
                    let key = reader.value(depth + 1)?;
                    let Value::String(key) = key else { return wrong("a key is no string") };
                    match reader.next() {
                        Some(b':') => reader.at += 1,
                        None => return Err(NoLiteral::Cut { in_string: false }),
                        Some(_) => return wrong("expected `:`"),
                    }
                    map.insert(key, reader.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::Object(map))
            }
            Some(open @ (b'[' | b'(')) if open == b'[' || is_python => {
                let mut list = Vec::new();
                let close = if open == b'[' { b']' } else { b')' };
                self.items(close, |reader| {
                    list.push(reader.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::Array(list))
            }
            Some(quote @ (b'"' | b'\'')) if quote == b'"' || is_python => {
                let mut string = self.string(quote)?;
                while let (true, Some(quote @ (b'"' | b'\''))) = (is_python, self.next()) {
                    string += &self.string(quote)?;
                }
                Ok(Value::String(string))
            }
            Some(_) => self.scalar(),
        }
    }

    /// Reads the items of a list or an object with commas between them, and its closing bracket.
    fn items(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), NoLiteral>,
    ) -> Result<(), NoLiteral> {
        self.at += 1;
        let mut may_close = true;
        loop {
            match self.next() {
                Some(byte) if byte == close && may_close => {
                    self.at += 1;
                    return Ok(());
                }
                None => return Err(NoLiteral::Cut { in_string: false }),
                Some(_) => item(self)?,
            }
            match self.next() {
                Some(b',') => self.at += 1,
                None => return Err(NoLiteral::Cut { in_string: false }),
                Some(byte) if byte == close => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => return wrong("expected `,`"),
            }
            may_close = self.notation != Notation::Json;
        }
    }

    fn string(&mut self, quote: u8) -> Result<String, NoLiteral> {
        const CUT: NoLiteral = NoLiteral::Cut { in_string: true };
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let byte = *self.text.get(self.at).ok_or(CUT)?;
            self.at += 1;
            match byte {
                _ if byte == quote => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                b'\\' => {
                    let escape = *self.text.get(self.at).ok_or(CUT)?;
                    self.at += 1;
                    let digits = match escape {
                        b'n' => {
                            bytes.push(b'\n');
                            0
                        }
                        b't' => {
                            bytes.push(b'\t');
                            0
                        }
                        b'r' => {
                            bytes.push(b'\r');
                            0
                        }
                        b'b' => {
                            bytes.push(8);
                            0
                        }
                        b'f' => {
                            bytes.push(12);
                            0
                        }
                        b'\\' | b'"' | b'/' => {
                            bytes.push(escape);
                            0
                        }
                        b'\'' if self.notation != Notation::Json => {
                            bytes.push(escape);
                            0
                        }
                        b'\n' if self.notation == Notation::Python => 0,
                        b'x' if self.notation == Notation::Python => 2,
                        b'u' => 4,
                        b'U' if self.notation == Notation::Python => 8,
                        _ if self.notation == Notation::Python => {
                            bytes.extend([b'\\', escape]);
                            0
                        }
                        _ => return wrong("invalid escape"),
                    };
                    if digits > 0 {
                        let char = self.code_point(digits, CUT)?;
                        bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                }
                b'\n' if self.notation == Notation::Python => return wrong("a line ends in a string"),
                0..0x20 if self.notation != Notation::Python => {
                    return wrong("control character in a string");
                }
                _ => bytes.push(byte),
            }
        }
    }

    /// Reads the digits of an escape. A lone surrogate is read as U+FFFD.
    fn code_point(&mut self, digits: usize, cut: NoLiteral) -> Result<char, NoLiteral> {
        let hex = |reader: &mut Self, digits: usize| {
            let found = reader.text.get(reader.at..reader.at + digits).ok_or(cut.clone())?;
            let found = std::str::from_utf8(found).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
            reader.at += digits;
            found.ok_or(NoLiteral::Wrong("invalid escape".to_owned()))
        };
        let code = hex(self, digits)?;
        if (0xd800..0xdc00).contains(&code) && self.text[self.at..].starts_with(b"\\u") {
            let before = self.at;
            self.at += 2;
            let low = hex(self, 4)?;
            if (0xdc00..0xe000).contains(&low) {
                let pair = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = before;
        }
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn scalar(&mut self) -> Result<Value, NoLiteral> {
        let begin = self.at;
        while self
            .text
            .get(self.at)
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(byte))
        {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[begin..self.at]).unwrap_or_default();
        let is_python = self.notation == Notation::Python;
        match text {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            "True" if is_python => Ok(Value::Bool(true)),
            "False" if is_python => Ok(Value::Bool(false)),
            "None" if is_python => Ok(Value::Null),
            // A number of JSON stays as its text has it.
            _ => match serde_json::from_str(text).ok().filter(|_| !is_python).or_else(|| number(text)) {
                Some(number) => Ok(number),
                None if self.at == self.text.len() => Err(NoLiteral::Cut { in_string: false }),
                None => wrong("expected a value"),
            },
        }
    }

    /// Reads the keyword arguments of a call up to `)`. Also returns those before a fault.
    fn arguments(&mut self) -> (Map<String, Value>, Result<(), NoLiteral>) {
        let mut arguments = Map::new();
        loop {
            match self.next() {
                Some(b')') => {
                    self.at += 1;
                    return (arguments, Ok(()));
                }
                None => return (arguments, Err(NoLiteral::Cut { in_string: false })),
                Some(_) => {}
            }
            let begin = self.at;
            let key = self.word().to_owned();
            let is_keyword = !key.is_empty() && self.next() == Some(b'=');
            self.at = if is_keyword { self.at + 1 } else { begin };
            match self.value(0) {
                Ok(value) if is_keyword => drop(arguments.insert(key, value)),
                Ok(_) => {}
                Err(why) => return (arguments, Err(why)),
            }
            match self.next() {
                Some(b',') => self.at += 1,
                Some(b')') => {}
                None => return (arguments, Err(NoLiteral::Cut { in_string: false })),
                Some(_) => return (arguments, wrong("expected `,`")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_read_in_their_notation() {
        let python = r#"{'a': True, "b": [None, -1.5, ('x',)], 'c': 'it\'s' "\x41\u00e9",}"#;
        let value = json!({"a": true, "b": [null, -1.5, ["x"]], "c": "it'sAé"});
        assert_eq!(literal(python, Notation::Python), Ok((value, python.len())));
        assert_eq!(literal(r#"{"a": 1} x"#, Notation::Json), Ok((json!({"a": 1}), 8)));
        assert_eq!(literal(r#"["\ud83d", 1e400]"#, Notation::Json).unwrap().0[0], "\u{fffd}");
        assert_eq!(literal(r#""\ud83d\ude00""#, Notation::Python).unwrap().0, "😀");
        for wrong in ["{'a': 1}", "[1,]", "[True]", "(1)", "[\"\\x41\"]", "[\"\\ud83d\\'\"]"] {
            assert!(matches!(literal(wrong, Notation::Json), Err(NoLiteral::Wrong(_))), "{wrong}");
        }
        assert!(literal("[1,]", Notation::JsonWithCommas).is_ok());
        for notation in [Notation::Json, Notation::Python] {
            assert_eq!(literal(r#"{"a": "b"#, notation), Err(NoLiteral::Cut { in_string: true }));
            assert_eq!(literal(r#"{"a": [1"#, notation), Err(NoLiteral::Cut { in_string: false }));
            assert!(literal(&"[".repeat(100_000), notation).is_err());
        }
    }

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        for (text, value) in [
            ("007", json!(7)),
            ("+3", json!(3)),
            (".5", json!(0.5)),
            (" 5. ", json!(5.0)),
            ("1_000", json!(1000)),
            ("-0009007199254740993", json!(-9_007_199_254_740_993_i64)),
            ("000", json!(0)),
        ] {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for text in ["", "x", "nan", "inf", "1e400", "1 2", "-"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
