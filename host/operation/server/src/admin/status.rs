//! `/v1/status`, `/v1/status/stream` and `/v1/status/history`.

use super::AdminState;
use crate::refusal::Refusal;
use crate::status::{Step, Watcher};
use afterbay_http::Lasting;
use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Deserialize;
use std::convert::Infallible;

/// The question of `/v1/status/history`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    by: Step,
    /// Points; all by default.
    last: Option<usize>,
    /// One figure; all by default.
    figure: Option<String>,
}

/// The last points of the figures.
pub(super) async fn history(
    State(admin): State<AdminState>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(Question { by, last, figure }) =
        question.map_err(|rejected| Refusal::bad_request("query", rejected.body_text()))?;
    let max = by.points_max();
    let last = last.unwrap_or(max);
    if last == 0 || last > max {
        return Err(Refusal::bad_request("query", format!("last: is {last}, must be 1 to {max}")));
    }
    let points = admin.status.history(by, last, figure.as_deref());
    Ok(([(header::CONTENT_TYPE, "application/json")], points).into_response())
}

pub(super) async fn now(State(admin): State<AdminState>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], admin.status.json().await).into_response()
}

/// Server-sent events, until the process ends or the client leaves.
pub(super) async fn stream(State(admin): State<AdminState>) -> Result<Response, Refusal> {
    let watcher = admin.status.watch().await?;
    let events = unfold(watcher, |mut watcher: Watcher| async move {
        let status = watcher.next().await?;
        Some((Ok::<_, Infallible>(Event::default().event("status").data(&*status)), watcher))
    });
    Ok((Extension(Lasting), Sse::new(events)).into_response())
}
