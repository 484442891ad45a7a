//! Reports all that it receives: each call in a line of the log, each row in the reason of a drop.

use afterbay_plugin::{Batch, Columns, ConfigureError, Opened, Plugin, RequestId, Verdicts};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Settings {
    /// Rejects the settings with this message.
    refuse: Option<String>,
}

struct Reports;

impl Plugin for Reports {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::all();

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        settings.refuse.map_or(Ok(Self), |refuse| Err(refuse.into()))
    }

    fn opened(&mut self, opened: &Opened) {
        let Opened { request, rid, prompt_tokens, received_tokens, resumed, front_end, sink, .. } = opened;
        afterbay_plugin::info!(request: *request, "opened {rid} {front_end:?} {sink:?} {prompt_tokens} {received_tokens} {resumed}");
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            verdicts.drop(row, format!("{row:?}"));
        }
    }

    fn closed(&mut self, request: RequestId) {
        afterbay_plugin::info!(request: request, "closed");
    }
}

afterbay_plugin::export!(Reports);
