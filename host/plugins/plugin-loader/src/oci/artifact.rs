//! The artifact that holds a component: a manifest with one layer, in the layout of the CNCF's Wasm working group.

use std::collections::BTreeMap;

use bytes::Bytes;
use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use serde_json::json;

use crate::oci::digest::{is_sha256, sha256};
use crate::oci::error::TransferError;

/// The media types of a component's layer: that of the CNCF's Wasm working group, and its predecessor.
pub const LAYERS: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];
/// The media type of the config, which describes the component.
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// The time in the config, which readers of the layout require. A constant time gives a component the same digest at each push.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// A component to push, with the facts about it that a registry shows.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The component.
    pub component: Bytes,
    /// The plugin's name.
    pub name: String,
    /// The plugin's version.
    pub version: String,
    /// The interfaces that the component imports.
    pub imports: Vec<String>,
    /// The interfaces that the component exports.
    pub exports: Vec<String>,
}

/// The files of an artifact, as a registry stores them.
pub(crate) struct Files {
    pub(crate) component_digest: String,
    pub(crate) config: Bytes,
    pub(crate) config_digest: String,
    pub(crate) manifest: Bytes,
    pub(crate) manifest_digest: String,
}

impl Artifact {
    /// Describes the component in a config and a manifest. Equal artifacts give equal bytes.
    pub(crate) fn files(&self) -> Result<Files, TransferError> {
        let wrong = |error: serde_json::Error| TransferError::Artifact(error.to_string());
        let component_digest = sha256(&self.component);
        let config = json!({
            "created": CREATED,
            "architecture": "wasm",
            "os": "wasip2",
            "layerDigests": [component_digest],
            "component": {"imports": self.imports, "exports": self.exports},
        });
        let config = Bytes::from(serde_json::to_vec(&config).map_err(wrong)?);
        let config_digest = sha256(&config);
        let title = |name: String| ("org.opencontainers.image.title".to_owned(), name);
        let version = ("org.opencontainers.image.version".to_owned(), self.version.clone());
        let layer = OciDescriptor {
            annotations: Some(BTreeMap::from([title(format!("{}.wasm", self.name))])),
            ..descriptor(LAYERS[0], &component_digest, &self.component)
        };
        let manifest = OciImageManifest {
            media_type: Some(OCI_IMAGE_MEDIA_TYPE.to_owned()),
            config: descriptor(CONFIG, &config_digest, &config),
            layers: vec![layer],
            annotations: Some(BTreeMap::from([title(self.name.clone()), version])),
            ..OciImageManifest::default()
        };
        let manifest = Bytes::from(serde_json::to_vec(&manifest).map_err(wrong)?);
        let manifest_digest = sha256(&manifest);
        Ok(Files { component_digest, config, config_digest, manifest, manifest_digest })
    }
}

fn descriptor(media_type: &str, digest: &str, bytes: &[u8]) -> OciDescriptor {
    OciDescriptor {
        media_type: media_type.to_owned(),
        digest: digest.to_owned(),
        // A `usize` of bytes in memory is below 2^63.
        size: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
        ..OciDescriptor::default()
    }
}

/// Returns the layer of a manifest. An artifact must have exactly one layer.
pub(crate) fn layer(manifest: &[u8]) -> Result<OciDescriptor, TransferError> {
    let wrong = |why: String| TransferError::Artifact(why);
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
