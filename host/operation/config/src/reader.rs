//! Reads typed values from parsed TOML, key by key, and collects problems. A problem does not stop the reader: a value that
//! cannot be read is reported once and is `None` for every later step.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value as Json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::{Need, Table};
use crate::location::{Located, Location, line_and_column};
use crate::units::{SIZE_UNITS, Size, TIME_UNITS, Time, parse_duration, parse_size};
use crate::{Env, Names, Problem};

/// The word for "no limit".
const UNLIMITED: &str = "unlimited";

/// The file that is read, and its problems so far.
pub(crate) struct Source<'a> {
    pub file: &'a Path,
    pub text: &'a str,
    pub env: &'a Env<'a>,
    pub problems: RefCell<Vec<Problem>>,
}

impl Source<'_> {
    pub(crate) fn report(&self, location: &Location, message: impl Into<String>) {
        self.problems.borrow_mut().push(Problem {
            file: self.file.to_owned(),
            line: location.line,
            column: location.column,
            key: location.key.clone(),
            message: message.into(),
        });
    }

    /// Reports a value that is out of bounds.
    pub(crate) fn bounded<T: PartialOrd, S: Display>(
        &self,
        location: &Location,
        value: &T,
        bounds: (T, T),
        show: impl Fn(&T) -> S,
    ) {
        let (least, most) = bounds;
        if *value < least {
            self.report(location, format!("{}, must be at least {}", show(value), show(&least)));
        } else if *value > most {
            self.report(location, format!("{}, must be at most {}", show(value), show(&most)));
        }
    }

    pub(crate) fn location(&self, byte: usize, key: String) -> Location {
        let (line, column) = line_and_column(self.text, byte);
        Location { line, column, key }
    }
}

/// One table of the file. Its declared keys say what it may contain.
pub(crate) struct Reader<'s, 't> {
    pub source: &'s Source<'s>,
    pub location: Location,
    table: &'t DeTable<'t>,
    keys: &'static Table,
}

impl<'s, 't> Reader<'s, 't> {
    /// Opens a table and reports its unknown and missing keys.
    pub(crate) fn open(
        source: &'s Source<'s>,
        table: &'t DeTable<'t>,
        location: Location,
        keys: &'static Table,
    ) -> Reader<'s, 't> {
        let reader = Reader { source, location, table, keys };
        // A required key that is only misspelt is reported once, as unknown.
        let mut meant = Vec::new();
        for (name, _) in table.iter() {
            let written = name.get_ref();
            if keys.key(written).is_none() {
                let nearest = nearest(written, keys);
                meant.extend(nearest);
                source.report(
                    &source.location(name.span().start, reader.path(written)),
                    unknown(nearest, keys),
                );
            }
        }
        for key in &keys.keys {
            let needed = match key.need {
                Need::Required => true,
                Need::Name => source.env.names == Names::FromConfig && !listens(table),
                Need::Default | Need::Optional => false,
            };
            if needed && !table.contains_key(key.name) && !meant.contains(&key.name) {
                let location = Location { key: reader.path(key.name), ..reader.location.clone() };
                let like =
                    if key.example.is_empty() { String::new() } else { format!(", like {}", key.example) };
                source.report(&location, format!("missing, is required{like}"));
            }
        }
        reader
    }

