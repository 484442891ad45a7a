//! SGLang's HTTP server, and one exchange with any server: a POST of JSON, bounded in time and size. The only file of the
//! crate that names hyper.

use std::fmt;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::UpstreamError;
use crate::bounds::{ANSWER_BYTES_MAX, HTTP_MAX};

/// What of an answer is told: the words of a server may be a page.
const TOLD_CHARS_MAX: usize = 200;

/// A server: `http://HOST[:PORT][/PREFIX]`.
#[derive(Clone, Debug)]
pub struct Target {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// For the `Host` header.
    authority: String,
    /// Before every path; without a slash at its end.
    prefix: String,
}

/// A key that is never shown.
#[derive(Clone)]
pub struct ApiKey(String);

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// At most [`ANSWER_BYTES_MAX`].
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HttpError {
    /// Not a URL that can be asked.
    #[error("{url:?} must be like http://127.0.0.1:30000: {why}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Not one that goes into a header.
    #[error("the API key has a character that no header has")]
    Key,
    /// Nobody listens, or speaks HTTP.
    #[error("{0}")]
    Lost(String),
    /// [`HTTP_MAX`].
    #[error("no answer in {} s", HTTP_MAX.as_secs())]
    Slow,
}

impl Target {
    /// From a URL.
    pub fn new(url: &str) -> Result<Target, HttpError> {
        let wrong = |why: &str| HttpError::Url { url: url.to_owned(), why: why.to_owned() };
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("it does not begin with http://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        Ok(Target {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
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

/// POSTs JSON to `path`, which begins with a slash.
pub async fn post(
    target: &Target,
    path: &str,
    key: Option<&ApiKey>,
    json: &Value,
) -> Result<Answer, HttpError> {
    timeout(HTTP_MAX, exchange(target, path, key, json)).await.map_err(|_| HttpError::Slow)?
}

async fn exchange(
    target: &Target,
    path: &str,
    key: Option<&ApiKey>,
    json: &Value,
) -> Result<Answer, HttpError> {
    let lost = |what: &str, error: &dyn fmt::Display| HttpError::Lost(format!("{what}: {error}"));
    let stream = TcpStream::connect((target.host.as_str(), target.port))
        .await
        .map_err(|error| lost("cannot be connected to", &error))?;
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| lost("cannot be spoken to", &error))?;
    let mut request = Request::post(format!("{}{path}", target.prefix))
        .header(header::HOST, target.authority.as_str())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close");
    if let Some(ApiKey(key)) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request
        .body(Full::new(json.to_string().into()))
        .map_err(|error| lost("no request can be made", &error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| lost("no answer", &error))?;
        let status = response.status().as_u16();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Ok(body) => Ok(Answer { status, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(HttpError::Lost(format!("the answer has more than {ANSWER_BYTES_MAX} bytes")))
            }
            Err(error) => Err(lost("the answer broke off", &error)),
        }
    };
    // The connection does its work only while it is polled.
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    }
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
        let target = Target::new(url)?;
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
        if status != 200 {
            let said: String = String::from_utf8_lossy(&body).chars().take(TOLD_CHARS_MAX).collect();
            return Err(failed(format!("SGLang answers {status}: {}", said.trim())));
        }
        Ok(())
    }
}
