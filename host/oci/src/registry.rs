//! One registry, as it is spoken to.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use docker_credential::DockerCredential;
use oci_client::Client;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{DigestError, OciDistributionError};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use tokio::io::AsyncWrite;

use crate::{CONNECT_MAX, FETCH_MAX, FetchError, MANIFESTS};

/// Characters of what a registry says.
const WORDS_MAX: usize = 1024;

pub(crate) struct Registry<'r> {
    client: Client,
    image: &'r oci_client::Reference,
    auth: RegistryAuth,
    /// Why it is asked without credentials.
    without: Option<String>,
}

impl<'r> Registry<'r> {
    pub(crate) fn new(image: &'r oci_client::Reference) -> Result<Registry<'r>, FetchError> {
        // An error: there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let registry = image.resolve_registry();
        let protocol = match is_loopback(registry) {
            true => ClientProtocol::HttpsExcept(vec![registry.to_owned()]),
            false => ClientProtocol::Https,
        };
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_MAX),
            read_timeout: Some(FETCH_MAX),
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| FetchError::Client(error.to_string()))?;
        let (auth, without) = match docker_credential::get_credential(registry) {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                (RegistryAuth::Basic(user, password), None)
            }
            Ok(DockerCredential::IdentityToken(token)) => (RegistryAuth::Bearer(token), None),
            Err(error) => (RegistryAuth::Anonymous, Some(error.to_string())),
        };
        Ok(Registry { client, image, auth, without })
    }

    /// The bytes of the manifest that the reference names, whatever their digest.
    pub(crate) async fn manifest(&self) -> Result<Vec<u8>, FetchError> {
        let manifest = self.client.pull_manifest_raw(self.image, &self.auth, &MANIFESTS).await;
        Ok(manifest.map_err(|error| self.error("the manifest", error))?.0.into())
    }

    /// The bytes of a layer, no more than `size`.
    pub(crate) async fn blob(&self, layer: &OciDescriptor, size: u64) -> Result<Vec<u8>, FetchError> {
        self.client.store_auth_if_needed(self.image.resolve_registry(), &self.auth).await;
        let mut bytes = Bounded { bytes: Vec::new(), max: usize::try_from(size).unwrap_or(usize::MAX) };
        let pulled = self.client.pull_blob(self.image, layer, &mut bytes).await;
        pulled.map_err(|error| self.error("the component", error))?;
        Ok(bytes.bytes)
    }

    fn error(&self, what: &'static str, error: OciDistributionError) -> FetchError {
        if let OciDistributionError::DigestError(DigestError::VerificationError { expected, actual }) = error
        {
            return FetchError::Digest { what, came: actual, pinned: expected };
        }
        let mut why = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            why = format!("{why}: {cause}");
            source = cause.source();
        }
        let is_refused = matches!(
            error,
            OciDistributionError::AuthenticationFailure(_)
                | OciDistributionError::UnauthorizedError { .. }
                | OciDistributionError::RegistryError { .. }
        );
        if let Some(without) = self.without.as_ref().filter(|_| is_refused) {
            why = format!("{why}; asked without Docker's credentials: {without}");
        }
        // One line, whatever a registry or a credential helper says.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_MAX).collect();
        FetchError::Registry { registry: self.image.resolve_registry().to_owned(), why }
    }
}

/// `HOST[:PORT]` of this machine.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Bytes up to a bound.
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.len() > self.max - self.bytes.len() {
            let why = format!("the component has more than the {} bytes that its manifest says", self.max);
            return Poll::Ready(Err(io::Error::other(why)));
        }
        self.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
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
