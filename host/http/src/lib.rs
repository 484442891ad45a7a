//! One exchange with an HTTP server: asked, answered, bounded in size, and the connection is closed.
//!
//! Owns what a URL is and how a server is spoken to; it alone names hyper. How long an exchange may take, what is asked and
//! what an answer means is its callers'. Must not know SGLang.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;

pub use hyper::{StatusCode, header};

/// A server, and what of it: `http://HOST[:PORT][/PATH][?QUERY]`.
#[derive(Clone, Debug)]
pub struct Target {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// 80 where none is given.
    pub port: u16,
    /// For the `Host` header.
    pub authority: String,
    /// Path and query; `/` where none is given.
    pub path: String,
}

/// What is wrong with a URL.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UrlError(String);

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// Within the caller's bound.
    pub body: Bytes,
}

/// Why there is no answer, or none of use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// What is asked makes no request.
    #[error("the URL makes no request: {0}")]
    Request(String),
    /// Nobody listens, or hangs up before an answer.
    #[error("{0}")]
    Lost(String),
    /// It speaks something else.
    #[error("the answer is no HTTP: {0}")]
    NotHttp(String),
    /// The answer has this status, and a body past the bound.
    #[error("the body has more than {max} bytes")]
    TooLong {
        /// The status.
        status: StatusCode,
        /// The bound.
        max: usize,
    },
    /// The answer has this status, and a body without an end.
    #[error("the body broke off: {why}")]
    BrokenOff {
        /// The status.
        status: StatusCode,
        /// What happened.
        why: String,
    },
}

impl ExchangeError {
    /// That of an answer whose body was not had.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ExchangeError::TooLong { status, .. } | ExchangeError::BrokenOff { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl Target {
    /// From a URL.
    pub fn new(url: &str) -> Result<Target, UrlError> {
        let wrong = |why: String| Err(UrlError(why));
        let uri: Uri = url.parse().map_err(|error| UrlError(format!("{error}")))?;
        if uri.scheme_str() != Some("http") {
            return wrong(format!("the scheme is {:?}", uri.scheme_str().unwrap_or_default()));
        }
        let Some(authority) = uri.authority() else { return wrong("there is no host".to_owned()) };
        if authority.as_str().contains('@') {
            return wrong("a user is given".to_owned());
        }
        Ok(Target {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// Asks, on a connection of its own: a kept one would hide a server's restart. `request` has its method and path; the
    /// headers that every request has are added. `max`: bytes of the answer's body.
    pub async fn exchange(&self, request: Builder, body: Bytes, max: usize) -> Result<Answer, ExchangeError> {
        let lost =
            |what: &str, error: &dyn std::fmt::Display| ExchangeError::Lost(format!("{what}: {error}"));
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| lost("cannot be connected to", &error))?;
        let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| lost("cannot be spoken to", &error))?;
        let request = request
            .header(header::HOST, self.authority.as_str())
            .header(header::CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|error| ExchangeError::Request(error.to_string()))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| match error {
                error if error.is_parse() => ExchangeError::NotHttp(error.to_string()),
                error => lost("no answer", &error),
            })?;
            let status = response.status();
            match Limited::new(response.into_body(), max).collect().await {
                Ok(body) => Ok(Answer { status, body: body.to_bytes() }),
                Err(error) if error.is::<LengthLimitError>() => Err(ExchangeError::TooLong { status, max }),
                Err(error) => Err(ExchangeError::BrokenOff { status, why: error.to_string() }),
            }
        };
        // The connection does its work only while it is polled, and ends with this exchange.
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // Done, or failed: what the exchange makes of it.
            _ = connection => exchange.await,
        }
    }
}

/// A GET of a path.
pub fn get(path: &str) -> Builder {
    Request::get(path)
}

/// A POST to a path.
pub fn post(path: &str) -> Builder {
    Request::post(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_as_http_says() {
        let target = Target::new("http://[::1]:30000/metrics?a=b").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("::1", 30000, "/metrics?a=b"));
        assert_eq!(Target::new("http://host").unwrap().path, "/");
        assert!(Target::new("metrics").is_err());
    }
}
