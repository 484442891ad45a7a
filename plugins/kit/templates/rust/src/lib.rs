//! {{name}}: ends a request at the first of some tokens. Replace this logic by your own.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, TokenId, Verdicts, bad_setting};

/// The settings of the plugin. Their doc comments become the descriptions in the JSON schema.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The token ids that end a request.
    stop: Vec<TokenId>,
}

/// The plugin: one value for each stream.
pub struct StopEarly {
    stop: Vec<TokenId>,
}

impl Plugin for StopEarly {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        if settings.stop.is_empty() {
            return Err(bad_setting("/stop", "must have at least one token id"));
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
    fn a_request_ends_at_the_first_stop_token() {
        let mut plugin = Harness::<StopEarly>::new(r#"{"stop": [2]}"#).unwrap();
        plugin.open(7);
        assert_eq!(plugin.process(&[TestRow::new(7).ids([5])]), []);
        let verdicts = plugin.process(&[TestRow::new(7).ids([6, 2])]);
        assert_eq!(verdicts[0].action, Action::Finish("{{name}}".into()));
    }
}
