//! A plugin's own metrics on their way to the operator. Names are checked, and each mistake is logged once.

use std::collections::BTreeSet;

use crate::grants::{Labels, Meter, MeterError};
use crate::limits::{LABEL_NAME_BYTES_MAX, LABELS_MAX, METRIC_NAME_BYTES_MAX};

/// The mistakes that are remembered, so that each is logged once. Further ones are not logged.
const LOGGED_MAX: usize = 64;

/// The mistakes of an instance so far.
#[derive(Debug, Default)]
pub(crate) struct Mistakes(BTreeSet<String>);

/// The name and the labels of a value, as the guest wrote them.
pub(crate) struct Written<'a> {
    /// The name, cut to its limit.
    pub(crate) name: &'a str,
    /// The full length of the name.
    pub(crate) bytes: usize,
    pub(crate) labels: Vec<Label>,
}

/// A label, as the guest wrote it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Label {
    /// The name, cut to its limit.
    pub(crate) name: String,
    /// The full length of the name.
    pub(crate) name_bytes: usize,
    /// The value, cut to its limit.
    pub(crate) value: String,
}

impl Mistakes {
    /// Records a value under a name. Returns a text for the log, once per name.
    pub(crate) fn enter(
        &mut self,
        meter: &dyn Meter,
        written: Written<'_>,
        enter: impl FnOnce(&dyn Meter, &str, Labels<'_>) -> Result<(), MeterError>,
    ) -> Option<String> {
        let Written { name, bytes, labels } = written;
        let labels =
            check("its name", name, bytes, METRIC_NAME_BYTES_MAX).and_then(|()| check_labels(labels));
        let why = match labels {
            Err(why) => why,
            Ok(labels) => enter(meter, name, &labels).err()?.to_string(),
        };
        (self.0.len() < LOGGED_MAX && self.0.insert(name.to_owned()))
            .then(|| format!("metric {name:?} is not counted: {why}"))
    }
}

fn check(what: &str, name: &str, bytes: usize, bytes_max: usize) -> Result<(), String> {
    if name.is_empty() || bytes > bytes_max {
        return Err(format!("{what} has {bytes} bytes, from 1 to {bytes_max} are allowed"));
    }
    let bad = |c: &char| !matches!(c, 'a'..='z' | '0'..='9' | '_');
    if let Some(bad) = name.chars().find(bad) {
        return Err(format!("{what} has {bad:?}, only a-z, 0-9 and _ are allowed"));
    }
    match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => Err(format!("{what} begins with a digit")),
        false => Ok(()),
    }
}

fn check_labels(labels: Vec<Label>) -> Result<Vec<(String, String)>, String> {
    if labels.len() > LABELS_MAX {
        return Err(format!("it has more than {LABELS_MAX} labels, the limit"));
    }
    let mut checked: Vec<(String, String)> = Vec::with_capacity(labels.len());
    for Label { name, name_bytes, value } in labels {
        check("the name of a label", &name, name_bytes, LABEL_NAME_BYTES_MAX)?;
        if name == "stream" || name == "plugin" {
            return Err(format!("the label {name:?} is Afterbay's own"));
        }
        if name == "le" || name.starts_with("__") {
            return Err(format!("the label {name:?} is Prometheus's own"));
        }
        if checked.iter().any(|(known, _)| *known == name) {
            return Err(format!("it has the label {name:?} twice"));
        }
        checked.push((name, value));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter that refuses everything but an observation.
    struct Full;

    impl Meter for Full {
        fn add(&self, _: &str, _: Labels<'_>, _: u64) -> Result<(), MeterError> {
            Err(MeterError::Full { limit: 0 })
        }
        fn set(&self, _: &str, _: Labels<'_>, _: f64) -> Result<(), MeterError> {
            Err(MeterError::OtherKind)
        }
        fn observe(&self, _: &str, _: Labels<'_>, _: f64) -> Result<(), MeterError> {
            Ok(())
        }
        fn remove(&self, _: &str, _: Labels<'_>) {}
    }

    fn written<'a>(name: &'a str, labels: &[(&str, &str)]) -> Written<'a> {
        let labels = labels.iter().map(|(name, value)| Label {
            name: (*name).to_owned(),
            name_bytes: name.len(),
            value: (*value).to_owned(),
        });
        Written { name, bytes: name.len(), labels: labels.collect() }
    }

    #[test]
    fn an_invalid_name_is_logged_once_with_the_rule() {
        let mut mistakes = Mistakes::default();
        let mut enter = |name: &str| {
            mistakes.enter(&Full, written(name, &[]), |meter, name, labels| meter.observe(name, labels, 1.0))
        };
        assert_eq!(enter("good_1"), None);
        assert_eq!(
            enter("Bad").as_deref(),
            Some("metric \"Bad\" is not counted: its name has 'B', only a-z, 0-9 and _ are allowed")
        );
        assert_eq!(enter("Bad"), None);
        assert!(enter("").unwrap().contains("0 bytes, from 1 to 64"));
        assert!(enter("1a").unwrap().contains("begins with a digit"));
        assert!(enter(&"é".repeat(40)).unwrap().contains("80 bytes"));
    }

    #[test]
    fn invalid_labels_are_logged_with_the_rule() {
        let why = |labels: &[(&str, &str)]| {
            Mistakes::default()
                .enter(&Full, written("n", labels), |meter, name, labels| meter.observe(name, labels, 1.0))
        };
        assert_eq!(why(&[("a", "x"), ("b", ""), ("c", "y"), ("d", "z")]), None);
        let five = ["a", "b", "c", "d", "e"].map(|name| (name, ""));
        assert!(why(&five).unwrap().ends_with("it has more than 4 labels, the limit"));
        assert!(why(&[("a", "x"), ("a", "y")]).unwrap().ends_with("it has the label \"a\" twice"));
        assert!(why(&[("stream", "x")]).unwrap().ends_with("the label \"stream\" is Afterbay's own"));
        assert!(why(&[("le", "x")]).unwrap().ends_with("the label \"le\" is Prometheus's own"));
        assert!(why(&[("A", "x")]).unwrap().contains("the name of a label has 'A'"));
    }

    #[test]
    fn a_refused_value_is_logged_once() {
        let mut mistakes = Mistakes::default();
        let mut add = |name: &str| {
            mistakes.enter(&Full, written(name, &[]), |meter, name, labels| meter.add(name, labels, 1))
        };
        assert!(add("a").unwrap().ends_with("it has 0 names already, the limit"));
        assert_eq!(add("a"), None);
    }
}
