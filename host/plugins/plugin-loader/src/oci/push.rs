//! Pushes a component: its blobs, then the manifest under the tag.

use std::time::Duration;

use crate::oci::artifact::Artifact;
use crate::oci::blocking::blocking;
use crate::oci::bounds::{PUSH_MAX, UPLOAD_STALL_MAX};
use crate::oci::error::TransferError;
use crate::oci::reference::{Reference, TagReference};
use crate::oci::registry::{Access, Registry};
use crate::oci::upload::Blob;

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

/// The time limits of a push.
#[derive(Clone, Copy, Debug)]
pub struct PushTimes {
    /// The time for everything.
    pub total: Duration,
    /// The time in which a registry that is sent a blob must take something, or answer after the last byte.
    pub stall: Duration,
}

/// Pushes a component, and moves the tag to it. What the registry has is not sent again, so a push that failed can be repeated.
/// `progress` gets the number of bytes of the component that were sent, several times a second.
///
/// Blocks for at most [`PUSH_MAX`]. Credentials and TLS are those of [`fetch`](crate::oci::fetch()).
///
/// # Errors
/// The registry refuses a file, is not reached, or stalls.
pub fn push(
    target: &TagReference,
    artifact: &Artifact,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Pushed, TransferError> {
    push_within(target, artifact, PushTimes { total: PUSH_MAX, stall: UPLOAD_STALL_MAX }, progress)
}

/// Does [`push`] with other time limits.
///
/// # Errors
/// Those of [`push`].
pub fn push_within(
    target: &TagReference,
    artifact: &Artifact,
    times: PushTimes,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Pushed, TransferError> {
    let pushing = pushed(target, artifact, times.stall, progress);
    blocking(target.image.resolve_registry(), times.total, pushing)
}

async fn pushed(
    target: &TagReference,
    artifact: &Artifact,
    stall: Duration,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Pushed, TransferError> {
    let files = artifact.files()?;
    let mut registry = Registry::new(&target.image, Access::Push).await?;
    let component =
        Blob { what: "the component", bytes: &artifact.component, digest: &files.component_digest, stall };
    let config =
        Blob { what: "the component's config", bytes: &files.config, digest: &files.config_digest, stall };
    let is_sent = registry.push_blob(&component, progress).await?;
    registry.push_blob(&config, &|_| ()).await?;
    let tag_named = registry.tagged(target.tag()).await?;
    if tag_named.as_ref() != Some(&files.manifest_digest) {
        registry.push_manifest(target.tag(), &files.manifest, &files.manifest_digest).await?;
    }
    let reference = target.pinned(files.manifest_digest);
    Ok(Pushed { reference, component_digest: files.component_digest, is_sent, tag_named })
}
