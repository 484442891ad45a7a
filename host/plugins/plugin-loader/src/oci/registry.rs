//! The client of one registry: sends requests and fetches files, with credentials if the registry asks for them.
//!
//! Every body is limited in size, whatever its head declares. The caller limits the time; [`STALL_MAX`] limits a
//! silence.

use std::net::IpAddr;

use docker_credential::{CredentialRetrievalError, DockerCredential};
use http_auth::{ChallengeRef, parse_challenges};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use crate::oci::bounds::{CONNECT_MAX, MANIFEST_BYTES_MAX, STALL_MAX};
use crate::oci::error::TransferError;

/// Characters of a registry's own words in an error.
const WORDS_MAX: usize = 1024;
/// Bytes of the body of an error or a token.
const SMALL_BYTES_MAX: u64 = 64 << 10;

/// The permission that a token is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To read the repository.
    Pull,
    /// To read and write it.
    Push,
}

impl Access {
    /// The actions in a token's scope.
    fn actions(self) -> &'static str {
        match self {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        }
    }
}

pub(crate) struct Registry<'r> {
    client: Client,
    image: &'r oci_client::Reference,
    access: Access,
    credential: Result<DockerCredential, String>,
    /// The header that the registry asked for.
    authorization: Option<HeaderValue>,
    /// The password and the tokens, which no message shows.
    secrets: Vec<String>,
}

impl<'r> Registry<'r> {
    pub(crate) async fn new(
        image: &'r oci_client::Reference,
        access: Access,
    ) -> Result<Registry<'r>, TransferError> {
        // An error means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = client(Client::builder().read_timeout(STALL_MAX))?;
        let credential = credential(image.resolve_registry()).await;
        let secrets = match &credential {
            Ok(DockerCredential::UsernamePassword(_, secret) | DockerCredential::IdentityToken(secret)) => {
                vec![secret.clone()]
            }
            Err(_) => Vec::new(),
        };
        let mut registry = Registry { client, image, access, credential, authorization: None, secrets };
        let basic = registry.basic();
        let encoded = basic.as_ref().and_then(|basic| basic.to_str().ok()?.strip_prefix("Basic "));
        registry.secrets.extend(encoded.map(str::to_owned));
        Ok(registry)
    }

    /// Fetches the manifest of this digest. The caller checks the digest.
    pub(crate) async fn manifest(
        &mut self,
        digest: &str,
        media_type: &str,
    ) -> Result<Vec<u8>, TransferError> {
        self.get("the manifest", "manifests", digest, media_type, MANIFEST_BYTES_MAX as u64).await
    }

    /// Fetches a layer of at most `size` bytes. The caller checks the digest.
    pub(crate) async fn blob(&mut self, digest: &str, size: u64) -> Result<Vec<u8>, TransferError> {
        self.get("the component", "blobs", digest, "*/*", size).await
    }

    async fn get(
        &mut self,
        what: &'static str,
        kind: &str,
        digest: &str,
        accept: &str,
        max: u64,
    ) -> Result<Vec<u8>, TransferError> {
        let url = self.url(&format!("{kind}/{digest}"));
        let response = self.answer(|client| client.get(&url).header(ACCEPT, accept)).await?;
        match response.status() {
            StatusCode::OK => self.body(what, response, max).await,
            status => Err(self.refused(status, response).await),
        }
    }

    /// The URL of a path in the repository.
    pub(crate) fn url(&self, path: &str) -> String {
        let registry = self.host();
        let scheme = if is_loopback(registry) { "http" } else { "https" };
        format!("{scheme}://{registry}/v2/{}/{path}", self.image.repository())
    }

    /// Sends a request. If the registry answers 401, sends the request once more with fresh credentials: there were none, or a
    /// token has expired.
    pub(crate) async fn answer(
        &mut self,
        request: impl Fn(&Client) -> RequestBuilder,
    ) -> Result<Response, TransferError> {
        let response = self.send(request(&self.client)).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        match self.authorize(response.headers()).await? {
            Some(authorization) if self.authorization.as_ref() != Some(&authorization) => {
                self.authorization = Some(authorization);
                self.send(request(&self.client)).await
            }
            _ => Ok(response),
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, TransferError> {
        let request = match &self.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
            None => request,
        };
        request.send().await.map_err(|error| self.error(error))
    }

    /// Returns the `Authorization` header that answers a 401, or `None` without fitting credentials.
    async fn authorize(&mut self, asked: &HeaderMap) -> Result<Option<HeaderValue>, TransferError> {
        if let Ok(DockerCredential::IdentityToken(token)) = &self.credential {
            return Ok(secret(format!("Bearer {token}")));
        }
        let asked = asked.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenges: Vec<ChallengeRef<'_>> =
            asked.filter_map(|value| parse_challenges(value).ok()).flatten().collect();
        let of =
            |scheme: &str| challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        if let Some(challenge) = of("bearer") {
            let token = self.token(challenge).await?;
            let authorization = secret(format!("Bearer {token}"));
            self.secrets.push(token);
            return Ok(authorization);
        }
        Ok(of("basic").and(self.basic()))
    }

    fn basic(&self) -> Option<HeaderValue> {
        let Ok(DockerCredential::UsernamePassword(user, password)) = &self.credential else { return None };
        // reqwest encodes the header.
        let request = self.client.get("http://localhost").basic_auth(user, Some(password)).build().ok()?;
        request.headers().get(AUTHORIZATION).cloned()
    }

    /// Fetches a token for the repository from the server that the registry names.
    async fn token(&self, challenge: &ChallengeRef<'_>) -> Result<String, TransferError> {
        let of = |name: &str| {
            let found = challenge.params.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let wrong = |why: String| self.says(why);
        let realm = of("realm").unwrap_or_default();
        let mut url =
            Url::parse(&realm).map_err(|_| wrong("its token server has no valid URL".to_owned()))?;
        if url.scheme() != "https" && !is_loopback(self.host()) {
            return Err(wrong(format!(
                "its token server {} is not on https",
                url.host_str().unwrap_or_default()
            )));
        }
        url.query_pairs_mut().extend_pairs(of("service").map(|service| ("service", service))).append_pair(
            "scope",
            &format!("repository:{}:{}", self.image.repository(), self.access.actions()),
        );
        let mut request = self.client.get(url);
        if let Some(basic) = self.basic() {
            request = request.header(AUTHORIZATION, basic);
        }
        let response = request.send().await.map_err(|error| self.error(error))?;
        match response.status() {
            StatusCode::OK => {
                let body = self.body("the token", response, SMALL_BYTES_MAX).await?;
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let token = body["token"].as_str().or(body["access_token"].as_str());
                token.map(str::to_owned).ok_or_else(|| wrong("its token server gives no token".to_owned()))
            }
            status => Err(self.refused(status, response).await),
        }
    }

    /// Reads a body of at most `max` bytes.
    pub(crate) async fn body(
        &self,
        what: &'static str,
        mut response: Response,
        max: u64,
    ) -> Result<Vec<u8>, TransferError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.error(error))? {
            if (bytes.len() + chunk.len()) as u64 > max {
                return Err(TransferError::Longer { what, max });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The error for an answer that is no success, with the registry's words.
    pub(crate) async fn refused(&self, status: StatusCode, response: Response) -> TransferError {
        let body = self.body("the error", response, SMALL_BYTES_MAX).await.unwrap_or_default();
        let mut why = format!("{status}: {}", words(&body));
        if let (Err(without), true) = (&self.credential, status.is_client_error()) {
            why = format!("{why}; asked without Docker's credentials: {without}");
        }
        self.says(why)
    }

    pub(crate) fn error(&self, mut error: reqwest::Error) -> TransferError {
        // The query of a storage's URL may be a signature.
        if let Some(url) = error.url_mut() {
            url.set_query(None);
        }
        self.says(chain(&error))
    }

    pub(crate) fn says(&self, mut why: String) -> TransferError {
        for secret in self.secrets.iter().filter(|secret| !secret.is_empty()) {
            why = why.replace(secret.as_str(), "***");
        }
        // Puts the words of a registry or credential helper on one line.
        let why =
            why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_MAX).collect::<String>();
        let why = afterbay_http::redacted(&why);
        TransferError::Registry { registry: self.host().to_owned(), why }
    }

    /// The registry's host and port.
    pub(crate) fn host(&self) -> &'r str {
        self.image.resolve_registry()
    }
}

