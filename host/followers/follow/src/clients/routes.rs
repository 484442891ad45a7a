//! `GET /v1/streams/ID`: the tokens of one request as server-sent events or as JSON, for whoever has a capability for the id.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afterbay_http::{CapabilityError, CapabilityKeys, Lasting};
use afterbay_journal_view::sent_rows::ReaderEnd;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use futures_util::StreamExt;
use futures_util::stream::{once, unfold};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::reading::{Part, Reading, ReadingError, Source};

/// Ids of an answer in JSON.
const JSON_TOKENS_MAX: usize = 65_536;
/// Time between two comments on a connection without tokens, so that proxies keep it open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time after which a browser connects again.
const RETRY: Duration = Duration::from_secs(1);
/// The header in which a browser says the last event that it got.
const LAST_EVENT_ID: &str = "last-event-id";

/// The parts that answer every request.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) source: Arc<Source>,
    pub(super) key_file: PathBuf,
    pub(super) counts: Arc<Counts>,
}

/// Counts of readers. Several threads write them.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) readers: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// A reader that counts until it is dropped.
struct Counted(Arc<Counts>);

impl Counted {
    fn new(counts: &Arc<Counts>) -> Counted {
        counts.readers.fetch_add(1, Ordering::Relaxed);
        counts.reads.fetch_add(1, Ordering::Relaxed);
        Counted(counts.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    from: Option<u64>,
    token: Option<String>,
    sample: Option<usize>,
}

/// A refused request: the status of the answer, a word for programs, and a sentence.
struct Refusal(StatusCode, &'static str, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, code, why) = self;
        let mut refused = (status, Json(json!({"code": code, "error": why}))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        refused
    }
}

impl From<ReadingError> for Refusal {
    fn from(error: ReadingError) -> Refusal {
        let (status, code) = match &error {
            ReadingError::Unknown => (StatusCode::NOT_FOUND, "unknown"),
            ReadingError::Ambiguous { .. } => (StatusCode::CONFLICT, "samples"),
            ReadingError::NoSample { .. } => (StatusCode::BAD_REQUEST, "sample"),
            ReadingError::Over { .. } => (StatusCode::GONE, "over"),
            ReadingError::Erased => (StatusCode::GONE, "erased"),
            ReadingError::Journal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "journal"),
            ReadingError::Ends => (StatusCode::SERVICE_UNAVAILABLE, "ends"),
        };
        Refusal(status, code, error.to_string())
    }
}

pub(super) fn routes(clients: Clients) -> Router {
    Router::new()
        .route("/v1/streams/{id}", get(read).options(preflight))
        .route("/healthz", get(|| async { "ok\n" }))
        .fallback(|| async { Refusal(StatusCode::NOT_FOUND, "path", "there is /v1/streams/ID".to_owned()) })
        .with_state(clients)
}

/// A page of any site may ask: it needs the capability, and no cookie counts.
const ANY_ORIGIN: (header::HeaderName, HeaderValue) =
    (header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));

async fn preflight() -> impl IntoResponse {
    let allowed = [
        ANY_ORIGIN,
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, last-event-id")),
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET")),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400")),
    ];
    (StatusCode::NO_CONTENT, axum::response::AppendHeaders(allowed))
}

async fn read(
    State(clients): State<Clients>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    question: Result<Query<Question>, QueryRejection>,
) -> Response {
    let answered = answer(&clients, &uri, &headers, question).await;
    let mut response = match answered {
        Ok(response) => response,
        Err(refused) => {
            clients.counts.refused.fetch_add(1, Ordering::Relaxed);
            refused.into_response()
        }
    };
    if method == Method::HEAD {
        *response.body_mut() = axum::body::Body::empty();
    }
    response.headers_mut().insert(ANY_ORIGIN.0, ANY_ORIGIN.1);
    response
}

async fn answer(
    clients: &Clients,
    uri: &Uri,
    headers: &HeaderMap,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(question) =
        question.map_err(|rejection| Refusal(StatusCode::BAD_REQUEST, "query", rejection.body_text()))?;
    let id = id_of(uri).ok_or_else(|| {
        Refusal(StatusCode::BAD_REQUEST, "id", "the id must be UTF-8, percent-encoded".to_owned())
    })?;
    clients.check(&id, question.token.as_deref().or_else(|| bearer(headers)))?;
    let from = last_event(headers)?.or(question.from).unwrap_or(0);
    let reading = clients.source.read(&id, question.sample, from).await?;
    let counted = Counted::new(&clients.counts);
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    match accepts.contains("text/event-stream") {
        true => Ok(events(reading, counted)),
        false => whole(reading, from).await.map(IntoResponse::into_response),
    }
}

