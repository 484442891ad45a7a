//! The client half: one request on a new connection.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// The address of a server.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    /// `HOST:PORT`.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A call of a server.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Path and query.
    pub path: &'a str,
    /// The token of the caller, of visible ASCII characters.
    pub token: Option<&'a str>,
    /// JSON to POST. `None`: a GET.
    pub json: Option<&'a str>,
    /// The time for the whole exchange, including the connection.
    pub within: Duration,
    /// Other headers: names and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// Most bytes of the answer's body.
    pub bytes_max: usize,
    /// The rest of a longer body. `None`: it is an error. A header: an answer that has it is read to its end and the rest dropped, and
    /// one with success and without it is closed at once, because another program answers.
    pub drops_rest_with: Option<&'a str>,
}

/// The reason why there is no usable answer, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// No server listens.
    #[error("cannot be connected to: {0}")]
    Unreachable(String),
    /// There is no whole answer within the bounds of the call.
    #[error("{0}")]
    NoAnswer(String),
    /// Another program than the one that was meant has answered.
    #[error("{0}")]
    Other(String),
}

/// Calls a server on a new connection: a connection that stays open would hide a server's restart. Returns the status and the body
/// of the answer.
///
/// # Errors
/// No server listens, or there is no whole answer within the bounds of the call.
pub async fn call(server: &ServerAddress, call: Call<'_>) -> Result<(StatusCode, Bytes), CallError> {
    let failed = |error: std::io::Error| CallError::Unreachable(error.to_string());
    let exchange = async {
        match server {
            ServerAddress::Tcp(address) => {
                exchange(TcpStream::connect(address).await.map_err(failed)?, address, call).await
            }
            // HTTP/1.1 requires a Host header, and a socket has no host name.
            ServerAddress::Unix(socket) => {
                exchange(UnixStream::connect(socket).await.map_err(failed)?, "localhost", call).await
            }
        }
    };
    let late = |_| CallError::NoAnswer(format!("no answer in {} s", call.within.as_secs()));
    timeout(call.within, exchange).await.map_err(late)?
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    Call { path, token, json, headers, bytes_max, drops_rest_with, .. }: Call<'_>,
) -> Result<(StatusCode, Bytes), CallError> {
    let failed = |what: &'static str| {
        move |error: &dyn std::fmt::Display| CallError::NoAnswer(format!("{what}: {error}"))
    };
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| failed("cannot be spoken to")(&error))?;
    let mut request = match json {
        Some(_) => Request::post(path).header(header::CONTENT_TYPE, "application/json"),
        None => Request::get(path),
    };
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request
        .header(header::HOST, host)
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::copy_from_slice(json.unwrap_or_default().as_bytes())))
        .map_err(|error| failed("the call makes no request")(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| match error.is_parse() {
            true => failed("the answer is no HTTP")(&error),
            false => failed("no answer")(&error),
        })?;
        let status = response.status();
        if let Some(header) = drops_rest_with {
            if status.is_success() && !response.headers().contains_key(header) {
                return Err(CallError::Other(format!("the HTTP server answers without the header {header}")));
            }
            let mut body = response.into_body();
            let mut kept = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| failed("the body broke off")(&error))?;
                let data = frame.into_data().unwrap_or_default();
                kept.extend_from_slice(&data[..data.len().min(bytes_max - kept.len())]);
            }
            return Ok((status, kept.freeze()));
        }
        match Limited::new(response.into_body(), bytes_max).collect().await {
            Ok(body) => Ok((status, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(CallError::NoAnswer(format!("the body has more than {bytes_max} bytes")))
            }
            Err(error) => Err(failed("the body broke off")(&error)),
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

#[cfg(test)]
mod tests {
    use super::*;

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
