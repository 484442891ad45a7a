//! A plugin's own metrics on their way to the operator. Names are checked, and each mistake is logged once.

use std::collections::BTreeSet;

use crate::grants::{Meter, MeterError};
use crate::limits::METRIC_NAME_BYTES_MAX;

/// The mistakes that are remembered, so that each is logged once. Further ones are not logged.
const LOGGED_MAX: usize = 64;

/// The mistakes of an instance so far.
#[derive(Debug, Default)]
pub(crate) struct Mistakes(BTreeSet<String>);

impl Mistakes {
    /// Records a value under a name. A long name was cut; `bytes` is its full length. Returns a text for the log, once per
    /// name.
    pub(crate) fn enter(
        &mut self,
        meter: &dyn Meter,
        name: &str,
        bytes: usize,
        enter: impl FnOnce(&dyn Meter, &str) -> Result<(), MeterError>,
    ) -> Option<String> {
        let why = match check(name, bytes) {
            Err(why) => why,
            Ok(()) => enter(meter, name).err()?.to_string(),
        };
        (self.0.len() < LOGGED_MAX && self.0.insert(name.to_owned()))
            .then(|| format!("metric {name:?} is not counted: {why}"))
    }
}

fn check(name: &str, bytes: usize) -> Result<(), String> {
    if name.is_empty() || bytes > METRIC_NAME_BYTES_MAX {
        return Err(format!("its name has {bytes} bytes, from 1 to {METRIC_NAME_BYTES_MAX} are allowed"));
    }
    let bad = |c: &char| !matches!(c, 'a'..='z' | '0'..='9' | '_');
    if let Some(bad) = name.chars().find(bad) {
        return Err(format!("its name has {bad:?}, only a-z, 0-9 and _ are allowed"));
    }
    match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => Err("its name begins with a digit".into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter that refuses everything.
    struct Full;

    impl Meter for Full {
        fn add(&self, _: &str, _: u64) -> Result<(), MeterError> {
            Err(MeterError::Full { limit: 0 })
        }
        fn set(&self, _: &str, _: f64) -> Result<(), MeterError> {
            Err(MeterError::OtherKind)
        }
        fn observe(&self, _: &str, _: f64) -> Result<(), MeterError> {
            Ok(())
        }
    }

    #[test]
    fn an_invalid_name_is_logged_once_with_the_rule() {
        let mut mistakes = Mistakes::default();
        let mut enter =
            |name: &str| mistakes.enter(&Full, name, name.len(), |meter, name| meter.observe(name, 1.0));
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
    fn a_refused_value_is_logged_once() {
        let mut mistakes = Mistakes::default();
        let mut add = |name: &str| mistakes.enter(&Full, name, name.len(), |meter, name| meter.add(name, 1));
        assert!(add("a").unwrap().ends_with("it has 0 names already, the limit"));
        assert_eq!(add("a"), None);
    }
}