    fn path(&self, name: &str) -> String {
        if self.location.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.location.key) }
    }

    /// Whether the key is written, readable or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    fn get(&self, name: &str) -> Option<(&'t DeValue<'t>, Location)> {
        debug_assert!(self.keys.key(name).is_some(), "{name} is declared in reference.toml");
        let value = self.table.get(name)?;
        Some((value.get_ref(), self.source.location(value.span().start, self.path(name))))
    }

    fn read<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&'t DeValue<'t>, &Location) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let (value, location) = self.get(name)?;
        match parse(value, &location) {
            Ok(value) => Some(Located { value, location }),
            Err(message) => {
                self.source.report(&location, message);
                None
            }
        }
    }

    /// A string, with its variables replaced.
    pub(crate) fn text(&self, name: &str) -> Option<Located<String>> {
        self.read(name, |value, _| self.string(value))
    }

    /// A string, or an array of strings. Other values are reported and left out.
    pub(crate) fn texts(&self, name: &str) -> Vec<Located<String>> {
        let Some((value, location)) = self.get(name) else { return Vec::new() };
        let items: Vec<(&DeValue<'_>, Location)> = match value.as_array() {
            Some(items) => {
                let locations = items.iter().enumerate().map(|(at, item)| {
                    (
                        item.get_ref(),
                        self.source.location(item.span().start, format!("{}[{at}]", location.key)),
                    )
                });
                locations.collect()
            }
            None if value.is_str() => vec![(value, location)],
            None => {
                self.source.report(&location, expected("a string or an array of strings", value));
                return Vec::new();
            }
        };
        let read = items.into_iter().map(|(item, location)| match self.string(item) {
            Ok(value) => Some(Located { value, location }),
            Err(message) => {
                self.source.report(&location, message);
                None
            }
        });
        read.flatten().collect()
    }

    fn string(&self, value: &DeValue<'_>) -> Result<String, String> {
        let text = value.as_str().ok_or_else(|| expected("a string", value))?;
        interpolate(text, self.source.env.var)
    }

    /// `Ok(None)` if the value is not a string.
    fn string_or(&self, value: &DeValue<'_>) -> Result<Option<String>, String> {
        value.is_str().then(|| self.string(value)).transpose()
    }

    /// A whole number. A value out of bounds is reported, here and below.
    pub(crate) fn integer(&self, name: &str, bounds: (u64, u64)) -> Option<Located<usize>> {
        let read = |value, _: &Location| integer(value).ok_or_else(|| expected("a whole number", value));
        let Located { value, location } = self.within(self.read(name, read), bounds, |&number| number)?;
        Some(Located { value: usize::try_from(value).unwrap_or(usize::MAX), location })
    }

    fn within<T: PartialOrd, S: Display>(
        &self,
        read: Option<Located<T>>,
        bounds: (T, T),
        show: impl Fn(&T) -> S,
    ) -> Option<Located<T>> {
        read.inspect(|Located { value, location }| self.source.bounded(location, value, bounds, show))
    }

    pub(crate) fn boolean(&self, name: &str) -> Option<Located<bool>> {
        self.read(name, |value, _| value.as_bool().ok_or_else(|| expected("true or false", value)))
    }

    /// A number with or without a fraction.
    pub(crate) fn number(&self, name: &str) -> Option<Located<f64>> {
        self.read(name, |value, _| {
            let written = value.as_float().map(|float| float.as_str().to_owned());
            let written = written.or_else(|| integer(value).map(|integer| integer.to_string()));
            let number = written.and_then(|written| written.replace('_', "").parse::<f64>().ok());
            number.filter(|number| number.is_finite()).ok_or_else(|| expected("a number", value))
        })
    }

    /// A number of bytes.
    pub(crate) fn size(&self, name: &str, bounds: (u64, u64)) -> Option<Located<u64>> {
        self.within(self.read(name, |value, _| self.parse_size(value)), bounds, |&bytes| Size(bytes))
    }

    fn parse_size(&self, value: &DeValue<'_>) -> Result<u64, String> {
        match self.string_or(value)? {
            Some(text) => parse_size(&text).ok_or_else(|| format!("{text:?} is not a size: {SIZE_UNITS}")),
            None => integer(value).ok_or_else(|| expected(&format!("a size: {SIZE_UNITS}"), value)),
        }
    }

    pub(crate) fn time(&self, name: &str, bounds: (Duration, Duration)) -> Option<Located<Duration>> {
        self.within(self.read(name, |value, _| self.parse_time(value)), bounds, |&time| Time(time))
    }

    fn parse_time(&self, value: &DeValue<'_>) -> Result<Duration, String> {
        match self.string_or(value)? {
            Some(text) => {
                parse_duration(&text).ok_or_else(|| format!("{text:?} is not a duration: {TIME_UNITS}"))
            }
            None => Err(expected(&format!("a duration: {TIME_UNITS}"), value)),
        }
    }

    /// A number of bytes, or `None` for "unlimited".
    pub(crate) fn size_or_unlimited(&self, name: &str) -> Option<Located<Option<u64>>> {
        self.read(name, |value, _| match self.string_or(value)?.as_deref() {
            Some(UNLIMITED) => Ok(None),
            _ => self.parse_size(value).map(Some).map_err(|message| format!("{message}, or {UNLIMITED:?}")),
        })
    }

    /// A duration, or `None` for "unlimited".
    pub(crate) fn time_or_unlimited(&self, name: &str) -> Option<Located<Option<Duration>>> {
        self.read(name, |value, _| match self.string_or(value)?.as_deref() {
            Some(UNLIMITED) => Ok(None),
            _ => self.parse_time(value).map(Some).map_err(|message| format!("{message}, or {UNLIMITED:?}")),
        })
    }

    /// One word of a list.
    pub(crate) fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Option<Located<T>> {
        self.read(name, |value, _| known(&self.string(value)?, words))
    }

    /// Several words of a list. Other words are reported and left out.
    pub(crate) fn words<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Option<Vec<Located<T>>> {
        self.get(name)?;
        let read =
            self.texts(name).into_iter().map(|Located { value, location }| match known(&value, words) {
                Ok(value) => Some(Located { value, location }),
                Err(message) => {
                    self.source.report(&location, message);
                    None
                }
            });
        Some(read.flatten().collect())
    }

    /// The declared keys of a table in this one.
    fn inner(&self, name: &str) -> Option<&'static Table> {
        self.keys.key(name)?.inner.as_ref()
    }

    /// A table. `None` if the key is absent.
    pub(crate) fn table(&self, name: &str) -> Option<Reader<'s, 't>> {
        let found = self.read(name, |value, _| value.as_table().ok_or_else(|| expected("a table", value)))?;
        Some(Reader::open(self.source, found.value, found.location, self.inner(name)?))
    }

    /// An array of tables. Items that are not tables are reported.
    pub(crate) fn tables(&self, name: &str) -> Vec<Reader<'s, 't>> {
        let found = self.read(name, |value, location| {
            value
                .as_array()
                .ok_or_else(|| expected(&format!("an array of tables, {}", header(&location.key)), value))
        });
        let (Some(found), Some(keys)) = (found, self.inner(name)) else { return Vec::new() };
        if found.value.is_empty() && self.keys.key(name).is_some_and(|key| key.need == Need::Required) {
            self.source.report(&found.location, "empty, at least one is required");
        }
        let mut readers = Vec::new();
        for (at, item) in found.value.iter().enumerate() {
            let location = self.source.location(item.span().start, format!("{}[{at}]", found.location.key));
            match item.get_ref().as_table() {
                Some(table) => readers.push(Reader::open(self.source, table, location, keys)),
                None => self.source.report(&location, expected("a table", item.get_ref())),
            }
        }
        readers
    }

    /// Any table, as JSON.
    pub(crate) fn json(&self, name: &str) -> Option<Located<Map<String, Json>>> {
        let found = self.read(name, |value, _| value.as_table().ok_or_else(|| expected("a table", value)))?;
        let value = self.json_table(found.value, &found.location.key);
        Some(Located { value, location: found.location })
    }

    fn json_table(&self, table: &DeTable<'_>, path: &str) -> Map<String, Json> {
        let members = table.iter().map(|(name, value)| {
            let name = name.get_ref().as_ref();
            (name.to_owned(), self.json_value(value, format!("{path}.{name}")))
        });
        members.collect()
    }

    fn json_value(&self, value: &Spanned<DeValue<'_>>, path: String) -> Json {
        let converted = match value.get_ref() {
            DeValue::String(_) => self.string(value.get_ref()).map(Json::from),
            DeValue::Boolean(boolean) => Ok(Json::from(*boolean)),
            DeValue::Datetime(time) => Ok(Json::from(time.to_string())),
            DeValue::Integer(_) => integer_json(value.get_ref()),
            DeValue::Float(float) => float_json(float.as_str()),
            DeValue::Table(table) => Ok(Json::Object(self.json_table(table, &path))),
            DeValue::Array(items) => {
                let items = items.iter().enumerate();
                Ok(items.map(|(at, item)| self.json_value(item, format!("{path}[{at}]"))).collect())
            }
        };
        converted.unwrap_or_else(|message| {
            self.source.report(&self.source.location(value.span().start, path), message);
            Json::Null
        })
    }
}

