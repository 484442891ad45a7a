//! The routes of the admin addresses, and the form of their answers: `/metrics`, `/healthz`, `/readyz`,
//! `/v1/status`, `/v1/status/stream`, `/v1/status/history`, `/v1/requests`, `/v1/requests/{rid}`, `/v1/requests/{rid}/abort`, `/v1/requests/{rid}/erase`, `/v1/requests/{rid}/attributes`, `/v1/requests/{rid}/lease`, `/v1/steps`, `/v1/plugins`, `/v1/plugins/{plugin}/reinstate`,
//! `/v1/plugins/{plugin}/promote`, `/v1/reload` and `/v1/upgrade`.
//!
//! `dashboard` has the page at `/`, `access` decides who may call, `gate` refuses changes during a hand-over, `listen` binds and serves the sockets.

mod access;
mod dashboard;
#[cfg(any(test, feature = "fuzz"))]
#[expect(clippy::expect_used, reason = "a fuzzer looks for panics")]
#[path = "../tests/fuzz/admin_request.rs"]
pub mod fuzz;
mod gate;
mod listen;
mod requests;
mod status;
mod steps;

pub use access::token;
pub(crate) use gate::Gate;
pub(crate) use listen::{Admin, Bound};

use crate::aborts::{AbortAnswer, Aborts, Reason};
use crate::attributes::{self, Attributes, AttributesView};
use crate::erasures::Erasures;
use crate::leases::Leases;
use crate::plugins::{PluginView, Plugins, Step, rfc3339};
use crate::refusal::Refusal;
use crate::reload_queue::ReloadQueue;
use crate::requests::Requests;
use crate::status::Status;
use crate::upgrade::{UpgradeRequest, Upgraded, Upgrades};
use access::{Access, Contents};
use afterbay_events::{CONTENT_TYPE, Condition, Health, Metrics, Severity};
use afterbay_http::ClientAddress;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// Time for new components to catch up with live requests before the answer to a reload.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
/// Time between two looks at them.
const CATCH_UP_LOOK_EVERY: Duration = Duration::from_millis(50);
/// Most bytes of a request's body, except for attributes.
const BODY_BYTES_MAX: usize = 4096;

/// The state that the routes read.
#[derive(Clone)]
pub(crate) struct AdminState {
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    pub(crate) aborts: Aborts,
    pub(crate) attributes: Attributes,
    pub(crate) leases: Leases,
    pub(crate) plugins: Plugins,
    pub(crate) reloads: ReloadQueue,
    pub(crate) upgrades: Upgrades,
    pub(crate) status: Status,
    pub(crate) requests: Requests,
    pub(crate) erasures: Erasures,
    pub(crate) gate: Gate,
}

/// The routes of one address.
fn routes(state: AdminState, access: Access) -> Router {
    let contents = from_fn_with_state(access.clone(), access::check_contents);
    let plugins = get(plugins).layer(from_fn_with_state(access.clone(), access::find_contents));
    Router::new()
        .route("/", get(dashboard::page))
        .route("/ui/{name}", get(dashboard::file))
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/v1/status", get(status::now))
        .route("/v1/status/stream", get(status::stream))
        .route("/v1/status/history", get(status::history))
        .route("/v1/requests", get(requests::list).layer(contents.clone()))
        .route("/v1/requests/{rid}", get(requests::one).layer(contents.clone()))
        .route("/v1/requests/{rid}/abort", post(abort))
        .route("/v1/requests/{rid}/erase", post(requests::erase))
        .route("/v1/requests/{rid}/lease", put(renew_lease))
        .route("/v1/steps", get(steps::list).layer(contents.clone()))
        .route("/v1/reload", post(reload))
        .route("/v1/plugins", plugins)
        .route("/v1/plugins/{plugin}/reinstate", step(Step::Reinstate))
        .route("/v1/plugins/{plugin}/promote", step(Step::Promote))
        // An empty rid gets an explanation instead of "no such route".
        .route("/v1/requests//abort", post(abort_empty))
        .route(
            "/v1/requests/{rid}/attributes",
            get(attributes_of)
                .layer(contents)
                .put(set_attributes)
                .delete(forget_attributes)
                .layer(DefaultBodyLimit::max(attributes::BODY_BYTES_MAX)),
        )
        .layer(from_fn_with_state(state.gate.clone(), gate::check))
        // Behind the gate: an upgrade waits for the hand-over, which waits for the changes that passed the gate.
        .route("/v1/upgrade", post(upgrade))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(access, access::check))
        .with_state(state)
}

async fn metrics_text(State(admin): State<AdminState>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], admin.metrics.encode()).into_response()
}

/// 200 while every stream can work, else 503. The body has a line for each condition, with `degraded:` before conditions that
/// do not stop a stream.
async fn ready(State(admin): State<AdminState>) -> Response {
    let conditions = admin.health.conditions();
    let is_ready = |condition: &Condition| condition.severity == Severity::Degraded;
    let is_all_ready = conditions.iter().all(|(_, condition)| is_ready(condition));
    let (status, head) = match is_all_ready {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    let mut text = head.to_owned();
    let (degraded, not_ready): (Vec<_>, Vec<_>) =
        conditions.into_iter().partition(|(_, condition)| is_ready(condition));
    for (key, condition) in not_ready.iter().chain(&degraded) {
        let mark = if is_ready(condition) { "degraded: " } else { "" };
        let seconds = condition.since.elapsed().unwrap_or_default().as_secs();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark}{key}: {} (for {seconds} s)", condition.text);
    }
    (status, text).into_response()
}

