//! The admin address: `/metrics`, `/healthz`, `/readyz`, `/v1/signals`.

use crate::signals::{Report, Signals};
use afterbay_events::{CONTENT_TYPE, Health, Metrics};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::fmt::Write;

#[derive(Clone)]
struct Admin {
    metrics: Metrics,
    health: Health,
    signals: Signals,
}

/// Answers on a listener until it is dropped.
pub(crate) async fn serve(
    listener: tokio::net::TcpListener,
    metrics: Metrics,
    health: Health,
    signals: Signals,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/v1/signals", get(signals_json))
        .with_state(Admin { metrics, health, signals });
    axum::serve(listener, routes).await
}

async fn metrics_text(State(admin): State<Admin>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], admin.metrics.encode()).into_response()
}

async fn signals_json(State(admin): State<Admin>) -> Json<Report> {
    Json(admin.signals.report(&admin.metrics))
}

/// 200 where frames are received, kept and sent; else 503 and a line for each thing that is wrong.
async fn ready(State(admin): State<Admin>) -> Response {
    let conditions = admin.health.conditions();
    if conditions.is_empty() {
        return "ready\n".into_response();
    }
    let mut text = String::new();
    for (key, condition) in conditions {
        let seconds = condition.since.elapsed().unwrap_or_default().as_secs();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{key}: {} (for {seconds} s)", condition.text);
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}
