//! Endpoints in ZeroMQ's notation. Nothing is resolved, bound or connected here.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

/// The longest path of a Unix socket, in bytes: `sun_path` has 108 bytes with its final zero byte.
pub const IPC_PATH_BYTES_MAX: usize = 107;

/// An address on which a socket listens or to which it connects. `Display` writes text that [`FromStr`] reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `ipc:///run/afterbay/decode-0`: a path of at most [`IPC_PATH_BYTES_MAX`] bytes.
    Ipc(PathBuf),
    /// `tcp://127.0.0.1:5557`, `tcp://[::1]:5557`, `tcp://localhost:5557`; to listen also `tcp://*:5557`.
    Tcp {
        /// A host name, an address (IPv6 without its brackets), or `*`: every IPv4 address, as in libzmq.
        host: String,
        /// A socket that listens on port 0 (or `*`) gets a free port.
        port: u16,
    },
}

/// The reason why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text begins with neither of the two transports.
    #[error("endpoint {0:?} has no known transport, must begin with ipc:// or tcp://")]
    Transport(String),
    /// Nothing follows `ipc://`, or the path is a directory.
    #[error("endpoint {0:?} has no path, must be like ipc:///run/afterbay/decode-0")]
    NoPath(String),
    /// libzmq's `ipc://*` (a temporary name) and `ipc://@name` (an abstract name) have no file, so no access mode.
    #[error("endpoint {0:?} is a wildcard or an abstract name, must be a path")]
    NotAPath(String),
    /// The path has a zero byte.
    #[error("ipc path {0:?} has a zero byte")]
    Zero(String),
    /// The path is longer than the kernel allows.
    #[error("ipc path {path:?} has {bytes} bytes, the limit is {IPC_PATH_BYTES_MAX}")]
    Long {
        /// The path.
        path: String,
        /// Its length.
        bytes: usize,
    },
    /// The text after `tcp://` is not `HOST:PORT`.
    #[error("endpoint {0:?} has no host and port, must be like tcp://127.0.0.1:5557")]
    HostPort(String),
    /// The port is past 65535, or not a number.
    #[error("port {0:?} must be 0 to 65535")]
    Port(String),
}

impl Endpoint {
    /// Makes an ipc endpoint from a path, with the checks of [`FromStr`].
    pub fn ipc(path: impl Into<PathBuf>) -> Result<Endpoint, EndpointError> {
        let path = path.into();
        let shown = || path.display().to_string();
        let text = || format!("ipc://{}", path.display());
        match path.as_os_str().as_bytes() {
            [] | [.., b'/'] => Err(EndpointError::NoPath(text())),
            [b'@', ..] | b"*" => Err(EndpointError::NotAPath(text())),
            bytes if bytes.contains(&0) => Err(EndpointError::Zero(shown())),
            bytes if bytes.len() > IPC_PATH_BYTES_MAX => {
                Err(EndpointError::Long { path: shown(), bytes: bytes.len() })
            }
            _ => Ok(Endpoint::Ipc(path)),
        }
    }

    /// Whether this endpoint is an ipc path that depends on the directory in which a process was started.
    pub fn is_relative(&self) -> bool {
        matches!(self, Endpoint::Ipc(path) if path.is_relative())
    }

    /// Whether no socket can connect here: the host is every address, or the port is 0.
    pub fn is_listen_only(&self) -> bool {
        matches!(self, Endpoint::Tcp { host, port } if *port == 0 || is_every_address(host))
    }

    /// Whether a socket that connects to this endpoint reaches one that listens on `listen`. Host names are compared as
    /// text; loopback addresses count as this host.
    pub fn reaches(&self, listen: &Endpoint) -> bool {
        match (self, listen) {
            (Endpoint::Tcp { host, port }, Endpoint::Tcp { host: listen_host, port: listen_port }) => {
                port == listen_port
                    && (host == listen_host || is_every_address(listen_host) && is_this_host(host))
            }
            (connect, listen) => connect == listen,
        }
    }

