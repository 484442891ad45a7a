//! Ends each request some time after its arrival, with an error. With `says`, the last row has these ids. A row of the request
//! does not matter.

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, Failure, Opened, Plugin, RequestId, RequestVerdicts, TokenId,
    Verdicts, timer,
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Times {
    after_ms: u64,
    #[serde(default)]
    says: Vec<TokenId>,
}

impl Plugin for Times {
    type Settings = Times;
    const COLUMNS: Columns = Columns::empty();
    const WANTS: Calls = Calls::TIMER;

    fn new(settings: Times) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn opened(&mut self, opened: &Opened) {
        afterbay_plugin::info!(request: opened.request, "opened {} resumed {}", opened.rid, opened.resumed);
        timer::set(opened.request, opened.arrived_ms + self.after_ms);
    }

    fn process(&mut self, _: &Batch<'_>, _: &mut Verdicts) {}

    fn due(&mut self, time_ms: u64, due: &[RequestId], verdicts: &mut RequestVerdicts) {
        for &request in due {
            afterbay_plugin::info!(request: request, "due at {time_ms}");
            let failure = Failure { status: 504, message: "late".into() };
            match self.says.is_empty() {
                true => verdicts.finish(request, failure),
                false => verdicts.finish_with(request, failure, self.says.clone()),
            }
        }
    }
}

afterbay_plugin::export!(Times);
