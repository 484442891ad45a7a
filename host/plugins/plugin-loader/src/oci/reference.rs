//! References to components in a registry.

use thiserror::Error;

use crate::oci::digest::is_sha256;

/// The prefix of a reference.
pub const SCHEME: &str = "oci://";

/// `oci://HOST[:PORT]/REPOSITORY[:TAG]@sha256:DIGEST`. The digest is the manifest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub(crate) image: oci_client::Reference,
    /// The digest of the manifest, in lower case.
    pub(crate) digest: String,
}

/// The reason why a reference is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// The text is not a reference.
    #[error("{text:?} is not a reference to a registry: {why}")]
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
        // Without a host, it would be a repository of Docker's own registry.
        let host = name.split_once('/').map(|(host, _)| host);
        if !host.is_some_and(|host| host == "localhost" || host.contains(['.', ':'])) {
            return Err(form("it must name its registry's host, as in oci://ghcr.io/…"));
        }
        if name.split_once("@sha256:").map_or(name, |(image, _)| image).contains('@') {
            return Err(form("it must not have a user and password; use docker login"));
        }
        let digest = name.split_once('@').map_or("", |(_, digest)| digest).to_lowercase();
        if !is_sha256(&digest) {
            return Err(ReferenceError::NotPinned { text: shown() });
        }
        let image = name.parse().map_err(|error: oci_client::ParseError| {
            let must = "it must be HOST[:PORT]/REPOSITORY[:TAG] with the repository in lower case";
            form(&format!("{error}, {must}"))
        })?;
        Ok(Reference { image, digest })
    }

    /// `sha256:` and the digest of the manifest.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{SCHEME}{}", self.image)
    }
}
