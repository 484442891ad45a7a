//! Uses every import with an effect outside of the instance. Each row adds to the store, to a metric with labels
//! and to the calls, and is held until its call is answered. The third row ends its request by length.

use std::time::Duration;

use afterbay_plugin::call::Answer;
use afterbay_plugin::{
    Batch, Columns, ConfigureError, FinishReason, NoSettings, Plugin, RequestVerdicts, Verdicts, call,
    health, metrics, store,
};

struct Effects;

impl Plugin for Effects {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::empty();

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let rows = store::increment("rows", 1).unwrap_or(-1);
            let shown = rows.to_string();
            metrics::counter_add("rows", &[("tenant", "a"), ("rows", &shown)], 1);
            let kept = store::set(&format!("row/{shown}"), shown.as_bytes());
            let keys = store::list_keys("row/", None);
            let body =
                format!("{shown} at {}, {kept:?}, {keys:?}, {:?}", batch.time_ms(), store::get("rows"));
            call::send("service", row.request(), body.as_bytes());
            match rows {
                3 => verdicts.finish(row, FinishReason::Length),
                _ => verdicts.hold(row, Duration::from_millis(100)),
            }
        }
    }

    fn answered(&mut self, answers: &[Answer], verdicts: &mut RequestVerdicts) {
        for answer in answers {
            let request = answer.request;
            match &answer.outcome {
                Ok(response) if response.status == 200 => verdicts.release(request, 1),
                Ok(response) => {
                    let text = String::from_utf8_lossy(&response.body).into_owned();
                    verdicts.finish_with_text(request, FinishReason::Abort("refused".into()), [9], text);
                }
                Err(error) => {
                    store::delete("row/1");
                    metrics::remove("rows", &[("tenant", "a"), ("rows", "1")]);
                    health::set_not_ready(Some(&format!("{error:?}")));
                }
            }
        }
    }
}

afterbay_plugin::export!(Effects);
