//! The artifact that holds a component: a manifest with one layer, in the layout of the CNCF's Wasm working group.

use oci_client::manifest::{OciDescriptor, OciImageManifest};

use crate::oci::digest::is_sha256;
use crate::oci::error::TransferError;

/// The media types of a component's layer: that of the CNCF's Wasm working group, and its predecessor.
pub const LAYERS: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];

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
