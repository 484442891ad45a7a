//! The parts and descriptors of a hand-over by name, and the versions of this process: both sides of a hand-over use them.

use crate::attributes::HandedAttributes;
use afterbay_supervision::hand_over::{Formats, Versions};
use serde::{Deserialize, Serialize};

/// The name of the journal's lock among the descriptors.
pub(crate) const LOCK: &str = "journal/lock";
/// The name of the hand-over's own socket among the descriptors.
pub(crate) const SOCKET: &str = "journal/hand-over";
/// The beginning of the name of a stream's part.
pub(crate) const STREAM_PART: &str = "stream/";
/// The name of each part with attributes.
pub(crate) const ATTRIBUTES_PART: &str = "attributes";

/// A part with attributes of requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttributesPart {
    pub(crate) entries: Vec<HandedAttributes>,
}

/// The version of a hand-over: its messages, and the state of each part in them.
const HAND_OVER_VERSION: u32 = 1;

/// The version of each format that this binary reads and writes: the journal, the store of plugins, and a hand-over.
pub fn format_versions() -> [(&'static str, u32); 3] {
    [
        ("journal", afterbay_journal::FORMAT_VERSION),
        ("store", afterbay_plugin_services::store::FORMAT_VERSION),
        ("hand-over", HAND_OVER_VERSION),
    ]
}

/// The versions of this process.
pub(crate) fn versions() -> Versions {
    let formats = format_versions().into_iter().map(|(name, version)| (name.to_owned(), version));
    Versions { afterbay: env!("CARGO_PKG_VERSION").to_owned(), formats: formats.collect::<Formats>() }
}
