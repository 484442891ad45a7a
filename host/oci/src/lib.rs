//! Fetches a plugin's component from an OCI registry, pinned by its digest.
//!
//! The reference pins the manifest, and the manifest pins the component. Both digests are checked after every fetch and
//! every read from the cache. A cached component needs no registry. Every answer of a registry is limited in size and
//! time. The crate knows nothing of plugins.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod kept;
mod registry;

use std::path::Path;
use std::time::Duration;

use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::kept::Kept;
use crate::registry::Registry;

/// The media types of a component's layer: that of the CNCF's Wasm working group, and its predecessor.
pub const LAYERS: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];
/// Bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 1 << 20;
/// The time to connect to a registry.
pub const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The time for everything that is fetched of one component, including Docker's credential helper.
pub const FETCH_MAX: Duration = Duration::from_secs(120);
/// The time in which a connected registry must send something.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// The prefix of a reference.
pub const SCHEME: &str = "oci://";

/// `oci://HOST[:PORT]/REPOSITORY[:TAG]@sha256:DIGEST`. The digest is the manifest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    image: oci_client::Reference,
    digest: String,
}

/// The reason why a reference is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// The text is not a reference.
    #[error("{text:?} is no reference to a registry: {why}")]
    Form {
        /// The reference without a password.
        text: String,
        /// The reason, in the words of the OCI rules.
        why: String,
    },
    /// The reference has no digest: its tag may name another component later.
    #[error(
        "{text:?} is not pinned: it must end with @sha256: and the 64 hexadecimal digits of its manifest"
    )]
    NotPinned {
        /// The reference without a password.
        text: String,
    },
}

impl Reference {
    /// Parses a reference.
    pub fn parse(text: &str) -> Result<Reference, ReferenceError> {
        let shown = || afterbay_http::redacted(text);
        let form = |why: &str| ReferenceError::Form { text: shown(), why: why.to_owned() };
        let name = text.strip_prefix(SCHEME).ok_or_else(|| form("it does not begin with oci://"))?;
        if !name.split('/').next().is_some_and(|host| host == "localhost" || host.contains(['.', ':'])) {
            return Err(form("it must name its registry's host, as in oci://ghcr.io/…"));
        }
        if name.split_once("@sha256:").map_or(name, |(image, _)| image).contains('@') {
            return Err(form("it must have no user and password, they are Docker's: docker login"));
        }
        let digest = name.split_once('@').map_or("", |(_, digest)| digest).to_lowercase();
        if !is_sha256(&digest) {
            return Err(ReferenceError::NotPinned { text: shown() });
        }
        let image = name.parse().map_err(|error: oci_client::ParseError| {
            form(&format!(
                "{error}, expected is HOST[:PORT]/REPOSITORY[:TAG], the repository in small letters"
            ))
        })?;
        Ok(Reference { image, digest })
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{SCHEME}{}", self.image)
    }
}

/// The reason why there is no component.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The registry was not reached, or refused the request.
    #[error("registry {registry}: {why}")]
    Registry {
        /// The registry's host and port.
        registry: String,
        /// The reason.
        why: String,
    },
    /// The registry took too long.
    #[error("registry {registry}: nothing whole within {within:?}")]
    Slow {
        /// The registry's host and port.
        registry: String,
        /// The limit.
        within: Duration,
    },
    /// The received bytes have another digest.
    #[error("{what} has the digest {came}, and must have {pinned}")]
    Digest {
        /// The manifest, or the component.
        what: &'static str,
        /// The digest of the received bytes.
        came: String,
        /// The pinned digest.
        pinned: String,
    },
    /// The declared size exceeds the limit.
    #[error("{what} has {bytes} bytes, at most {max} are taken")]
    TooLarge {
        /// The manifest, or the component.
        what: &'static str,
        /// The declared size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The body exceeds its limit or its declared size.
    #[error("{what} has more than {max} bytes")]
    Longer {
        /// The manifest, the component, or a token.
        what: &'static str,
        /// The limit; for a component, the size in its manifest.
        max: u64,
    },
    /// The artifact is not one component.
    #[error("the artifact is no component: {0}")]
    Artifact(String),
    /// The thread or the HTTP client could not be made.
    #[error("no client for registries: {0}")]
    Client(String),
}