    /// Whether two sockets cannot listen on both endpoints at once.
    pub fn collides(&self, other: &Endpoint) -> bool {
        match (self, other) {
            (Endpoint::Ipc(a), Endpoint::Ipc(b)) => a == b,
            (Endpoint::Tcp { host: a, port: p }, Endpoint::Tcp { host: b, port: q }) => {
                p == q && *p != 0 && (a == b || is_every_address(a) || is_every_address(b))
            }
            _ => false,
        }
    }
}

fn is_every_address(host: &str) -> bool {
    matches!(host, "*" | "0.0.0.0" | "::")
}

fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
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
        let no_host = || EndpointError::HostPort(text.to_owned());
        let (host, port_text) = address.rsplit_once(':').ok_or_else(no_host)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').filter(|host| host.parse::<std::net::Ipv6Addr>().is_ok()),
            None => Some(host).filter(|host| !host.is_empty() && !host.contains([':', ']', '/', ';', ' '])),
        };
        let host = host.ok_or_else(no_host)?.to_owned();
        let port = match port_text {
            "*" => Some(0),
            // `u16::from_str` would take a plus sign.
            _ if port_text.starts_with('+') => None,
            _ => port_text.parse().ok(),
        };
        let port = port.ok_or_else(|| EndpointError::Port(port_text.to_owned()))?;
        Ok(Endpoint::Tcp { host, port })
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

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn an_endpoint_prints_as_it_was_written() {
        for text in [
            "ipc:///run/afterbay/decode-0",
            "ipc://relative/name",
            "tcp://127.0.0.1:5557",
            "tcp://[::1]:5557",
            "tcp://localhost:0",
            "tcp://reader.local:65535",
            "tcp://*:5557",
        ] {
            assert_eq!(endpoint(text).to_string(), text);
        }
        assert_eq!(endpoint("tcp://*:*").to_string(), "tcp://*:0");
    }

    #[test]
    fn text_that_is_no_endpoint_is_refused_with_the_reason() {
        let long = format!("ipc:///{}", "x".repeat(107));
        for (text, words) in [
            ("", "no known transport"),
            ("inproc://x", "no known transport"),
            ("/run/a", "no known transport"),
            ("ipc://", "no path"),
            ("ipc:///a/", "no path"),
            ("ipc://*", "wildcard"),
            ("ipc://@name", "abstract"),
            ("ipc:///a\0b", "zero byte"),
            (long.as_str(), "has 108 bytes, the limit is 107"),
            ("tcp://", "host and port"),
            ("tcp://127.0.0.1", "host and port"),
            ("tcp://:5557", "host and port"),
            ("tcp://::1:5557", "host and port"),
            ("tcp://[::1:5557", "host and port"),
            ("tcp://[host]:5557", "host and port"),
            ("tcp://10.0.0.1:0;127.0.0.1:5557", "host and port"),
            ("tcp://host:", "port \"\" must be"),
            ("tcp://host:65536", "port \"65536\" must be"),
            ("tcp://host:+1", "port \"+1\" must be"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_ipc_path_has_at_most_107_bytes() {
        let path = |bytes: usize| format!("ipc:///{}", "a".repeat(bytes - 1)).parse::<Endpoint>();
        assert!(path(107).is_ok());
        assert!(matches!(path(108), Err(EndpointError::Long { bytes: 108, .. })));
    }

    #[test]
    fn every_address_collides_with_each_on_its_port_but_not_without_a_port() {
        let collide = |a, b| endpoint(a).collides(&endpoint(b)) && endpoint(b).collides(&endpoint(a));
        assert!(collide("tcp://*:1", "tcp://127.0.0.1:1"));
        assert!(collide("tcp://a:1", "tcp://a:1"));
        assert!(!collide("tcp://a:1", "tcp://b:1"));
        assert!(!collide("tcp://*:1", "tcp://*:2"));
        assert!(!collide("tcp://*:0", "tcp://*:0"));
        assert!(!collide("ipc:///a", "ipc:///b"));
    }

    #[test]
    fn a_port_of_another_host_does_not_reach_a_listener_here() {
        let reaches = |connect, listen| endpoint(connect).reaches(&endpoint(listen));
        assert!(reaches("tcp://localhost:1", "tcp://*:1"));
        assert!(!reaches("tcp://reader:1", "tcp://*:1"));
    }
}
