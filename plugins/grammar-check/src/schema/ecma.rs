//! Translates a regular expression of ECMA 262, as JSON schemas have them, into the syntax of the `regex` crates.
//!
//! The expression is read with Unicode's characters (flag `u`), and where that is an error as browsers read it
//! (annex B): `{` and `]` may stand for themselves. Anchors and flags of Python are read too.

const LINE_ENDS: &[Range] = &[(0xa, 0xa), (0xd, 0xd), (0x2028, 0x2029)];
const DIGITS: &[Range] = &[(0x30, 0x39)];
const WORD: &[Range] = &[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)];
const SPACE: &[Range] = &[
    (0x9, 0xd),
    (0x20, 0x20),
    (0xa0, 0xa0),
    (0x1680, 0x1680),
    (0x2000, 0x200a),
    (0x2028, 0x2029),
    (0x202f, 0x202f),
    (0x205f, 0x205f),
    (0x3000, 0x3000),
    (0xfeff, 0xfeff),
];

/// The longest name of a group.
const NAME_MAX: usize = 64;
/// The most ranges that pairs of surrogates may become.
const PAIRS_MAX: usize = 4096;
/// A class without members.
const NOTHING: &str = "[^\\x{0}-\\x{10FFFF}]";

/// Code points from the first to the last one.
type Range = (u32, u32);

/// A translated expression.
pub(super) struct Translated {
    pub(super) regex: String,
    /// Set if the expression looks around or refers back.
    pub(super) is_fancy: bool,
}

/// Translates an expression. The error is a message.
pub(super) fn translate(text: &str) -> Result<Translated, String> {
    let chars: Vec<char> = text.chars().collect();
    let (groups, is_fancy) = groups(&chars);
    let mut translator = Translator { chars: &chars, at: 0, out: String::new(), groups, is_fancy };
    while translator.at < chars.len() {
        translator.piece()?;
    }
    Ok(Translated { regex: translator.out, is_fancy })
}

/// The names of the groups, and whether the expression looks around or refers back.
fn groups(chars: &[char]) -> (Vec<String>, bool) {
    let (mut groups, mut numbers, mut is_fancy, mut in_class, mut at) =
        (Vec::new(), Vec::new(), false, false, 0);
    while at < chars.len() {
        match chars[at] {
            '\\' => {
                at += 1;
                match chars.get(at) {
                    Some('k') if !in_class => is_fancy |= chars.get(at + 1) == Some(&'<'),
                    Some(digit @ '1'..='9') if !in_class => numbers.push(*digit as usize - '0' as usize),
                    _ => {}
                }
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => {
                let rest: String = chars[at + 1..].iter().take(3).collect();
                is_fancy |= ["?=", "?!", "?<=", "?<!"].iter().any(|look| rest.starts_with(look));
                let name = rest.find('<').filter(|_| rest.starts_with("?<") || rest.starts_with("?P<"));
                if let Some(open) = name.filter(|_| !rest.starts_with("?<=") && !rest.starts_with("?<!")) {
                    let name = chars[at + 2 + open..].iter().take(NAME_MAX).take_while(|char| **char != '>');
                    groups.push(name.collect());
                } else if !rest.starts_with('?') {
                    groups.push(String::new());
                }
            }
            _ => {}
        }
        at += 1;
    }
    is_fancy |= numbers.iter().any(|number| *number <= groups.len());
    (groups, is_fancy)
}

struct Translator<'a> {
    chars: &'a [char],
    at: usize,
    out: String,
    /// The names of the groups in their order, empty for one without a name.
    groups: Vec<String>,
    is_fancy: bool,
}

/// The members of a class.
#[derive(Default)]
struct Class {
    is_negated: bool,
    ranges: Vec<Range>,
    /// Members that only the other syntax can write: `\p{L}`, `[^0-9]`.
    others: String,
}

/// The meaning of an escape.
enum Escape {
    Char(u32),
    /// `\d`, `\W`.
    Set(Class),
    /// `\b`, `\1`: in the other syntax.
    Other(String),
}