/// Returns the component, of at most `max` bytes. Fetched files are cached in the directory `kept`, if there is one,
/// and not fetched again.
///
/// Blocks for at most [`FETCH_MAX`], so it must not run where a batch waits. Credentials are those of `docker login`
/// (or `oras login`). A registry on a loopback address is used without TLS, as Docker does.
pub fn fetch(reference: &Reference, kept: Option<&Path>, max: u64) -> Result<Vec<u8>, FetchError> {
    fetch_within(reference, kept, max, FETCH_MAX)
}

/// Does [`fetch`] with another time limit.
pub fn fetch_within(
    reference: &Reference,
    kept: Option<&Path>,
    max: u64,
    within: Duration,
) -> Result<Vec<u8>, FetchError> {
    // A thread of its own: the caller's thread may be in a runtime, where no second one can run.
    std::thread::scope(|scope| {
        let fetching = std::thread::Builder::new().name("oci".to_owned()).spawn_scoped(scope, || {
            let client = |error: std::io::Error| FetchError::Client(error.to_string());
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(client)?;
            let kept = Kept::new(kept);
            let fetched = runtime.block_on(async {
                let fetched = tokio::time::timeout(within, fetched(reference, &kept, max)).await;
                fetched.unwrap_or_else(|_| Err(FetchError::Slow { registry: registry(reference), within }))
            });
            // Does not wait for a host name that is still being resolved.
            runtime.shutdown_background();
            fetched
        });
        match fetching.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(fetched)) => fetched,
            Ok(Err(_)) => Err(FetchError::Client("a panic, see above".to_owned())),
            Err(error) => Err(FetchError::Client(error.to_string())),
        }
    })
}

fn registry(reference: &Reference) -> String {
    reference.image.resolve_registry().to_owned()
}

async fn fetched(reference: &Reference, kept: &Kept, max: u64) -> Result<Vec<u8>, FetchError> {
    let mut registry = None;
    let manifest = match kept.read(&reference.digest, MANIFEST_BYTES_MAX as u64) {
        Some(manifest) => manifest,
        None => {
            let registry = registry.insert(Registry::new(&reference.image).await?);
            let manifest = registry.manifest(&reference.digest, OCI_IMAGE_MEDIA_TYPE).await?;
            held_to("the manifest", &manifest, &reference.digest)?;
            kept.keep(&reference.digest, &manifest);
            manifest
        }
    };
    let layer = layer(&manifest)?;
    let size = u64::try_from(layer.size).unwrap_or(u64::MAX);
    bounded("the component", size, max)?;
    if let Some(component) = kept.read(&layer.digest, max) {
        return Ok(component);
    }
    let mut registry = match registry {
        Some(registry) => registry,
        None => Registry::new(&reference.image).await?,
    };
    let component = registry.blob(&layer.digest, size).await?;
    held_to("the component", &component, &layer.digest)?;
    kept.keep(&layer.digest, &component);
    Ok(component)
}

/// Returns the component's layer. An artifact must have exactly one layer.
fn layer(manifest: &[u8]) -> Result<OciDescriptor, FetchError> {
    let wrong = |why: String| FetchError::Artifact(why);
    let manifest: OciImageManifest =
        serde_json::from_slice(manifest).map_err(|error| wrong(format!("its manifest is none: {error}")))?;
    let types: Vec<String> = manifest.layers.iter().map(|layer| layer.media_type.clone()).collect();
    let mut layers = manifest.layers;
    let is_component = |layer: &OciDescriptor| LAYERS.contains(&&*layer.media_type);
    match layers.pop() {
        Some(layer) if layers.is_empty() && is_component(&layer) => {
            let digest = layer.digest.to_lowercase();
            match is_sha256(&digest) {
                true => Ok(OciDescriptor { digest, ..layer }),
                false => Err(wrong(format!("its layer has the digest {digest:?}, which is no sha256"))),
            }
        }
        _ => Err(wrong(format!("its layers are {types:?}, and one of {} was expected", LAYERS[0]))),
    }
}

fn bounded(what: &'static str, bytes: u64, max: u64) -> Result<(), FetchError> {
    if bytes > max { Err(FetchError::TooLarge { what, bytes, max }) } else { Ok(()) }
}

fn held_to(what: &'static str, bytes: &[u8], pinned: &str) -> Result<(), FetchError> {
    let came = digest(bytes);
    let pinned = pinned.to_owned();
    if came == pinned { Ok(()) } else { Err(FetchError::Digest { what, came, pinned }) }
}

/// `sha256:` and the hexadecimal digest of the bytes.
fn digest(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{digits}")
}

/// Whether a text is `sha256:` and 64 hexadecimal digits.
fn is_sha256(digest: &str) -> bool {
    let digits = digest.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}
