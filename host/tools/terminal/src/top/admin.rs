//! The admin address, as its owner reaches it.

use serde_json::Value;

/// The admin address of a running Afterbay.
pub trait Admin: Send + 'static {
    /// GETs JSON from `/v1/` and the parts of `path`, which are encoded by the implementation, as is the query. Each call
    /// is a new connection. Returns whether the call succeeded, and the answer; a refusal has its words in `error`.
    ///
    /// # Errors
    /// There is no answer, or the answer is no JSON. The text says why, in one line.
    fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<(bool, Value), String>;
}
