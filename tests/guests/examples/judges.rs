//! Gives the verdict that its settings name for every row. `echo` replaces a row's ids by the same ids.

use afterbay_plugin::{Batch, Columns, ConfigureError, FinishReason, Plugin, Verdicts};

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum VerdictName {
    Echo,
    Drop,
    Finish,
    /// Cuts off the row's last id.
    FinishWith,
    Length,
    Abort,
    Annotate,
    /// Replaces ids and text.
    Rewrite,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Judges {
    action: VerdictName,
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
                VerdictName::Echo => verdicts.replace(row, row.ids()),
                VerdictName::Drop => verdicts.drop(row, "dropped by judges"),
                VerdictName::Finish => verdicts.finish(row, "finished by judges"),
                VerdictName::FinishWith => {
                    let ids = row.ids().split_last().map_or(&[][..], |(_, before)| before);
                    verdicts.finish_with(row, "finished by judges", ids);
                }
                VerdictName::Length => verdicts.finish(row, FinishReason::Length),
                VerdictName::Abort => verdicts.finish(row, FinishReason::Abort("aborted by judges".into())),
                VerdictName::Annotate => verdicts.annotate(row, "seen by judges"),
                VerdictName::Rewrite => verdicts.replace_with_text(row, [7], "seven"),
            }
        }
    }
}

afterbay_plugin::export!(Judges);
