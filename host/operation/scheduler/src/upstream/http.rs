//! Requests to an HTTP server, with bounds on time and size.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use afterbay_http::{ExchangeError, HttpAnswer, HttpTarget, header, redacted};
use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use crate::upstream::bounds::{ANSWER_BYTES_MAX, HTTP_MAX};

/// An API key. `Debug` does not show it.
#[derive(Clone)]
pub struct ApiKey(String);

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HttpError {
    /// The URL is invalid for this purpose.
    #[error("{url:?} must be like http://127.0.0.1:30000: {why}")]
    Url {
        /// The URL without a password.
        url: String,
        /// The reason.
        why: String,
    },
    /// The key cannot be sent in a header.
    #[error("the API key has a character that no header has")]
    Key,
    /// No server listens, or its answer is invalid or incomplete.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The exchange took longer than this.
    #[error("no answer in {} s", .0.as_secs())]
    Slow(Duration),
}

/// The server on this Unix socket.
pub fn socket(path: &Path) -> HttpTarget {
    HttpTarget::unix(path)
}

/// The server of a URL without a query: `http://HOST[:PORT][/PREFIX]`.
pub fn server(url: &str) -> Result<HttpTarget, HttpError> {
    let wrong = |why: String| HttpError::Url { url: redacted(url), why };
    let target = HttpTarget::new(url).map_err(|error| wrong(error.to_string()))?;
    if target.path.contains('?') {
        return Err(wrong("it has a query".to_owned()));
    }
    Ok(target)
}

impl ApiKey {
    /// Makes a key of a text. White space around it is removed, for example a file's final newline.
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

/// GETs `path`, which begins with a slash and is appended to the server's prefix. The answer has at most `max` bytes.
pub async fn get(
    server: &HttpTarget,
    path: &str,
    key: Option<&ApiKey>,
    max: usize,
) -> Result<HttpAnswer, HttpError> {
    let path = format!("{}{path}", server.path.trim_end_matches('/'));
    let mut request = afterbay_http::get(&path);
    if let Some(ApiKey(key)) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let exchange = server.exchange(request, Bytes::new(), max);
    Ok(timeout(HTTP_MAX, exchange).await.map_err(|_| HttpError::Slow(HTTP_MAX))??)
}

/// POSTs JSON to `path`, which begins with a slash and is appended to the server's prefix.
pub async fn post(
    server: &HttpTarget,
    path: &str,
    key: Option<&ApiKey>,
    json: &Value,
) -> Result<HttpAnswer, HttpError> {
    post_within(server, path, key, json, HTTP_MAX).await
}

/// Does [`post`] with a time limit of `max`.
pub async fn post_within(
    server: &HttpTarget,
    path: &str,
    key: Option<&ApiKey>,
    json: &Value,
    max: Duration,
) -> Result<HttpAnswer, HttpError> {
    let path = format!("{}{path}", server.path.trim_end_matches('/'));
    let mut request = afterbay_http::post(&path).header(header::CONTENT_TYPE, "application/json");
    if let Some(ApiKey(key)) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let exchange = server.exchange(request, json.to_string().into(), ANSWER_BYTES_MAX);
    Ok(timeout(max, exchange).await.map_err(|_| HttpError::Slow(max))??)
}
