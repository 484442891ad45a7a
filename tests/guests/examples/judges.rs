//! Gives the verdict that its settings name on every row: `echo` replaces a row's ids by the same ids.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts};

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Echo,
    Drop,
    Finish,
    /// Without the row's last id.
    FinishAs,
    Abort,
    Annotate,
    /// Other ids, and a text.
    Rewrite,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Judges {
    action: Action,
}

impl Plugin for Judges {
    type Settings = Judges;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Judges) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            match self.action {
                Action::Echo => verdicts.replace(row, row.ids()),
                Action::Drop => verdicts.drop(row, "dropped by judges"),
                Action::Finish => verdicts.finish(row, "finished by judges"),
                Action::FinishAs => {
                    let ids = row.ids().split_last().map_or(&[][..], |(_, before)| before);
                    verdicts.finish_as(row, "finished by judges", ids);
                }
                Action::Abort => verdicts.abort(row, "aborted by judges"),
                Action::Annotate => verdicts.annotate(row, "seen by judges"),
                Action::Rewrite => verdicts.replace_with_text(row, [7], "seven"),
            }
        }
    }
}

afterbay_plugin::export!(Judges);
