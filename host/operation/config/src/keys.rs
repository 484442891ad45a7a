//! Every key of the file, as `reference.toml` declares it. The reader accepts these keys, an unknown key is compared with them,
//! and the documentation is made from them.
//!
//! The form of the file: comments come before the key or the table that they describe.
//!
//! | line | meaning |
//! |---|---|
//! | `key = value` | required |
//! | `#key = value` | optional, and this is the default |
//! | the same after a comment of [`MARKERS`] | required or optional as the comment says, and this is an example |
//! | `# key = value` | optional, and mentioned in a comment only |
//! | `#   key: meaning` | a key of the inline table that follows, which shows its default |

use std::sync::LazyLock;

/// The reference config.
pub(crate) static REFERENCE: &str = include_str!("reference.toml");

/// Comments that say whether the next key must be present.
const MARKERS: [(&str, Need); 3] = [
    ("Required. An example:", Need::Required),
    ("Required without --rendezvous. An example:", Need::Name),
    ("No default. An example:", Need::Optional),
];

/// Whether a key must be present.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Its absence is an error.
    Required,
    /// Its absence is an error, except under [`Names::FromRendezvous`](crate::Names::FromRendezvous).
    Name,
    /// `example` is its default.
    Default,
    /// It has no default. `example` is a possible value.
    Optional,
}

/// One key of a table.
#[derive(Clone)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Whether it must be present.
    pub need: Need,
    /// A value in TOML. Empty for a table with a header.
    pub example: &'static str,
    /// Its meaning, unit and bound, for the operator.
    pub doc: String,
    /// The keys of a table.
    pub inner: Option<Table>,
}

/// The keys of one table, in the order of the reference.
#[derive(Clone, Default)]
pub struct Table {
    /// The keys.
    pub keys: Vec<Key>,
}

/// The top level of the file.
pub(crate) static ROOT: LazyLock<Table> = LazyLock::new(|| read(REFERENCE));

/// The keys of a bundled plugin's own defaults.
pub(crate) static PLUGIN_DEFAULTS: LazyLock<Table> = LazyLock::new(|| {
    let of_plugin = |name| ROOT.at(&["stream", "plugin"])?.key(name).cloned();
    let engines =
        "# The engines that the plugin serves. A stream of another engine refuses it.\n#engines = []\n";
    let keys = read(engines).keys.into_iter().chain(of_plugin("grant")).chain(of_plugin("limits"));
    Table { keys: keys.collect() }
});

/// Every table of the config file with its header in TOML, like `[[stream.sink]]`, in the order of the reference.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static Key)> {
    REFERENCE.lines().filter_map(header).filter_map(|header| {
        let path: Vec<&str> = path(header).collect();
        let (name, parents) = path.split_last()?;
        Some((header, ROOT.at(parents)?.key(name)?))
    })
}

impl Table {
    pub(crate) fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    fn at(&self, path: &[&str]) -> Option<&Table> {
        path.iter().try_fold(self, |table, name| table.key(name)?.inner.as_ref())
    }

    fn at_mut(&mut self, path: &[&str]) -> Option<&mut Table> {
        path.iter()
            .try_fold(self, |table, name| table.keys.iter_mut().find(|key| key.name == *name)?.inner.as_mut())
    }
}

/// The header of a table, without the `#` of an optional one.
fn header(line: &'static str) -> Option<&'static str> {
    let header = line.strip_prefix('#').unwrap_or(line);
    header.starts_with('[').then_some(header)
}

fn path(header: &'static str) -> impl Iterator<Item = &'static str> {
    header.trim_matches(['[', ']']).split('.')
}

/// Splits `key = value`. Prose is `None`.
fn setting(line: &'static str) -> Option<(&'static str, &'static str)> {
    let is_name =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte));
    line.split_once(" = ").filter(|(name, _)| is_name(name))
}

