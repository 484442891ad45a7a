//! The attributes of a request that its engine knows, as the name of its LoRA adapter. The connector sends them on the scheduler's
//! own connection, before the request's first row. `docs/src/engines/introduction.md` has their form.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use thiserror::Error;

use crate::bounds::{MAX_ATTRIBUTES_BYTES, MAX_RID_BYTES};

/// The beginning of every such message.
const HEAD: &[u8] = br#"{"afterbay":"attributes""#;

/// The attributes of one request.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct RequestAttributes {
    /// The request's rid, as it is in its rows.
    pub rid: String,
    /// The attributes, by name.
    pub attributes: Map<String, Json>,
}

/// The reason why a message has no attributes that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttributesError {
    /// It is too long.
    #[error("attributes of {bytes} bytes are over the limit of {MAX_ATTRIBUTES_BYTES}")]
    TooLong {
        /// The length.
        bytes: usize,
    },
    /// The rid is empty or too long.
    #[error("attributes of a rid of {bytes} bytes, should be 1 to {MAX_RID_BYTES}")]
    Rid {
        /// The length.
        bytes: usize,
    },
    /// It is not JSON of the right form.
    #[error("attributes cannot be read: {0}")]
    Json(String),
}

/// Whether the frame has the attributes of a request.
pub(crate) fn is_attributes(frame: &[u8]) -> bool {
    frame.starts_with(HEAD)
}

impl RequestAttributes {
    /// Reads the message.
    pub fn read(frame: &[u8]) -> Result<RequestAttributes, AttributesError> {
        if frame.len() > MAX_ATTRIBUTES_BYTES {
            return Err(AttributesError::TooLong { bytes: frame.len() });
        }
        let read: RequestAttributes =
            serde_json::from_slice(frame).map_err(|error| AttributesError::Json(error.to_string()))?;
        match read.rid.len() {
            1..=MAX_RID_BYTES => Ok(read),
            bytes => Err(AttributesError::Rid { bytes }),
        }
    }
}

impl fmt::Display for RequestAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attributes of {:?}", self.rid)
    }
}
