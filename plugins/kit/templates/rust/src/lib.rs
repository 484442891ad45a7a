//! {{name}}: finishes a request at the first of some tokens. Make it your own.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, TokenId, Verdicts, bad_setting};

/// What the operator may set. Doc comments become the schema's descriptions.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The token ids that end a request.
    stop: Vec<TokenId>,
}

pub struct StopEarly {
    stop: Vec<TokenId>,
}

impl Plugin for StopEarly {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        if settings.stop.is_empty() {
            return Err(bad_setting("/stop", "has no token"));
        }
        Ok(Self { stop: settings.stop })
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch.rows() {
            if row.ids().iter().any(|id| self.stop.contains(id)) {
                verdicts.finish(row, "{{name}}");
            }
        }
    }
}

afterbay_plugin::export!(StopEarly);

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_plugin::Action;
    use afterbay_plugin::testing::{Harness, TestRow};

    #[test]
    fn a_request_ends_at_the_first_of_the_tokens() {
        let mut plugin = Harness::<StopEarly>::new(r#"{"stop": [2]}"#).unwrap();
        plugin.open(7);
        assert_eq!(plugin.process(&[TestRow::new(7).ids([5])]), []);
        let verdicts = plugin.process(&[TestRow::new(7).ids([6, 2])]);
        assert_eq!(verdicts[0].action, Action::Finish("{{name}}".into()));
    }
}
