//! Fetches files from one registry, with credentials if the registry asks for them.
//!
//! Every body is limited in size, whatever its head declares: `oci-client` reads manifests, tokens and errors without a bound, and
//! a fetch runs in the process that carries tokens. The caller limits the time; [`STALL_MAX`] limits a silence.

use std::net::IpAddr;

use http_auth::{ChallengeRef, parse_challenges};
use oci_client::manifest::OCI_IMAGE_MEDIA_TYPE;
use oci_client::secrets::RegistryAuth;
use reqwest::header::{ACCEPT, HeaderMap, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use crate::oci::bounds::{CONNECT_MAX, STALL_MAX};
use crate::oci::error::TransferError;
use crate::oci::login::{Login, chain};

/// Bytes of the body of an error or a token.
const SMALL_BYTES_MAX: u64 = 64 << 10;

pub(crate) struct Registry<'r> {
    client: Client,
    image: &'r oci_client::Reference,
    login: Login,
    /// The authorization that the registry asked for.
    authorization: RegistryAuth,
}

impl<'r> Registry<'r> {
    pub(crate) async fn new(image: &'r oci_client::Reference) -> Result<Registry<'r>, TransferError> {
        // An error means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().read_timeout(STALL_MAX).connect_timeout(CONNECT_MAX).build();
        let client = client.map_err(|error| TransferError::Client(chain(&error)))?;
        let login = Login::find(image.resolve_registry()).await;
        Ok(Registry { client, image, login, authorization: RegistryAuth::Anonymous })
    }

    /// Fetches a file of at most `max` bytes: `manifests/DIGEST` or `blobs/DIGEST`. The caller checks the digest.
    pub(crate) async fn get(
        &mut self,
        what: &'static str,
        path: &str,
        max: u64,
    ) -> Result<Vec<u8>, TransferError> {
        let registry = &self.login.registry;
        let scheme = if is_loopback(registry) { "http" } else { "https" };
        let url = format!("{scheme}://{registry}/v2/{}/{path}", self.image.repository());
        let accept = format!("{OCI_IMAGE_MEDIA_TYPE}, */*;q=0.1");
        let request = |client: &Client| client.get(&url).header(ACCEPT, &accept);
        let mut response = self.send(request(&self.client), &self.authorization).await?;
        // The registry asks for credentials, or a token has expired.
        if response.status() == StatusCode::UNAUTHORIZED {
            let authorization = self.authorize(response.headers()).await?;
            if authorization != self.authorization {
                self.authorization = authorization;
                response = self.send(request(&self.client), &self.authorization).await?;
            }
        }
        self.body(what, response, max).await
    }

    async fn send(&self, request: RequestBuilder, auth: &RegistryAuth) -> Result<Response, TransferError> {
        let request = match auth {
            RegistryAuth::Anonymous => request,
            RegistryAuth::Basic(user, password) => request.basic_auth(user, Some(password)),
            RegistryAuth::Bearer(token) => request.bearer_auth(token),
        };
        request.send().await.map_err(|error| self.login.failed(error))
    }

    /// Returns the authorization that answers a 401. It is anonymous without fitting credentials.
    async fn authorize(&mut self, asked: &HeaderMap) -> Result<RegistryAuth, TransferError> {
        if matches!(self.login.auth, RegistryAuth::Bearer(_)) {
            return Ok(self.login.auth.clone());
        }
        let asked = asked.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenges: Vec<ChallengeRef<'_>> =
            asked.filter_map(|value| parse_challenges(value).ok()).flatten().collect();
        let of =
            |scheme: &str| challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        match (of("bearer"), of("basic")) {
            (Some(challenge), _) => {
                let token = self.token(challenge).await?;
                self.login.hide(&token);
                Ok(RegistryAuth::Bearer(token))
            }
            (None, Some(_)) => Ok(self.login.auth.clone()),
            (None, None) => Ok(RegistryAuth::Anonymous),
        }
    }

    /// Fetches a token for the repository from the server that the registry names.
    async fn token(&self, challenge: &ChallengeRef<'_>) -> Result<String, TransferError> {
        let of = |name: &str| {
            let found = challenge.params.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let wrong = |why: String| self.login.error(why);
        let realm = of("realm").unwrap_or_default();
        let mut url =
            Url::parse(&realm).map_err(|_| wrong("its token server has no valid URL".to_owned()))?;
        if url.scheme() != "https" && !is_loopback(&self.login.registry) {
            let host = url.host_str().unwrap_or_default();
            return Err(wrong(format!("its token server {host} is not on https")));
        }
        url.query_pairs_mut()
            .extend_pairs(of("service").map(|service| ("service", service)))
            .append_pair("scope", &format!("repository:{}:pull", self.image.repository()));
        let response = self.send(self.client.get(url), &self.login.auth).await?;
        let body = self.body("the token", response, SMALL_BYTES_MAX).await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = body["token"].as_str().or(body["access_token"].as_str());
        token.map(str::to_owned).ok_or_else(|| wrong("its token server gives no token".to_owned()))
    }

    /// Reads the body of a success, of at most `max` bytes. Any other answer is an error with the registry's words.
    async fn body(
        &self,
        what: &'static str,
        mut response: Response,
        max: u64,
    ) -> Result<Vec<u8>, TransferError> {
        let status = response.status();
        let max = if status == StatusCode::OK { max } else { SMALL_BYTES_MAX };
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.login.failed(error))? {
            if (bytes.len() + chunk.len()) as u64 > max {
                return Err(match status {
                    StatusCode::OK => TransferError::Longer { what, max },
                    status => self.login.refused(status, ""),
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        match status {
            StatusCode::OK => Ok(bytes),
            status => Err(self.login.refused(status, &String::from_utf8_lossy(&bytes))),
        }
    }
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
