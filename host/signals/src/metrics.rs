//! The scrape: one GET of SGLang's `/metrics`, bounded in time and size. The only file that names hyper's client.

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::bounds::METRICS_BYTES_MAX;
use crate::config::Target;
use crate::hub::Refusal;

/// The body of one scrape. A connection of its own: it is one a second, and a kept one would hide a server's restart.
pub(crate) async fn scrape(target: &Target) -> Result<Bytes, Refusal> {
    let lost = |what: &str, error: &dyn std::fmt::Display| Refusal::Lost(format!("{what}: {error}"));
    let stream = TcpStream::connect((target.host.as_str(), target.port))
        .await
        .map_err(|error| lost("cannot be connected to", &error))?;
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| lost("cannot be spoken to", &error))?;
    let request = Request::get(target.path.as_str())
        .header(header::HOST, target.authority.as_str())
        .header(header::ACCEPT, "text/plain")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| Refusal::Invalid(format!("the URL makes no request: {error}")))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(answered)?;
        if response.status() != StatusCode::OK {
            return Err(Refusal::Invalid(format!("the answer is {}, expected 200 OK", response.status())));
        }
        let body = Limited::new(response.into_body(), METRICS_BYTES_MAX);
        match body.collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Refusal::Invalid(format!("the body has more than {METRICS_BYTES_MAX} bytes")))
            }
            Err(error) => Err(lost("the body broke off", &error)),
        }
    };
    // The connection does its work only while it is polled, and ends with this scrape.
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // Done, or failed: what the exchange makes of it.
        _ = connection => exchange.await,
    }
}

fn answered(error: hyper::Error) -> Refusal {
    match error {
        error if error.is_parse() => Refusal::Invalid(format!("the answer is no HTTP: {error}")),
        error => Refusal::Lost(format!("no answer: {error}")),
    }
}
