//! Asks a moderation service about the text of a stream, window by window. The text of a window waits until the
//! service has judged it.
//!
//! `service` writes the questions and reads the answers. `request` keeps the text and the windows of one
//! request. This file connects both with the rows.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod request;
mod service;
#[cfg(test)]
mod tests;

use std::time::Duration;

use afterbay_plugin::call::{self, Answer, CallError};
use afterbay_plugin::text::Vocabulary;
use afterbay_plugin::{
    Batch, Columns, ConfigureError, Opened, Plugin, RequestId, RequestVerdicts, Requests, Row, TokenId,
    Verdicts, bad_setting, metrics, prompt_ids, tokenizer,
};
use schemars::JsonSchema;
use serde::Deserialize;

use request::{Judgement, RequestText, Settled, last_characters};
use service::{Format, Question, Service};

/// The time for which a row is held. The operator's `limits.hold` caps it.
const HOLD: Duration = Duration::from_secs(60);
/// The most characters of a window and of an overlap.
const CHARACTERS_MAX: usize = 100_000;

/// The settings.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The name of the `[[call]]` that is asked.
    #[schemars(extend("format" = "afterbay-endpoint"))]
    endpoint: String,
    /// The form of questions and answers.
    #[serde(default)]
    format: Format,
    /// The `model` of each question, for format `openai`.
    model: Option<String>,
    /// The categories that count, for format `openai`. By default `flagged` counts.
    #[serde(default)]
    categories: Vec<String>,
    /// Characters that are judged at once. Text waits until a window is full and judged.
    #[serde(default = "two_hundred")]
    window: usize,
    /// Characters before the window that the service sees again, so that it knows the context.
    #[serde(default = "two_hundred")]
    overlap: usize,
    /// Characters of the end of the prompt that the service sees with each window. 0: none.
    #[serde(default)]
    prompt: usize,
    /// `matched` of the finish reason of a blocked request.
    #[serde(default = "blocked")]
    reason: String,
    /// The text that the reader gets in place of blocked text.
    #[serde(default)]
    notice: String,
}

fn two_hundred() -> usize {
    200
}

fn blocked() -> String {
    "afterbay: blocked by moderation".to_owned()
}

/// The plugin that asks a moderation service.
pub struct Moderate {
    service: Service,
    endpoint: String,
    window: usize,
    overlap: usize,
    prompt: usize,
    reason: String,
    notice: String,
    notice_ids: Vec<TokenId>,
    vocabulary: Vocabulary,
    requests: Requests<RequestText>,
}

