//! The services that plugins ask.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::Name;

/// An HTTP service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name by which plugins call the service.
    pub name: Name,
    /// The URL, `http://` or `https://`.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<CallHeader>,
    /// The longest time of a call, from the connection to the last byte of the answer.
    pub timeout: Duration,
    /// The most calls at once.
    pub max_in_flight: usize,
    /// The longest body of an answer, in bytes.
    pub max_body_bytes: u64,
    /// The circuit breaker.
    pub breaker: Breaker,
    /// The files that the headers name.
    pub files: Vec<PathBuf>,
}

impl Call {
    /// A service at `url` with defaults for everything else.
    pub fn new(name: Name, url: impl Into<String>) -> Call {
        Call {
            name,
            url: url.into(),
            headers: Vec::new(),
            timeout: Duration::from_secs(2),
            max_in_flight: 64,
            max_body_bytes: 1 << 20,
            breaker: Breaker::default(),
            files: Vec::new(),
        }
    }
}

/// A header of each request to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// The name, which consists of characters that a header's name may have.
    pub name: String,
    /// The value, which consists of visible ASCII characters and spaces.
    pub value: Secret,
}

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The circuit breaker of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Failures in a row after which calls are refused. 0: never.
    pub failures: usize,
    /// The longest time from the first of these failures to the last.
    pub within: Duration,
    /// The time for which calls are refused. Then one call is tried.
    pub open: Duration,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker { failures: 5, within: Duration::from_secs(10), open: Duration::from_secs(5) }
    }
}
