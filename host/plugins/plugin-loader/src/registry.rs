//! Components out of a registry, kept in the user's cache.

use crate::oci::{Reference, ReferenceError, TransferError};
use afterbay_config::user_dirs;
use afterbay_runtime::limits::COMPONENT_BYTES_MAX;

/// Why a registry gave no component.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RegistryError {
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// A component out of a registry, or out of the cache. Waits for the registry.
///
/// # Errors
/// The reference is malformed, or the registry does not answer with a component.
pub fn fetch(reference: &str) -> Result<Vec<u8>, RegistryError> {
    let cache = user_dirs::cache().map(|cache| cache.join("components"));
    Ok(crate::oci::fetch(&Reference::parse(reference)?, cache.as_deref(), COMPONENT_BYTES_MAX)?)
}