impl Translator<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, char)| self.peek(ahead) == Some(char))
    }

    /// Translates an atom, a quantifier or a bracket.
    fn piece(&mut self) -> Result<(), String> {
        let Some(char) = self.peek(0) else { return Ok(()) };
        match char {
            '(' => self.group(),
            '{' => {
                let length = self.repetition();
                match length {
                    Some(length) => self.out.extend(&self.chars[self.at..self.at + length]),
                    None => push_char(&mut self.out, '{' as u32),
                }
                self.at += length.unwrap_or(1);
                Ok(())
            }
            '*' | '+' | '?' | '|' | '^' | '$' | ')' => {
                self.at += 1;
                self.out.push(char);
                Ok(())
            }
            _ => self.atom(),
        }
    }

    /// The length of the repetition that begins here: `{2}`, `{2,}` or `{2,3}`.
    fn repetition(&self) -> Option<usize> {
        let (mut length, mut commas) = (1, 0);
        while let Some(char @ ('0'..='9' | ',')) = self.peek(length) {
            commas += usize::from(char == ',');
            length += 1;
        }
        let has_low = self.peek(1).is_some_and(|char| char.is_ascii_digit());
        (has_low && commas <= 1 && self.peek(length) == Some('}')).then_some(length + 1)
    }

    /// Translates the begin of a group.
    fn group(&mut self) -> Result<(), String> {
        let looks = ["(?=", "(?!", "(?<=", "(?<!", "(?:"];
        if let Some(begin) = looks.iter().find(|begin| self.starts_with(begin)) {
            self.at += begin.len();
            self.out += begin;
            return Ok(());
        }
        if self.starts_with("(?<") || self.starts_with("(?P<") {
            let end = self.chars[self.at..].iter().position(|char| *char == '>');
            self.at += end.ok_or("a name of a group has no end")? + 1;
        } else if self.starts_with("(?i)") || self.starts_with("(?i:") || self.starts_with("(?-i:") {
            let length = if self.peek(2) == Some('-') { 5 } else { 4 };
            self.out.extend(&self.chars[self.at..self.at + length]);
            self.at += length;
            return Ok(());
        } else if self.starts_with("(?") {
            return Err("a group of an unknown kind".to_owned());
        } else {
            self.at += 1;
        }
        // Only a backreference needs the text of a group.
        self.out += if self.is_fancy { "(" } else { "(?:" };
        Ok(())
    }

    /// Translates a character, a class or an escape.
    fn atom(&mut self) -> Result<(), String> {
        let Some(char) = self.peek(0) else { return Ok(()) };
        self.at += 1;
        match char {
            '.' => {
                self.push_class(&Class { is_negated: true, ranges: LINE_ENDS.to_vec(), ..Class::default() })
            }
            '[' => {
                let class = self.class()?;
                let class = self.with_low_surrogates(class)?;
                self.push_class(&class);
            }
            '\\' => match self.escape(false)? {
                Escape::Char(code @ 0xd800..0xdc00) => {
                    let class = Class { ranges: vec![(code, code)], ..Class::default() };
                    let class = self.with_low_surrogates(class)?;
                    self.push_class(&class);
                }
                Escape::Char(code) => push_char(&mut self.out, code),
                Escape::Set(class) => self.push_class(&class),
                Escape::Other(text) => self.out += &text,
            },
            char => push_char(&mut self.out, char as u32),
        }
        Ok(())
    }

    /// Reads an escape behind its backslash.
    fn escape(&mut self, in_class: bool) -> Result<Escape, String> {
        let char = self.peek(0).ok_or("ends in a backslash")?;
        self.at += 1;
        let set = |ranges: &[Range], is_negated| {
            Ok(Escape::Set(Class { is_negated, ranges: ranges.to_vec(), others: String::new() }))
        };
        let code = match char {
            'd' | 'D' => return set(DIGITS, char == 'D'),
            'w' | 'W' => return set(WORD, char == 'W'),
            's' | 'S' => return set(SPACE, char == 'S'),
            'p' | 'P' => return self.property(char),
            'b' if in_class => 8,
            'b' | 'B' if !in_class => return Ok(Escape::Other(self.boundary(char == 'b').to_owned())),
            'A' if !in_class => return Ok(Escape::Other("^".to_owned())),
            'Z' | 'z' if !in_class => return Ok(Escape::Other("$".to_owned())),
            'n' => 0xa,
            'r' => 0xd,
            't' => 0x9,
            'v' => 0xb,
            'f' => 0xc,
            'c' if self.peek(0).is_some_and(|char| char.is_ascii_alphabetic()) => {
                self.at += 1;
                self.chars[self.at - 1] as u32 & 31
            }
            'x' => self.hex(2).unwrap_or('x' as u32),
            'u' if self.peek(0) == Some('{') => {
                let length =
                    self.chars[self.at..].iter().position(|char| *char == '}').ok_or("\\u{ has no end")?;
                self.at += 1;
                let code = self.hex(length - 1).filter(|code| char::from_u32(*code).is_some());
                self.at += 1;
                code.ok_or("\\u{…} is no character")?
            }
            'u' => self.unit().unwrap_or('u' as u32),
            'k' if !in_class && self.peek(0) == Some('<') => {
                let length =
                    self.chars[self.at..].iter().position(|char| *char == '>').ok_or("\\k< has no end")?;
                let name: String = self.chars[self.at + 1..self.at + length].iter().collect();
                self.at += length + 1;
                let group = self.groups.iter().position(|group| *group == name && !name.is_empty());
                let group = group.ok_or_else(|| format!("no group has the name {name:?}"))?;
                return Ok(Escape::Other(format!("\\k<{}>", group + 1)));
            }
            '0'..='9' => return Ok(self.number(char, in_class)),
            char if char.is_ascii_alphabetic() => {
                return Err(format!("\\{char} is no escape of ECMA 262"));
            }
            char => char as u32,
        };
        Ok(Escape::Char(code))
    }

    /// Reads a code point of so many hexadecimal digits.
    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text: String = self.chars.get(self.at..self.at + digits)?.iter().collect();
        let code = u32::from_str_radix(&text, 16).ok().filter(|_| !text.starts_with('+'))?;
        self.at += digits;
        Some(code)
    }

    /// Reads the four digits of `\u`, and of another `\u` if both are one character.
    fn unit(&mut self) -> Option<u32> {
        let high = self.hex(4)?;
        let before = self.at;
        if (0xd800..0xdc00).contains(&high) && self.starts_with("\\u") {
            self.at += 2;
            match self.hex(4) {
                Some(low) if (0xdc00..0xe000).contains(&low) => return Some(pair(high, low)),
                _ => self.at = before,
            }
        }
        Some(high)
    }

    /// Reads a backreference, or the octal number of a character.
    fn number(&mut self, first: char, in_class: bool) -> Escape {
        let begin = self.at - 1;
        let digits = self.chars[begin..].iter().take_while(|char| char.is_ascii_digit()).take(3).count();
        let text: String = self.chars[begin..begin + digits].iter().collect();
        let group = text.parse().unwrap_or(0);
        if first != '0' && !in_class && (1..=self.groups.len()).contains(&group) {
            self.at = begin + digits;
            return Escape::Other(format!("\\k<{group}>"));
        }
        let octal = text.bytes().take_while(|byte| (b'0'..b'8').contains(byte)).count();
        match u32::from_str_radix(&text[..octal], 8) {
            Ok(code) if code < 256 => {
                self.at = begin + octal;
                Escape::Char(code)
            }
            Ok(code) => {
                self.at = begin + octal - 1;
                Escape::Char(code / 8)
            }
            Err(_) => Escape::Char(first as u32),
        }
    }

    /// Reads `\p{L}`.
    fn property(&mut self, char: char) -> Result<Escape, String> {
        let braces = self.peek(0) == Some('{');
        let end =
            self.chars[self.at..].iter().position(|char| !braces || *char == '}').ok_or("\\p has no end")?;
        let others = format!("\\{char}{}", self.chars[self.at..=self.at + end].iter().collect::<String>());
        self.at += end + 1;
        Ok(Escape::Set(Class { others, ..Class::default() }))
    }

    /// The border of a word of ASCII, or what is none.
    fn boundary(&self, is_boundary: bool) -> &'static str {
        match (self.is_fancy, is_boundary) {
            (false, true) => "(?-u:\\b)",
            (false, false) => "(?-u:\\B)",
            (true, true) => "(?:(?<=[0-9A-Z_a-z])(?![0-9A-Z_a-z])|(?<![0-9A-Z_a-z])(?=[0-9A-Z_a-z]))",
            (true, false) => "(?:(?<=[0-9A-Z_a-z])(?=[0-9A-Z_a-z])|(?<![0-9A-Z_a-z])(?![0-9A-Z_a-z]))",
        }
    }

    /// Reads a class behind its bracket.
    fn class(&mut self) -> Result<Class, String> {
        let mut class = Class { is_negated: self.peek(0) == Some('^'), ..Class::default() };
        self.at += usize::from(class.is_negated);
        loop {
            let first = self.member()?;
            let Some(first) = first else { return Ok(class) };
            let is_range = self.peek(0) == Some('-') && self.peek(1).is_some_and(|char| char != ']');
            if !is_range {
                class.add(first);
                continue;
            }
            self.at += 1;
            match (first, self.member()?) {
                (Escape::Char(first), Some(Escape::Char(last))) if first <= last => {
                    class.ranges.push((first, last))
                }
                (Escape::Char(_), Some(Escape::Char(_))) => {
                    return Err("a range of a class is out of order".to_owned());
                }
                (first, last) => {
                    class.ranges.push(('-' as u32, '-' as u32));
                    class.add(first);
                    last.into_iter().for_each(|last| class.add(last));
                }
            }
        }
    }

    /// Reads a member of a class. `None` at its end.
    fn member(&mut self) -> Result<Option<Escape>, String> {
        let char = self.peek(0).ok_or("a class has no end")?;
        self.at += 1;
        match char {
            ']' => Ok(None),
            '\\' => self.escape(true).map(Some),
            char => Ok(Some(Escape::Char(char as u32))),
        }
    }

    /// Joins a class of high surrogates with the low surrogates behind it. A surrogate alone is no character.
    fn with_low_surrogates(&mut self, class: Class) -> Result<Class, String> {
        let are_all = |ranges: &[Range], first: u32, last: u32| {
            !ranges.is_empty() && ranges.iter().all(|range| range.0 >= first && range.1 <= last)
        };
        if class.is_negated || !class.others.is_empty() || !are_all(&class.ranges, 0xd800, 0xdbff) {
            return Ok(class);
        }
        let before = self.at;
        self.at += 1;
        let low = match self.chars.get(before) {
            Some('[') => self.class()?,
            Some('\\') if self.peek(0) == Some('u') => match self.escape(false)? {
                Escape::Char(code) => Class { ranges: vec![(code, code)], ..Class::default() },
                _ => Class::default(),
            },
            _ => Class::default(),
        };
        if low.is_negated || !low.others.is_empty() || !are_all(&low.ranges, 0xdc00, 0xdfff) {
            self.at = before;
            return Ok(class);
        }
        let mut ranges: Vec<Range> = Vec::new();
        for high in class.ranges.iter().flat_map(|range| range.0..=range.1) {
            if ranges.len() > PAIRS_MAX {
                return Err("has too many pairs of surrogates".to_owned());
            }
            for (first, last) in &low.ranges {
                match ranges.last_mut() {
                    Some((_, end)) if *end + 1 == pair(high, *first) => *end = pair(high, *last),
                    _ => ranges.push((pair(high, *first), pair(high, *last))),
                }
            }
        }
        Ok(Class { ranges, ..Class::default() })
    }

    fn push_class(&mut self, class: &Class) {
        class.write(&mut self.out);
    }
}