impl Clients {
    fn check(&self, id: &str, token: Option<&str>) -> Result<(), Refusal> {
        let no_key = |why| Refusal(StatusCode::SERVICE_UNAVAILABLE, "key", format!("clients.key_file {why}"));
        let token = token.ok_or_else(|| {
            let why = "needs a token for this request: ?token=TOKEN or Authorization: Bearer TOKEN";
            Refusal(StatusCode::UNAUTHORIZED, "token", why.to_owned())
        })?;
        let keys = CapabilityKeys::read(&self.key_file).map_err(no_key)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        keys.check(id, token, now).map_err(|error| {
            let code = match error {
                CapabilityError::Wrong => "token",
                CapabilityError::Expired => "expired",
            };
            Refusal(StatusCode::FORBIDDEN, code, error.to_string())
        })
    }
}

fn id_of(uri: &Uri) -> Option<String> {
    let encoded = uri.path().rsplit('/').next().unwrap_or_default();
    percent_encoding::percent_decode_str(encoded).decode_utf8().ok().map(|id| id.into_owned())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

/// The number behind the last token that the client got.
fn last_event(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|value| value.parse().ok());
    number.map(Some).ok_or_else(|| {
        let why = format!("Last-Event-ID is {value:?}, must be the number of a token");
        Refusal(StatusCode::BAD_REQUEST, "last-event-id", why)
    })
}

/// The answer in JSON: what has left so far.
async fn whole(mut reading: Reading, from: u64) -> Result<Json<Value>, Refusal> {
    let (mut ids, mut text, mut first, mut next) = (Vec::new(), Some(String::new()), None, from);
    while ids.len() < JSON_TOKENS_MAX
        && let Some(part) = reading.next_now().await?
    {
        // Tokens that are missing end the answer, and begin the next one.
        if part.missing > 0 && !ids.is_empty() {
            break;
        }
        first.get_or_insert(part.from);
        next = part.next();
        ids.extend(part.ids);
        text = text.zip(part.text).map(|(before, more)| before + &more);
    }
    let end = if reading.has_ended() && next >= reading.tokens() { Some(end(&reading).await?) } else { None };
    Ok(Json(json!({
        "from": first.unwrap_or(next),
        "ids": ids,
        "text": text,
        "next": next,
        "ended": end,
    })))
}

/// Server-sent events until the request ends: one for some tokens, then `end`.
fn events(reading: Reading, counted: Counted) -> Response {
    // A client that comes back is not to wait for the 3 seconds of a browser.
    let first = once(async { Ok(Event::default().retry(RETRY)) });
    let events = unfold(Some((reading, counted)), |state| async move {
        let (mut reading, counted) = state?;
        let event = match timeout(KEEP_ALIVE, reading.next()).await {
            Err(_) => return Some((Ok(Event::default().comment("")), Some((reading, counted)))),
            Ok(Ok(Some(part))) => return Some((Ok::<_, Infallible>(tokens(part)), Some((reading, counted)))),
            Ok(Ok(None)) => match end(&reading).await {
                Ok(end) => {
                    Event::default().event("end").id(reading.tokens().to_string()).data(end.to_string())
                }
                Err(error) => failed(&error),
            },
            Ok(Err(error)) => failed(&error),
        };
        Some((Ok(event), None))
    });
    (Extension(Lasting), [(header::CACHE_CONTROL, "no-store")], Sse::new(first.chain(events))).into_response()
}

fn tokens(part: Part) -> Event {
    let mut data = json!({"from": part.from, "ids": part.ids, "text": part.text});
    if part.missing > 0 {
        data["missing"] = part.missing.into();
    }
    Event::default().id(part.next().to_string()).data(data.to_string())
}

fn failed(error: &ReadingError) -> Event {
    Event::default().event("failed").data(json!({"error": error.to_string()}).to_string())
}

async fn end(reading: &Reading) -> Result<Value, ReadingError> {
    let ReaderEnd { finish_reason, text } = reading.end().await?;
    Ok(json!({"finish_reason": finish_reason, "text": text, "tokens": reading.tokens()}))
}