impl Plugin for Moderate {
    type Settings = Settings;
    const COLUMNS: Columns =
        Columns::OUTPUT_IDS.union(Columns::TEXTS).union(Columns::WAITING).union(Columns::FINISHED);

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        let Settings { endpoint, format, model, categories, window, overlap, prompt, reason, notice } =
            settings;
        if endpoint.is_empty() {
            return Err(bad_setting("/endpoint", "must be the name of a [[call]]"));
        }
        if !(1..=CHARACTERS_MAX).contains(&window) {
            return Err(bad_setting("/window", format!("{window}, must be 1 to {CHARACTERS_MAX}")));
        }
        for (pointer, value) in [("/overlap", overlap), ("/prompt", prompt)] {
            if value > CHARACTERS_MAX {
                return Err(bad_setting(pointer, format!("{value}, must be at most {CHARACTERS_MAX}")));
            }
        }
        if format == Format::Webhook && (model.is_some() || !categories.is_empty()) {
            let pointer = if model.is_some() { "/model" } else { "/categories" };
            return Err(bad_setting(pointer, "is for format \"openai\""));
        }
        let vocabulary = Vocabulary::load()?;
        Ok(Self {
            service: Service { format, model, categories },
            endpoint,
            window,
            overlap,
            prompt,
            reason,
            notice_ids: vocabulary.encode(notice.as_bytes()),
            notice,
            vocabulary,
            requests: Requests::new(),
        })
    }

    fn opened(&mut self, request: &Opened) {
        self.requests.insert(
            request.request,
            RequestText::new(&request.rid, prompt_end(request.request, self.prompt)),
        );
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            self.row(row, verdicts);
        }
    }

    fn answered(&mut self, answers: &[Answer], verdicts: &mut RequestVerdicts) {
        let mut touched: Vec<RequestId> = Vec::new();
        for answer in answers {
            let judgement = self.judge(answer);
            let Some(request) = self.requests.get_mut(answer.request) else { continue };
            if answer.outcome.is_err() {
                // `on_fault` has released the held rows, or an earlier instance held them.
                request.rows_left();
            }
            request.judge(answer.call, judgement);
            if !touched.contains(&answer.request) {
                touched.push(answer.request);
            }
        }
        for id in touched {
            let Some(request) = self.requests.get_mut(id) else { continue };
            match request.settle() {
                Settled::Nothing => {}
                Settled::Release(rows) => verdicts.release(id, rows),
                Settled::Blocked { mut ids, text, reason } => {
                    ids.extend_from_slice(&self.notice_ids);
                    let text = String::from_utf8_lossy(&text).into_owned() + &self.notice;
                    let reason = reason.unwrap_or_else(|| self.reason.clone());
                    verdicts.finish_with_text(id, reason, ids, text);
                }
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }
}

impl Moderate {
    fn row(&mut self, row: Row<'_>, verdicts: &mut Verdicts) {
        let Some(request) = self.requests.get_mut(row.request()) else { return };
        if request.is_ended() {
            return;
        }
        request.forget_rows_that_left(row.waiting().unwrap_or(0) as usize);
        if !request.add(row, &self.vocabulary) {
            return;
        }
        if request.is_due(self.window, row.is_last()) {
            let (text, rid, prompt) = request.question(self.overlap);
            let question =
                Question { request: row.request(), rid, prompt, text: &text, is_final: row.is_last() };
            let call = call::send(&self.endpoint, row.request(), &self.service.body(&question));
            request.asked(call);
        }
        verdicts.hold(row, HOLD);
    }

    fn judge(&self, answer: &Answer) -> Judgement {
        let (judgement, result) = match &answer.outcome {
            Ok(response) => match self.service.judgement(response) {
                Some(Judgement::Allowed) => (Judgement::Allowed, "allowed"),
                Some(blocked) => (blocked, "blocked"),
                None => {
                    let status = response.status;
                    afterbay_plugin::error!(request: answer.request, "endpoint {:?} gives no judgement, status {status}: the request ends", self.endpoint);
                    (Judgement::Blocked(Some("afterbay: moderation gave no judgement".to_owned())), "invalid")
                }
            },
            Err(CallError::Cancelled) => (Judgement::Allowed, "cancelled"),
            Err(error) => {
                afterbay_plugin::warn!(request: answer.request, "endpoint {:?}: {}", self.endpoint, words(error));
                (Judgement::Allowed, "failed")
            }
        };
        metrics::counter_add("windows", &[("result", result)], 1);
        judgement
    }
}

/// The last characters of the prompt. `None` if none are wanted, or the prompt is not known.
fn prompt_end(request: RequestId, characters: usize) -> Option<String> {
    if characters == 0 {
        return None;
    }
    let ids = prompt_ids(request)?;
    // Most tokens have several characters, so these are enough.
    let text = tokenizer::decode(&ids[ids.len().saturating_sub(characters)..]);
    Some(String::from_utf8_lossy(&text[last_characters(&text, characters)..]).into_owned())
}

fn words(error: &CallError) -> String {
    match error {
        CallError::Refused(why) | CallError::Failed(why) => why.clone(),
        CallError::Overloaded => "too many calls, or the circuit breaker is open".to_owned(),
        CallError::TimedOut => "no answer in time".to_owned(),
        CallError::Cancelled => "cancelled".to_owned(),
    }
}

afterbay_plugin::export!(Moderate);
