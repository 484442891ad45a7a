//! `/v1/status` and `/v1/status/stream`.

use super::AdminState;
use crate::refusal::Refusal;
use crate::status::Watcher;
use afterbay_http::Lasting;
use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use std::convert::Infallible;

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
