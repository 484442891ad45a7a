//! The client half: one request on a new connection.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A server and a path on it: `http://HOST[:PORT][/PATH][?QUERY]`, or a Unix socket.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    server: ServerAddress,
    /// The value of the `Host` header.
    authority: String,
    /// Path and query. `/` if the URL has none.
    pub path: String,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ServerAddress {
    /// `host` has no brackets around an IPv6 address.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// The reason why a URL is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UrlError(String);

/// A server's answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status code.
    pub status: StatusCode,
    /// The body, within the caller's limit.
    pub body: Bytes,
}

/// The reason why there is no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// The URL's path and the headers do not make a valid request.
    #[error("the URL makes no request: {0}")]
    Request(String),
    /// No server listens, or the server closed before it answered.
    #[error("{0}")]
    Lost(String),
    /// The server does not speak HTTP.
    #[error("the answer is no HTTP: {0}")]
    NotHttp(String),
    /// The body exceeds the limit.
    #[error("the body has more than {max} bytes")]
    TooLong {
        /// The answer's status.
        status: StatusCode,
        /// The limit.
        max: usize,
    },
    /// The body ended too early.
    #[error("the body broke off: {why}")]
    BrokenOff {
        /// The answer's status.
        status: StatusCode,
        /// The reason.
        why: String,
    },
}

impl ExchangeError {
    /// The status of an answer whose body was not received.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ExchangeError::TooLong { status, .. } | ExchangeError::BrokenOff { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl HttpTarget {
    /// Parses a URL.
    pub fn new(url: &str) -> Result<HttpTarget, UrlError> {
        let wrong = |why: String| Err(UrlError(why));
        let uri: Uri = url.parse().map_err(|error| UrlError(format!("{error}")))?;
        if uri.scheme_str() != Some("http") {
            return wrong(format!("the scheme is {:?}", uri.scheme_str().unwrap_or_default()));
        }
        let Some(authority) = uri.authority() else { return wrong("there is no host".to_owned()) };
        if authority.as_str().contains('@') {
            return wrong("a user is given".to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(HttpTarget {
            server: ServerAddress::Tcp { host, port: authority.port_u16().unwrap_or(80) },
            authority: authority.to_string(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// The server that listens on this Unix socket.
    pub fn unix(socket: &Path) -> HttpTarget {
        // HTTP/1.1 requires a Host header, and a socket has no host name.
        HttpTarget {
            server: ServerAddress::Unix(socket.to_owned()),
            authority: "localhost".to_owned(),
            path: "/".to_owned(),
        }
    }

    /// Sends a request on a new connection: a connection that stays open would hide a server's restart. `request` has
    /// the method and the path; common headers are added. `max` limits the bytes of the answer's body.
    pub async fn exchange(
        &self,
        request: Builder,
        body: Bytes,
        max: usize,
    ) -> Result<HttpAnswer, ExchangeError> {
        let lost = |error| lost("cannot be connected to", &error);
        match &self.server {
            ServerAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(lost)?;
                self.exchange_on(stream, request, body, max).await
            }
            ServerAddress::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(lost)?;
                self.exchange_on(stream, request, body, max).await
            }
        }
    }

    async fn exchange_on(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Builder,
        body: Bytes,
        max: usize,
    ) -> Result<HttpAnswer, ExchangeError> {
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
                Ok(body) => Ok(HttpAnswer { status, body: body.to_bytes() }),
                Err(error) if error.is::<LengthLimitError>() => Err(ExchangeError::TooLong { status, max }),
                Err(error) => Err(ExchangeError::BrokenOff { status, why: error.to_string() }),
            }
        };
        // The connection makes progress only while it is polled. It ends with this exchange.
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // The connection ended: the exchange has the result.
            _ = connection => exchange.await,
        }
    }
}

fn lost(what: &str, error: &dyn std::fmt::Display) -> ExchangeError {
    ExchangeError::Lost(format!("{what}: {error}"))
}

/// Removes user names and passwords from the URLs in a text, for messages.
pub fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        shown.push_str(before);
        // A password may have any character but these, even if it should have been encoded.
        let end = after.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            // The digest of a component in a registry.
            Some(at) if after[at..].starts_with("@sha256:") && !after[..at].contains('@') => after,
            Some(at) => {
                shown.push_str("***");
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}

/// Starts a GET request.
pub fn get(path: &str) -> Builder {
    Request::get(path)
}

/// Starts a POST request.
pub fn post(path: &str) -> Builder {
    Request::post(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_into_its_parts() {
        let target = HttpTarget::new("http://[::1]:30000/metrics?a=b").unwrap();
        assert_eq!(target.server, ServerAddress::Tcp { host: "::1".to_owned(), port: 30000 });
        assert_eq!(target.path, "/metrics?a=b");
        assert_eq!(HttpTarget::new("http://host").unwrap().path, "/");
        assert!(HttpTarget::new("metrics").is_err());
    }
    #[test]
    fn a_password_in_a_url_is_never_shown() {
        for (text, shown) in [
            ("http://user:secret@host:1/a?b", "http://***@host:1/a?b"),
            ("http://user:sec/r@et@host/a", "http://***@host/a"),
            (
                "asked \"https://u:secret@h/a\", then http://u:secret@i",
                "asked \"https://***@h/a\", then http://***@i",
            ),
            ("http://host/a", "http://host/a"),
            ("oci://ghcr.io/acme/guard@sha256:12ab", "oci://ghcr.io/acme/guard@sha256:12ab"),
            ("oci://u:secret@ghcr.io/acme/guard@sha256:12ab", "oci://***@sha256:12ab"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }
}
