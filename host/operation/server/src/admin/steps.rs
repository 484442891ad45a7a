//! `/v1/steps`: the slowest steps of the engine.

use super::AdminState;
use super::requests::{given, limit, time};
use crate::refusal::Refusal;
use afterbay_journal_view::json_time;
use afterbay_journal_view::steps::{self, StepSearch};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

/// Most bytes of the segments of a stream that one answer reads: 1 GiB.
const READ_BYTES_MAX: u64 = 1 << 30;

/// The question of `/v1/steps`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    stream: Option<String>,
    rid: Option<String>,
    frame: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
}

impl Question {
    /// The stream and the search. The error is a sentence.
    fn search(self) -> Result<(Option<String>, StepSearch), String> {
        let frame = given(self.frame).map(|text| {
            text.parse().map_err(|_| format!("frame: is {text:?}, must be the number of a frame"))
        });
        let search = StepSearch {
            since_unix_ns: time("since", self.since)?.unwrap_or(0),
            until_unix_ns: time("until", self.until)?.unwrap_or(u64::MAX),
            rid: given(self.rid),
            frame: frame.transpose()?,
            slowest: limit(self.limit)?,
            bytes_max: READ_BYTES_MAX,
        };
        Ok((given(self.stream), search))
    }
}

pub(super) async fn list(
    State(admin): State<AdminState>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let search = question.map_err(|rejection| rejection.body_text()).and_then(|Query(asked)| asked.search());
    let (stream, search) = search.map_err(|why| Refusal::bad_request("query", why))?;
    // The requests of one step are bounded by its batch; those of many steps are not asked for.
    let of_step = if search.frame.is_some() { steps::json } else { steps::totals };
    let found = admin.requests.steps(stream, search).await?;
    let steps: Vec<Value> = found.steps.iter().map(|(stream, step)| of_step(stream, step)).collect();
    Ok(Json(json!({
        "steps": steps,
        "known": found.known,
        "gpu_ns": found.gpu_ns,
        "complete_since": found.complete_since_unix_ns.and_then(json_time),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Uri;

    fn search(query: &str) -> Result<(Option<String>, StepSearch), String> {
        let uri: Uri = format!("/v1/steps?{query}").parse().unwrap();
        let question = Query::<Question>::try_from_uri(&uri).map_err(|rejection| rejection.body_text());
        question.and_then(|Query(question)| question.search())
    }

    #[test]
    fn a_question_for_steps_is_taken_or_refused_with_the_value_and_the_limit() {
        let (stream, taken) =
            search("stream=a&rid=&frame=7&since=2026-11-20T14:00:00Z&until=&limit=3").unwrap();
        assert_eq!((stream.as_deref(), taken.rid, taken.frame, taken.slowest), (Some("a"), None, Some(7), 3));
        assert_eq!((taken.since_unix_ns, taken.until_unix_ns), (1_795_183_200_000_000_000, u64::MAX));
        assert_eq!(search("").unwrap().1.bytes_max, READ_BYTES_MAX);
        for (query, words) in [
            ("limit=0", "limit: is 0, must be 1 to 1000"),
            ("frame=first", "frame: is \"first\", must be the number of a frame"),
            ("since=monday", "since: \"monday\" is no time"),
            ("slowest=5", "slowest"),
        ] {
            let why = search(query).unwrap_err();
            assert!(why.contains(words), "{query}: {why}");
        }
    }
}