/// The body of a change, as JSON; an empty body is `{}`. A browser lets a page send JSON to another site only if that site allows it,
/// and Afterbay does not: another type of content is refused.
struct Change<T>(T);

impl<S: Send + Sync, T: Default + DeserializeOwned> FromRequest<S> for Change<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Change<T>, Refusal> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            let why = format!("the content type is {kind:?}, must be application/json");
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", why));
        }
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|rejected| Refusal::new(rejected.status(), "body", rejected.body_text()))?;
        if body.is_empty() {
            return Ok(Change(T::default()));
        }
        let parsed = serde_json::from_slice(&body).map(Change);
        parsed.map_err(|error| Refusal::bad_request("body", format!("the body: {error}")))
    }
}

/// The body of an abort.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Abort {
    reason: Reason,
}

async fn abort(
    State(admin): State<AdminState>,
    Path(rid): Path<String>,
    Change(Abort { reason }): Change<Abort>,
) -> Result<Json<AbortAnswer>, Refusal> {
    admin.aborts.abort_by_id(&rid, reason).await.map(Json)
}

async fn abort_empty(admin: State<AdminState>, change: Change<Abort>) -> Result<Json<AbortAnswer>, Refusal> {
    abort(admin, Path(String::new()), change).await
}

/// 404 if no lease runs.
async fn renew_lease(
    State(admin): State<AdminState>,
    Path(rid): Path<String>,
    _: Change<Map<String, Value>>,
) -> Result<Json<Value>, Refusal> {
    Ok(Json(json!({"renewed": admin.leases.renew(&rid)?})))
}

/// 404 if no attributes were set by a PUT.
async fn attributes_of(
    State(admin): State<AdminState>,
    Path(rid): Path<String>,
) -> Result<Json<AttributesView>, Refusal> {
    admin.attributes.get(&rid).map(Json)
}

async fn set_attributes(
    State(admin): State<AdminState>,
    Extension(peer): Extension<ClientAddress>,
    Path(rid): Path<String>,
    Change(set): Change<Map<String, Value>>,
) -> Result<Json<AttributesView>, Refusal> {
    admin.attributes.set(peer.into(), &rid, set)?;
    admin.attributes.apply(&rid).await.map(Json)
}

async fn forget_attributes(
    State(admin): State<AdminState>,
    Path(rid): Path<String>,
) -> Result<Json<Value>, Refusal> {
    admin.attributes.forget(&rid)?;
    Ok(Json(json!({"rid": rid})))
}

/// 200 with the changes, and the components that were refused when they caught up; or 409 with every reason why nothing
/// changed.
async fn reload(State(admin): State<AdminState>, _: Change<Map<String, Value>>) -> Result<Response, Refusal> {
    let begun = rfc3339(SystemTime::now());
    match admin.reloads.ask().await {
        Some(Ok(changed)) => {
            let refused =
                if changed.is_empty() { Vec::new() } else { refused_components(&admin, &begun).await };
            Ok(Json(json!({"changed": changed, "refused": refused})).into_response())
        }
        Some(Err(why)) => {
            let answer = json!({"code": "refused", "error": why.join("; "), "refused": why});
            Ok((StatusCode::CONFLICT, Json(answer)).into_response())
        }
        None => Err(Refusal::unavailable("no_answer", "too many reloads wait already, or the streams end")),
    }
}

/// Waits for new components that catch up with live requests. Returns why some were refused since `begun`.
async fn refused_components(admin: &AdminState, begun: &str) -> Vec<String> {
    let deadline = Instant::now() + CATCH_UP_MAX;
    loop {
        // A stream that does not answer says so in the log.
        let Ok(plugins) = admin.plugins.list(&admin.metrics).await else { return Vec::new() };
        if plugins.iter().all(|plugin| !plugin.is_catching_up()) || Instant::now() >= deadline {
            return plugins.iter().filter_map(|plugin| plugin.refused_since(begun)).collect();
        }
        sleep(CATCH_UP_LOOK_EVERY).await;
    }
}

/// 200 once the new process runs, or 409 with the reason why this one goes on.
async fn upgrade(
    State(admin): State<AdminState>,
    Extension(peer): Extension<ClientAddress>,
    Change(request): Change<UpgradeRequest>,
) -> Result<Json<Upgraded>, Refusal> {
    admin.upgrades.upgrade(peer, request).await.map(Json)
}

/// `differences` have rids, so they are `null` for a sender who may not read the contents of requests.
async fn plugins(
    State(admin): State<AdminState>,
    Extension(Contents { refused }): Extension<Contents>,
) -> Result<Json<Value>, Refusal> {
    let mut plugins = admin.plugins.list(&admin.metrics).await?;
    if refused.is_some() {
        plugins.iter_mut().for_each(PluginView::hide_contents);
    }
    let last = admin.reloads.last();
    Ok(Json(json!({"plugins": plugins, "last_reload": last, "differences_refused": refused})))
}

/// The body of a request to reinstate or promote a plugin.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StepBody {
    /// Every stream if there is none.
    stream: Option<String>,
}

/// The handler for a step with a plugin.
fn step(step: Step) -> MethodRouter<AdminState> {
    post(
        move |State(admin): State<AdminState>,
              Path(plugin): Path<String>,
              Change(StepBody { stream }): Change<StepBody>| async move {
            admin.plugins.change(step, &plugin, stream.as_deref()).await.map(Json)
        },
    )
}
