//! Fetches a component: the pinned manifest, then the layer that it pins, each from the cache or the registry.

use std::path::Path;
use std::time::Duration;

use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};

use crate::bounds::{FETCH_MAX, MANIFEST_BYTES_MAX};
use crate::cache::ComponentCache;
use crate::digest::{is_sha256, sha256};
use crate::error::FetchError;
use crate::reference::Reference;
use crate::registry::Registry;

/// The media types of a component's layer: that of the CNCF's Wasm working group, and its predecessor.
pub const LAYERS: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];
/// Returns the component, of at most `max` bytes. Fetched files are cached in the directory `cache_dir`, if there is one,
/// and not fetched again.
///
/// Blocks for at most [`FETCH_MAX`], so it must not run where a batch waits. Credentials are those of `docker login`
/// (or `oras login`). A registry on a loopback address is used without TLS, as Docker does.
pub fn fetch(reference: &Reference, cache_dir: Option<&Path>, max: u64) -> Result<Vec<u8>, FetchError> {
    fetch_within(reference, cache_dir, max, FETCH_MAX)
}

/// Does [`fetch`] with another time limit.
pub fn fetch_within(
    reference: &Reference,
    cache_dir: Option<&Path>,
    max: u64,
    within: Duration,
) -> Result<Vec<u8>, FetchError> {
    // A thread of its own: the caller's thread may be in a runtime, where no second one can run.
    std::thread::scope(|scope| {
        let fetching = std::thread::Builder::new().name("oci".to_owned()).spawn_scoped(scope, || {
            let client = |error: std::io::Error| FetchError::Client(error.to_string());
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(client)?;
            let cache = ComponentCache::new(cache_dir);
            let fetched = runtime.block_on(async {
                let fetched = tokio::time::timeout(within, fetched(reference, &cache, max)).await;
                fetched.unwrap_or_else(|_| Err(FetchError::Slow { registry: registry(reference), within }))
            });
            // Does not wait for a host name that is still being resolved.
            runtime.shutdown_background();
            fetched
        });
        match fetching.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(fetched)) => fetched,
            Ok(Err(_)) => Err(FetchError::Client("the fetching thread panicked".to_owned())),
            Err(error) => Err(FetchError::Client(error.to_string())),
        }
    })
}

fn registry(reference: &Reference) -> String {
    reference.image.resolve_registry().to_owned()
}

async fn fetched(reference: &Reference, cache: &ComponentCache, max: u64) -> Result<Vec<u8>, FetchError> {
    let mut registry = None;
    let manifest = match cache.read(&reference.digest, MANIFEST_BYTES_MAX as u64) {
        Some(manifest) => manifest,
        None => {
            let registry = registry.insert(Registry::new(&reference.image).await?);
            let manifest = registry.manifest(&reference.digest, OCI_IMAGE_MEDIA_TYPE).await?;
            held_to("the manifest", &manifest, &reference.digest)?;
            cache.store(&reference.digest, &manifest);
            manifest
        }
    };
    let layer = layer(&manifest)?;
    let size = u64::try_from(layer.size).unwrap_or(u64::MAX);
    bounded("the component", size, max)?;
    if let Some(component) = cache.read(&layer.digest, max) {
        return Ok(component);
    }
    let mut registry = match registry {
        Some(registry) => registry,
        None => Registry::new(&reference.image).await?,
    };
    let component = registry.blob(&layer.digest, size).await?;
    held_to("the component", &component, &layer.digest)?;
    cache.store(&layer.digest, &component);
    Ok(component)
}

/// Returns the component's layer. An artifact must have exactly one layer.
fn layer(manifest: &[u8]) -> Result<OciDescriptor, FetchError> {
    let wrong = |why: String| FetchError::Artifact(why);
    let manifest: OciImageManifest = serde_json::from_slice(manifest)
        .map_err(|error| wrong(format!("its manifest is invalid: {error}")))?;
    let types: Vec<String> = manifest.layers.iter().map(|layer| layer.media_type.clone()).collect();
    let mut layers = manifest.layers;
    let is_component = |layer: &OciDescriptor| LAYERS.contains(&&*layer.media_type);
    match layers.pop() {
        Some(layer) if layers.is_empty() && is_component(&layer) => {
            let digest = layer.digest.to_lowercase();
            match is_sha256(&digest) {
                true => Ok(OciDescriptor { digest, ..layer }),
                false => Err(wrong(format!("its layer has the digest {digest:?}, which is not a sha256"))),
            }
        }
        _ => Err(wrong(format!("its layers are {types:?}, it must have one of {}", LAYERS[0]))),
    }
}

fn bounded(what: &'static str, bytes: u64, max: u64) -> Result<(), FetchError> {
    if bytes > max { Err(FetchError::TooLarge { what, bytes, max }) } else { Ok(()) }
}

fn held_to(what: &'static str, bytes: &[u8], pinned: &str) -> Result<(), FetchError> {
    let received = sha256(bytes);
    let pinned = pinned.to_owned();
    if received == pinned { Ok(()) } else { Err(FetchError::Digest { what, received, pinned }) }
}