impl Class {
    fn add(&mut self, member: Escape) {
        match member {
            Escape::Char(code) => self.ranges.push((code, code)),
            Escape::Set(class) if class.is_negated => class.write(&mut self.others),
            Escape::Set(class) => {
                self.ranges.extend(class.ranges);
                self.others += &class.others;
            }
            Escape::Other(_) => {}
        }
    }

    fn write(&self, out: &mut String) {
        // Surrogates are no characters.
        let parts = |range: &Range| [(range.0, range.1.min(0xd7ff)), (range.0.max(0xe000), range.1)];
        let ranges = self.ranges.iter().flat_map(parts).filter(|(first, last)| first <= last);
        let mut ranges: Vec<Range> = ranges.collect();
        if ranges.is_empty() && self.others.is_empty() {
            *out += if self.is_negated { "(?s:.)" } else { NOTHING };
            return;
        }
        ranges.sort_unstable();
        ranges.dedup_by(|next, range| {
            let joins = next.0 <= range.1 + 1;
            range.1 = if joins { range.1.max(next.1) } else { range.1 };
            joins
        });
        *out += if self.is_negated { "[^" } else { "[" };
        // Signs of operations on classes, alone and first: `[a--b]`, `[a&&b]`.
        for sign in "-&~".chars() {
            let code = sign as u32;
            let Some(at) = ranges.iter().position(|range| (range.0..=range.1).contains(&code)) else {
                continue;
            };
            let (first, last) = ranges.remove(at);
            let rest = [(first, code.saturating_sub(1)), (code + 1, last)];
            ranges.extend(rest.iter().filter(|(first, last)| first <= last));
            out.push(sign);
        }
        for (first, last) in ranges {
            push_char(out, first);
            if first != last {
                out.push('-');
                push_char(out, last);
            }
        }
        *out += &self.others;
        out.push(']');
    }
}

/// The character of a pair of surrogates.
fn pair(high: u32, low: u32) -> u32 {
    0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
}

/// Writes a character so that no syntax takes it for a sign.
fn push_char(out: &mut String, code: u32) {
    match char::from_u32(code) {
        Some(char) if char.is_ascii_alphanumeric() || (code >= 0xa1 && char.is_alphanumeric()) => {
            out.push(char)
        }
        Some(_) => *out += &format!("\\x{{{code:x}}}"),
        // A surrogate without its pair is in no text.
        None => *out += NOTHING,
    }
}