fn read(text: &'static str) -> Table {
    let mut root = Table::default();
    let mut section: Vec<&str> = Vec::new();
    let (mut doc, mut inner, mut marked) = (Vec::new(), Table::default(), None);
    for line in text.lines() {
        let comment = line.strip_prefix("# ");
        let mentioned = comment.and_then(setting);
        match comment {
            Some(comment) if mentioned.is_none() => {
                let marker = MARKERS.iter().find(|(words, _)| *words == comment);
                marked = marker.map(|(_, need)| *need).or(marked);
                match comment.strip_prefix("  ").and_then(|inner| inner.split_once(": ")) {
                    Some((name, meaning)) => {
                        let doc = meaning.to_owned();
                        inner.keys.push(Key { name, need: Need::Default, example: "", doc, inner: None });
                    }
                    None if marker.is_none() => doc.push(comment),
                    None => {}
                }
                continue;
            }
            _ => {}
        }
        let written = line.strip_prefix('#');
        let need = match (marked.take(), written) {
            (Some(need), _) => need,
            (None, None) => Need::Required,
            (None, Some(_)) if mentioned.is_some() || header(line).is_some() => Need::Optional,
            (None, Some(_)) => Need::Default,
        };
        let doc = std::mem::take(&mut doc).join("\n");
        let mut inner = std::mem::take(&mut inner);
        if let Some(header) = header(line) {
            section = path(header).collect();
            let Some((name, parents)) = section.split_last() else { continue };
            let key = Key { name, need, example: "", doc, inner: Some(Table::default()) };
            root.at_mut(parents).into_iter().for_each(|table| table.keys.push(key.clone()));
        } else if let Some((name, example)) = mentioned.or_else(|| setting(written.unwrap_or(line))) {
            for (name, value) in example.trim_matches(['{', '}', ' ']).split(", ").filter_map(setting) {
                inner.keys.iter_mut().filter(|key| key.name == name).for_each(|key| key.example = value);
            }
            let inner = (!inner.keys.is_empty()).then_some(inner);
            let key = Key { name, need, example, doc, inner };
            root.at_mut(&section).into_iter().for_each(|table| table.keys.push(key.clone()));
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;
    use crate::units::{Size, Time};

    #[test]
    fn the_documented_bounds_are_the_checked_bounds() {
        let sizes = [
            ("stream.max_message", bounds::MAX_MESSAGE_BYTES),
            ("stream.sink.queue.bytes", bounds::QUEUE_BYTES),
            ("stream.plugin.limits.memory", bounds::PLUGIN_MEMORY_BYTES),
            ("journal.segment", bounds::SEGMENT_BYTES),
            ("call.max_body", bounds::CALL_BODY_BYTES),
        ];
        let sizes = sizes.map(|(key, (least, most))| (key, format!("{} to {}", Size(least), Size(most))));
        let times = [
            ("stream.signals.stale_after", bounds::STALE_AFTER),
            ("stream.plugin.limits.deadline", bounds::PLUGIN_DEADLINE),
            ("stream.plugin.quarantine.within", bounds::QUARANTINE_WITHIN),
            ("stream.plugin.limits.hold", bounds::PLUGIN_HOLD),
            ("call.timeout", bounds::CALL_TIMEOUT),
            ("call.breaker.within", bounds::BREAKER_WITHIN),
            ("call.breaker.open", bounds::BREAKER_OPEN),
            ("clients.keep", bounds::CLIENTS_KEEP),
            ("journal.sync_interval", bounds::SYNC_INTERVAL),
            ("journal.abandon_after", bounds::ABANDON_AFTER),
            ("journal.retain.age", bounds::RETAIN_AGE),
        ];
        let times = times.map(|(key, (least, most))| (key, format!("{} to {}", Time(least), Time(most))));
        let counts = [
            ("stream.max_peers", bounds::MAX_PEERS),
            ("stream.join.max_rows", bounds::JOIN_ROWS),
            ("stream.signals.dp_rank", bounds::DP_RANK),
            ("stream.sink.queue.frames", bounds::QUEUE_FRAMES),
            ("stream.plugin.quarantine.faults", bounds::QUARANTINE_FAULTS),
            ("call.max_in_flight", bounds::CALLS_IN_FLIGHT),
            ("call.breaker.failures", bounds::BREAKER_FAILURES),
            ("clients.connections", bounds::CLIENTS_CONNECTIONS),
        ];
        let counts = counts.map(|(key, (least, most))| (key, format!("{least} to {most}")));
        for (key, range) in sizes.into_iter().chain(times).chain(counts) {
            let path: Vec<&str> = key.split('.').collect();
            let (name, table) = path.split_last().unwrap();
            let doc = ROOT.at(table).unwrap().key(name).unwrap().doc.replace('\n', " ");
            assert!(doc.contains(&range), "{key}: {range:?} is not in {doc:?}");
        }
    }
}
