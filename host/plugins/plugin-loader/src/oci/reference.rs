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
    /// The reference has no tag, or a digest.
    #[error("{text:?} is no place for a component: it must be HOST[:PORT]/REPOSITORY:TAG{}", digest_note(*has_digest))]
    NoTag {
        /// The reference without a password.
        text: String,
        /// Whether a digest is given.
        has_digest: bool,
    },
}

fn digest_note(has_digest: bool) -> &'static str {
    if has_digest { ", without a digest, which the push prints" } else { "" }
}

const NO_PASSWORD: &str = "it must not have a user and password; use docker login";

fn form(text: &str, why: &str) -> ReferenceError {
    ReferenceError::Form { text: afterbay_http::redacted(text), why: why.to_owned() }
}

/// Whether a name begins with a host, and not with a repository of Docker's own registry.
fn names_a_host(name: &str) -> bool {
    let host = name.split_once('/').map(|(host, _)| host);
    host.is_some_and(|host| host == "localhost" || host.contains(['.', ':']))
}

fn image(text: &str, name: &str) -> Result<oci_client::Reference, ReferenceError> {
    name.parse().map_err(|error: oci_client::ParseError| {
        let must = "it must be HOST[:PORT]/REPOSITORY[:TAG] with the repository in lower case";
        form(text, &format!("{error}, {must}"))
    })
}

impl Reference {
    /// Parses a reference.
    pub fn parse(text: &str) -> Result<Reference, ReferenceError> {
        let form = |why: &str| form(text, why);
        let name = text.strip_prefix(SCHEME).ok_or_else(|| form("it does not begin with oci://"))?;
        if !names_a_host(name) {
            return Err(form("it must name its registry's host, as in oci://ghcr.io/…"));
        }
        if name.split_once("@sha256:").map_or(name, |(image, _)| image).contains('@') {
            return Err(form(NO_PASSWORD));
        }
        let digest = name.split_once('@').map_or("", |(_, digest)| digest).to_lowercase();
        if !is_sha256(&digest) {
            return Err(ReferenceError::NotPinned { text: afterbay_http::redacted(text) });
        }
        let image = image(text, name)?;
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

/// `[oci://]HOST[:PORT]/REPOSITORY:TAG`, a place for a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagReference {
    pub(crate) image: oci_client::Reference,
    pub(crate) tag: String,
}

impl TagReference {
    /// Parses a reference. It must have a tag, because many registries delete what no tag names.
    pub fn parse(text: &str) -> Result<TagReference, ReferenceError> {
        let name = text.strip_prefix(SCHEME).unwrap_or(text);
        // The text may have a password before any `@`, and a message redacts only what follows a scheme.
        let shown = format!("{SCHEME}{name}");
        let has_digest = name.contains("@sha256:");
        if name.split_once("@sha256:").map_or(name, |(image, _)| image).contains('@') {
            return Err(form(&shown, NO_PASSWORD));
        }
        if !names_a_host(name) {
            return Err(form(&shown, "it must name its registry's host, as in ghcr.io/…"));
        }
        let is_tagged = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
        if has_digest || !is_tagged {
            return Err(ReferenceError::NoTag { text: shown, has_digest });
        }
        let image = image(&shown, name)?;
        let tag = image.tag().unwrap_or_default().to_owned();
        Ok(TagReference { image, tag })
    }

    /// The tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The reference that pins the manifest of this digest.
    pub(crate) fn pinned(&self, digest: String) -> Reference {
        let (registry, repository) = (self.image.registry(), self.image.repository());
        let image = oci_client::Reference::with_tag_and_digest(
            registry.to_owned(),
            repository.to_owned(),
            self.tag.clone(),
            digest.clone(),
        );
        Reference { image, digest }
    }
}

impl std::fmt::Display for TagReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{SCHEME}{}", self.image)
    }
}
