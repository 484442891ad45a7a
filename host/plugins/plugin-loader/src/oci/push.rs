//! Pushes a component with `oci-client`: its blobs, then the manifest under the tag.

use std::time::Duration;

use bytes::Bytes;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OCI_IMAGE_MEDIA_TYPE;
use oci_client::{Reference as Image, RegistryOperation};
use reqwest::StatusCode;
use reqwest::header::HeaderValue;

use crate::oci::artifact::Artifact;
use crate::oci::blocking::blocking;
use crate::oci::bounds::{CONNECT_MAX, PUSH_MAX};
use crate::oci::error::TransferError;
use crate::oci::login::{Login, chain};
use crate::oci::reference::{Reference, TagReference};
use crate::oci::registry::is_loopback;

/// A pushed component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The reference that pins the component's manifest.
    pub reference: Reference,
    /// `sha256:` and the digest of the component's bytes.
    pub component_digest: String,
    /// Whether the component was sent. The registry may have had it.
    pub is_sent: bool,
    /// The digest of the manifest that the tag named before. `None` if there was no tag, or the registry did not show it.
    pub tag_named: Option<String>,
}

/// Pushes a component, and moves the tag to it. What the registry has is not sent again, so a push that failed can be repeated.
///
/// Blocks for at most [`PUSH_MAX`]. Credentials and TLS are those of [`fetch`](crate::oci::fetch()). The registry's answers have
/// no bound: a push belongs in a process of its own.
///
/// # Errors
/// The registry refuses a file, is not reached, or is too slow.
pub fn push(target: &TagReference, artifact: &Artifact) -> Result<Pushed, TransferError> {
    push_within(target, artifact, PUSH_MAX)
}

/// Does [`push`] with another time limit.
///
/// # Errors
/// Those of [`push`].
pub fn push_within(
    target: &TagReference,
    artifact: &Artifact,
    within: Duration,
) -> Result<Pushed, TransferError> {
    blocking(target.image.resolve_registry(), within, pushed(target, artifact))
}

async fn pushed(target: &TagReference, artifact: &Artifact) -> Result<Pushed, TransferError> {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (image, files) = (&target.image, artifact.files()?);
    let registry = image.resolve_registry();
    let protocol = if is_loopback(registry) { ClientProtocol::Http } else { ClientProtocol::Https };
    let config = ClientConfig {
        protocol,
        // Not every registry takes chunks.
        use_monolithic_push: true,
        connect_timeout: Some(CONNECT_MAX),
        ..ClientConfig::default()
    };
    let client = Client::try_from(config).map_err(|error| TransferError::Client(chain(&error)))?;
    let login = Login::find(registry).await;
    let wrong = |error| refused(&login, error);
    client.auth(image, &login.auth, RegistryOperation::Push).await.map_err(wrong)?;
    let component = (&artifact.component, &files.component_digest);
    let is_sent = push_blob(&client, image, component).await.map_err(wrong)?;
    push_blob(&client, image, (&files.config, &files.config_digest)).await.map_err(wrong)?;
    let tag_named = client.fetch_manifest_digest(image, &login.auth).await.ok();
    if tag_named.as_ref() != Some(&files.manifest_digest) {
        let media_type = HeaderValue::from_static(OCI_IMAGE_MEDIA_TYPE);
        client.push_manifest_raw(image, files.manifest, media_type).await.map_err(wrong)?;
        let received = client.fetch_manifest_digest(image, &login.auth).await.map_err(wrong)?;
        if received != files.manifest_digest {
            let (what, pinned) = ("the manifest in the registry", files.manifest_digest);
            return Err(TransferError::Digest { what, received, pinned });
        }
    }
    let reference = target.pinned(files.manifest_digest);
    Ok(Pushed { reference, component_digest: files.component_digest, is_sent, tag_named })
}

/// Sends a blob, unless the registry has it. Returns whether the blob was sent.
async fn push_blob(
    client: &Client,
    image: &Image,
    (bytes, digest): (&Bytes, &String),
) -> Result<bool, OciDistributionError> {
    // An error of this question has no words. The upload's has them.
    if client.blob_exists(image, digest).await.unwrap_or(false) {
        return Ok(false);
    }
    let (size, bytes) = (bytes.len() as u64, bytes.clone());
    let stream = futures_util::stream::once(async { Ok(bytes) });
    client.push_blob_stream(image, stream, digest, Some(size)).await.map(|_| true)
}

fn refused(login: &Login, error: OciDistributionError) -> TransferError {
    match error {
        OciDistributionError::RequestError(error) => login.failed(error),
        OciDistributionError::ServerError { code, message, .. } => {
            login.refused(StatusCode::from_u16(code).unwrap_or_default(), &message)
        }
        OciDistributionError::AuthenticationFailure(message) => {
            login.refused(StatusCode::UNAUTHORIZED, &message)
        }
        error => login.error(chain(&error)),
    }
}