/// Whether a sink listens, or should: it then needs no `connect`. The checks report missing keys of such a sink.
fn listens(table: &DeTable<'_>) -> bool {
    let is_pub = |socket: &Spanned<DeValue<'_>>| socket.get_ref().as_str() == Some("pub");
    table.contains_key("listen") || table.get("socket").is_some_and(is_pub)
}

/// `stream[0].sink` becomes `[[stream.sink]]`.
fn header(path: &str) -> String {
    let parts: Vec<&str> = path.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect();
    format!("[[{}]]", parts.join("."))
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn integer_json(value: &DeValue<'_>) -> Result<Json, String> {
    let Some(written) = value.as_integer() else { return Ok(Json::Null) };
    i64::from_str_radix(written.as_str(), written.radix())
        .map(Json::from)
        .map_err(|_| format!("{} does not fit in 64 bits", written.as_str()))
}

fn float_json(written: &str) -> Result<Json, String> {
    let number = written.parse().ok().and_then(serde_json::Number::from_f64);
    number.map(Json::Number).ok_or_else(|| format!("{written} cannot be written as JSON"))
}

fn expected(what: &str, value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => format!("{} must be {what}", number.as_str()),
        DeValue::Float(number) => format!("{} must be {what}", number.as_str()),
        DeValue::Boolean(boolean) => format!("{boolean} must be {what}"),
        DeValue::String(text) => format!("{text:?} must be {what}"),
        other => format!("this {} must be {what}", other.type_str()),
    }
}

