//! Fetches a component: the pinned manifest, then the layer that it pins, each from the cache or the registry.

use std::path::Path;
use std::time::Duration;

use crate::oci::artifact;
use crate::oci::blocking::blocking;
use crate::oci::bounds::{FETCH_MAX, MANIFEST_BYTES_MAX};
use crate::oci::cache::ComponentCache;
use crate::oci::digest::sha256;
use crate::oci::error::TransferError;
use crate::oci::reference::Reference;
use crate::oci::registry::Registry;

/// Returns the component, of at most `max` bytes. Fetched files are cached in the directory `cache_dir`, if there is one,
/// and not fetched again.
///
/// Blocks for at most [`FETCH_MAX`], so it must not run where a batch waits. Credentials are those of `docker login`
/// (or `oras login`). A registry on a loopback address is used without TLS, as Docker does.
pub fn fetch(reference: &Reference, cache_dir: Option<&Path>, max: u64) -> Result<Vec<u8>, TransferError> {
    fetch_within(reference, cache_dir, max, FETCH_MAX)
}

/// Does [`fetch`] with another time limit.
pub fn fetch_within(
    reference: &Reference,
    cache_dir: Option<&Path>,
    max: u64,
    within: Duration,
) -> Result<Vec<u8>, TransferError> {
    let cache = ComponentCache::new(cache_dir);
    blocking(reference.image.resolve_registry(), within, fetched(reference, &cache, max))
}

async fn fetched(reference: &Reference, cache: &ComponentCache, max: u64) -> Result<Vec<u8>, TransferError> {
    let mut registry = None;
    let manifest = match cache.read(&reference.digest, MANIFEST_BYTES_MAX as u64) {
        Some(manifest) => manifest,
        None => {
            let registry = registry.insert(Registry::new(&reference.image).await?);
            let manifest = registry
                .get("the manifest", &format!("manifests/{}", reference.digest), MANIFEST_BYTES_MAX as u64)
                .await?;
            held_to("the manifest", &manifest, &reference.digest)?;
            cache.store(&reference.digest, &manifest);
            manifest
        }
    };
    let layer = artifact::layer(&manifest)?;
    let size = u64::try_from(layer.size).unwrap_or(u64::MAX);
    bounded("the component", size, max)?;
    if let Some(component) = cache.read(&layer.digest, max) {
        return Ok(component);
    }
    let mut registry = match registry {
        Some(registry) => registry,
        None => Registry::new(&reference.image).await?,
    };
    let component = registry.get("the component", &format!("blobs/{}", layer.digest), size).await?;
    held_to("the component", &component, &layer.digest)?;
    cache.store(&layer.digest, &component);
    Ok(component)
}

fn bounded(what: &'static str, bytes: u64, max: u64) -> Result<(), TransferError> {
    if bytes > max { Err(TransferError::TooLarge { what, bytes, max }) } else { Ok(()) }
}

fn held_to(what: &'static str, bytes: &[u8], pinned: &str) -> Result<(), TransferError> {
    let received = sha256(bytes);
    let pinned = pinned.to_owned();
    if received == pinned { Ok(()) } else { Err(TransferError::Digest { what, received, pinned }) }
}
