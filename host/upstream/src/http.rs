//! SGLang's HTTP server, and a POST of JSON to any server, bounded in time and size.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use afterbay_http::{Answer, ExchangeError, StatusCode, Target, header, redacted};
use bytes::Bytes;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::timeout;

use crate::UpstreamError;
use crate::bounds::{ANSWER_BYTES_MAX, HTTP_MAX};

/// What of an answer is told: the words of a server may be a page.
const TOLD_CHARS_MAX: usize = 200;

/// A key that is never shown.
#[derive(Clone)]
pub struct ApiKey(String);

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HttpError {
    /// Not a URL that can be asked.
    #[error("{url:?} must be like http://127.0.0.1:30000: {why}")]
    Url {
        /// As given, but for a password.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Not one that goes into a header.
    #[error("the API key has a character that no header has")]
    Key,
    /// Nobody listens, speaks HTTP, or ends what he says.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The time is over.
    #[error("no answer in {} s", .0.as_secs())]
    Slow(Duration),
}

/// The server on a Unix socket.
pub fn socket(path: &Path) -> Target {
    Target::unix(path)
}

/// The server of a URL without a query: `http://HOST[:PORT][/PREFIX]`.
pub fn server(url: &str) -> Result<Target, HttpError> {
    let wrong = |why: String| HttpError::Url { url: redacted(url), why };
    let target = Target::new(url).map_err(|error| wrong(error.to_string()))?;
    if target.path.contains('?') {
        return Err(wrong("it has a query".to_owned()));
    }
    Ok(target)
}

impl ApiKey {
    /// A key. White space around it, as a file's last line has, is not of it.
    pub fn new(key: &str) -> Result<ApiKey, HttpError> {
        let key = key.trim();
        let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_graphic());
        if is_key { Ok(ApiKey(key.to_owned())) } else { Err(HttpError::Key) }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey")
    }
}

/// GETs `path`, which begins with a slash and goes behind the server's own; its answer has at most `max` bytes.
pub async fn get(server: &Target, path: &str, max: usize) -> Result<Answer, HttpError> {
    let path = format!("{}{path}", server.path.trim_end_matches('/'));
    let exchange = server.exchange(afterbay_http::get(&path), Bytes::new(), max);
    Ok(timeout(HTTP_MAX, exchange).await.map_err(|_| HttpError::Slow(HTTP_MAX))??)
}

/// POSTs JSON to `path`, which begins with a slash and goes behind the server's own.
pub async fn post(
    server: &Target,
    path: &str,
    key: Option<&ApiKey>,
    json: &Value,
) -> Result<Answer, HttpError> {
    post_within(server, path, key, json, HTTP_MAX).await
}

/// [`post`] that gives up after `max`.
pub async fn post_within(
    server: &Target,
    path: &str,
    key: Option<&ApiKey>,
    json: &Value,
    max: Duration,
) -> Result<Answer, HttpError> {
    let path = format!("{}{path}", server.path.trim_end_matches('/'));
    let mut request = afterbay_http::post(&path).header(header::CONTENT_TYPE, "application/json");
    if let Some(ApiKey(key)) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let exchange = server.exchange(request, json.to_string().into(), ANSWER_BYTES_MAX);
    Ok(timeout(max, exchange).await.map_err(|_| HttpError::Slow(max))??)
}

/// SGLang's HTTP server.
#[derive(Debug)]
pub struct Http {
    url: String,
    target: Target,
    key: Option<ApiKey>,
}

impl Http {
    /// At this URL, without `/abort_request`.
    pub fn new(url: &str, key: Option<ApiKey>) -> Result<Http, HttpError> {
        let target = server(url)?;
        Ok(Http { url: format!("{}/abort_request", url.trim_end_matches('/')), target, key })
    }

    /// What is POSTed to.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn abort(&self, rid: &str) -> Result<(), UpstreamError> {
        let failed = |why| UpstreamError::Http { url: self.url.clone(), why };
        // To SGLang an empty one is every request.
        if rid.is_empty() {
            return Err(afterbay_wire::AbortError::Empty.into());
        }
        let answer = post(&self.target, "/abort_request", self.key.as_ref(), &json!({ "rid": rid })).await;
        let Answer { status, body } = answer.map_err(|error| failed(error.to_string()))?;
        if status != StatusCode::OK {
            let said: String = String::from_utf8_lossy(&body).chars().take(TOLD_CHARS_MAX).collect();
            return Err(failed(format!("SGLang answers {}: {}", status.as_u16(), said.trim())));
        }
        Ok(())
    }
}
