//! Endpoints in ZeroMQ's notation. This file resolves, binds and connects nothing.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::bounds::IPC_PATH_BYTES_MAX;

/// The address that a socket binds or connects to. `Display` writes what [`FromStr`] reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `ipc:///run/afterbay/decode-0`: a path of at most 107 bytes.
    Ipc(PathBuf),
    /// `tcp://127.0.0.1:5557`, `tcp://[::1]:5557`, `tcp://localhost:5557`; for binding also `tcp://*:5557`.
    Tcp {
        /// A name, an address (IPv6 without brackets), or `*` for every IPv4 address, as in libzmq.
        host: String,
        /// For binding, 0 means any free port ([`Pull::endpoint`](crate::Pull::endpoint) returns the real one).
        port: u16,
    },
}

/// The reason why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text begins with neither transport.
    #[error("endpoint {0:?} has no known transport, it must begin with ipc:// or tcp://")]
    Transport(String),
    /// `ipc://` has no path.
    #[error("endpoint {0:?} has no path, it must be like ipc:///run/afterbay/decode-0")]
    NoPath(String),
    /// libzmq's `ipc://*` (a temporary name) and `ipc://@name` (an abstract name) have no file, and so no mode.
    #[error("endpoint {0:?} is a wildcard or an abstract name, it must be a path")]
    NotAPath(String),
    /// The path has a zero byte.
    #[error("ipc path {0:?} has a zero byte")]
    Zero(String),
    /// The path is longer than the kernel accepts.
    #[error("ipc path {path:?} has {bytes} bytes, the limit is {IPC_PATH_BYTES_MAX}")]
    Long {
        /// The path.
        path: String,
        /// Its length.
        bytes: usize,
    },
    /// The text has no `host:port`, or its port is not a number up to 65535.
    #[error("endpoint {0:?} has no host and port, it must be like tcp://127.0.0.1:5557")]
    HostPort(String),
}

impl Endpoint {
    /// Makes an ipc endpoint of a path, with the checks of [`FromStr`].
    pub fn ipc(path: impl Into<PathBuf>) -> Result<Endpoint, EndpointError> {
        let path = path.into();
        let bytes = path.as_os_str().as_bytes();
        let shown = || path.display().to_string();
        match bytes {
            [] => Err(EndpointError::NoPath("ipc://".to_owned())),
            [b'@', ..] | b"*" => Err(EndpointError::NotAPath(format!("ipc://{}", shown()))),
            _ if bytes.contains(&0) => Err(EndpointError::Zero(shown())),
            _ if bytes.len() > IPC_PATH_BYTES_MAX => {
                Err(EndpointError::Long { path: shown(), bytes: bytes.len() })
            }
            _ => Ok(Endpoint::Ipc(path)),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            return Endpoint::ipc(path);
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(EndpointError::Transport(text.to_owned()));
        };
        let wrong = || EndpointError::HostPort(text.to_owned());
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port = match port {
            "*" => 0,
            _ if port.bytes().all(|b| b.is_ascii_digit()) => port.parse().map_err(|_| wrong())?,
            _ => return Err(wrong()),
        };
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(Some(inner)) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
            Some(_) => return Err(wrong()),
            None if host.is_empty() || host.contains([':', '/', ';', ' ']) => return Err(wrong()),
            None => host,
        };
        Ok(Endpoint::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_shown_as_it_is_written() {
        for text in [
            "ipc:///run/afterbay/decode-0",
            "ipc://relative/name",
            "tcp://127.0.0.1:5557",
            "tcp://[::1]:5557",
            "tcp://localhost:0",
            "tcp://*:5557",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!("tcp://*:*".parse::<Endpoint>().unwrap().to_string(), "tcp://*:0");
    }

    #[test]
    fn invalid_endpoints_are_refused_with_the_reason() {
        let long = format!("ipc:///{}", "x".repeat(107));
        for (text, words) in [
            ("", "no known transport"),
            ("inproc://x", "no known transport"),
            ("ipc://", "no path"),
            ("ipc://*", "wildcard"),
            ("ipc://@name", "abstract"),
            ("ipc:///a\0b", "zero byte"),
            (long.as_str(), "has 108 bytes, the limit is 107"),
            ("tcp://127.0.0.1", "host and port"),
            ("tcp://:5557", "host and port"),
            ("tcp://host:65536", "host and port"),
            ("tcp://host:+1", "host and port"),
            ("tcp://::1:5557", "host and port"),
            ("tcp://[::1:5557", "host and port"),
            ("tcp://[host]:5557", "host and port"),
            ("tcp://10.0.0.1:0;127.0.0.1:5557", "host and port"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let fits = format!("ipc:///{}", "x".repeat(106));
        assert!(fits.parse::<Endpoint>().is_ok());
    }
}