/// The known key that was probably meant.
fn nearest(name: &str, keys: &Table) -> Option<&'static str> {
    nearest_of(name, keys.keys.iter().map(|key| key.name))
}

/// The entry of `known` that was probably meant. `None` if none is similar.
pub fn nearest_of<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    /// Two words that are less similar are not a typing error.
    const LIKENESS_MIN: f64 = 0.75;
    let known = known.map(|known| (strsim::jaro_winkler(name, known), known));
    let best = known.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= LIKENESS_MIN).then_some(best.1)
}

fn unknown(nearest: Option<&str>, keys: &Table) -> String {
    match nearest {
        Some(name) => format!("unknown key, did you mean {name:?}?"),
        None => {
            let known: Vec<&str> = keys.keys.iter().map(|key| key.name).collect();
            format!("unknown key, known here are {}", known.join(", "))
        }
    }
}

/// Replaces `${NAME}` by the variable's value. `$${` becomes `${`.
fn interpolate(text: &str, var: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("${") {
        let (before, name) = (&rest[..at], &rest[at + 2..]);
        if let Some(plain) = before.strip_suffix('$') {
            out.push_str(plain);
            out.push_str("${");
            rest = name;
            continue;
        }
        out.push_str(before);
        let Some((name, after)) = name.split_once('}') else {
            return Err(format!("{text:?} has ${{ without }}, write $${{ for a plain ${{"));
        };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("{name:?} is not a variable's name, write $${{ for a plain ${{"));
        }
        out.push_str(&var(name).ok_or_else(|| format!("environment variable {name} is not set"))?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The value of a word.
fn known<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        format!("{text:?} is not known, must be {}", known.join(" or "))
    })
}

#[cfg(test)]
mod tests {
    use super::interpolate;

    fn var(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/root/${HOME}".to_owned())
    }

    #[test]
    fn a_variable_is_filled_in_once_and_an_escaped_one_is_not() {
        assert_eq!(interpolate("${HOME}/a", &var).unwrap(), "/root/${HOME}/a");
        assert_eq!(interpolate("$${HOME}/${HOME}", &var).unwrap(), "${HOME}//root/${HOME}");
        assert_eq!(interpolate("a $ b $$ {}", &var).unwrap(), "a $ b $$ {}");
    }

    #[test]
    fn an_unset_variable_or_a_broken_one_is_told() {
        assert_eq!(interpolate("${NOPE}", &var).unwrap_err(), "environment variable NOPE is not set");
        assert!(interpolate("${HOME", &var).unwrap_err().contains("without }"));
        assert!(interpolate("${A-B}", &var).unwrap_err().contains("not a variable's name"));
        assert!(interpolate("${}", &var).unwrap_err().contains("not a variable's name"));
    }
}