/// Makes a client.
pub(crate) fn client(builder: ClientBuilder) -> Result<Client, TransferError> {
    let client = builder.connect_timeout(CONNECT_MAX).build();
    client.map_err(|error| TransferError::Client(chain(&error)))
}

/// Asks Docker's configuration for credentials. A credential helper is a program and may be slow.
async fn credential(registry: &str) -> Result<DockerCredential, String> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    let registry = registry.to_owned();
    // A thread outside the runtime: the end of the runtime would wait for a helper that hangs.
    let asking = std::thread::Builder::new().name("oci-credential".to_owned()).spawn(move || {
        let found = docker_credential::get_credential(&registry);
        // The send fails if the caller timed out.
        let _ = reply.send(found.map_err(|error: CredentialRetrievalError| error.to_string()));
    });
    asking.map_err(|error| error.to_string())?;
    answer.await.unwrap_or_else(|_| Err("the credential helper was not asked".to_owned()))
}

/// A header value that `Debug` does not show.
fn secret(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The messages of an OCI error body, or the body's text.
fn words(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let errors = parsed["errors"].as_array().into_iter().flatten();
    let messages: Vec<&str> =
        errors.filter_map(|error| error["message"].as_str().or(error["code"].as_str())).collect();
    if messages.is_empty() { String::from_utf8_lossy(body).into_owned() } else { messages.join(", ") }
}

/// The messages of an error and of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        why = format!("{why}: {cause}");
        source = cause.source();
    }
    why
}

/// Whether `HOST[:PORT]` is on this machine.
pub(crate) fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn only_this_machine_is_spoken_to_without_tls() {
        for here in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]:5000"] {
            assert!(is_loopback(here), "{here}");
        }
        for other in ["ghcr.io", "10.0.0.1:5000", "localhost.example.com:5000", "[2001:db8::1]:5000"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
