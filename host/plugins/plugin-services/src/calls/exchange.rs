//! One exchange: a POST, and the answer within its bounds.

use std::error::Error;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use tokio::time::timeout;

use afterbay_config as config;

/// The longest body of a request, in bytes. A longer one is refused.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Characters of an error in a message.
const WHY_CHARS_MAX: usize = 300;
/// Idle connections that are kept alive to one endpoint.
const IDLE_CONNECTIONS_MAX: usize = 64;

/// The answer of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAnswer {
    /// The HTTP status. Never 5xx.
    pub status: u16,
    /// The body, up to the endpoint's bound.
    pub body: Vec<u8>,
}

/// The reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The call cannot be made: no endpoint has this name, or the body is too long. A sentence for the operator.
    Refused(String),
    /// The endpoint has its most calls under way, or its circuit breaker is open.
    Overloaded,
    /// The answer did not arrive in time.
    TimedOut,
    /// The connection failed, the answer is too long, or the status is 5xx. A sentence for the operator, without the URL.
    Failed(String),
}

/// The client of one endpoint, with its connections.
#[derive(Debug)]
pub(crate) struct Exchanger {
    client: Client,
    url: Url,
}

impl Exchanger {
    /// The error is a sentence for the operator, without the URL and the headers.
    pub(crate) fn new(config: &config::Call) -> Result<Exchanger, String> {
        // An error means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for header in &config.headers {
            let name: HeaderName =
                header.name.parse().map_err(|_| format!("{:?} is not the name of a header", header.name))?;
            let value = HeaderValue::from_str(&header.value.0);
            let mut value =
                value.map_err(|_| format!("header {:?} has a value that no header has", header.name))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let url = Url::parse(&config.url).map_err(|error| format!("the URL is invalid: {error}"))?;
        let client = Client::builder()
            .user_agent(concat!("afterbay/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(Policy::none())
            .connect_timeout(config.timeout)
            .pool_max_idle_per_host(config.max_in_flight.min(IDLE_CONNECTIONS_MAX));
        // Without TLS, the certificates of the system are not needed and may be absent.
        let client = if url.scheme() == "http" { client.tls_certs_only([]) } else { client };
        let client = client.build().map_err(why)?;
        Ok(Exchanger { client, url })
    }

    /// Sends the body, and reads the answer. The time limit includes the connection and the answer's body.
    pub(crate) async fn run(&self, config: &config::Call, body: Bytes) -> Result<ServiceAnswer, CallError> {
        let exchange = async {
            let request = self.client.post(self.url.clone()).body(body);
            let response = request.send().await.map_err(|error| CallError::Failed(why(error)))?;
            let status = response.status();
            if status.is_server_error() {
                return Err(CallError::Failed(format!("the status is {}", status.as_u16())));
            }
            let body = read(response, config.max_body_bytes).await.map_err(CallError::Failed)?;
            Ok(ServiceAnswer { status: status.as_u16(), body })
        };
        timeout(config.timeout, exchange).await.unwrap_or(Err(CallError::TimedOut))
    }
}

/// Reads a body of at most `max` bytes, whatever its head declares.
async fn read(mut response: Response, max: u64) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(why)? {
        if (body.len() + chunk.len()) as u64 > max {
            return Err(format!("the answer has more than {max} bytes, the limit"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The messages of an error and of its causes, on one line and without the URL, which may contain a key.
fn why(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        why = format!("{why}: {cause}");
        source = cause.source();
    }
    why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WHY_CHARS_MAX).collect()
}
