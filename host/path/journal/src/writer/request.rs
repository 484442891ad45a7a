//! Opens requests of rids that are stored unchanged.

use super::JournalWriter;
use crate::bounds::RID_BYTES_MAX;
use crate::error::RequestError;
use crate::request::JournalRequest;

impl JournalWriter {
    /// Opens a request whose rid is stored unchanged. Refuses another rid.
    pub fn request(&mut self, rid: &str) -> Result<JournalRequest, RequestError> {
        match rid.len() {
            bytes if bytes > RID_BYTES_MAX => Err(RequestError::RidTooLong { bytes }),
            _ => Ok(self.open(rid.as_bytes())),
        }
    }
}
